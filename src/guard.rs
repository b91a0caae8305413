//! Ends a run that cannot continue and cannot return an error: memory is exhausted, or a mapped file became shorter.
//!
//! The run prints a message, deletes its temporary files, and exits with code 1. A signal that ends the run also
//! deletes the temporary files, and ends the processes that the run has started. A failed allocation is never returned
//! as an error: a caller could continue with less, and the written model would then depend on the free memory.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use tempfile::NamedTempFile;

/// A function that prints an error and its hint.
pub type Report = fn(&str, &str);

static REPORT: OnceLock<Report> = OnceLock::new();
/// The file that the run is working on, for the message.
static PLACE: Mutex<String> = Mutex::new(String::new());
/// Temporary files that exist.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// IDs of the processes that the run has started and that have not ended.
static PROCESSES: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// Whether a thread has begun to end the run.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Memory for the message, freed when no other memory is left.
static RESERVE: Mutex<Option<Vec<u8>>> = Mutex::new(None);
thread_local! {
    /// Whether this thread ends the run.
    static IS_ENDING: Cell<bool> = const { Cell::new(false) };
}
/// Bytes of all blocks of at least [`LARGE`] bytes.
static HELD: AtomicUsize = AtomicUsize::new(0);
/// Smallest size in bytes of the blocks that are counted.
const LARGE: usize = 1 << 24;
/// Exit code of a run that failed.
const FAILED: i32 = 1;

/// Sets the function that prints the error, and handles the signals that would kill the process. A file that is larger
/// than the system allows becomes an error of the write. A mapped file that became shorter ends the run with a message.
pub fn install(report: Report) {
    _ = REPORT.set(report);
    const RESERVED: usize = 2 << 20;
    *RESERVE.lock().unwrap_or_else(PoisonError::into_inner) = Some(vec![1; RESERVED]);
    #[cfg(target_os = "linux")]
    // SAFETY: both are valid handlers; the second does not return.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::signal(libc::SIGBUS, on_bus_error as extern "C" fn(libc::c_int) as libc::sighandler_t);
    }
    #[cfg(unix)]
    end_by_signals();
}

/// Starts a thread that waits for SIGINT, SIGTERM and SIGHUP. On a signal, it deletes the temporary files, passes the
/// signal on to the processes that the run has started, and lets it end this process. It is a thread because a handler
/// may do little. Threads that start later inherit the mask. A signal that the caller ignores, as under `nohup`, stays
/// ignored.
#[cfg(unix)]
fn end_by_signals() {
    const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    // SAFETY: a mask and an action of this function's own, filled before they are used.
    let mask = unsafe {
        let mut mask = std::mem::zeroed();
        libc::sigemptyset(&raw mut mask);
        for signal in SIGNALS {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut now);
            if now.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&raw mut mask, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut());
        mask
    };
    let wait = move || {
        let mut signal = 0;
        // SAFETY: the signals of the mask are blocked; the default action of each ends the process.
        unsafe {
            while libc::sigwait(&raw const mask, &raw mut signal) != 0 {}
            if let Ok(processes) = PROCESSES.lock() {
                processes.iter().for_each(|&process| _ = libc::kill(process as libc::pid_t, signal));
            }
            if let Ok(files) = TEMPORARY.lock() {
                files.iter().for_each(|file| drop(std::fs::remove_file(file)));
                libc::signal(signal, libc::SIG_DFL);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const mask, std::ptr::null_mut());
                libc::raise(signal);
            }
            libc::_exit(FAILED)
        }
    };
    if std::thread::Builder::new().stack_size(1 << 16).spawn(wait).is_err() {
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const mask, std::ptr::null_mut()) };
    }
}

/// Handles an access past the end of a mapped file. It interrupts code that reads a memory map and holds no lock.
#[cfg(target_os = "linux")]
extern "C" fn on_bus_error(_: libc::c_int) {
    end("a file became shorter while it was read", "do not change files during a run")
}

/// Sets the file that the run is working on, for the message.
pub fn set_current_file(path: &Path) {
    *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = path.display().to_string();
}

/// Creates a temporary file, which is deleted if this module ends the run. No signal ends the run in between.
pub fn temporary(create: impl FnOnce() -> io::Result<NamedTempFile>) -> io::Result<NamedTempFile> {
    let mut files = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    files.retain(|path| path.exists());
    let file = create()?;
    files.push(file.path().to_path_buf());
    Ok(file)
}

/// Starts a process, which a signal to this one ends. No signal ends the run in between.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let mut processes = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    processes.push(child.id());
    Ok(child)
}

/// Removes a process that has ended.
pub fn forget_process(process: u32) {
    PROCESSES.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != process);
}

/// Counts a block of `size` bytes before it is allocated. Ends the run if all blocks together would exceed the
/// machine's memory: the system would grant the memory, and kill the process when it is used.
#[inline]
pub fn before_allocation(size: usize) {
    if size >= LARGE && HELD.fetch_add(size, Ordering::Relaxed).saturating_add(size) > limit() {
        out_of_memory(size);
    }
}

/// Subtracts a freed block of `size` bytes.
#[inline]
pub fn after_release(size: usize) {
    if size >= LARGE {
        HELD.fetch_sub(size, Ordering::Relaxed);
    }
}

/// Ends the run because a block of `size` bytes cannot be allocated.
#[cold]
pub fn out_of_memory(size: usize) -> ! {
    // The message needs memory too. If that allocation also fails, a fixed text is printed.
    if IS_ENDING.replace(true) {
        exit_with(b"error: out of memory\n");
    }
    if let Ok(mut reserve) = RESERVE.try_lock() {
        reserve.take();
    }
    let message = format!("out of memory: {} MiB more were needed", size.div_ceil(1 << 20));
    end(&message, "use fewer --threads, a smaller --shape, fewer samples (--limit), or --effort 0")
}

/// The folder of the process's control group.
pub const CONTROL_GROUP: &str = "/sys/fs/cgroup";

/// Returns the bytes of memory that are left of the limit of a control group, whose files are in `folder`; `None`
/// without a limit. Files in memory that nobody uses count as free, as for Kubernetes.
pub fn free_of_group(folder: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let limit: u64 = read("memory.max").trim().parse().ok()?;
    let used: u64 = read("memory.current").trim().parse().unwrap_or(0);
    let stat = read("memory.stat");
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// Returns the memory in bytes of the machine, or of the process's control group if that is less.
fn limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let of_group = std::fs::read_to_string(Path::new(CONTROL_GROUP).join("memory.max")).ok();
        let of_group = of_group.and_then(|text| text.trim().parse().ok()).unwrap_or(usize::MAX);
        of_group.min(of_machine())
    })
}

#[cfg(unix)]
fn of_machine() -> usize {
    // SAFETY: these only ask for numbers.
    let [pages, bytes] = unsafe { [libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)] };
    let product = usize::try_from(pages).ok().zip(usize::try_from(bytes).ok()).map(|(n, size)| n.saturating_mul(size));
    product.filter(|&n| n > 0).unwrap_or(usize::MAX)
}

#[cfg(not(unix))]
fn of_machine() -> usize {
    usize::MAX
}

/// Prints the error, deletes temporary files and ends the process.
fn end(message: &str, hint: &str) -> ! {
    // Only the first thread prints; printing may itself fail and get here again.
    if !ENDS.swap(true, Ordering::SeqCst) {
        let place = match PLACE.try_lock() {
            Ok(place) => place.clone(),
            Err(TryLockError::Poisoned(place)) => place.into_inner().clone(),
            Err(TryLockError::WouldBlock) => String::new(),
        };
        let place = if place.is_empty() { place } else { format!("`{place}`: ") };
        if let Some(report) = REPORT.get() {
            report(&format!("{place}{message}"), hint);
        }
        if let Ok(files) = TEMPORARY.try_lock() {
            files.iter().for_each(|file| drop(std::fs::remove_file(file)));
        }
        exit();
    }
    // The first thread ends the process soon. This thread may be the first one, after a second failure.
    std::thread::sleep(std::time::Duration::from_secs(2));
    exit()
}

/// Writes the text to stderr without locks or buffers, and ends the process.
#[cfg(unix)]
fn exit_with(text: &[u8]) -> ! {
    const STDERR: i32 = 2;
    // SAFETY: the pointer and the length are those of a slice.
    unsafe { libc::write(STDERR, text.as_ptr().cast(), text.len()) };
    exit()
}

#[cfg(not(unix))]
fn exit_with(_: &[u8]) -> ! {
    exit()
}

#[cfg(unix)]
fn exit() -> ! {
    // SAFETY: `_exit` runs no exit handlers, which could wait for a lock.
    unsafe { libc::_exit(FAILED) }
}

#[cfg(not(unix))]
fn exit() -> ! {
    std::process::exit(FAILED)
}

//! A process of the zoo: this program, run on one model.

use crate::diag::Exit;
use crate::guard;
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use wait4::Wait4;

/// The outcome of a process.
pub struct ProgramRan {
    pub status: ExitStatus,
    /// The object that it printed; `None` if it printed none.
    pub json: Option<Value>,
    pub stderr: String,
    /// Peak memory, in bytes.
    pub peak: u64,
}

/// Runs the program with `--json`. `process` holds the ID of the process while it runs. Fails if the process cannot be
/// started, or the system does not tell its exit status.
pub fn program(arguments: &[String], process: &AtomicU32) -> Result<ProgramRan> {
    let program = std::env::current_exe().context("the program does not know its own path")?;
    let mut command = Command::new(program);
    command.args(arguments).args(["--json", "--quiet"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = guard::start(&mut command).context("a run for one model cannot be started")?;
    let id = child.id();
    process.store(id, Ordering::Relaxed);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = std::thread::scope(|scope| {
        let stderr = scope.spawn(|| everything(stderr));
        (everything(stdout), stderr.join().unwrap_or_default())
    });
    let ended = child.wait4();
    process.store(0, Ordering::Relaxed);
    guard::forget_process(id);
    let ended = ended.context("the exit status of a run for one model is not known")?;
    Ok(ProgramRan {
        status: ended.status,
        json: serde_json::from_slice(&stdout).ok(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        peak: ended.rusage.maxrss,
    })
}

/// Returns all bytes of a pipe, or those before the first error.
fn everything(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    bytes
}

/// Returns the exit code of a process; a process that a signal ended has failed.
pub fn exit_of(status: ExitStatus) -> Exit {
    match status.code() {
        Some(0) => Exit::Done,
        Some(3) => Exit::Quality,
        _ => Exit::Failed,
    }
}

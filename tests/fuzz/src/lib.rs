//! The parts that the fuzz targets share.
//!
//! A target is a file in `fuzz_targets`. It gives bytes to functions of the library as a user's file, inside of [`holds`].

pub mod graphs;
pub mod mutate;
pub mod quantize;

use anyhow::Result;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::abort;
use std::sync::{LazyLock, Mutex, Once, PoisonError};

/// The last panic: message, place and stack.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Runs the library on an input. A panic that leaves `work` is a crash, and so is an error that says that mqq itself is
/// wrong. All other errors are those of the input.
///
/// libFuzzer's own hook would count a panic of the engine, too, which the library catches and reports as an error.
pub fn holds(work: impl FnOnce() -> Result<()>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        panic::set_hook(Box::new(|info| {
            let text = format!("{info}\n{}", std::backtrace::Backtrace::force_capture());
            *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }));
    });
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let text = format!("{}{}", mqq::diag::explain(&error), mqq::diag::hint_of(&error));
            if text.contains("internal error") {
                eprintln!("{text}");
                abort();
            }
        }
        Err(_) => {
            eprintln!("{}", LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner));
            abort();
        }
    }
}

/// Writes files to a folder of their own, and gives `work` the folder.
pub fn with_files(files: &[(&str, &[u8])], work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes)?;
    }
    work(folder.path())
}

/// Writes a file to a folder of its own, and gives `work` the path.
pub fn with_file(name: &str, bytes: &[u8], work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    with_files(&[(name, bytes)], |folder| work(&folder.join(name)))
}

/// One of the built-in tables, by a number.
pub fn table(number: usize) -> &'static mqq::scheme::Scheme {
    static TABLES: LazyLock<Vec<mqq::scheme::Scheme>> = LazyLock::new(|| {
        let names = mqq::backends::BUILT_IN.iter();
        names.map(|(name, _)| mqq::backends::resolve(name).expect("a built-in table")).collect()
    });
    &TABLES[number % TABLES.len()]
}

/// A number that follows from the input.
pub fn number_of(data: &[u8]) -> usize {
    data.iter().fold(data.len(), |number, &byte| number.wrapping_mul(31).wrapping_add(usize::from(byte)))
}

/// The input of a small network of images.
pub fn image_input(shape: [usize; 4]) -> mqq::onnx::inputs::InputSpec {
    mqq::onnx::inputs::InputSpec { name: "x".into(), shape: shape.to_vec(), data_type: 1, open: Vec::new() }
}

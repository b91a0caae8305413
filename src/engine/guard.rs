//! Turns a panic of the engine into an error.

use anyhow::{Result, anyhow};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// The beginning of the message of an error that was a panic of the engine.
pub(super) const STOPPED: &str = "the engine stopped unexpectedly";

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}
static QUIET_HOOK: Once = Once::new();

/// Runs `job`. A panic in it becomes an error with the panic's message and prints nothing.
pub fn guarded<T>(job: impl FnOnce() -> Result<T>) -> Result<T> {
    QUIET_HOOK.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                default(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(job));
    GUARDED.set(outer);
    outcome.unwrap_or_else(|payload| {
        let message = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(anyhow!("{STOPPED}: {message}"))
    })
}

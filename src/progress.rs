//! The progress bar: on a terminal, for work that takes a while; silent otherwise.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Told the number of steps of some work, gives what to call after each.
pub type Progress<'a> = dyn Fn(usize) -> Box<dyn Fn() + Sync> + Sync + 'a;

/// A bar over `n` samples of `what`, on stderr where that is a terminal and `quiet` is off.
pub fn bar(n: usize, what: &str, quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(n as u64), target);
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} eta {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

//! All printing. No other module writes to stdout or stderr.
//!
//! If the reader closes the pipe (`mqq backends | head -1`), later text is dropped, the command continues, and its exit
//! code is unchanged. Other write errors, such as a full disk, turn [`Exit::Done`] into [`Exit::Failed`] at the end.

use crate::diag::{Exit, escaped, explain_with_hint, is_unprintable, printable};
use crate::metrics::{AGREEMENT, Metric, MissedGate};
use crate::progress::Tick;
use crate::report::JsonObject;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// An output stream, and the error that ended it.
pub(super) struct Stream {
    name: &'static str,
    open: fn() -> Box<dyn Write>,
    ended: OnceLock<io::Error>,
}

pub(super) static STDOUT: Stream = Stream { name: "stdout", open: || Box::new(io::stdout()), ended: OnceLock::new() };
pub(super) static STDERR: Stream = Stream { name: "stderr", open: || Box::new(io::stderr()), ended: OnceLock::new() };

impl Stream {
    /// Prints one line. Line breaks and control characters in it are escaped, because it may contain names from files.
    pub fn line(&self, line: fmt::Arguments) {
        let line = line.to_string();
        self.attempt(|stream| writeln!(stream, "{}", printable(&line)));
    }

    /// Prints text whose line breaks are intended: JSON, YAML, lines that [`printable`] has escaped.
    pub fn lines(&self, text: &str) {
        self.attempt(|stream| writeln!(stream, "{}", escaped(text)));
    }

    /// Prints an HTML page unchanged.
    pub fn page(&self, text: &str) {
        self.attempt(|stream| writeln!(stream, "{text}"));
    }

    /// Writes, unless an earlier write failed.
    fn attempt(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.ended.get().is_none() {
            let mut stream = (self.open)();
            if let Err(error) = write(&mut *stream).and_then(|()| stream.flush()) {
                // If two threads fail at the same time, one error is enough.
                let _ = self.ended.set(error);
            }
        }
    }
}

/// Prints a line on stdout: results.
macro_rules! out {
    ($($text:tt)*) => { $crate::cli::print::STDOUT.line(format_args!($($text)*)) };
}

/// Prints a line on stderr: errors and warnings.
macro_rules! err {
    ($($text:tt)*) => { $crate::cli::print::STDERR.line(format_args!($($text)*)) };
}

/// Prints `error: smallest place first: found, expected`, then each hint on its own line.
pub fn error(error: &anyhow::Error) {
    STDERR.lines(&format!("error: {}", explain_with_hint(error)));
}

/// Says which sidecar the preprocessing of images is from.
pub fn preprocessing_from(sidecar: &Path) {
    err!("the preprocessing is that of `{}`", sidecar.display());
}

/// Prints missed gates, and a hint where no output has the metric. `unlabeled` are the metrics that need labels, if
/// there are none.
pub fn missed(missed: &[MissedGate], is_task_known: bool, unlabeled: &[Metric]) {
    missed.iter().for_each(|missed| err!("gate missed: {missed}"));
    let is_any = |is: &dyn Fn(Metric) -> bool| {
        missed.iter().any(|missed| missed.tensor.is_none() && missed.value.is_none() && is(missed.metric))
    };
    if is_any(&|metric| unlabeled.contains(&metric)) {
        err!("hint: --labels gives the classes or boxes of the samples (docs/compare.md)");
    }
    if !is_task_known && is_any(&|metric| metric.task.is_some() && !unlabeled.contains(&metric)) {
        err!("hint: --head names the head that decodes the outputs, --task the task (docs/tasks.md)");
    }
    if is_any(&|metric| metric == AGREEMENT) {
        err!(
            "hint: --task classify takes outputs as class scores; row-agreement is for several rows, such as one per token"
        );
    }
}

/// Prints an object as JSON on stdout, with its `schema_version`.
pub fn object(object: impl Serialize) -> anyhow::Result<()> {
    json(&JsonObject::new(object))
}

/// Prints a value as JSON on stdout.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    STDOUT.lines(&serde_json::to_string_pretty(value)?);
    Ok(())
}

pub(super) use {err, out};

/// Prints the command-line parser's answer: help, the version, or an error.
pub fn answer(answer: &clap::Error) -> Exit {
    let stream = if answer.use_stderr() { &STDERR } else { &STDOUT };
    // The parser repeats arguments without escaping them, and its own colors are escape sequences.
    match std::env::args_os().any(|arg| arg.to_string_lossy().chars().any(is_unprintable)) {
        true => stream.line(format_args!("{}", answer.to_string().split("\n\n").next().unwrap_or_default())),
        false => stream.attempt(|_| answer.print()),
    }
    if answer.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        stream.lines("\nerror: a command is missing, expected one of the list above");
    }
    if answer.exit_code() == 0 { Exit::Done } else { Exit::Usage }
}

/// Returns the final exit code: `exit`, or [`Exit::Failed`] in place of [`Exit::Done`] if text could not be written.
pub fn finish(exit: Exit) -> Exit {
    let failed = |stream: &&Stream| stream.ended.get().is_some_and(|error| error.kind() != ErrorKind::BrokenPipe);
    let mut exit = exit;
    for stream in [&STDOUT, &STDERR].into_iter().filter(failed) {
        if let Some(error) = stream.ended.get() {
            self::error(&anyhow::anyhow!("{}: {error}", stream.name));
        }
        if exit == Exit::Done {
            exit = Exit::Failed;
        }
    }
    exit
}

/// Time of a stage until its first progress line without a terminal, and interval of further lines.
const FIRST_REPORT: Duration = Duration::from_secs(5);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of a stage on stderr, unless `quiet`: a bar on a terminal, else a line at intervals for a stage that
/// takes over five seconds. A bar disappears on drop.
pub struct Bar {
    bar: ProgressBar,
    what: String,
    quiet: bool,
    /// Time of the next line, since the stage began.
    next: Mutex<Duration>,
}

impl Bar {
    pub fn new(n: usize, what: String, quiet: bool) -> Bar {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let what = printable(&what).into_owned();
        let bar = ProgressBar::with_draw_target(Some(n as u64), target);
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {per_sec}, eta {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.clone());
        // The steady tick needs a thread, and panics if the system refuses one.
        if !bar.is_hidden() && std::thread::Builder::new().spawn(|| ()).is_ok() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Bar { bar, what, quiet, next: Mutex::new(FIRST_REPORT) }
    }

    /// Returns a function to call after each step.
    pub fn tick(self) -> Tick {
        Box::new(move || {
            let n = self.bar.length().unwrap_or_default();
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            // A stage may take more steps than it expected.
            self.bar.set_position(n.min(self.bar.position() + 1));
            let elapsed = self.bar.elapsed();
            if self.bar.is_hidden() && !self.quiet && elapsed >= *next && self.bar.position() < n {
                *next = elapsed + REPORT_INTERVAL;
                err!("{}: {} of {n} steps in {} s", self.what, self.bar.position(), elapsed.as_secs());
            }
        })
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

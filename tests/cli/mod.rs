//! The command line as scripts use it: exit codes, what is printed where, what is left behind.

mod arguments;
mod files;
mod gates;
mod help;
mod runs;
mod streams;

use crate::support::command::{Ran, mqq, run};
use crate::support::{Attr, GraphBuilder, repository};
use assert_cmd::Command;
use mqq::backends;
use mqq::observers::OBSERVERS;
use mqq::onnx;
use mqq::tune::METHODS;
use rayon::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;

/// `mqq calibrate` of a bundled model into `folder`, with the bundled images.
fn calibrate(model: &str, backend: &str, folder: &Path) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(repository(model)).args(["--backend", backend, "--preprocess", "half"]);
    command.arg("--data").arg(repository("calib_data/calib")).arg("--out-dir").arg(folder);
    command
}

fn files(folder: &Path) -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(|e| name(e.unwrap())).collect();
    names.sort();
    names
}

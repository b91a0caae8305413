//! mqq: post-training quantization of ONNX models.
//!
//! ARCHITECTURE.md lists the modules in the order of the data flow, `tests/layering.rs` which module may use which.
// Only `cli::print` writes to stdout and stderr.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod aligned;
pub mod backends;
pub mod calibrate;
pub mod check;
pub mod cli;
pub mod data;
pub mod diag;
pub mod difference;
pub mod doctor;
pub mod engine;
pub mod equalize;
pub mod export;
pub mod foreign;
pub mod guard;
pub mod heads;
pub mod import;
pub mod matching;
pub mod metrics;
pub mod mixed;
pub mod observers;
pub mod onnx;
pub mod pipeline;
pub mod place;
pub mod plan;
pub mod prepare;
pub mod preprocessing;
pub mod progress;
pub mod quant;
pub mod report;
pub mod rewrite;
pub mod scheme;
pub mod sidecar;
pub mod simulate;
pub mod statistics;
pub mod tune;

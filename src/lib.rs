//! mqq: post-training quantization of ONNX models.
//!
//! Modules in reading order; a module never imports one below it in this table, except as shown.
//!
//! | module | job | does not |
//! | --- | --- | --- |
//! | [`quant`] | integer grids, affine parameters, the crate's only rounding | look at data |
//! | [`observe`] | streaming statistics of a tensor, mergeable in any order | choose a range |
//! | [`range`] | statistics and a grid to the interval that is kept | touch a graph |
//! | [`onnx`] | lossless ONNX messages, load and save | interpret ops |
//! | [`data`] | images and arrays to samples of the inputs | run the model, skip a bad file |
#![deny(missing_docs)]
// Only `cli::print` writes on stdout and stderr.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod aligned;
pub mod cli;
pub mod data;
pub mod decide;
pub mod diag;
pub mod emit;
pub mod engine;
pub mod equalize;
pub mod import;
pub mod metrics;
pub mod mixed;
pub mod observe;
pub mod onnx;
pub mod pipeline;
pub mod place;
pub mod prepare;
pub mod progress;
pub mod quant;
pub mod range;
pub mod rewrite;
pub mod scheme;
pub mod tune;
pub mod verify;

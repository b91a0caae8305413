//! The program as one crate with private modules, so that the compiler reports unused code; in the library everything
//! is public for the tests. Only `make check` lints it, and nothing else builds it.

// Re-exports belong to the library, and so do the other lints.
#![allow(unused_imports, clippy::all)]

mod aligned;
mod backends;
mod calibrate;
mod check;
mod cli;
mod data;
mod diag;
mod difference;
mod doctor;
mod engine;
mod equalize;
mod export;
mod foreign;
mod guard;
mod heads;
mod import;
mod matching;
mod metrics;
mod mixed;
mod observers;
mod onnx;
mod pipeline;
mod place;
mod plan;
mod prepare;
mod preprocessing;
mod progress;
mod quant;
mod report;
mod rewrite;
mod scheme;
mod sidecar;
mod simulate;
mod statistics;
mod tune;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: aligned::Aligned = aligned::Aligned;

fn main() -> ExitCode {
    cli::main()
}

/// Items that only the tests use.
#[allow(dead_code)]
fn only_tests(
    kernel: &engine::kernels::OpKernel,
    method: &tune::Method,
    dataset: &data::Dataset,
    samples: &simulate::Samples,
) {
    _ = (method.action.works_on(), dataset.is_empty(), samples.is_empty());
    _ = (quant::Grid::INT8_SYMMETRIC, onnx::save, simulate::simulate, data::Paths::n_bytes);
    _ = (engine::Engine::inputs, engine::Engine::operators, engine::Parsed::with_kernels);
    _ = kernel.name;
}

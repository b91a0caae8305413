//! All tests of the library and the binary, linked once.

mod support;

mod aligned;
mod calibrate;
mod check;
mod cli;
mod completions;
mod data;
mod decide;
mod diag;
mod engine;
mod equalize;
mod first_hour;
mod formats;
mod heads;
mod hostile;
mod metrics;
mod mixed;
mod observers;
mod onnx;
mod placement;
mod prepare;
mod quant;
mod roundtrip;
mod saved;
mod schemes;
mod shapes;
mod sidecar;
mod simulate;
mod static_shapes;
mod statistics;
mod tables;
mod targets;
mod tuning;
mod weights_alone;
mod zoo;

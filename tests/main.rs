//! All tests of the library and the binary, linked once.

mod support;

mod check;
mod cli;
mod data;
mod decide;
mod equalize;
mod formats;
mod hostile;
mod mixed;
mod observers;
mod onnx;
mod placement;
mod quant;
mod roundtrip;
mod schemes;
mod static_shapes;
mod statistics;
mod tables;
mod tuning;

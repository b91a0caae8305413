//! mqq: post-training quantization of ONNX models.
//!
//! Modules in the order of the data flow. `tests/layering.rs` lists which module may use which.
//!
//! | module | job | does not |
//! | --- | --- | --- |
//! | [`quant`] | integer grids, affine parameters, the crate's only rounding to a grid | look at data |
//! | [`statistics`] | streaming statistics of a tensor, mergeable in any order | choose a range |
//! | [`observers`] | statistics and a grid to a range | touch a graph |
//! | [`heads`] | outputs to boxes, masks, points, characters | compare networks |
//! | [`metrics`] | similarity of outputs to those of the float model | run a model |
//! | [`onnx`] | lossless ONNX messages, load and save | interpret ops |
//! | [`data`] | images and arrays to samples of the inputs | run the model, skip a bad file |
//! | [`scheme`] | backend tables, merged and checked | place anything |
//! | [`prepare`] | passes on the float model that keep its outputs | look at data |
//! | [`place`] | a table and a graph to quantizers, with reasons | look at data |
//! | [`engine`] | runs models, returns tensors | gather statistics |
//! | [`calibrate`] | the parallel pass over the data, to statistics | choose a range |
//! | [`preprocessing`] | whether other pixel values fit the float network better | change anything |
//! | [`plan`] | statistics to scales, zero points, integers | touch the graph |
//! | [`equalize`] | channel scales from layer to layer | decide whether they are kept |
//! | [`simulate`] | the quantized network node by node, without writing it | decide anything |
//! | [`mixed`] | precisions of single layers, by simulation | run the written model |
//! | [`tune`] | better weights, biases and ranges, by simulation | place or remove Q/DQ |
//! | [`rewrite`] | the plan into the graph | see statistics |
//! | [`check`] | soundness of the result, rules of targets | repair |
//! | [`matching`] | which tensors of two models stand for each other | run a model, guess |
//! | [`backends`] | built-in tables, and the lists that tables take names from | read a graph |
//! | [`sidecar`] | every scale with its reason, written and read | decide anything |
//! | [`difference`] | how the quantization of two networks differs | say which is better |
//! | [`export`] | other tools' formats | decide anything |
//! | [`import`] | ranges from other tools' files | decide anything |
//! | [`doctor`] | a model and its data looked at before any run, to findings | change anything |
//! | [`pipeline`] | the order of all stages | know a file's format |
//! | [`report`] | results of a run, as JSON and as lines | print |
//! | [`cli`] | options, printing, exit codes | quantize |
//! | [`diag`], [`progress`] | errors with hints, suggestions; progress of long work | print |
//! | [`foreign`] | files from outside: regular ones only, YAML of limited size and depth | interpret them |
//! | [`aligned`], [`guard`] | memory: tensors in the usual alignment, free memory returned to the system; the end of a run without memory | |
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

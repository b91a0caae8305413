//! One file per format, or per family of similar formats.

use super::Format;

mod deploy;
mod encodings;
mod mnn;
mod model_explorer;
mod ncnn;
mod nnie;
mod openvino;
mod ort;
mod ort_flatbuffers;
mod ppl;
mod ppq;
mod snpe;
mod stpu;
mod tengine;
mod tensorrt;
mod tidl;
mod tidl_quant_params;
mod vitis;

/// Every format except the sidecar, in the order of the help.
pub const FORMATS: &[Format] = &[
    tensorrt::MQBENCH,
    ppq::FORMAT,
    tensorrt::CACHE,
    ort::JSON,
    ort::CACHE,
    ort_flatbuffers::FORMAT,
    snpe::FORMAT,
    encodings::V0_6_1,
    encodings::V1_0_0,
    encodings::V2_0_0,
    ppl::PPL,
    ppl::PPLCUDA,
    vitis::FORMAT,
    nnie::FORMAT,
    stpu::FORMAT,
    tengine::FORMAT,
    ncnn::FORMAT,
    mnn::FORMAT,
    tidl::FORMAT,
    tidl_quant_params::FORMAT,
    openvino::FORMAT,
    deploy::FORMAT,
    model_explorer::FORMAT,
];

/// Defaults of a format.
const PLAIN: Format = Format {
    name: "",
    description: "",
    suffix: "",
    needs_model: false,
    needs_int8: false,
    holds_nnie_codes: false,
    holds_blocks: false,
    write: |_| Ok(Vec::new()),
};

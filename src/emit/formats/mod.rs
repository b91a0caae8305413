//! One file per format, or per family that shares its shape.

mod deploy;
mod encodings;
mod mnn;
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

pub(super) use deploy::Deploy;
pub(super) use encodings::{Encodings061, Encodings100, Encodings200};
pub(super) use mnn::Mnn;
pub(super) use ncnn::Ncnn;
pub(super) use nnie::Nnie;
pub(super) use openvino::OpenvinoFq;
pub(super) use ort::{OrtCache, OrtJson};
pub(super) use ort_flatbuffers::OrtFlatbuffers;
pub(super) use ppl::{Ppl, PplCuda};
pub(super) use ppq::Ppq;
pub(super) use snpe::Snpe;
pub(super) use stpu::Stpu;
pub(super) use tengine::Tengine;
pub(super) use tensorrt::{MqbenchTensorrt, TrtCache};
pub(super) use tidl::Tidl;
pub(super) use tidl_quant_params::TidlQuantParams;
pub(super) use vitis::Vitis;

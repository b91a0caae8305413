/// A line per built-in table.
macro_rules! tables {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../backends/", $name, ".yaml")))),*]
    };
}

/// The tables that come with mqq: name and YAML.
pub const BUILT_IN: &[(&str, &str)] = tables![
    "academic",
    "esp-dl",
    "mqbench-openvino",
    "mqbench-tensorrt",
    "ncnn",
    "nnie",
    "onnx-qnn",
    "onnxruntime",
    "onnxruntime-vnni",
    "openvino",
    "pplcuda",
    "pplw8a16",
    "qnn-htp",
    "qnn-htp-a16",
    "rknn",
    "snpe",
    "stpu",
    "tengine",
    "tensorrt",
    "tensorrt-nlp",
    "tflite",
    "tflitemicro",
    "tidl-msa-wc8-at8",
    "tidl-msa-wc8p2-at8p2",
    "tidl-wc8-at8",
    "tidl-wc8p2-at8p2",
    "tidl-wc8symp2-at8symp2",
    "tidl-wt8symp2-at8symp2",
    "tvm",
    "vitis",
    "xint8",
];

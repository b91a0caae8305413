/// A line per built-in table.
macro_rules! tables {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../backends/", $name, ".yaml")))),*]
    };
}

/// The tables that come with mqq: name and YAML.
pub const BUILT_IN: &[(&str, &str)] = tables![
    "esp-dl",
    "ncnn",
    "onnxruntime",
    "onnxruntime-vnni",
    "openvino",
    "qnn-htp",
    "qnn-htp-a16",
    "rknn",
    "tensorrt",
    "tflite",
    "tflitemicro",
    "tvm",
    "xint8",
];

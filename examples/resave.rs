//! Loads a model and saves it untouched: `resave IN.onnx OUT.onnx`. For the round-trip test.

fn main() -> anyhow::Result<()> {
    let paths: Vec<std::path::PathBuf> = std::env::args_os().skip(1).map(Into::into).collect();
    let [input, output] = paths.as_slice() else {
        anyhow::bail!("found {} arguments, expected IN.onnx OUT.onnx", paths.len());
    };
    mqq::onnx::save(&mqq::onnx::load(input)?, output)
}

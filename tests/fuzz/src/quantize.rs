//! A run of the whole pipeline on a small model.

use crate::with_files;
use anyhow::{Context, Result};
use mqq::calibrate::CalibrationOptions;
use mqq::data::Preprocessing;
use mqq::heads::HeadRequest;
use mqq::metrics::ChannelAxes;
use mqq::observers::{ObserverOptions, Spelled, by_spelling, canonical};
use mqq::onnx::encode_any;
use mqq::onnx::inputs::Shapes;
use mqq::onnx::node::make;
use mqq::onnx::proto::*;
use mqq::onnx::tensor;
use mqq::pipeline::{Outcome, Request, run};
use mqq::place::Selection;
use mqq::scheme::Scheme;
use mqq::statistics::SavedStatistics;
use mqq::tune::{Effort, TuningOptions};
use std::sync::{Arc, LazyLock};

/// A model of some layers, `x` to `y`.
pub static TINY: LazyLock<ModelProto> = LazyLock::new(|| {
    let mut graph = GraphProto {
        name: Some("tiny".into()),
        input: vec![value("x", &[1, 3, 8, 8])],
        output: vec![value("y", &[1, 5])],
        ..GraphProto::default()
    };
    let shapes: [(&str, &[usize]); 4] = [("c.w", &[4, 3, 3, 3]), ("c.b", &[4]), ("y.w", &[5, 4]), ("y.b", &[5])];
    for (i, (name, shape)) in shapes.into_iter().enumerate() {
        let values = noise(shape.iter().product(), i as u32);
        graph.initializer.extend(tensor::from_f32(name, shape, &values));
    }
    graph.node = vec![
        make("Conv", "conv", &["x", "c.w", "c.b"], "c"),
        make("Relu", "relu", &["c"], "r"),
        make("Sigmoid", "sigmoid", &["r"], "s"),
        make("Mul", "mul", &["r", "s"], "m"),
        make("Add", "add", &["m", "r"], "a"),
        make("GlobalAveragePool", "pool", &["a"], "p"),
        make("Flatten", "flatten", &["p"], "f"),
        make("Gemm", "gemm", &["f", "y.w", "y.b"], "y"),
    ];
    mqq::onnx::node::set_int(&mut graph.node[7], "transB", 1);
    model_of(graph, 17)
});

/// A model of a graph.
pub fn model_of(graph: GraphProto, opset: i64) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { version: Some(opset), ..OperatorSetIdProto::default() }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// A float32 value of a shape.
pub fn value(name: &str, shape: &[i64]) -> ValueInfoProto {
    let mut value = ValueInfoProto::without_shape(name, 1);
    let dim = shape.iter().map(|&n| Dimension { dim_value: Some(n), ..Dimension::default() }).collect();
    if let Some(tensor) = value.r#type.as_mut().and_then(|r#type| r#type.tensor_type.as_mut()) {
        tensor.shape = Some(TensorShapeProto { dim });
    }
    value
}

/// Numbers that look random, from -0.5 to 0.5.
pub fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

/// Quantizes a model for a table on three samples, or on saved statistics.
///
/// # Errors
/// As the program.
pub fn quantize(model: &ModelProto, scheme: Scheme, saved: Option<Arc<SavedStatistics>>) -> Result<Outcome> {
    let samples = [1, 2, 3].map(|seed| noise(input_len(model), seed));
    quantize_with(model, scheme, &samples, |request| {
        if saved.is_some() {
            request.calibration.data.clear();
            request.calibration.saved = saved;
        }
    })
}

/// As [`quantize`], on these samples and with a changed request.
///
/// # Errors
/// As the program.
pub fn quantize_with(
    model: &ModelProto,
    scheme: Scheme,
    samples: &[Vec<f32>],
    change: impl FnOnce(&mut Request),
) -> Result<Outcome> {
    let shape = input_shape(model);
    let names: Vec<String> = (0..samples.len()).map(|i| format!("{i}.npy")).collect();
    let bytes: Vec<Vec<u8>> = samples.iter().map(|values| npy(&shape, values)).collect();
    let encoded = encode_any(model);
    let mut files: Vec<(&str, &[u8])> = names.iter().map(String::as_str).zip(bytes.iter().map(Vec::as_slice)).collect();
    files.push(("model.onnx", &encoded));
    let mut outcome = None;
    with_files(&files, |folder| {
        let data = names.iter().map(|name| folder.join(name).display().to_string()).collect();
        let mut request = request(scheme, data)?;
        change(&mut request);
        outcome = Some(run(&folder.join("model.onnx"), &request, &|_, _| Box::new(|| ()))?);
        Ok(())
    })?;
    outcome.context("no outcome")
}

/// The options that `mqq calibrate --effort 0` has.
fn request(scheme: Scheme, data: Vec<String>) -> Result<Request> {
    let observer = |name: &str| -> Result<Spelled> {
        let spelling = canonical(name);
        Ok(Spelled { observer: by_spelling(&spelling)?, spelling })
    };
    let (activation, weight) = (observer(&scheme.observers.activation)?, observer(&scheme.observers.weight)?);
    Ok(Request {
        storage: scheme.weight_storage,
        scheme,
        shapes: Shapes::new(),
        outputs: Vec::new(),
        selection: Selection::default(),
        calibration: CalibrationOptions {
            data,
            preprocessing: Preprocessing::default(),
            limit: None,
            spread: None,
            skip_bad_data: false,
            checks_preprocessing: false,
            saved: None,
        },
        ranges: None,
        observers: ObserverOptions { activation, is_given: false, weight },
        tune: TuningOptions { effort: Effort::of("0").context("an effort")?, methods: None, rescue: 0.0 },
        axes: ChannelAxes::new(),
        head: HeadRequest::default(),
        inserts: true,
        mixed: None,
        sensitivity: false,
        threads: 1,
        wider: None,
    })
}

/// Dimensions of the first input.
fn input_shape(model: &ModelProto) -> Vec<i64> {
    let input = model.graph.as_ref().and_then(|graph| graph.input.first()?.tensor_type()?.shape.as_ref());
    input.map(|shape| shape.dim.iter().map(|dim| dim.dim_value()).collect()).unwrap_or_default()
}

/// Number of values of the first input.
pub fn input_len(model: &ModelProto) -> usize {
    input_shape(model).iter().product::<i64>() as usize
}

/// An array's file.
fn npy(shape: &[i64], values: &[f32]) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

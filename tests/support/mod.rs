//! Builds small ONNX graphs for tests, and finds the real models where they are at hand.
#![allow(dead_code)]

pub mod command;

use mqq::data::{Array, Values};
use mqq::engine::Parsed;
use mqq::onnx::inputs::Shapes;
use mqq::onnx::proto::*;
use mqq::onnx::tensor;
use mqq::onnx::value_info::ValueInfos;
use std::path::{Path, PathBuf};

/// A graph under construction. Values are names; every method returns the name of what it made.
pub struct GraphBuilder {
    opset: i64,
    graph: GraphProto,
}

/// An attribute's value.
pub enum Attr {
    Int(i64),
    Float(f32),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Text(&'static str),
}

impl GraphBuilder {
    pub fn new(opset: i64) -> GraphBuilder {
        GraphBuilder { opset, graph: GraphProto { name: Some("test".into()), ..Default::default() } }
    }

    pub fn input(&mut self, name: &str, shape: &[i64]) -> String {
        self.graph.input.push(value_of_shape(name, shape));
        name.into()
    }

    /// A float32 initializer with values that follow from its name and shape.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> String {
        let state = name
            .bytes()
            .fold(0x9e37_79b9_u32, |state, byte| state.rotate_left(5) ^ u32::from(byte).wrapping_mul(0x85eb_ca6b));
        self.values(name, shape, &numbers(shape.iter().product(), state))
    }

    /// A float32 initializer of these values.
    pub fn values(&mut self, name: &str, shape: &[usize], values: &[f32]) -> String {
        self.graph.initializer.push(tensor::from_f32(name, shape, values).unwrap());
        name.into()
    }

    /// Float32 initializers of one value without axes.
    pub fn scalars(&mut self, values: &[(&str, f32)]) {
        values.iter().for_each(|(name, value)| drop(self.values(name, &[], &[*value])));
    }

    /// An initializer made elsewhere.
    pub fn tensor(&mut self, tensor: TensorProto) -> String {
        let name = tensor.name().to_string();
        self.graph.initializer.push(tensor);
        name
    }

    pub fn op(&mut self, op_type: &str, inputs: &[&str], output: &str) -> String {
        self.op_with(op_type, inputs, output, &[])
    }

    /// Adds operators from a text such as `sum = Add x y; y = Relu sum`.
    pub fn ops(&mut self, text: &str) {
        for one in text.split(';') {
            let words: Vec<&str> = one.split_whitespace().collect();
            let [output, "=", op_type, inputs @ ..] = &words[..] else { panic!("{one}") };
            self.op(op_type, inputs, output);
        }
    }

    pub fn op_with(&mut self, op_type: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attr)]) -> String {
        self.graph.node.push(NodeProto {
            name: Some(format!("{op_type}_{output}")),
            op_type: Some(op_type.into()),
            input: inputs.iter().map(|input| input.to_string()).collect(),
            output: vec![output.into()],
            attribute: attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
            ..Default::default()
        });
        output.into()
    }

    /// Gives the last node one output more.
    pub fn also_makes(&mut self, output: &str) -> String {
        self.graph.node.last_mut().unwrap().output.push(output.into());
        output.into()
    }

    /// Conv with a weight `[c_out, c_in / groups, k, k]` and a bias, padded to keep the size.
    pub fn conv(&mut self, x: &str, c_in: usize, c_out: usize, k: usize, groups: i64, y: &str) -> String {
        let w = self.weight(&format!("{y}.weight"), &[c_out, c_in / groups as usize, k, k]);
        let b = self.weight(&format!("{y}.bias"), &[c_out]);
        let pad = (k / 2) as i64;
        let attributes = [
            ("group", Attr::Int(groups)),
            ("pads", Attr::Ints(vec![pad; 4])),
            ("kernel_shape", Attr::Ints(vec![k as i64; 2])),
        ];
        self.op_with("Conv", &[x, &w, &b], y, &attributes)
    }

    pub fn output(&mut self, name: &str) -> &mut GraphBuilder {
        self.graph.output.push(value_of_shape(name, &[]));
        self.graph.output.last_mut().unwrap().r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape = None;
        self
    }

    pub fn build(&self) -> ModelProto {
        ModelProto {
            ir_version: Some(if self.opset < 13 { 6 } else { 8 }),
            opset_import: vec![OperatorSetIdProto { version: Some(self.opset), ..Default::default() }],
            graph: Some(self.graph.clone()),
            ..Default::default()
        }
    }
}

fn value_of_shape(name: &str, shape: &[i64]) -> ValueInfoProto {
    let dim = |n: &i64| Dimension { dim_value: Some(*n), ..Default::default() };
    let tensor =
        TensorType { elem_type: Some(1), shape: Some(TensorShapeProto { dim: shape.iter().map(dim).collect() }) };
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto { tensor_type: Some(tensor), ..Default::default() }),
        ..Default::default()
    }
}

/// An attribute of a node.
pub fn attribute(name: &str, value: &Attr) -> AttributeProto {
    let named = AttributeProto { name: Some(name.into()), ..Default::default() };
    match value {
        Attr::Int(i) => AttributeProto { r#type: Some(2), i: Some(*i), ..named },
        Attr::Float(f) => AttributeProto { r#type: Some(1), f: Some(*f), ..named },
        Attr::Ints(ints) => AttributeProto { r#type: Some(7), ints: ints.clone(), ..named },
        Attr::Floats(floats) => AttributeProto { r#type: Some(6), floats: floats.clone(), ..named },
        Attr::Text(text) => AttributeProto { r#type: Some(3), s: Some(text.as_bytes().to_vec().into()), ..named },
    }
}

/// Numbers that look random, from -0.5 to 0.5.
pub fn noise(n: usize, seed: u32) -> Vec<f32> {
    numbers(n, seed.wrapping_mul(2_654_435_761).wrapping_add(12_345))
}

fn numbers(n: usize, mut state: u32) -> Vec<f32> {
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

/// The engine's outputs for pseudo-random inputs.
pub fn outputs(model: &ModelProto, seed: usize) -> Vec<Vec<f32>> {
    seen_and_outputs(model, &[], seed).1
}

/// A tensor's shape and values.
pub type Seen = (Vec<usize>, Vec<f32>);

/// The `watched` tensors and the outputs for pseudo-random inputs.
pub fn seen_and_outputs(model: &ModelProto, watched: &[String], seed: usize) -> (Vec<Seen>, Vec<Vec<f32>>) {
    let engine = Parsed::new(model, &Shapes::new()).unwrap().build(watched).unwrap();
    let sample: Vec<Array> = engine
        .inputs()
        .iter()
        .map(|input| {
            let n: usize = input.shape.iter().product();
            let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 40.0 - 1.2;
            Array { shape: input.shape.clone(), values: Values::F32((0..n).map(value).collect()) }
        })
        .collect();
    let mut seen = vec![(Vec::new(), Vec::new()); watched.len()];
    let mut see = |at: usize, shape: &[usize], values: &[f32]| {
        seen[at] = (shape.to_vec(), values.to_vec());
        Ok(())
    };
    let outputs = engine.session().unwrap().run(&sample, &mut see).unwrap();
    let floats = |array: Array| match array.values {
        Values::F32(values) => values,
        _ => panic!("not float"),
    };
    (seen, outputs.into_iter().map(floats).collect())
}

/// Writes float32 values of a shape as .npy.
pub fn write_npy(path: &Path, shape: &[usize], values: &[f32]) {
    std::fs::write(path, crate::data::npy_f32(shape, values)).unwrap();
}

/// Writes [`noise`] of a shape as .npy.
pub fn write_noise(path: &Path, shape: &[usize], seed: u32) {
    write_npy(path, shape, &noise(shape.iter().product(), seed));
}

/// Types and shapes of a model's tensors, those that the engine finds too.
pub fn value_info(model: &ModelProto) -> ValueInfos {
    let mut value_info = ValueInfos::of_model(model);
    value_info.extend(&Parsed::new(model, &Shapes::new()).unwrap().value_info().unwrap());
    value_info
}

/// A file of this repository.
pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Progress that nobody watches.
pub fn silent(_: &str, _: usize) -> mqq::progress::Tick {
    Box::new(|| ())
}

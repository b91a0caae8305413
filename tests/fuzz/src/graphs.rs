//! Small graphs from a fuzzer's bytes: each node reads tensors that are there, with weights that fit them.

use crate::quantize::{model_of, noise, value};
use arbitrary::Arbitrary;
use mqq::onnx::node::set_int;
use mqq::onnx::proto::*;
use mqq::onnx::tensor;

/// A graph to be made.
#[derive(Arbitrary, Debug)]
pub struct Graph {
    /// The number of a table.
    pub table: u8,
    /// Whether methods are tried on the plan, in one of four.
    pub effort: u8,
    /// The values of the samples.
    pub samples: [Fill; 3],
    opset: u8,
    input: Input,
    /// Tensors that are outputs, besides the last.
    outputs: [bool; 8],
    n_steps: u8,
    steps: [Step; 10],
}

#[derive(Arbitrary, Debug)]
enum Input {
    Image { channels: u8, side: u8 },
    Rows { rows: u8, columns: u8 },
}

/// Values of a tensor.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub enum Fill {
    Noise,
    Positive,
    Constant(i8),
    /// Noise times a power of two.
    Scaled(i8),
    /// Noise with one value that is far from the others.
    Outlier(u8),
    /// Noise with a channel of zeros.
    EmptyChannel,
    Bits(u32),
}

impl Fill {
    /// The values, the first axis of which has `n_channels` entries.
    pub fn values(self, n: usize, n_channels: usize, seed: u32) -> Vec<f32> {
        let mut values = noise(n, seed);
        match self {
            Fill::Noise => {}
            Fill::Positive => values.iter_mut().for_each(|value| *value = value.abs()),
            Fill::Constant(number) => values.fill(f32::from(number) / 8.0),
            Fill::Scaled(power) => values.iter_mut().for_each(|value| *value *= f32::from(power).exp2()),
            Fill::Outlier(power) => values.iter_mut().take(1).for_each(|value| *value = f32::from(power % 127).exp2()),
            Fill::EmptyChannel => values.iter_mut().take(n / n_channels.max(1)).for_each(|value| *value = 0.0),
            Fill::Bits(bits) => values.iter_mut().take(1).for_each(|value| *value = f32::from_bits(bits)),
        }
        values
    }
}

#[derive(Arbitrary, Debug)]
struct Step {
    op: Op,
    from: u8,
    other: u8,
    size: u8,
    fill: Fill,
    /// The constants are nodes, where there are some.
    as_nodes: bool,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Unary(u8),
    Binary(u8),
    WithConstant(u8),
    Conv { group: bool, bias: bool, stride: bool },
    ConvTranspose,
    MatMul { activation: bool },
    Gemm { trans_b: bool, bias: bool },
    Pool(u8),
    GlobalPool(u8),
    BatchNormalization,
    LayerNormalization,
    Clip,
    PRelu,
    Concat,
    Flatten,
    Transpose,
    Reshape,
    Reduce(u8),
    Pad,
    Slice,
    Split,
    Softmax,
    Resize,
    Where,
    Gather,
}

const UNARY: &[&str] = &[
    "Relu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Identity", "Dropout", "Softplus",
    "Erf", "Exp", "Sqrt", "Neg", "Abs", "Log", "Reciprocal", "Gelu", "Mish", "Selu", "Floor", "LogSoftmax", "Sign",
    "Sin",
];
const BINARY: &[&str] = &["Add", "Mul", "Sub", "Div", "Max", "Min", "Sum", "Pow"];
const REDUCED: &[&str] = &["ReduceMean", "ReduceMax", "ReduceMin"];

/// The graph under construction, and the tensors of it that nodes may read.
struct Builder {
    graph: GraphProto,
    tensors: Vec<(String, Vec<i64>)>,
    opset: i64,
    seed: u32,
}

impl Graph {
    /// The model.
    pub fn model(&self) -> ModelProto {
        let shape = match self.input {
            Input::Image { channels, side } => vec![1, i64::from(channels % 8 + 1), i64::from(side % 9 + 1), 6],
            Input::Rows { rows, columns } => vec![1, i64::from(rows % 5 + 1), i64::from(columns % 17 + 1)],
        };
        let graph = GraphProto { name: Some("g".into()), input: vec![value("x", &shape)], ..GraphProto::default() };
        let opset = 11 + i64::from(self.opset % 11);
        let mut builder = Builder { graph, tensors: vec![("x".into(), shape)], opset, seed: 7 };
        for step in &self.steps[..=usize::from(self.n_steps) % self.steps.len()] {
            builder.add(step);
        }
        let Builder { mut graph, tensors, .. } = builder;
        for (i, (name, shape)) in tensors.iter().enumerate().skip(1) {
            if i + 1 == tensors.len() || self.outputs.get(i) == Some(&true) {
                graph.output.push(value(name, shape));
            }
        }
        model_of(graph, opset)
    }
}

impl Builder {
    fn tensor(&self, number: u8) -> (String, Vec<i64>) {
        // Most nodes read what was just made.
        let back = usize::from(number % 8).saturating_sub(3).min(self.tensors.len() - 1);
        self.tensors[self.tensors.len() - 1 - back].clone()
    }

    fn constant(&mut self, step: &Step, shape: &[i64]) -> String {
        self.seed += 1;
        let sizes: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let values = step.fill.values(sizes.iter().product(), sizes.first().copied().unwrap_or(1), self.seed);
        let name = format!("w{}", self.seed);
        self.store(step, &name, tensor::from_f32(&name, &sizes, &values).ok());
        name
    }

    fn integers(&mut self, step: &Step, values: &[i64]) -> String {
        self.seed += 1;
        let name = format!("i{}", self.seed);
        self.store(step, &name, tensor::from_i64(&name, &[values.len()], values).ok());
        name
    }

    fn store(&mut self, step: &Step, name: &str, tensor: Option<TensorProto>) {
        if step.as_nodes {
            let mut node = mqq::onnx::node::make("Constant", &format!("{name}.node"), &[], name);
            node.attribute = vec![AttributeProto {
                name: Some("value".into()),
                r#type: Some(4),
                t: tensor,
                ..AttributeProto::default()
            }];
            self.graph.node.push(node);
        } else {
            self.graph.initializer.extend(tensor);
        }
    }

    fn node(&mut self, op_type: &str, inputs: &[&str], shape: Vec<i64>) -> &mut NodeProto {
        self.seed += 1;
        let output = format!("t{}", self.seed);
        self.graph.node.push(mqq::onnx::node::make(op_type, &format!("{op_type}_{output}"), inputs, &output));
        self.tensors.push((output, shape));
        let last = self.graph.node.len() - 1;
        &mut self.graph.node[last]
    }

    fn add(&mut self, step: &Step) {
        let (x, shape) = self.tensor(step.from);
        let (other, other_shape) = self.tensor(step.other);
        let rank = shape.len();
        let size = i64::from(step.size % 6 + 1);
        let last = shape[rank - 1];
        let of = |names: &[&'static str], number: u8| names[usize::from(number) % names.len()];
        match &step.op {
            Op::Unary(number) => drop(self.node(of(UNARY, *number), &[&x], shape)),
            Op::Binary(number) if shape == other_shape => {
                self.node(of(BINARY, *number), &[&x, &other], shape);
            }
            Op::Binary(number) | Op::WithConstant(number) => {
                let w = match step.size % 3 {
                    0 => self.constant(step, &[]),
                    1 => self.constant(step, &[last]),
                    _ => self.constant(step, &shape),
                };
                let inputs = if step.size.is_multiple_of(2) { [&x[..], &w] } else { [&w[..], &x] };
                self.node(of(BINARY, *number), &inputs, shape);
            }
            Op::Conv { .. } | Op::ConvTranspose | Op::Pool(_) | Op::GlobalPool(_) if rank == 4 => {
                self.spatial(step, &x, &shape);
            }
            Op::MatMul { activation: true } if rank == 3 && other_shape.len() == 3 && other_shape[1] == last => {
                self.node("MatMul", &[&x, &other], vec![1, shape[1], other_shape[2]]);
            }
            Op::MatMul { .. } => {
                let w = self.constant(step, &[last, size]);
                let shape = [&shape[..rank - 1], &[size]].concat();
                self.node("MatMul", &[&x, &w], shape);
            }
            Op::Gemm { trans_b, bias } if rank == 2 => {
                let w = self.constant(step, &if *trans_b { [size, last] } else { [last, size] });
                let b = if *bias { self.constant(step, &[size]) } else { String::new() };
                let inputs = [&x[..], &w, &b];
                let node = self.node("Gemm", &inputs[..2 + usize::from(*bias)], vec![shape[0], size]);
                set_int(node, "transB", i64::from(*trans_b));
            }
            Op::BatchNormalization if rank > 1 => {
                let parameters: Vec<String> = (0..3).map(|_| self.constant(step, &shape[1..2])).collect();
                let variance = Step { fill: Fill::Positive, op: Op::Flatten, ..*step };
                let variance = self.constant(&variance, &shape[1..2]);
                let inputs = [&x[..], &parameters[0], &parameters[1], &parameters[2], &variance];
                self.node("BatchNormalization", &inputs, shape);
            }
            Op::LayerNormalization => {
                let [scale, bias] = [(); 2].map(|()| self.constant(step, &[last]));
                self.node("LayerNormalization", &[&x, &scale, &bias], shape);
            }
            Op::Clip => {
                let [low, high] = [(); 2].map(|()| self.constant(step, &[]));
                let low = if step.size.is_multiple_of(3) { "" } else { &low };
                self.node("Clip", &[&x, low, &high], shape);
            }
            Op::PRelu => {
                let slope = self.constant(step, &if step.size.is_multiple_of(2) { vec![] } else { vec![last] });
                self.node("PRelu", &[&x, &slope], shape);
            }
            Op::Where if shape == other_shape => {
                let condition = self.node("Greater", &[&x, &other], shape.clone()).output[0].clone();
                self.tensors.pop();
                self.node("Where", &[&condition, &x, &other], shape);
            }
            _ => self.moved(step, (&x, shape), (&other, &other_shape)),
        }
    }

    /// Operators on images.
    fn spatial(&mut self, step: &Step, x: &str, shape: &[i64]) {
        let (c, size) = (shape[1], i64::from(step.size % 6 + 1));
        match step.op {
            Op::Conv { group, bias, stride } => {
                let (n_out, k) = (if group { c } else { size }, if step.size > 100 { 1 } else { 3 });
                let w = self.constant(step, &[n_out, if group { 1 } else { c }, k, k]);
                let b = if bias { self.constant(step, &[n_out]) } else { String::new() };
                let by = if stride { 2 } else { 1 };
                let out = |n: i64| (n - 1) / by + 1;
                let inputs = [x, &w, &b];
                let made = vec![1, n_out, out(shape[2]), out(shape[3])];
                let node = self.node("Conv", &inputs[..2 + usize::from(bias)], made);
                set_int(node, "group", if group { c } else { 1 });
                node.attribute.extend([ints("pads", &[k / 2; 4]), ints("strides", &[by; 2])]);
            }
            Op::ConvTranspose => {
                let w = self.constant(step, &[c, size, 2, 2]);
                let node = self.node("ConvTranspose", &[x, &w], vec![1, size, shape[2] * 2, shape[3] * 2]);
                node.attribute.push(ints("strides", &[2, 2]));
            }
            Op::Pool(number) => {
                let op = if number % 2 == 0 { "MaxPool" } else { "AveragePool" };
                let node = self.node(op, &[x], shape.to_vec());
                node.attribute.extend([ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4])]);
            }
            Op::GlobalPool(number) => {
                let op = if number % 2 == 0 { "GlobalAveragePool" } else { "GlobalMaxPool" };
                self.node(op, &[x], vec![1, c, 1, 1]);
            }
            _ => {}
        }
    }

    /// Operators that move values or choose some of them.
    fn moved(&mut self, step: &Step, (x, shape): (&str, Vec<i64>), (other, other_shape): (&str, &[i64])) {
        let (rank, n) = (shape.len(), shape.iter().product::<i64>());
        let axis = usize::from(step.size) % rank;
        let with_axis = |n: i64| [&shape[..axis], &[n], &shape[axis + 1..]].concat();
        match step.op {
            Op::Concat | Op::Where if other_shape.len() == rank => {
                let fits = (0..rank).all(|i| i == axis || shape[i] == other_shape[i]);
                let (other, more) = if fits { (other, other_shape[axis]) } else { (x, shape[axis]) };
                set_int(self.node("Concat", &[x, other], with_axis(shape[axis] + more)), "axis", axis as i64);
            }
            Op::Transpose => {
                let perm: Vec<i64> = (0..rank as i64).rev().collect();
                let made = shape.iter().rev().copied().collect();
                self.node("Transpose", &[x], made).attribute.push(ints("perm", &perm));
            }
            Op::Reshape => {
                let to = self.integers(step, &[1, -1, shape[rank - 1]]);
                self.node("Reshape", &[x, &to], vec![1, n / shape[rank - 1].max(1), shape[rank - 1]]);
            }
            Op::Reduce(number) => {
                let (op, axes) = (REDUCED[usize::from(number) % REDUCED.len()], [axis as i64]);
                if self.opset < 18 {
                    self.node(op, &[x], with_axis(1)).attribute.push(ints("axes", &axes));
                } else {
                    let axes = self.integers(step, &axes);
                    self.node(op, &[x, &axes], with_axis(1));
                }
            }
            Op::Pad => {
                let mut pads = vec![0; 2 * rank];
                pads[axis] = i64::from(step.other % 3);
                let made = with_axis(shape[axis] + pads[axis]);
                let pads = self.integers(step, &pads);
                self.node("Pad", &[x, &pads], made);
            }
            Op::Slice => {
                let end = i64::from(step.other) % shape[axis].max(1) + 1;
                let [start, end_at, axes] = [0, end, axis as i64].map(|n| self.integers(step, &[n]));
                self.node("Slice", &[x, &start, &end_at, &axes], with_axis(end));
            }
            Op::Split if shape[axis] % 2 == 0 => {
                let half = shape[axis] / 2;
                let parts = if self.opset < 13 { String::new() } else { self.integers(step, &[half, half]) };
                let inputs = [x, &parts];
                let node = self.node("Split", &inputs[..2 - usize::from(parts.is_empty())], with_axis(half));
                set_int(node, "axis", axis as i64);
                let second = format!("{}.second", node.output[0]);
                node.output.push(second.clone());
                self.tensors.push((second, with_axis(half)));
            }
            Op::Softmax => set_int(self.node("Softmax", &[x], shape), "axis", -1),
            Op::Gather => {
                let at = self.integers(step, &[0, shape[axis] - 1]);
                set_int(self.node("Gather", &[x, &at], with_axis(2)), "axis", axis as i64);
            }
            Op::Resize if rank == 4 => {
                let sizes = self.integers(step, &[1, shape[1], shape[2] * 2, shape[3] * 2]);
                self.node("Resize", &[x, "", "", &sizes], vec![1, shape[1], shape[2] * 2, shape[3] * 2]);
            }
            _ => drop(self.node("Flatten", &[x], vec![shape[0], n / shape[0].max(1)])),
        }
    }
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(7), ints: values.to_vec(), ..AttributeProto::default() }
}

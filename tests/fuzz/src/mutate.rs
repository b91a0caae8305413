//! Changes of models field by field: bytes changed at random seldom parse.

use libfuzzer_sys::fuzzer_mutate;
use mqq::onnx::proto::*;
use prost::Message;

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n.max(1)
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }

    fn of_mut<'a, T>(&mut self, list: &'a mut [T]) -> Option<&'a mut T> {
        let i = self.below(list.len());
        list.get_mut(i)
    }

    fn integer(&mut self) -> i64 {
        const EDGES: &[i64] = &[
            0,
            1,
            -1,
            2,
            3,
            4,
            5,
            7,
            8,
            16,
            -2,
            127,
            255,
            1 << 16,
            1 << 24,
            i32::MAX as i64,
            i32::MIN as i64,
            1 << 32,
            i64::MAX,
            i64::MIN,
        ];
        EDGES[self.below(EDGES.len())]
    }

    fn float(&mut self) -> f32 {
        const EDGES: &[f32] =
            &[0.0, -0.0, 1.0, -1.0, 6.0, 1e-40, 1e-20, 1e30, f32::MAX, f32::MIN, f32::INFINITY, f32::NAN];
        EDGES[self.below(EDGES.len())]
    }
}

/// Operators that a node may become.
const OPERATORS: &[&str] = &[
    "Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Mul", "Sub", "Div", "Relu", "Clip", "Sigmoid", "HardSwish",
    "Concat", "Split", "Slice", "Pad", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Softmax",
    "BatchNormalization", "LayerNormalization", "InstanceNormalization", "MaxPool", "AveragePool", "GlobalAveragePool",
    "ReduceMean", "ReduceSum", "Resize", "Upsample", "Constant", "ConstantOfShape", "Identity", "Dropout", "Where",
    "Gather", "Expand", "Tile", "Cast", "Shape", "TopK", "PRelu", "If", "Loop", "Scan", "LSTM", "GRU",
    "QuantizeLinear", "DequantizeLinear", "QLinearConv", "MatMulInteger", "Pow", "Sqrt", "Erf", "DepthToSpace",
    "Einsum", "Attention", "NonMaxSuppression", "Range", "OneHot",
];

/// Attributes that a node may get.
const ATTRIBUTES: &[&str] = &[
    "axis", "axes", "pads", "strides", "dilations", "kernel_shape", "group", "perm", "transA", "transB", "alpha",
    "beta", "epsilon", "auto_pad", "keepdims", "min", "max", "split", "blocksize", "to", "value", "mode", "ceil_mode",
    "output_padding",
];

/// A mutator of libFuzzer for the bytes of a model.
pub fn model(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut random = Random(u64::from(seed) | 1 << 40);
    if random.below(4) > 0
        && let Ok(mut model) = ModelProto::decode(&data[..size])
    {
        for _ in 0..=random.below(3) {
            change(&mut model, &mut random);
        }
        let bytes = model.encode_to_vec();
        if bytes.len() <= max_size {
            data[..bytes.len()].copy_from_slice(&bytes);
            return bytes.len();
        }
    }
    fuzzer_mutate(data, size, max_size)
}

fn change(model: &mut ModelProto, random: &mut Random) {
    match random.below(8) {
        0 => {
            if let Some(set) = random.of_mut(&mut model.opset_import) {
                set.version = Some([1, 6, 7, 9, 10, 11, 13, 17, 18, 21, 25, 28][random.below(12)]);
            }
        }
        _ => {
            let mut graph = model.graph.take().unwrap_or_default();
            match random.below(10) {
                0..5 => change_node(&mut graph, random),
                5..7 => change_tensor(&mut graph, random),
                7 => change_value(&mut graph, random),
                8 => change_list(&mut graph, random),
                _ => change_name(&mut graph, random),
            }
            model.graph = Some(graph);
        }
    }
}

/// Names of the tensors of a graph.
fn names(graph: &GraphProto) -> Vec<String> {
    let made = graph.node.iter().flat_map(|node| node.output.iter().cloned());
    let stored = graph.initializer.iter().map(|tensor| tensor.name().to_string());
    made.chain(stored).chain(graph.input.iter().map(|value| value.name().to_string())).collect()
}

fn change_node(graph: &mut GraphProto, random: &mut Random) {
    let names = names(graph);
    let inner = GraphProto { node: graph.node.iter().take(3).cloned().collect(), ..GraphProto::default() };
    let Some(node) = random.of_mut(&mut graph.node) else { return };
    match random.below(9) {
        0 => node.op_type = random.of(OPERATORS).map(ToString::to_string),
        1 => {
            let name = random.of(&names).cloned().unwrap_or_default();
            random.of_mut(&mut node.input).into_iter().for_each(|input| *input = name.clone());
        }
        2 => node.input.extend(random.of(&names).cloned()),
        3 => drop(node.input.pop()),
        4 => random.of_mut(&mut node.input).into_iter().for_each(String::clear),
        5 => {
            if !node.attribute.is_empty() {
                node.attribute.remove(random.below(node.attribute.len()));
            }
        }
        6 => {
            let attribute = new_attribute(random, inner);
            node.attribute.retain(|other| other.name != attribute.name);
            node.attribute.push(attribute);
        }
        _ => {
            let value = (random.integer(), random.float());
            if let Some(attribute) = random.of_mut(&mut node.attribute) {
                attribute.i = attribute.i.map(|_| value.0);
                attribute.f = attribute.f.map(|_| value.1);
                random.of_mut(&mut attribute.ints).into_iter().for_each(|i| *i = value.0);
                random.of_mut(&mut attribute.floats).into_iter().for_each(|f| *f = value.1);
                attribute.t.iter_mut().for_each(|tensor| change_contents(tensor, random));
            }
        }
    }
}

fn new_attribute(random: &mut Random, inner: GraphProto) -> AttributeProto {
    let name = random.of(ATTRIBUTES).map(ToString::to_string);
    let plain = AttributeProto { name, ..AttributeProto::default() };
    match random.below(6) {
        0 => AttributeProto { r#type: Some(1), f: Some(random.float()), ..plain },
        1 => AttributeProto { r#type: Some(2), i: Some(random.integer()), ..plain },
        2 => AttributeProto { r#type: Some(3), s: Some(b"SAME_UPPER".to_vec().into()), ..plain },
        3 => AttributeProto { name: Some("then_branch".into()), r#type: Some(5), g: Some(inner), ..plain },
        _ => {
            let ints = (0..random.below(5)).map(|_| random.integer()).collect();
            AttributeProto { r#type: Some(7), ints, ..plain }
        }
    }
}

fn change_tensor(graph: &mut GraphProto, random: &mut Random) {
    random.of_mut(&mut graph.initializer).into_iter().for_each(|tensor| change_contents(tensor, random));
}

fn change_contents(tensor: &mut TensorProto, random: &mut Random) {
    match random.below(7) {
        0 => tensor.data_type = Some(random.below(28) as i32),
        1 => {
            let n = random.integer();
            random.of_mut(&mut tensor.dims).into_iter().for_each(|dim| *dim = n);
        }
        2 => tensor.dims.push(random.integer()),
        3 => drop(tensor.dims.pop()),
        4 => tensor.dims.reverse(),
        5 => tensor.raw_data = None,
        _ => {
            let (integer, float) = (random.integer(), random.float());
            random.of_mut(&mut tensor.int64_data).into_iter().for_each(|i| *i = integer);
            random.of_mut(&mut tensor.float_data).into_iter().for_each(|f| *f = float);
            if let Some(raw) = &mut tensor.raw_data {
                let mut bytes = raw.to_vec();
                let new = if tensor.data_type == Some(7) {
                    integer.to_le_bytes().to_vec()
                } else {
                    float.to_le_bytes().to_vec()
                };
                if let Some(place) = random.of_mut(bytes.as_chunks_mut::<4>().0) {
                    place.copy_from_slice(&new[..4]);
                }
                *raw = bytes.into();
            }
        }
    }
}

fn change_value(graph: &mut GraphProto, random: &mut Random) {
    let values = if random.below(2) == 0 { &mut graph.input } else { &mut graph.output };
    let value = random.of_mut(values);
    let Some(tensor) = value.and_then(|value| value.r#type.as_mut()).and_then(|of| of.tensor_type.as_mut()) else {
        return;
    };
    let (n, number) = (random.integer(), random.below(5));
    match (number, &mut tensor.shape) {
        (0, _) => tensor.elem_type = Some(random.below(28) as i32),
        (1, shape) => *shape = None,
        (2, Some(shape)) => random.of_mut(&mut shape.dim).into_iter().for_each(|dim| *dim = Dimension::default()),
        (_, Some(shape)) => random.of_mut(&mut shape.dim).into_iter().for_each(|dim| dim.dim_value = Some(n)),
        _ => {}
    }
}

/// Removes, doubles or moves a node or an initializer.
fn change_list(graph: &mut GraphProto, random: &mut Random) {
    fn change<T: Clone>(list: &mut Vec<T>, random: &mut Random) {
        if list.is_empty() {
            return;
        }
        let (i, j) = (random.below(list.len()), random.below(list.len()));
        match random.below(3) {
            0 => drop(list.remove(i)),
            1 => list.insert(j, list[i].clone()),
            _ => list.swap(i, j),
        }
    }
    match random.below(4) {
        0 => change(&mut graph.initializer, random),
        1 => change(&mut graph.output, random),
        _ => change(&mut graph.node, random),
    }
}

/// Gives a tensor another name, or the one that another has.
fn change_name(graph: &mut GraphProto, random: &mut Random) {
    let names = names(graph);
    let odd = ["", "x", "a/b", "\u{1b}[2J", "a`b", "\"", "<b>"].map(String::from);
    let list = if random.below(2) == 0 { &names[..] } else { &odd };
    let new = random.of(list).cloned().unwrap_or_default();
    match random.below(4) {
        0 => random.of_mut(&mut graph.initializer).into_iter().for_each(|tensor| tensor.name = Some(new.clone())),
        1 => random.of_mut(&mut graph.output).into_iter().for_each(|value| value.name = Some(new.clone())),
        2 => random.of_mut(&mut graph.node).into_iter().for_each(|node| node.name = Some(new.clone())),
        _ => {
            if let Some(output) = random.of_mut(&mut graph.node).and_then(|node| node.output.first_mut()) {
                *output = new;
            }
        }
    }
}

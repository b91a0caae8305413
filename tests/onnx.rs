//! Tensors of every type, their producers and readers, and models as files.

use crate::support::{Attr, GraphBuilder};
use mqq::onnx;
use mqq::onnx::data_type::{element_bytes, type_name, type_number};
use mqq::onnx::graph::GraphIndex;
use mqq::onnx::integers::{integer_values, scale_values};
use mqq::onnx::node::multiply_adds;
use mqq::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto,
};
use mqq::onnx::tensor::{DataType, f32_values, from_f32, from_integers, i64_values, shape};
use mqq::onnx::value_info::ValueInfos;
use prost::Message;
use tempfile::TempDir;

fn raw(data_type: i32, n_values: i64, bytes: &[u8]) -> TensorProto {
    TensorProto {
        data_type: Some(data_type),
        dims: vec![n_values],
        raw_data: Some(bytes.to_vec().into()),
        ..Default::default()
    }
}

#[test]
fn integers_of_every_width() {
    let cases = [
        (raw(3, 2, &[255, 127]), vec![-1, 127]),
        (raw(2, 2, &[255, 127]), vec![255, 127]),
        (raw(5, 1, &[0, 128]), vec![-32768]),
        (raw(4, 1, &[0, 128]), vec![32768]),
        (raw(6, 1, &[254, 255, 255, 255]), vec![-2]),
        (raw(22, 3, &[0x8f, 0x07]), vec![-1, -8, 7]),
        (raw(21, 3, &[0x8f, 0x07]), vec![15, 8, 7]),
        (raw(26, 3, &[0b00_10_01_11]), vec![-1, 1, -2]),
        (raw(17, 2, &[0x80, 1]), vec![0, 1]),
    ];
    for (tensor, expected) in cases {
        assert_eq!(integer_values(&tensor).unwrap(), expected, "{tensor:?}");
    }
    let typed = |data_type, n_values, int32_data: &[i32]| TensorProto {
        data_type: Some(data_type),
        dims: vec![n_values],
        int32_data: int32_data.to_vec(),
        ..Default::default()
    };
    assert_eq!(integer_values(&typed(3, 2, &[-1, 5])).unwrap(), [-1, 5]);
    assert_eq!(integer_values(&typed(22, 3, &[0x8f, 0x07])).unwrap(), [-1, -8, 7]);
    assert!(integer_values(&raw(3, 3, &[1])).is_err());
    assert!(integer_values(&raw(1, 1, &[0; 4])).is_err());
}

#[test]
fn scales_of_every_float_type() {
    assert_eq!(scale_values(&raw(10, 2, &[0, 0x3c, 1, 0])).unwrap(), [1.0, 2f32.powi(-24)]);
    assert_eq!(scale_values(&raw(16, 1, &[0x80, 0x3f])).unwrap(), [1.0]);
    assert_eq!(scale_values(&raw(1, 1, &[0, 0, 0x80, 0x3f])).unwrap(), [1.0]);
    assert!(scale_values(&raw(10, 1, &[0, 0x7c])).unwrap()[0].is_infinite());
    assert!(scale_values(&raw(7, 1, &[0; 8])).is_err());
}

#[test]
fn names_and_numbers_agree() {
    assert_eq!((type_name(22), type_number("int4")), ("int4", Some(22)));
    assert_eq!((type_name(-1), type_name(99), type_number("int")), ("unknown", "unknown", None));
    assert_eq!((type_name(1), type_name(11), type_number("float")), ("float32", "float64", None));
    for data_type in DataType::all() {
        assert_eq!(type_number(data_type.name()), Some(data_type as i32));
        assert_eq!(DataType::of(data_type as i32), Some(data_type));
    }
    let bytes = [1, 8, 9, 12, 13, 14, 16, 17, 21].map(element_bytes);
    assert_eq!(bytes, [Some(4), None, Some(1), Some(4), Some(8), None, Some(2), None, None]);
}

#[test]
fn raw_and_typed_storage_read_alike() {
    let values = [1.5f32, -2.0, 0.0, f32::MAX, 3.25, -0.0];
    let raw = from_f32("w", &[2, 3], &values).unwrap();
    let typed = TensorProto { raw_data: None, float_data: values.to_vec(), ..raw.clone() };
    assert_eq!(f32_values(&raw).unwrap(), values);
    assert_eq!(f32_values(&typed).unwrap(), values);
    assert_eq!(shape(&raw).unwrap(), [2, 3]);
    let ints = TensorProto {
        data_type: Some(DataType::Int64 as i32),
        dims: vec![2],
        int64_data: vec![-1, 7],
        ..Default::default()
    };
    assert_eq!(i64_values(&ints).unwrap(), [-1, 7]);
}

#[test]
fn integers_are_stored_as_their_bytes() {
    let bytes = |tensor: TensorProto| tensor.raw_data.unwrap().to_vec();
    assert_eq!(bytes(from_integers("q", DataType::Int8, &[2], &[-1, 127]).unwrap()), [255, 127]);
    assert_eq!(bytes(from_integers("q", DataType::Uint8, &[2], &[0, 255]).unwrap()), [0, 255]);
    assert_eq!(bytes(from_integers("q", DataType::Int32, &[1], &[-2]).unwrap()), [254, 255, 255, 255]);
    assert_eq!(bytes(from_integers("q", DataType::Int4, &[3], &[-1, 2, -8]).unwrap()), [0x2f, 0x08]);
    assert_eq!(bytes(from_integers("q", DataType::Uint4, &[2], &[1, 15]).unwrap()), [0xf1]);
}

#[test]
fn sizes_that_do_not_add_up_are_errors() {
    let good = from_f32("w", &[2], &[1.0, 2.0]).unwrap();
    let cases = [
        TensorProto { dims: vec![3], ..good.clone() },
        TensorProto { dims: vec![-2], ..good.clone() },
        TensorProto { dims: vec![i64::MAX, i64::MAX], ..good.clone() },
        TensorProto { data_type: Some(10), ..good.clone() },
        TensorProto { data_location: Some(1), ..good.clone() },
        TensorProto { raw_data: None, ..good },
    ];
    for case in &cases {
        assert!(f32_values(case).is_err(), "{case:?}");
    }
    assert!(from_f32("w", &[3], &[1.0]).is_err());
}

fn node(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    NodeProto { op_type: Some(op_type.into()), input: owned(inputs), output: owned(outputs), ..Default::default() }
}

fn value(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), ..Default::default() }
}

#[test]
fn uses_inside_nested_graphs_count() {
    let body = GraphProto {
        node: vec![node("Relu", &["outer"], &["inner"]), node("Neg", &["inner"], &["result"])],
        output: vec![value("result")],
        ..Default::default()
    };
    let mut branch = node("If", &["condition"], &["y"]);
    branch.attribute.push(AttributeProto { g: Some(body), ..Default::default() });
    let graph = GraphProto {
        node: vec![node("Conv", &["x", "w", ""], &["outer"]), branch],
        initializer: vec![TensorProto { name: Some("w".into()), ..Default::default() }],
        input: vec![value("x"), value("condition")],
        output: vec![value("y")],
        ..Default::default()
    };
    let index = GraphIndex::new(&graph);
    assert_eq!(index.producer("outer").and_then(|n| n.op_type.as_deref()), Some("Conv"));
    assert_eq!(index.producer_idx("y"), Some(1));
    assert!(index.producer("x").is_none() && index.producer("inner").is_none());
    assert_eq!(index.consumers("outer"), [(1, usize::MAX)]);
    assert_eq!(index.consumers("w"), [(0, 1)]);
    assert!(index.consumers("").is_empty() && index.consumers("inner").is_empty());
    assert!(index.initializer("w").is_some() && index.initializer("x").is_none());
    assert!(index.is_output("y") && !index.is_output("outer"));
    assert!(index.is_captured("outer") && !index.is_captured("x") && !index.is_captured("inner"));
    let mut model = ModelProto { graph: Some(graph.clone()), ..Default::default() };
    onnx::check_topology(&model).unwrap();
    model.graph.as_mut().unwrap().node[0].output[0] = "other".into();
    let error = onnx::check_topology(&model).unwrap_err();
    assert_eq!(format!("{error:#}"), "node `y`: no earlier node produces input `outer`");
}

/// A model with tensors below and above the sizes at which bytes are handed out and pages given back.
fn model_with_large_tensors() -> ModelProto {
    let values: Vec<f32> = (0..1 << 19).map(|i| i as f32).collect();
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", &[1]);
    let mut last = x;
    for (i, n) in [3, 1 << 14, 5, 1 << 19, 7, (1 << 14) - 1].into_iter().enumerate() {
        let weight = g.values(&format!("w{i}"), &[n], &values[..n]);
        last = g.op("Add", &[&last, &weight], &format!("y{i}"));
    }
    g.output(&last);
    g.build()
}

#[test]
fn a_saved_model_has_the_bytes_of_its_message() {
    let (folder, model) = (TempDir::new().unwrap(), model_with_large_tensors());
    let path = folder.path().join("model.onnx");
    onnx::save(&model, &path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), onnx::encode(&model).unwrap());
    assert_eq!(onnx::model_sha256(&model), onnx::sha256(&path).unwrap());
    assert_eq!(onnx::load(&path).unwrap(), model);
}

#[test]
fn pages_that_are_given_back_are_read_again() {
    let (folder, model) = (TempDir::new().unwrap(), model_with_large_tensors());
    let path = folder.path().join("model.onnx");
    onnx::save(&model, &path).unwrap();
    let raw = |model: &ModelProto| model.graph.as_ref().unwrap().initializer[3].raw_data.clone().unwrap();
    // Those of a file, and those of a list in memory, which have no other place.
    for model in [onnx::load(&path).unwrap(), model] {
        let (bytes, before) = (raw(&model), raw(&model).to_vec());
        onnx::mapped::release_pages(&bytes);
        onnx::mapped::release_pages(&bytes[1..]);
        assert_eq!(bytes, before);
    }
}

/// 5 steps of 2 samples: an input of 3 and a state of 4 values by the four gates of both directions.
#[test]
fn recurrent_operators_multiply_at_each_step() {
    let mut g = GraphBuilder::new(13);
    g.op("LSTM", &["x", "w", "r"], "y");
    let node = g.build().graph.unwrap().node.remove(0);
    let shape = |name: &str| match name {
        "x" => Some(vec![5, 2, 3]),
        "w" => Some(vec![2, 16, 3]),
        "r" => Some(vec![2, 16, 4]),
        _ => None,
    };
    assert_eq!(multiply_adds(&node, shape), Some(5 * 2 * 2 * 16 * (3 + 4)));
}

/// 2 samples of 5 queries, 4 heads of 8 values; 2 heads of keys and of 6 values each, 7 positions and 3 of the cache.
#[test]
fn attention_multiplies_queries_by_keys_and_values() {
    const OTHERS: &str = "com.microsoft";
    let standard = || vec![("q_num_heads", Attr::Int(4)), ("kv_num_heads", Attr::Int(2))];
    let all = || vec![("num_heads", Attr::Int(4))];
    let grouped = || vec![("num_heads", Attr::Int(4)), ("kv_num_heads", Attr::Int(2))];
    let sizes = || vec![("num_heads", Attr::Int(4)), ("qkv_hidden_sizes", Attr::Ints(vec![32, 32, 24]))];
    let multiply_adds_of = |domain: &str, op_type: &str, attributes: Vec<(&str, Attr)>, shapes: &str| {
        let names: Vec<&str> = shapes.split(' ').map(|shape| if shape == "-" { "" } else { shape }).collect();
        let mut g = GraphBuilder::new(23);
        g.op_with(op_type, &names, "1x6x9x9", &attributes);
        let mut node = g.build().graph.unwrap().node.remove(0);
        node.domain = Some(domain.to_string());
        multiply_adds(&node, |name| name.split('x').map(|size| size.parse().ok()).collect())
    };
    let with_cache = Some(2 * 4 * 5 * (7 + 3) * (8 + 6));
    let shapes = "2x5x32 2x7x16 2x7x12 - 2x2x3x8 2x2x3x6";
    assert_eq!(multiply_adds_of("", "Attention", standard(), shapes), with_cache);
    assert_eq!(multiply_adds_of("", "Attention", vec![], shapes), None, "the heads are unknown");
    let shapes = "2x4x5x8 2x2x7x8 2x2x7x6 - 2x2x3x8 2x2x3x6";
    assert_eq!(multiply_adds_of("", "Attention", vec![], shapes), with_cache);
    for shapes in ["2x5x32 2x7x32 2x7x32", "2x5x32 2x4x7x8 2x4x7x8", "2x5x32 2x7x4x2x8"] {
        let found = multiply_adds_of(OTHERS, "MultiHeadAttention", all(), shapes);
        assert_eq!(found, Some(2 * 4 * 5 * 7 * (8 + 8)), "{shapes}");
    }
    let found = multiply_adds_of(OTHERS, "MultiHeadAttention", all(), "2x7x4x3x8");
    assert_eq!(found, Some(2 * 4 * 7 * 7 * (8 + 8)));
    let found = multiply_adds_of(OTHERS, "GroupQueryAttention", grouped(), "2x5x32 2x5x16 2x5x16 2x2x3x8 2x2x3x8");
    assert_eq!(found, Some(2 * 4 * 5 * (5 + 3) * (8 + 8)));
    let found = multiply_adds_of(OTHERS, "GroupQueryAttention", grouped(), "2x5x64");
    assert_eq!(found, Some(2 * 4 * 5 * 5 * (8 + 8)), "queries, keys and values are one tensor");
    let found = multiply_adds_of(OTHERS, "Attention", all(), "2x5x32 32x96");
    assert_eq!(found, Some(2 * 5 * 32 * 96 + 2 * 5 * 5 * (32 + 32)));
    let found = multiply_adds_of(OTHERS, "Attention", sizes(), "2x5x32 32x88 88 - 2x2x4x3x8");
    assert_eq!(found, Some(2 * 5 * 32 * 88 + 2 * 5 * (5 + 3) * (32 + 24)));
}

#[test]
fn a_deformable_convolution_multiplies_as_a_convolution() {
    let mut g = GraphBuilder::new(19);
    g.op("DeformConv", &["x", "w", "offset"], "y");
    let node = g.build().graph.unwrap().node.remove(0);
    let shape = |name: &str| match name {
        "w" => Some(vec![6, 4, 3, 3]),
        "y" => Some(vec![1, 6, 9, 9]),
        _ => None,
    };
    assert_eq!(multiply_adds(&node, shape), Some(6 * 9 * 9 * 4 * 9));
}

#[test]
fn sparse_tensors_are_filled_in() {
    let folder = tempfile::TempDir::new().unwrap();
    let full = [0.0, 0.0, 1.5, 0.0, -2.0, 0.0];
    let sparse = |indices: &[i64], shape: &[usize], dims: &[i64]| SparseTensorProto {
        values: Some(onnx::tensor::from_f32("s", &[2], &[1.5, -2.0]).unwrap()),
        indices: Some(onnx::tensor::from_i64("", shape, indices).unwrap()),
        dims: dims.to_vec(),
    };
    let loaded = |sparse: &SparseTensorProto, is_node: bool| {
        let mut g = GraphBuilder::new(17);
        g.input("x", &[2, 3]);
        g.op("Add", &["x", "s"], "y");
        let mut model = g.output("y").build();
        let graph = model.graph.as_mut().unwrap();
        match is_node {
            true => {
                let value = AttributeProto {
                    name: Some("sparse_value".into()),
                    r#type: Some(11),
                    sparse_tensor: Some(sparse.encode_to_vec().into()),
                    ..Default::default()
                };
                let (op_type, output) = (Some("Constant".into()), vec!["s".into()]);
                graph.node.insert(0, NodeProto { op_type, output, attribute: vec![value], ..Default::default() });
            }
            false => graph.sparse_initializer.push(sparse.clone()),
        }
        let path = folder.path().join("m.onnx");
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        onnx::load_whole(&path).map(|loaded| loaded.model.graph.unwrap())
    };
    for good in [sparse(&[2, 4], &[2], &[2, 3]), sparse(&[0, 2, 1, 1], &[2, 2], &[2, 3])] {
        let graph = loaded(&good, false).unwrap();
        assert!(graph.sparse_initializer.is_empty());
        assert_eq!(onnx::tensor::f32_values(&graph.initializer[0]).unwrap(), full);
        assert_eq!((graph.initializer[0].name(), &graph.initializer[0].dims), ("s", &vec![2, 3]));
        let graph = loaded(&good, true).unwrap();
        let tensor = graph.node[0].attribute[0].t.as_ref().unwrap();
        assert_eq!(onnx::tensor::f32_values(tensor).unwrap(), full);
    }
    for (bad, expected) in [
        (sparse(&[2, 6], &[2], &[2, 3]), "index is 6, expected 0 to 5"),
        (sparse(&[2, 4], &[2], &[1 << 20, 1 << 20]), "expected one that takes at most 1073741824 bytes when dense"),
        (sparse(&[2, 4, 5], &[3], &[2, 3]), "indices have the shape [3]"),
    ] {
        for is_node in [false, true] {
            let error = format!("{:#}", loaded(&bad, is_node).map(drop).unwrap_err());
            assert!(error.contains("sparse tensor") && error.contains(expected), "{error}");
        }
    }
}

#[test]
fn a_file_of_another_kind_is_named() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.onnx");
    for (bytes, expected) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 1\n"[..], "is a Git LFS pointer"),
        (b"\x1c\0\0\0TFL3\x14\0\x20\0", "is a TFLite model"),
        (b"PK\x03\x04\x14\0\0\0", "is a ZIP archive"),
        (b"\x89HDF\r\n\x1a\n\0\0\0\0", "is an HDF5 file"),
        (b"<?xml version=\"1.0\"?><net/>", "is an XML file"),
        (b"<!DOCTYPE html><html></html>", "is an HTML page"),
        (b"hello", "is not an ONNX model, or is truncated"),
        (b"", "is empty, expected an ONNX model"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = onnx::load(&path).unwrap_err();
        let (text, hint) = (format!("{error:#}"), mqq::diag::hint_of(&error));
        assert!(text.contains(expected) && !hint.is_empty(), "{text}: {hint}");
    }
}

/// A type that is wrong would make a Cast behind it look like a copy, which preparation removes.
#[test]
fn types_follow_from_operators_and_attributes() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[4, 64]);
    g.tensor(mqq::onnx::tensor::from_i64("ids", &[1], &[0]).unwrap());
    g.op_with("Multinomial", &["x"], "drawn", &[]);
    g.op_with("EyeLike", &["x"], "eye", &[("dtype", Attr::Int(7))]);
    g.op_with("Bernoulli", &["x"], "coins", &[]);
    g.op_with("HannWindow", &["ids"], "window", &[]);
    g.op_with("CastLike", &["x", "ids"], "like", &[]);
    g.op_with("Unique", &["x"], "unique", &[]);
    g.also_makes("places");
    g.op_with("OptionalGetElement", &["optional"], "element", &[]);
    g.op_with("Gather", &["element", "ids"], "part", &[]);
    g.op_with("Add", &["element", "x"], "sum", &[]);
    let model = g.output("sum").build();
    let types = ValueInfos::of_model(&model);
    let [float, int32, int64] = [DataType::Float, DataType::Int32, DataType::Int64].map(|it| Some(it as i32));
    for (name, expected) in [
        ("drawn", int32),
        ("eye", int64),
        ("coins", float),
        ("window", float),
        ("like", int64),
        ("unique", float),
        ("places", int64),
        ("element", None),
        ("part", None),
        ("sum", float),
    ] {
        assert_eq!(types.data_type(name), expected, "{name}");
    }
}

//! Tables that quantize only weights, or activations on each run: the stored tensors, the scales of blocks, no data.

use crate::support::command::{Ran, mqq, run};
use crate::support::{Attr, GraphBuilder, noise, repository};
use mqq::backends;
use mqq::check::{Severity, findings};
use mqq::diag::explain;
use mqq::observers::by_spelling;
use mqq::onnx::integers::integer_values;
use mqq::onnx::node::int;
use mqq::onnx::proto::{ModelProto, NodeProto, TensorProto};
use mqq::onnx::tensor::f32_values;
use mqq::onnx::value_info::ValueInfos;
use mqq::place::{Selection, place};
use mqq::plan::{Observers, decide, least_error};
use mqq::quant::{Grid, Range, Symmetry, params_for_range};
use mqq::rewrite::rewrite;
use mqq::statistics::TensorStatistics;
use tempfile::TempDir;

/// `model` as the table writes it, without data; it keeps the table's rules.
fn quantized(model: &ModelProto, backend: &str, sets: &[&str]) -> ModelProto {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let scheme = backends::resolve_with(backend, &[], &sets).unwrap();
    let mut model = model.clone();
    model.opset_import[0].version = Some(21);
    let graph = model.graph.as_ref().unwrap();
    let mut placement = place(graph, &ValueInfos::of_model(&model), &scheme, &Selection::default());
    placement.activations.clear();
    let observer = by_spelling("max").unwrap();
    let observers = Observers { activation: &observer, weight: &observer };
    let none: [TensorStatistics; 0] = [];
    let (plan, _) = decide(graph, &placement, &none, None, &scheme, observers).unwrap();
    let quantized = rewrite(model, &plan, scheme.weight_storage).unwrap().into_model();
    let errors: Vec<_> =
        findings(&quantized, &scheme).into_iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:?}");
    quantized
}

fn node<'a>(model: &'a ModelProto, op_type: &str) -> &'a NodeProto {
    model.graph.as_ref().unwrap().node.iter().find(|node| node.op_type() == op_type).unwrap()
}

fn initializer<'a>(model: &'a ModelProto, name: &str) -> &'a TensorProto {
    model.graph.as_ref().unwrap().initializer_named(name).unwrap()
}

fn operators(model: &ModelProto) -> Vec<&str> {
    model.graph.as_ref().unwrap().node.iter().map(|node| node.op_type()).collect()
}

/// A product of two columns and 18 rows: one block of 16 and the beginning of another.
fn columns() -> [Vec<f32>; 2] {
    // 7 steps of 0.5 at most; 7 steps of 2 in the second block.
    let first = (0..18).map(|k| if k < 16 { 0.5 * ((k % 15) as f32 - 7.0) } else { 14.0 }).collect();
    let second = (0..18).map(|k| if k == 3 { -7.0 } else { 1.0 }).collect();
    [first, second]
}

#[test]
fn blocks_are_packed_along_the_rows_of_each_column() {
    let columns = columns();
    let by_rows: Vec<f32> = (0..18).flat_map(|k| [columns[0][k], columns[1][k]]).collect();
    let mut g = GraphBuilder::new(21);
    g.input("x", &[4, 18]);
    g.values("w", &[18, 2], &by_rows);
    g.op("MatMul", &["x", "w"], "y");
    g.output("y");
    let symmetric = ["types.wgt4.signed=true", "types.wgt4.symmetry=symmetric", "types.wgt4.block_size=16"];
    let of_matmul = quantized(&g.build(), "onnxruntime-nbits", &symmetric);
    let mut g = GraphBuilder::new(21);
    g.input("x", &[4, 18]);
    g.values("w", &[2, 18], &columns.concat());
    g.values("b", &[2], &[1.0, 2.0]);
    g.op_with("Gemm", &["x", "w", "b"], "y", &[("transB", Attr::Int(1))]);
    g.output("y");
    let of_gemm = quantized(&g.build(), "onnxruntime-nbits", &symmetric);
    assert_eq!((operators(&of_matmul), operators(&of_gemm)), (vec!["MatMulNBits"], vec!["MatMulNBits", "Add"]));
    // Codes count from -8; the rest of the second block stands for 0.
    let code = |q: i32| q + 8;
    let rows = [
        (0..16).map(|k| code(k % 15 - 7)).chain([code(7), code(7)]).collect::<Vec<_>>(),
        (0..16).map(|k| code(if k == 3 { -7 } else { 1 })).chain([code(7), code(7)]).collect(),
    ];
    let bytes: Vec<i32> = rows
        .iter()
        .flat_map(|row| {
            let filled: Vec<i32> = row.iter().copied().chain([code(0); 14]).collect();
            filled.chunks(2).map(|pair| pair[0] + 16 * pair[1]).collect::<Vec<_>>()
        })
        .collect();
    for model in [&of_matmul, &of_gemm] {
        let product = node(model, "MatMulNBits");
        assert_eq!(product.domain(), "com.microsoft");
        assert_eq!(model.opset_import.last().unwrap().domain(), "com.microsoft");
        let attributes = ["K", "N", "bits", "block_size", "accuracy_level"].map(|name| int(product, name, -1));
        assert_eq!(attributes, [18, 2, 4, 16, 4]);
        let [x, codes, scales] = &product.input[..] else { panic!("zero points where there need be none") };
        assert_eq!(x, "x");
        let stored = initializer(model, codes);
        assert_eq!((stored.data_type(), &stored.dims[..]), (2, &[2, 2, 8][..]));
        assert_eq!(integer_values(stored).unwrap(), bytes);
        let scales = initializer(model, scales);
        assert_eq!((&scales.dims[..], f32_values(scales).unwrap()), (&[2, 2][..], vec![0.5, 2.0, 1.0, 1.0 / 7.0]));
        assert!(model.graph.as_ref().unwrap().initializer_named("w").is_none());
    }
    assert_eq!(node(&of_gemm, "Add").output, ["y"]);
}

#[test]
fn zero_points_of_blocks_fill_their_bytes_row_by_row() {
    let mut g = GraphBuilder::new(21);
    g.input("x", &[4, 48]);
    // From -5 to 10 in every block but the last of the second column, which is of one sign.
    let value = |i: usize| if i % 2 == 1 && i / 2 >= 32 { (i / 2 % 16) as f32 } else { (i / 2 % 16) as f32 - 5.0 };
    g.values("w", &[48, 2], &(0..96).map(value).collect::<Vec<_>>());
    g.op("MatMul", &["x", "w"], "y");
    g.output("y");
    let level = "weight_storage.nbits.accuracy_level=0";
    let model = quantized(&g.build(), "onnxruntime-nbits", &["types.wgt4.block_size=16", level]);
    let product = node(&model, "MatMulNBits");
    assert_eq!(int(product, "accuracy_level", -1), -1, "said where it says nothing");
    let zero_points = initializer(&model, &product.input[3]);
    assert_eq!((zero_points.data_type(), &zero_points.dims[..]), (2, &[2, 2][..]));
    assert_eq!(integer_values(zero_points).unwrap(), [0x55, 0x05, 0x55, 0x00]);
    let codes = integer_values(initializer(&model, &product.input[1])).unwrap();
    assert_eq!(codes[..8], [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe]);
}

#[test]
fn what_is_no_plain_product_stays_behind_a_dequantize() {
    let mut g = GraphBuilder::new(21);
    g.input("x", &[32, 32]);
    g.weight("w", &[32, 32]);
    g.ops("a = MatMul x w; b = MatMul w a");
    g.op_with("Gemm", &["b", "w"], "c", &[("alpha", Attr::Float(0.5))]);
    g.weight("batch", &[2, 32, 32]);
    g.op("MatMul", &["c", "batch"], "y");
    g.output("y");
    // MatMulInteger takes a stack of matrices with one scale.
    for (backend, product, n) in [("onnxruntime-nbits", "MatMulNBits", 1), ("onnxruntime-dynamic", "MatMulInteger", 2)]
    {
        let model = quantized(&g.build(), backend, &[]);
        let operators = operators(&model);
        assert_eq!(operators.iter().filter(|op| **op == product).count(), n, "{backend}: {operators:?}");
        assert!(operators.contains(&"Gemm") && operators.contains(&"MatMul"), "{backend}");
        assert!(operators.contains(&"DequantizeLinear"), "{backend}");
        assert!(!operators.contains(&"QuantizeLinear"), "{backend}");
    }
}

/// The scales and the values that blocks stand for, of a weight `[32, 2]` behind a DequantizeLinear or in a MatMulNBits.
fn scales_of(values: &[f32], backend: &str) -> Vec<f32> {
    let mut g = GraphBuilder::new(21);
    g.input("x", &[4, 32]);
    g.values("w", &[32, 2], values);
    g.op("MatMul", &["x", "w"], "y");
    g.output("y");
    let model = quantized(&g.build(), backend, &[]);
    f32_values(initializer(&model, "w_scale")).unwrap()
}

#[test]
fn a_block_of_zeros_has_a_scale_above_zero() {
    let half: Vec<f32> = (0..64).map(|i| if i % 2 == 0 { 0.0 } else { (i % 15) as f32 - 7.0 }).collect();
    for backend in ["weight-only-int8", "weight-only-int4", "onnxruntime-nbits", "onnxruntime-dynamic"] {
        for values in [&[0.0; 64][..], &half] {
            let scales = scales_of(values, backend);
            assert!(scales.iter().all(|scale| scale.is_normal() && *scale > 0.0), "{backend}: {scales:?}");
        }
    }
}

#[test]
fn a_weight_without_values_stays_as_it_is() {
    let mut g = GraphBuilder::new(21);
    g.input("x", &[4, 0]);
    g.values("w", &[0, 2], &[]);
    g.op("MatMul", &["x", "w"], "y");
    g.weight("full", &[2, 32]);
    g.op("MatMul", &["y", "full"], "z");
    g.output("z");
    for backend in ["weight-only-int8", "weight-only-int4", "onnxruntime-nbits", "onnxruntime-dynamic"] {
        let model = quantized(&g.build(), backend, &[]);
        assert_eq!(node(&model, "MatMul").input, ["x", "w"], "{backend}");
    }
}

#[test]
fn dynamic_products_share_what_they_read() {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[2, 4, 16]);
    for name in ["q", "k"] {
        g.weight(&format!("w{name}"), &[16, 8]);
        g.op("MatMul", &["x", &format!("w{name}")], name);
    }
    g.op("Add", &["q", "k"], "s");
    g.input("z", &[4, 16]);
    g.values("wz", &[2, 16], &(0..32).map(|i| (i % 16) as f32 - 8.0).collect::<Vec<_>>());
    g.values("bz", &[2], &[1.0, -1.0]);
    g.op_with("Gemm", &["z", "wz", "bz"], "y", &[("transB", Attr::Int(1))]);
    g.output("s");
    g.output("y");
    let model = quantized(&g.build(), "onnxruntime-dynamic", &[]);
    let expected = "DynamicQuantizeLinear MatMulInteger Cast Mul Mul MatMulInteger Cast Mul Mul Add \
                    DynamicQuantizeLinear MatMulInteger Cast Mul Mul Add";
    assert_eq!(operators(&model).join(" "), expected);
    let nodes = &model.graph.as_ref().unwrap().node;
    let products: Vec<&NodeProto> = nodes.iter().filter(|node| node.op_type() == "MatMulInteger").collect();
    assert_eq!(products[0].input[0], products[1].input[0]);
    assert_eq!(nodes[0].output, [&products[0].input[0], "x_scale", &products[0].input[2]]);
    // The weight of the Gemm lies the other way round, so that its columns are the outputs.
    let weight = initializer(&model, &products[2].input[1]);
    assert_eq!((weight.data_type(), &weight.dims[..]), (3, &[16, 2][..]));
    let integers = integer_values(weight).unwrap();
    assert!((0..16).all(|k| integers[2 * k] == integers[2 * k + 1]));
    assert_eq!(integers[0], integers.iter().copied().min().unwrap());
    // The names of what was replaced stay.
    assert_eq!((products[0].name(), nodes.last().unwrap().output[0].as_str()), ("MatMul_q", "y"));
}

#[test]
fn a_block_has_the_scale_of_least_error() {
    let int4 = Grid { bits: 4, narrow_range: false, ..Grid::INT8_SYMMETRIC };
    let uint4 = Grid { bits: 4, ..Grid::UINT8_ASYMMETRIC };
    for seed in 0..50 {
        let values = noise(32, seed);
        for grid in [int4, uint4] {
            let (min, max) = values.iter().fold((0f32, 0f32), |(a, b), v| (a.min(*v), b.max(*v)));
            let whole = Range { min: min.into(), max: max.into() };
            let whole = match grid.symmetry {
                Symmetry::Symmetric => Range::symmetric(whole.amax()),
                Symmetry::Asymmetric => whole,
            };
            let error = |params: mqq::quant::QuantParams| -> f64 {
                values.iter().map(|x| f64::from(params.fake_quantize(*x) - x).powi(2)).sum()
            };
            let least = least_error(&values, &grid).unwrap();
            assert!(error(least) <= error(params_for_range(whole, &grid).unwrap()), "{seed}");
        }
    }
    // One value beyond the others: the lowest integer of the grid has no counterpart, and takes it.
    let mut values = vec![1.0f32; 31];
    values.push(-8.0);
    let params = least_error(&values, &int4).unwrap();
    assert!((params.scale - 1.0).abs() < 0.02, "{params:?}");
    assert_eq!(least_error(&[0.0; 32], &uint4).unwrap().zero_point, 0);
}

#[test]
fn tables_ask_for_no_storage_that_kernels_do_not_have() {
    let cases = [
        ("onnxruntime-nbits", "types.wgt4.block_size=24", "expected 4 or 8 bits in blocks of 16, 32, 64"),
        ("onnxruntime-nbits", "types.wgt8.bits=16", "expected 4 or 8 bits in blocks of 16, 32, 64"),
        ("onnxruntime-dynamic", "types.act8.signed=true", "expected asymmetric uint8"),
        ("onnxruntime-dynamic", "ops.MatMul.bias=int32", "quantized `bias` or `output`, expected float"),
        ("onnxruntime-nbits", "weight_storage.nbits.accuracy_level=5", "5, expected 0 to 4"),
        ("weight-only-int4", "weight_storage=nbit", "weight_storage"),
    ];
    for (backend, set, expected) in cases {
        let error = explain(&backends::resolve_with(backend, &[], &[set.to_string()]).unwrap_err());
        assert!(error.contains(expected), "{backend} {set}: {error}");
    }
}

#[test]
fn only_tables_with_ranges_need_data() {
    let folder = TempDir::new().unwrap();
    for (backend, _) in backends::BUILT_IN {
        let output = folder.path().join(format!("{backend}.onnx"));
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", backend, "-q", "-o"]);
        let Ran { code, stderr, .. } = run(command.arg(&output));
        let needs_none =
            backend.starts_with("weight-only") || backend.ends_with("-nbits") || backend.ends_with("-dynamic");
        assert_eq!(code, if needs_none { 0 } else { 2 }, "{backend}: {stderr}");
        assert_eq!(output.exists(), needs_none, "{backend}");
        assert!(needs_none || stderr.contains("--data is missing"), "{backend}: {stderr}");
    }
}

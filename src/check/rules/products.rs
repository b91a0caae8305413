//! Matrix products that read integers themselves.
//!
//! Sources: ONNX Runtime, `docs/ContribOperators.md` (`com.microsoft.MatMulNBits`),
//! `core/optimizer/matmul_integer_to_float.cc` (the fused patterns).

use super::{Check, Finding, RuleReport};
use crate::check::QdqGraph;
use crate::onnx::data_type::type_name;
use crate::onnx::integers::scale_values;
use crate::onnx::node::int;
use crate::onnx::proto::NodeProto;
use crate::scheme::RuleCall;

/// MatMulNBits must be as ONNX Runtime defines it.
pub const NBITS_FORM: Check = Check {
    name: "nbits_form",
    about: "MatMulNBits is valid: its domain is imported, block_size is a power of two and 16 or more, and the shapes of integers, scales and zero points match K, N, bits and block_size",
    is_universal: true,
    run: nbits_form,
    ..Check::DEFAULT
};

fn nbits_form(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for node in graph.graph.node.iter().filter(|node| node.op_type() == "MatMulNBits") {
        let domain = node.domain();
        if domain != "com.microsoft" || graph.opset(domain).is_none() {
            let expected = "com.microsoft, imported by the model";
            report.add(Finding::new("domain", format!("`{domain}`"), expected).at(node));
        }
        let attribute = |name: &str, default: i64| usize::try_from(int(node, name, default)).unwrap_or(0);
        let (k, n, bits, block) =
            (attribute("K", 0), attribute("N", 0), attribute("bits", 4), attribute("block_size", 0));
        if k == 0 || n == 0 || !matches!(bits, 2 | 4 | 8) || block < 16 || !block.is_power_of_two() {
            let found = format!("K {k}, N {n}, bits {bits}, block_size {block}");
            let expected = "K and N above 0; 2, 4 or 8 bits; a block_size of 16 or more that is a power of two";
            report.add(Finding::new("attributes", found, expected).at(node));
            continue;
        }
        let n_blocks = k.div_ceil(block);
        let n_bytes = (n_blocks * bits).div_ceil(8);
        let bytes = block * bits / 8;
        // Scales and zero points may also have a single axis.
        shape(graph, node, (1, "codes"), &[&[n, n_blocks, bytes]], report);
        shape(graph, node, (2, "scale"), &[&[n, n_blocks], &[n * n_blocks]], report);
        // Zero points are packed integers, or one float per block.
        let packed: [&[usize]; 2] = [&[n, n_bytes], &[n * n_bytes]];
        let float: [&[usize]; 2] = [&[n, n_blocks], &[n * n_blocks]];
        let zero_point = node.input.get(3).and_then(|name| graph.constant(name));
        let zero_points = if zero_point.is_some_and(|zero| zero.data_type() != 2) { float } else { packed };
        shape(graph, node, (3, "zero point"), &zero_points, report);
        let scales = node.input.get(2).and_then(|name| graph.constant(name)).map(scale_values);
        if let Some(Ok(scales)) = scales
            && let Some(scale) = scales.iter().find(|scale| !scale.is_finite())
        {
            report.add(Finding::new("scale", scale.to_string(), "finite").at(node).on(&node.input[2]));
        }
    }
}

/// Checks that a constant input has one of the expected shapes.
fn shape(
    graph: &QdqGraph,
    node: &NodeProto,
    (input, what): (usize, &str),
    expected: &[&[usize]],
    report: &mut RuleReport,
) {
    let Some(name) = node.input.get(input).filter(|name| !name.is_empty()) else { return };
    let Some(found) = graph.shape(name).filter(|found| !expected.contains(&&found[..])) else { return };
    let expected: Vec<String> = expected.iter().map(|shape| format!("{shape:?}")).collect();
    let what = format!("shape of the {what}");
    report.add(Finding::new(what, format!("{found:?}"), expected.join(" or ")).at(node).on(name));
}

/// Integer products after DynamicQuantizeLinear must have the form that ONNX Runtime fuses.
pub const DYNAMIC_PRODUCTS: Check = Check {
    name: "dynamic_products",
    about: "inputs of a MatMulInteger are the integers and the zero point of one DynamicQuantizeLinear and an int8 or uint8 constant; after it come a Cast and a Mul by the product of both scales",
    run: dynamic_products,
    ..Check::DEFAULT
};

fn dynamic_products(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for node in graph.graph.node.iter().filter(|node| node.op_type() == "MatMulInteger") {
        let name = |i: usize| node.input.get(i).map_or("", String::as_str);
        let source = graph.index.producer(name(0)).filter(|source| source.op_type() == "DynamicQuantizeLinear");
        let output = |i: usize| source.and_then(|source| source.output.get(i)).map_or("", String::as_str);
        if source.is_none() || name(2) != output(2) {
            let expected = "the integers and the zero point of one DynamicQuantizeLinear";
            report.add(Finding::new("input", "another", expected).at(node).on(name(0)));
            continue;
        }
        match graph.constant(name(1)).map(|weight| weight.data_type()) {
            Some(2 | 3) => {}
            found => {
                let found = found.map_or("computed", type_name);
                report.add(Finding::new("weight", found, "an int8 or uint8 constant").at(node).on(name(1)));
            }
        }
        let tensor = node.output.first().map_or("", String::as_str);
        if !is_scaled(graph, tensor, output(1)) {
            let expected = "an input of Cast, and then of a Mul by the product of both scales";
            report.add(Finding::new("output", "an input of other nodes", expected).at(node).on(tensor));
        }
    }
}

/// Whether the integers `tensor` are only cast to float and multiplied by `scale` times a constant.
fn is_scaled(graph: &QdqGraph, tensor: &str, scale: &str) -> bool {
    let [(cast, 0)] = graph.users(tensor)[..] else { return false };
    let Some(float) = cast.output.first().filter(|_| cast.op_type() == "Cast") else { return false };
    let [(mul, at)] = graph.users(float)[..] else { return false };
    let scales = mul.input.get(1 - at.min(1)).and_then(|other| graph.index.producer(other));
    let is_product = |node: &NodeProto| {
        node.op_type() == "Mul"
            && node.input.iter().any(|name| name == scale)
            && node.input.iter().any(|name| graph.constant(name).is_some())
    };
    mul.op_type() == "Mul" && scales.is_some_and(is_product)
}

//! QuantizeLinear and DequantizeLinear as ONNX defines them.
//!
//! Source: ONNX `docs/Changelog.md`, both operators, versions 10, 13, 19, 21, 23, 25; ONNX Runtime
//! `docs/ContribOperators.md` for the domain `com.microsoft`.

use super::{Check, Finding, RuleReport};
use crate::check::{NodeInput, QdqGraph, QdqNode, QdqOperator};
use crate::diag::count;
use crate::onnx::data_type::{DataType, type_name};
use crate::onnx::node;
use crate::scheme::RuleCall;

/// The nodes must be valid ONNX: inputs, element types of the opset, shapes of the parameters.
pub const LINEAR_FORM: Check = Check {
    name: "linear_form",
    about: "Q and DQ are valid in the model's opset: inputs, types, axis, shapes of scales and zero points",
    is_universal: true,
    run: linear_form,
    ..Check::DEFAULT
};

/// Layers must be valid ONNX.
pub const LAYER_FORM: Check = Check {
    name: "layer_form",
    about: "layers and activation functions read floats, and the weights of Conv, ConvTranspose and Gemm have the rank of the operator",
    is_universal: true,
    run: layer_form,
    ..Check::DEFAULT
};

/// Returns the number of leading inputs that ONNX defines for floats alone, or for floats and integers of 32 bits and
/// more.
fn n_float_inputs(op_type: &str) -> usize {
    match op_type {
        "AveragePool" | "BatchNormalization" | "Elu" | "Exp" | "Gelu" | "GlobalAveragePool" | "GlobalMaxPool"
        | "HardSigmoid" | "HardSwish" | "LeakyRelu" | "Log" | "LogSoftmax" | "Mish" | "Reciprocal" | "Selu"
        | "Sigmoid" | "Softmax" | "Softplus" | "Sqrt" | "Tanh" => 1,
        "MatMul" | "RMSNormalization" => 2,
        "Conv"
        | "ConvTranspose"
        | "GRU"
        | "Gemm"
        | "GroupNormalization"
        | "InstanceNormalization"
        | "LSTM"
        | "LayerNormalization"
        | "RNN" => 3,
        _ => 0,
    }
}

fn layer_form(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for node in graph.graph.node.iter().filter(|node| node::is_standard(node)) {
        for name in node.input.iter().take(n_float_inputs(node.op_type())).filter(|name| !name.is_empty()) {
            let quantize = graph.qdq_of(name).filter(|qdq| qdq.operator == QdqOperator::Quantize);
            let stored = graph.constant(name).map(|tensor| tensor.data_type());
            let data_type = quantize.map_or(stored, |qdq| qdq.data_type);
            let is_narrow = |number: &i32| DataType::of(*number).is_some_and(|of| of.integer_range().is_some());
            if let Some(data_type) = data_type.filter(is_narrow) {
                let expected = "float: the output of a DequantizeLinear";
                report.add(Finding::new("input", type_name(data_type), expected).at(node).on(name));
            }
        }
        let weight = node.input.get(1).filter(|_| graph.is_constant(&node.input[1]));
        let stored = weight.and_then(|name| graph.shape(graph.dequantize_of(name).map_or(name, |qdq| qdq.input)));
        let Some(shape) = stored else { continue };
        let (fits, expected) = match node.op_type() {
            "Gemm" => (shape.len() == 2, "2 axes"),
            "Conv" | "ConvTranspose" => (shape.len() >= 3, "3 axes or more"),
            _ => continue,
        };
        if !fits {
            report.add(Finding::new("shape of the weight", format!("{shape:?}"), expected).at(node).on(&node.input[1]));
        }
    }
}

/// Returns the first version of the default operator set in which Q or DQ accepts the type.
fn since(data_type: i32, operator: QdqOperator) -> Option<i64> {
    Some(match data_type {
        2 | 3 => 10,
        6 if operator == QdqOperator::Dequantize => 10,
        17..=20 => 19,
        4 | 5 | 21 | 22 => 21,
        23 => 23,
        25 | 26 => 25,
        _ => return None,
    })
}

/// Whether the operators of `com.microsoft` accept the type.
fn is_contrib_type(data_type: i32) -> bool {
    matches!(data_type, 2..=6 | 17..=22)
}

fn linear_form(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for qdq in &graph.qdq_nodes {
        let inputs = qdq.node.input.iter().take(2).filter(|name| !name.is_empty()).count();
        if inputs < 2 || qdq.output.is_empty() {
            let found = format!("{} and {}", count(inputs, "input"), count(qdq.node.output.len(), "output"));
            let expected = "a tensor, a scale, an optional zero point, and one output";
            report.add(Finding::new("node", found, expected).at(qdq.node));
            continue;
        }
        check_type(graph, qdq, report);
        check_parameters(graph, qdq, report);
    }
}

fn check_type(graph: &QdqGraph, qdq: &QdqNode, report: &mut RuleReport) {
    let domain = qdq.node.domain();
    let Some(data_type) = qdq.data_type else { return };
    let is_contrib = domain == "com.microsoft";
    let version = graph.opset(domain).unwrap_or(0);
    let expected = match (is_contrib, since(data_type, qdq.operator)) {
        (true, _) if is_contrib_type(data_type) => None,
        (false, Some(first)) if version >= first => None,
        (false, Some(first)) if is_contrib_type(data_type) => {
            Some(format!("opset {first} or later, or the domain com.microsoft"))
        }
        (false, Some(first)) => Some(format!("opset {first} or later")),
        _ => Some("an integer type that QuantizeLinear supports".to_string()),
    };
    if let Some(expected) = expected {
        let found = format!("{} in opset {version}", type_name(data_type));
        report.add(Finding::new("type", found, expected).at(qdq.node).on(qdq.input));
    }
    let version = if is_contrib { i64::MAX } else { version };
    let needs = [(qdq.is_per_channel(), "one per channel", 13), (qdq.block_size != 0, "one per block", 21)];
    for (has, what, first) in needs {
        if has && version < first {
            let found = format!("{what} in opset {version}");
            let expected = format!("opset {first} or later");
            report.add(Finding::new("scale", found, expected).at(qdq.node).on(qdq.input));
        }
    }
}

fn check_parameters(graph: &QdqGraph, qdq: &QdqNode, report: &mut RuleReport) {
    let name = |i: usize| qdq.node.input.get(i).map_or("", String::as_str);
    if let NodeInput::Broken(reason) = &qdq.scale {
        report.add(Finding::new("scale", reason, "readable").at(qdq.node).on(name(1)));
    }
    if let NodeInput::Broken(reason) = &qdq.zero_point {
        report.add(Finding::new("zero point", reason, "readable").at(qdq.node).on(name(2)));
    }
    let NodeInput::Constant(scales, scale_shape) = &qdq.scale else { return };
    if let NodeInput::Constant(_, shape) = &qdq.zero_point
        && shape != scale_shape
        && shape.iter().product::<usize>() != 1.max(scales.len())
    {
        let (found, expected) = (format!("{shape:?}"), format!("that of the scale, {scale_shape:?}"));
        report.add(Finding::new("shape of the zero point", found, expected).at(qdq.node).on(name(2)));
    }
    if scales.is_empty() {
        report.add(Finding::new("scale", "empty", "a number").at(qdq.node).on(name(1)));
    }
    let Some(shape) = graph.shape(qdq.input) else { return };
    if !qdq.is_per_channel() {
        return;
    }
    let rank = shape.len();
    let axis = node::from_first(qdq.axis, rank);
    let Some(n) = usize::try_from(axis).ok().and_then(|axis| shape.get(axis)) else {
        let expected = format!("within rank {rank}");
        let found = qdq.axis.to_string();
        report.add(Finding::new("axis", found, expected).at(qdq.node).on(qdq.input));
        return;
    };
    let fits = match usize::try_from(qdq.block_size) {
        Ok(0) => scale_shape.len() == 1 && scales.len() == *n,
        Ok(block) => {
            let expected = shape.iter().enumerate().map(|(i, dim)| match i as i64 == axis {
                true => dim.div_ceil(block),
                false => *dim,
            });
            scale_shape.iter().copied().eq(expected)
        }
        Err(_) => false,
    };
    if !fits {
        let expected = match qdq.block_size {
            0 => format!("[{n}], one per slice of axis {axis} of {shape:?}"),
            block => format!("{shape:?} with axis {axis} divided by {block}"),
        };
        let found = format!("{scale_shape:?}");
        report.add(Finding::new("shape of the scale", found, expected).at(qdq.node).on(name(1)));
    }
}

//! Biases of operators whose input and weight are quantized.

use super::{Check, Finding, RuleReport};
use crate::check::{QdqGraph, QdqNode, QdqOperator};
use crate::onnx::data_type::type_name;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::scheme::{ParameterKind, RuleCall};

/// Biases must be stored in the type that the table gives.
pub const BIAS: Check = Check {
    name: "bias",
    about: "a bias has the type `stored`: float, int32 (scale: input scale times weight scale; zero point: 0) or int8; `otherwise: float` allows float too",
    takes: &[
        ("stored", ParameterKind::Word(&["float", "int32", "int8"])),
        ("otherwise", ParameterKind::Word(&["float"])),
    ],
    run: bias,
    ..Check::DEFAULT
};

/// Maximum relative difference between a bias's scale and the product of input scale and weight scale. The product may
/// have been rounded once or twice in float32.
const TOLERANCE: f64 = 1e-6;

fn bias(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let stored = call.name("stored").unwrap_or("float");
    for node in &graph.graph.node {
        if !matches!(node.op_type(), "Conv" | "ConvTranspose" | "Gemm") {
            continue;
        }
        let input = |i: usize| node.input.get(i).filter(|name| !name.is_empty());
        let Some(name) = input(2) else { continue };
        let quantized = [0, 1].map(|i| input(i).and_then(|tensor| graph.dequantize_of(tensor)));
        let bias = graph.dequantize_of(name);
        match (bias, quantized) {
            (Some(bias), _) if stored == "float" => {
                let found = bias.data_type.map_or("integers", type_name);
                report.add(Finding::new("bias", found, "float").at(node).on(bias.input));
            }
            (Some(bias), [Some(x), Some(weight)]) => {
                check_stored(node, bias, x, weight, stored, report);
            }
            (None, [Some(_), Some(_)]) if stored != "float" && call.name("otherwise") != Some("float") => {
                let expected = format!("{stored} with DequantizeLinear");
                report.add(Finding::new("bias", "float", expected).at(node).on(name));
            }
            _ => {}
        }
    }
}

fn check_stored(
    node: &NodeProto,
    bias: &QdqNode,
    x: &QdqNode,
    weight: &QdqNode,
    stored: &str,
    report: &mut RuleReport,
) {
    if let Some(found) = bias.data_type
        && type_name(found) != stored
    {
        report.add(Finding::new("bias", type_name(found), stored).at(node).on(bias.input));
        return;
    }
    if bias.zero_point.known().is_some_and(|values| values.iter().any(|z| *z != 0)) {
        let found = bias.parameters();
        report.add(Finding::new("zero point of the bias", found, "0").at(node).on(bias.input));
    }
    if bias.data_type != Some(DataType::Int32 as i32) || bias.operator != QdqOperator::Dequantize {
        return;
    }
    let (Some(b), Some(x), Some(w)) = (bias.scale.known(), x.scale.known(), weight.scale.known()) else {
        return;
    };
    let [x] = x else { return };
    for i in 0..b.len().max(w.len()) {
        let of = |scales: &[f32]| match scales {
            [one] => Some(*one),
            many => many.get(i).copied(),
        };
        let (Some(b), Some(w)) = (of(b), of(w)) else {
            let found = format!("{} scales", b.len());
            let expected = format!("one, or {} as for the weight", w.len());
            report.add(Finding::new("bias", found, expected).at(node).on(bias.input));
            return;
        };
        let product = f64::from(*x) * f64::from(w);
        if (f64::from(b) - product).abs() > TOLERANCE * product {
            let expected = format!("{product:e}, input scale times weight scale");
            report.add(
                Finding::new(format!("scale [{i}] of the bias"), format!("{b:e}"), expected)
                    .at(node)
                    .on(bias.input)
                    .hint("integer kernels add the bias to the integer products without rescaling it"),
            );
            return;
        }
    }
}

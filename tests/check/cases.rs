//! For each rule an edit that breaks it.

use super::models::*;
use mqq::onnx::proto::*;
use mqq::onnx::tensor;

pub struct Case {
    /// One call as in a table, which [`good`] keeps; empty for the rules that every table has.
    pub call: &'static str,
    pub rule: &'static str,
    pub breaks: fn(&mut ModelProto),
    /// Parts of the only finding.
    pub expected: &'static [&'static str],
}

pub const CASES: &[Case] = &[
    Case {
        call: "",
        rule: "sound_graph",
        breaks: |m| graph(m).node.swap(0, 1),
        expected: &["x_q", "no earlier node produces input"],
    },
    Case {
        call: "",
        rule: "quantized",
        breaks: |m| {
            let graph = graph(m);
            graph.node.retain(|node| !node.op_type().ends_with("Linear"));
        },
        expected: &["model is float and has no Q/DQ, expected a quantized model"],
    },
    Case {
        call: "",
        rule: "quantized",
        breaks: |m| {
            let graph = graph(m);
            let float = |name: &str| name.strip_suffix("_dq").map(str::to_string);
            let operators = graph.node.iter_mut().filter(|n| !n.op_type().ends_with("Linear"));
            let inputs = operators.flat_map(|node| &mut node.input);
            inputs.for_each(|name| *name = float(name).unwrap_or_else(|| name.clone()));
        },
        expected: &["model is float: no operator has an input from its 10 Q/DQ"],
    },
    Case {
        call: "",
        rule: "scope",
        breaks: |m| {
            let branch = GraphProto { node: graph(m).node[..2].to_vec(), ..Default::default() };
            let mut holder = NodeProto { op_type: Some("If".into()), ..Default::default() };
            holder.attribute.push(AttributeProto { g: Some(branch), ..Default::default() });
            graph(m).node.push(holder);
        },
        expected: &["(If)", "2 Q/DQ that are not checked"],
    },
    Case {
        call: "",
        rule: "positive_scales",
        breaks: |m| set_scale(m, "s_scale", &[0.0]),
        expected: &["`s_scale`: scale is 0e0", "a positive, finite number"],
    },
    Case {
        call: "",
        rule: "positive_scales",
        breaks: |m| set_scale(m, "s_scale", &[f32::NAN]),
        expected: &["`s_scale`: scale is NaN", "a positive, finite number"],
    },
    Case {
        call: "",
        rule: "finite_values",
        breaks: |m| {
            let mut bias = [0.0; 16];
            (bias[3], bias[5]) = (f32::NAN, f32::INFINITY);
            graph(m).initializer.push(tensor::from_f32("bias", &[16], &bias).unwrap());
            node(m, "c").input[2] = "bias".into();
        },
        expected: &["(Conv): `bias`: bias [3] is NaN (2 of 16 are NaN or infinite), expected"],
    },
    Case {
        call: "",
        rule: "finite_values",
        breaks: |m| {
            // A weight that is stored as float, in front of a Q.
            let mut weight = [0.0; 256];
            weight[255] = f32::NEG_INFINITY;
            graph(m).initializer.push(tensor::from_f32("w", &[16, 16, 1, 1], &weight).unwrap());
            let mut quantize = node(m, "w_dq").clone();
            quantize.op_type = Some("QuantizeLinear".into());
            (quantize.input[0], quantize.output[0]) = ("w".into(), "w_float_q".into());
            node(m, "w_dq").input[0] = "w_float_q".into();
            graph(m).node.insert(0, quantize);
        },
        expected: &["(Conv): `w`: weight [255] is -inf (1 of 256 are NaN or infinite)"],
    },
    Case {
        call: "",
        rule: "finite_values",
        breaks: |m| {
            let nan = tensor::from_f32("nan", &[], &[f32::NAN]).unwrap();
            graph(m).initializer.push(nan);
            insert(m, "Add", "s", 0);
            node(m, "inserted").input.push("nan".into());
        },
        expected: &["(Add): `nan`: constant [0] is NaN (1 of 1 are NaN)"],
    },
    Case {
        call: "",
        rule: "finite_values",
        breaks: |m| {
            let scale = tensor::from_f32("huge", &[], &[f32::MAX / 126.0]).unwrap();
            graph(m).initializer.push(scale);
            node(m, "w_dq").input[1] = "huge".into();
        },
        expected: &["(DequantizeLinear): `w_q`: value is"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| node(m, "w_dq").input.truncate(1),
        expected: &["`DequantizeLinear_w_dq`", "1 input and 1 output"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| node(m, "w_dq").attribute[0].i = Some(7),
        expected: &["`w_q`: axis is 7", "rank 4"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| {
            set_scale(m, "b_scale", &[0.5; 15]);
            replace(m, tensor::from_integers("b_zp", tensor::DataType::Int32, &[15], &[0; 15]).unwrap());
        },
        expected: &["`b_scale`: shape of the scale is [15], expected [16]"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| replace(m, tensor::from_integers("w_zp", tensor::DataType::Int8, &[3], &[0; 3]).unwrap()),
        expected: &["`w_zp`: shape of the zero point is [3]"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| {
            replace(m, tensor::from_integers("w_zp", tensor::DataType::Int16, &[16], &[0; 16]).unwrap());
            replace(m, tensor::from_integers("w_q", tensor::DataType::Int16, &[16, 16, 1, 1], &[0; 256]).unwrap());
        },
        expected: &["int16 in opset 13", "21 or later, or the domain com.microsoft"],
    },
    Case {
        call: "",
        rule: "layer_form",
        breaks: |m| {
            node(m, "c").input[0] = "x_q".into();
            graph(m).node.retain(|node| node.output[0] != "x_dq");
        },
        expected: &["(Conv): `x_q`: input is int8, expected float: the output of a DequantizeLinear"],
    },
    Case {
        call: "",
        rule: "layer_form",
        breaks: |m| replace(m, tensor::from_integers("w_q", tensor::DataType::Int8, &[16, 16], &[0; 256]).unwrap()),
        expected: &["(Conv): `w_dq`: shape of the weight is [16, 16], expected 3 axes or more"],
    },
    Case {
        call: "{ operator_set: { min: 13 } }",
        rule: "operator_set",
        breaks: |m| m.opset_import[0].version = Some(12),
        expected: &["opset is 12, expected 13 or later"],
    },
    Case {
        call: "{ operator_set: { max: 21 } }",
        rule: "operator_set",
        breaks: |m| m.opset_import[0].version = Some(22),
        expected: &["opset is 22, expected 1 to 21"],
    },
    Case {
        call: "qdq_only",
        rule: "qdq_only",
        breaks: |m| node(m, "c").op_type = Some("QLinearConv".into()),
        expected: &["(QLinearConv)"],
    },
    Case {
        call: "static_inputs",
        rule: "static_inputs",
        breaks: |m| {
            let tensor = graph(m).input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
            tensor.shape.as_mut().unwrap().dim[0] = Dimension { dim_param: Some("N".into()), ..Default::default() };
        },
        expected: &["`x`: dimension 0 of the input is `N`"],
    },
    Case {
        call: "constant_parameters",
        rule: "constant_parameters",
        breaks: |m| {
            let mut computed = node(m, "c").clone();
            computed.output = vec!["computed".into()];
            graph(m).node.insert(0, computed);
            node(m, "s_q").input[1] = "computed".into();
            node(m, "s_dq").input[1] = "s_scale".into();
        },
        expected: &["`computed`: scale is computed"],
    },
    Case {
        call: "power_of_two",
        rule: "power_of_two",
        breaks: |m| set_scale(m, "b_scale", &[0.3; 16]),
        expected: &["`b_scale`: scale of the bias [0] of 16 is 3e-1"],
    },
    Case {
        call: "{ symmetric: { of: [weight, bias] } }",
        rule: "symmetric",
        breaks: |m| replace(m, tensor::from_integers("w_zp", tensor::DataType::Int8, &[16], &[1; 16]).unwrap()),
        expected: &["`w_zp`: zero point of the weight [0] of 16 is 1, expected 0"],
    },
    Case {
        call: "{ dtypes: { activation: [int8], weight: [int8, int4], bias: [int32] } }",
        rule: "dtypes",
        breaks: |m| set_type(m, "w", 2),
        expected: &["`w_q`: type of the weight is uint8, expected int8 or int4"],
    },
    Case {
        call: "{ dtypes: { activation: int8, bias: [int32] } }",
        rule: "dtypes",
        breaks: |m| {
            // Without a zero point the type is that of the integers.
            node(m, "b_dq").input.truncate(2);
            replace(m, tensor::from_integers("b_q", tensor::DataType::Int8, &[16], &[0; 16]).unwrap());
        },
        expected: &["`b_q`: type of the bias is int8, expected int32"],
    },
    Case {
        call: "{ dtype_pairs: { refuse: [int8/uint8] } }",
        rule: "dtype_pairs",
        breaks: |m| set_type(m, "w", 2),
        expected: &["(Conv)", "int8/uint8"],
    },
    Case {
        call: "{ integer_range: { of: [weight], min: -127, max: 127 } }",
        rule: "integer_range",
        breaks: |m| {
            replace(m, tensor::from_integers("w_q", tensor::DataType::Int8, &[16, 16, 1, 1], &[-128; 256]).unwrap());
        },
        expected: &["`w_q`: an integer of the weight is -128, expected -127 to 127"],
    },
    Case {
        call: "{ per_tensor: { of: [activation] } }",
        rule: "per_tensor",
        breaks: |m| {
            set_scale(m, "s_scale", &[0.5; 16]);
            replace(m, tensor::from_integers("s_zp", tensor::DataType::Int8, &[16], &[0; 16]).unwrap());
            node(m, "s_q").input[0] = "p_dq".into();
            let quantize = node(m, "s_q").clone();
            graph(m).node.retain(|node| node.output[0] != "s_dq");
            graph(m).output[0].name = quantize.output.first().cloned();
        },
        expected: &["number of scales of the activation is 16, expected 1"],
    },
    Case {
        call: "{ per_channel_axis: { Conv: 0, MatMul: output } }",
        rule: "per_channel_axis",
        breaks: |m| node(m, "w_dq").attribute[0].i = Some(1),
        expected: &["(Conv)", "axis of the scales is 1, expected 0"],
    },
    Case {
        call: "{ per_channel_axis: { MatMul: columns } }",
        rule: "per_channel_axis",
        // Its constant has four dimensions.
        breaks: |m| node(m, "c").op_type = Some("MatMul".into()),
        expected: &["(MatMul)", "one per channel, expected one for the tensor"],
    },
    Case {
        call: "{ per_channel_axis: { Gemm: none } }",
        rule: "per_channel_axis",
        breaks: |m| node(m, "c").op_type = Some("Gemm".into()),
        expected: &["one per channel, expected one for the tensor"],
    },
    Case {
        call: "{ per_channel_axis: { Conv: output, Gemm: output } }",
        rule: "per_channel_axis",
        breaks: |m| {
            // Without transB the columns are the outputs.
            node(m, "c").op_type = Some("Gemm".into());
        },
        expected: &["axis of the scales is 0, expected 1"],
    },
    Case {
        call: "paired",
        rule: "paired",
        breaks: |m| insert(m, "Clip", "r_dq", 0),
        expected: &["`r_q`: output of Q is input 0 of Clip"],
    },
    Case {
        call: "paired",
        rule: "paired",
        breaks: |m| {
            let again = tensor::from_f32("again", &[], &[0.250_000_03]).unwrap();
            graph(m).initializer.push(again);
            node(m, "p_dq").input[1] = "again".into();
        },
        expected: &["`p_q`: quantization of DQ is scale 2.5000003e-1, zero point 0"],
    },
    Case {
        call: "paired",
        rule: "paired",
        breaks: |m| {
            node(m, "c").input[0] = "x".into();
            graph(m).node.retain(|node| node.output[0] != "x_dq");
        },
        expected: &["`x_q`: output of Q is an input of no node"],
    },
    Case {
        call: "{ bias: { stored: int32 } }",
        rule: "bias",
        breaks: |m| set_scale(m, "b_scale", &[0.3; 16]),
        expected: &["scale [0] of the bias is 3e-1", "input scale times weight scale"],
    },
    Case {
        call: "{ bias: { stored: int32 } }",
        rule: "bias",
        breaks: |m| replace(m, tensor::from_integers("b_zp", tensor::DataType::Int32, &[16], &[1; 16]).unwrap()),
        expected: &["zero point of the bias"],
    },
    Case {
        call: "{ bias: { stored: int32 } }",
        rule: "bias",
        breaks: |m| {
            graph(m).initializer.push(tensor::from_f32("float", &[16], &[0.0; 16]).unwrap());
            node(m, "c").input[2] = "float".into();
        },
        expected: &["`float`: bias is float, expected int32"],
    },
    Case {
        call: "{ shared_grids: { ops: [MaxPool] } }",
        rule: "shared_grids",
        breaks: |m| set_scale(m, "p_scale", &[0.5]),
        expected: &["(MaxPool)", "`p`: quantization of the output is scale 5e-1", "`r_dq` (scale 2.5e-1"],
    },
    Case {
        call: "{ fixed_output: { ops: [Softmax], dtype: int8, scale: 1/128, zero_point: 0 } }",
        rule: "fixed_output",
        breaks: |m| set_scale(m, "s_scale", &[0.01]),
        expected: &["`s`: quantization of the int8 output is scale 1e-2", "scale 7.8125e-3, zero point 0"],
    },
    Case {
        call: "{ quantized_inputs: { ops: [Conv] } }",
        rule: "quantized_inputs",
        breaks: |m| node(m, "c").input[0] = "x".into(),
        expected: &["`x`: input is float"],
    },
    Case {
        call: "{ quantized_output: { ops: [Conv], past: [Relu] } }",
        rule: "quantized_output",
        breaks: |m| node(m, "p").input[0] = "r".into(),
        expected: &["(Conv): `r`: output is read in float by MaxPool"],
    },
    Case {
        // The integers of int8 around 0 reach below the Relu's bound.
        call: "{ quantized_output: { ops: [Conv], past_if_redundant: [Clip], past: [Relu] } }",
        rule: "quantized_output",
        breaks: |m| {
            let relu = node(m, "r");
            relu.op_type = Some("Clip".into());
            relu.attribute.push(AttributeProto { name: Some("min".into()), f: Some(0.0), ..Default::default() });
        },
        expected: &[
            "(Conv): `r`: output is an input of Clip, which the target keeps: the QuantizeLinear behind it holds -32 to 31.75",
        ],
    },
    Case {
        call: "{ integer_operators: { ops: [Conv], past: [Relu] } }",
        rule: "integer_operators",
        breaks: |m| node(m, "p").input[0] = "r".into(),
        expected: &["number of operators on integers is 0 of 1 Conv with quantized inputs"],
    },
    Case {
        call: "{ left_constant: { ops: [MatMul], dtypes: [uint8] } }",
        rule: "left_constant",
        breaks: |m| {
            let product = mqq::onnx::node::make("MatMul", "product", &["w_dq", "s_dq"], "product");
            graph(m).node.push(product);
        },
        expected: &["(MatMul): `w_q`: type of the constant left operand is int8, expected uint8"],
    },
    Case {
        call: "{ refused_operators: { ops: [Selu] } }",
        rule: "refused_operators",
        breaks: |m| node(m, "s").op_type = Some("Selu".into()),
        expected: &["(Selu): operator is Selu, expected one that the target builds between quantized tensors"],
    },
    Case {
        call: "{ max_rank: { max: 4, except: [Softmax] } }",
        rule: "max_rank",
        breaks: |m| {
            let tensor_type = graph(m).input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
            tensor_type.shape.as_mut().unwrap().dim.push(Dimension { dim_value: Some(1), ..Dimension::default() });
        },
        expected: &["(Conv): number of axes of an input is 5, expected at most 4"],
    },
    Case {
        call: "{ no_float_nodes: { fuse: [Relu] } }",
        rule: "no_float_nodes",
        breaks: |m| insert(m, "Elu", "s_q", 0),
        expected: &["(Elu): `s`: input is float"],
    },
    Case {
        call: "",
        rule: "nbits_form",
        breaks: |m| nbits(m, &[16, 2, 8], &[16, 2]),
        expected: &["(MatMulNBits): `codes`: shape of the codes is [16, 2, 8], expected [16, 2, 16]"],
    },
    Case {
        call: "",
        rule: "nbits_form",
        breaks: |m| nbits(m, &[16, 2, 16], &[2, 16]),
        expected: &["`scales`: shape of the scale is [2, 16], expected [16, 2] or [32]"],
    },
    Case {
        call: "",
        rule: "nbits_form",
        breaks: |m| {
            nbits(m, &[16, 2, 16], &[16, 2]);
            m.opset_import.pop();
        },
        expected: &["domain is `com.microsoft`, expected com.microsoft, imported by the model"],
    },
    Case {
        call: "",
        rule: "nbits_form",
        breaks: |m| {
            nbits(m, &[16, 2, 16], &[16, 2]);
            mqq::onnx::node::set_int(node(m, "product"), "block_size", 24);
        },
        expected: &[
            "attributes is K 40, N 16, bits 4, block_size 24, expected",
            "a block_size of 16 or more that is a power of two",
        ],
    },
    Case {
        call: "dynamic_products",
        rule: "dynamic_products",
        breaks: |m| {
            dynamic(m);
            node(m, "accumulated").input[0] = "w_q".into();
        },
        expected: &[
            "(MatMulInteger): `w_q`: input is another, expected the integers and the zero point of one Dynamic",
        ],
    },
    Case {
        call: "dynamic_products",
        rule: "dynamic_products",
        breaks: |m| {
            dynamic(m);
            node(m, "accumulated").input[1] = "w_scale".into();
        },
        expected: &["`w_scale`: weight is float32, expected an int8 or uint8 constant"],
    },
    Case {
        call: "dynamic_products",
        rule: "dynamic_products",
        breaks: |m| {
            dynamic(m);
            node(m, "scales").input[0] = "w_scale".into();
        },
        expected: &["`accumulated`: output is an input of other nodes, expected an input of Cast"],
    },
];

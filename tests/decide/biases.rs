//! Biases: int32 by two scales, or a type of their own.

use super::*;

#[test]
fn a_bias_has_the_product_of_the_scales_of_its_input_and_its_weight() {
    let mut given = of_conv();
    given.weight("w", "s8", Some(0), &[2, 2], &[1.27, 0.0, 0.5, -2.54]);
    given.weight("one", "s8", None, &[3, 1], &[1.27, 0.0, 0.5]);
    given.bias("b", 0, &[0.5, -0.5]);
    given.bias("of_one", 1, &[0.5, -0.5, 1e-9]);
    given.bias("misfit", 0, &[0.5, -0.5, 0.1]);
    given.bias("of_float", 0, &[0.5, -0.5]).input = "z".into();
    let plan = given.plan();
    assert_eq!(scales(&plan.weights[0]), [0.01, 0.02]);
    let biases: Vec<_> = plan.biases.iter().map(|bias| (bias.quantizer.tensor.as_str(), &*bias.integers)).collect();
    assert_eq!(biases, [("b", &[5000, -2500][..]), ("of_one", &[5000, -5000, 0])]);
    let product = |scale: f32| (f64::from(0.01f32) * f64::from(scale)) as f32;
    assert_eq!(plan.biases[0].scales, [product(0.01), product(0.02)]);
    assert_eq!(plan.biases[1].scales, [product(0.01)]);
    assert_eq!((plan.biases[0].zero_point, &plan.biases[0].qtype), (0, &None));
    assert_eq!(plan.biases[0].dequantized(), [5000.0 * product(0.01), -2500.0 * product(0.02)]);
    assert_eq!(plan.biases[1].dequantized()[1], -5000.0 * product(0.01));
    assert!(given.warnings().is_empty(), "{:?}", given.warnings());
}

#[test]
fn a_weight_whose_bias_would_overflow_gets_a_wider_scale() {
    let needed = |bias: f64| (bias / (f64::from(0.01f32) * f64::from(i32::MAX)) * (1.0 + 1e-6)) as f32;
    let mut given = of_conv();
    given.weight("w", "s8", Some(0), &[2, 2], &[1.27, 0.0, 0.5, -1.27]);
    given.bias("b", 0, &[0.5, -1e6]);
    let plan = given.plan();
    assert_eq!(scales(&plan.weights[0]), [0.01, needed(1e6)]);
    assert_eq!(
        given.warnings(),
        ["initializer `b`: channel 1 overflows int32; the scale of `w` was increased".to_string()]
    );
    // The weight's integers are those of the wider scale.
    assert_eq!(plan.weights[0].integers.at(3), (-1.27 / needed(1e6)).round() as i32);
    assert!((i32::MAX - 10_000..=i32::MAX).contains(&-plan.biases[0].integers[1]));

    // Without the right to widen, the bias is saturated; and what is planned already is planned anew.
    let model = given.graph.build();
    let mut narrow = plan.clone();
    narrow.weights[0].params[1].scale = 0.01;
    let observer = by_spelling("max").unwrap();
    let graph = model.graph.as_ref().unwrap();
    decide_biases(graph, &given.placement, &given.scheme, &observer, &mut narrow, false).unwrap();
    assert_eq!((narrow.biases.len(), narrow.biases[0].integers[1]), (1, -i32::MAX));
    assert_eq!(narrow.weights[0].params[1].scale, 0.01);

    // Values beyond the channels widen the last scale; with powers of two to the next of them.
    given.bias("longer", 0, &[0.5, 0.5, 2e6]);
    assert_eq!(scales(&given.plan().weights[0]), [0.01, needed(2e6)]);
    given.placement.weights[0].qtype = "pot".into();
    let exponent = f64::from(needed(2e6)).log2().ceil();
    assert_eq!(given.plan().weights[0].params[1].scale, exponent.exp2() as f32);
}

/// Without a warning: nothing overflows.
#[test]
fn the_scale_of_a_bias_is_a_normal_number() {
    let mut given = of_conv();
    given.weight("w", "s8", Some(0), &[2, 1], &[1e-36, 1e-36]);
    given.weight("one", "s8", None, &[2, 1], &[1e-36, 1e-36]);
    given.bias("b", 0, &[0.0, 0.0]);
    given.bias("of_one", 1, &[0.0, 0.0]);
    let plan = given.plan();
    let least = (1024.0 * f64::from(f32::MIN_POSITIVE) / f64::from(0.01f32)) as f32;
    assert_eq!(scales(&plan.weights[0]), [least; 2]);
    assert_eq!(scales(&plan.weights[1]), [least]);
    assert!(given.warnings().is_empty() && plan.biases.iter().all(|bias| bias.scales[0].is_normal()));
}

#[test]
fn a_scale_of_a_bias_that_float32_cannot_hold_is_an_error() {
    let mut given = Given::new();
    given.activation("x", "s8", &[1e30]);
    given.graph.op("Conv", &["x", "w", "b"], "y");
    given.weight("w", "s8", Some(0), &[2, 1], &[1.0, 1e30]);
    given.bias("b", 0, &[0.5, 0.5]);
    let Err(error) = given.decide() else { panic!("a plan") };
    assert!(
        error
            .contains("initializer `b`: the scale of the bias, the product of the scales of `x` and `w`, is too large"),
        "{error}"
    );
}

#[test]
fn a_bias_of_a_type_of_its_own_may_have_finer_powers_of_two() {
    let mut given = of_conv();
    given.weight("w", "s8", None, &[1, 1], &[1.27]);
    given.bias("b", 0, &[0.0, 2.0]).qtype = Some("u8".into());
    given.bias("negative", 0, &[-1.0, 2.0]).qtype = Some("ada".into());
    given.bias("positive", 0, &[1.0, 2.0]).qtype = Some("ada".into());
    let plan = given.plan();
    let found: Vec<_> = plan.biases.iter().map(|bias| (&*bias.scales, bias.zero_point, &*bias.integers)).collect();
    assert_eq!(found[0], (&[2.0 / 255.0][..], 0, &[0, 255][..]));
    assert_eq!(found[1], (&[2.0 / 127.0][..], 0, &[-64, 127][..]));
    assert_eq!(found[2], (&[2.0 / 255.0][..], 0, &[127, 255][..]));
    assert_eq!(plan.biases[1].qtype.as_ref().unwrap().dtype(), "int8");
    assert_eq!(plan.biases[0].dequantized(), [0.0, 255.0 * (2.0 / 255.0)]);

    let observer = by_spelling("max").unwrap();
    let grids = |qtype: &str| -> Vec<f32> {
        let grids = bias_grids(&long_tailed(0.003), &given.scheme.types[qtype], &observer).unwrap();
        grids.iter().map(|params| params.scale).collect()
    };
    assert_eq!(grids("pot"), [-6, -7, -8, -9, -10].map(|exponent| 2f32.powi(exponent)));
    assert_eq!(grids("s8"), [1.0 / 127.0]);
}

//! Parameters and integers of weights.

use super::*;

#[test]
fn a_constant_mask_is_raised_to_where_its_grid_begins() {
    let mut given = Given::new();
    given.graph.op("Add", &["x", "mask"], "y");
    given.weight("mask", "u8", None, &[4], &[0.0, f32::NEG_INFINITY, 0.0, f32::MIN]).softmax =
        Some(SoftmaxRole::Addend);
    let weight = &given.plan().weights[0];
    assert_eq!(
        (weight.observed, &weight.integers.iter().collect::<Vec<_>>()[..]),
        ((-1024.0, 0.0), &[255, 0, 255, 0][..])
    );
    given.placement.weights[0].softmax = None;
    let error = given.decide().unwrap_err();
    assert!(error.contains("initializer `mask`: 1 of 4 values are NaN or infinite"), "{error}");
    assert!(error.contains("--exclude"), "{error}");
    given.placement.weights[0].tensor = "missing".into();
    assert!(given.decide().unwrap_err().contains("initializer `missing` does not exist"));
}

#[test]
fn a_slice_without_values_takes_the_median_scale_of_the_others() {
    let mut given = of_conv();
    let step = 2f32.powi(-24);
    // The fourth channel is at the mark of nothing beside 2.54, the fifth above it.
    let values = [0.0, 0.0, 1.27, 0.1, 0.2, -2.54, 2.54 * step, 0.0, 2.54 * 2.0 * step, 0.0, 0.635, 0.0];
    given.weight("w", "s8", Some(0), &[6, 2], &values);
    let plan = given.plan();
    let weight = &plan.weights[0];
    assert_eq!(weight.negligible, [0, 3]);
    let fifth = (f64::from(2.54f32 * 2.0 * step) / 127.0) as f32;
    assert_eq!(scales(weight), [0.01, 0.01, 0.02, 0.01, fifth, 0.005]);
    assert_eq!((weight.observed, weight.observer, weight.learned), ((-2.54, 2.54 / 2.0), "max", false));
    assert!(weight.integers.iter().eq([0, 0, 127, 10, 10, -127, 0, 0, 127, 0, 127, 0]));
    let dequantized = weight.dequantized();
    assert_eq!((dequantized.len(), dequantized[2], dequantized[5]), (12, 127.0 * 0.01, -127.0 * 0.02));
    assert_eq!((weight.scale_shape(), weight.scale_of_value()(5)), (vec![6], 2));

    let mut given = of_conv();
    given.weight("w", "s8", Some(1), &[1, 4], &[1.0, 1.0, 0.0, 0.0]).block = Some(2);
    given.weight("zero", "s8", None, &[2], &[0.0, 0.0]);
    let plan = given.plan();
    assert_eq!(plan.weights[0].negligible, [1]);
    assert_eq!((plan.weights[1].params[0].scale, &*plan.weights[1].negligible), (1.0, &[0][..]));
}

/// One scale for many small values and one large one is less than the largest asks for.
#[test]
fn ranges_of_weights_are_those_of_their_observer() {
    let scale = |observer: &'static str, qtype: &str, values: &[f32]| {
        let mut given = of_conv();
        given.weight = observer;
        given.weight("w", qtype, None, &[values.len()], values);
        given.plan().weights[0].params[0].scale
    };
    assert_eq!(scale("max", "s4", &long_tailed(0.05)), 1.0 / 7.0);
    assert!(scale("mse", "s4", &long_tailed(0.05)) < 0.9 / 7.0);
    assert!(scale("max", "pot", &long_tailed(0.003)) < 2f32.powi(-6));
}

#[test]
fn scales_widen_until_no_pair_of_neighbours_overflows() {
    let mut given = of_conv();
    given.weight("w", "pairs", Some(0), &[2, 2, 1, 1], &[1.27, 1.27, 1.27, -1.27]);
    let weight = &given.plan().weights[0];
    let wider = (f64::from(0.01f32) * (254.0 / 128.0)) as f32;
    assert_eq!(scales(weight), [wider, 0.01]);
    assert!(weight.integers.iter().eq([64, 64, 127, -127]));
    assert_eq!(weight.pairs.map(|pairs| pairs.limit), Some(128));
    // One scale for both rows.
    given.placement.weights[0].axis = None;
    let weight = &given.plan().weights[0];
    assert_eq!(
        (scales(weight), &weight.integers.iter().collect::<Vec<_>>()[..]),
        (vec![wider], &[64, 64, 64, -64][..])
    );
    // Scales that do not go by rows, and blocks, stay as they are.
    given.placement.weights[0].axis = Some(1);
    assert_eq!(given.plan().weights[0].pairs, None);
    assert_eq!(scales(&given.plan().weights[0]), [0.01; 2]);
    let quantizer = &mut given.placement.weights[0];
    (quantizer.axis, quantizer.block) = (Some(0), Some(1));
    assert_eq!(given.plan().weights[0].pairs, None);
    // Rounding may leave a step too much.
    let mut given = of_conv();
    given.weight("w", "pairs", None, &[1, 2, 1, 1], &[1.27, 0.0151]);
    let weight = &given.plan().weights[0];
    assert_eq!(
        (scales(weight), &weight.integers.iter().collect::<Vec<_>>()[..]),
        (vec![(f64::from(0.01f32) * (129.0 / 128.0)) as f32], &[126, 1][..])
    );
}

#[test]
fn a_weight_is_coarse_below_8_bits_or_with_one_scale() {
    let cases = [
        ("s4", Some(0), None, true),
        ("s4", None, None, true),
        ("s8", None, None, true),
        ("s8", Some(0), None, false),
        ("s16", None, None, false),
        ("s16", Some(0), None, false),
        ("s8", Some(1), Some(2), false),
    ];
    for (qtype, axis, block, expected) in cases {
        let mut given = of_conv();
        // One block, and more than one channel where there are channels.
        let shape = if block.is_some() { [1, 2] } else { [2, 1] };
        given.weight("w", qtype, axis, &shape, &[1.0, -1.0]).block = block;
        assert_eq!(given.plan().weights[0].is_coarse(), expected, "{qtype} {axis:?} {block:?}");
    }
}

#[test]
fn learned_integers_are_told_by_their_differences() {
    let mut given = of_conv();
    given.weight("w", "s8", Some(0), &[2, 2], &[1.27, 0.1, 0.5, -2.54]);
    given.weight("nearest", "s8", None, &[1, 2], &[1.0, 1.0]);
    given.weight("read", "s8", None, &[1, 2], &[1.0, 1.0]);
    given.graph.op("Neg", &["nearest"], "n");
    given.graph.op("Conv", &["y", "read"], "z");
    given.graph.op("Neg", &["read"], "m");
    let model = given.graph.build();
    let graph = model.graph.as_ref().unwrap();
    let mut plan = given.plan();
    assert!(plan.learned_weights(graph).is_empty());
    let weight = &mut plan.weights[0];
    assert_eq!(weight.differences(graph).unwrap(), [0; 4]);
    weight.integers = Arc::new(vec![127, 11, 24, -127].into());
    weight.learned = true;
    assert_eq!(weight.differences(graph).unwrap(), [0, 1, -1, 0]);
    // Of another, which two nodes read, the second as it is.
    plan.weights[2].learned = true;
    let values = plan.weights[0].dequantized();
    assert_eq!(values[1..3], [11.0 * 0.01, 24.0 * 0.02]);
    assert_eq!(plan.learned_weights(graph), [ModelEdit::ReplaceValues(NewValues { tensor: "w".into(), values })]);
    round(graph, &mut plan.weights[0]).unwrap();
    assert!(plan.weights[0].integers.iter().eq([127, 10, 25, -127]));
}

/// The range of what is looked up in a table holds rows that no sample looked up.
#[test]
fn a_table_shares_the_parameters_of_what_is_looked_up_in_it() {
    let mut given = Given::new();
    given.activation("looked_up", "u8", &[-1.0, 2.0]);
    given.weight("table", "u8", None, &[2, 2], &[-1.0, 2.0, 3.0, -5.0]).shares_with = Some("looked_up".into());
    let plan = given.plan();
    let [activation, weight] = [&plan.activations[0].params, &plan.weights[0].params[0]];
    assert_eq!(activation, weight);
    let ends = [activation.q_min, activation.q_max].map(|q| activation.dequantize(q));
    assert!(ends[0] < -4.9 && ends[1] > 2.9, "{ends:?}");
    let nearest = |(q, value): (i32, f32)| (activation.dequantize(q) - value).abs() <= activation.scale;
    assert!(plan.weights[0].integers.iter().zip([-1.0, 2.0, 3.0, -5.0]).all(nearest));
}

#[test]
fn integers_are_the_same_in_one_byte_and_in_four() {
    for (integers, n_bytes) in [
        (vec![-128, 127, 0], 1),
        (vec![0, 255, 3], 1),
        (vec![0, 256], 4),
        (vec![i32::MAX, i32::MAX - 255], 1),
        (vec![i32::MIN, i32::MAX], 4),
        (vec![], 1),
    ] {
        let stored = Integers::from(integers.clone());
        assert!(stored.iter().eq(integers.iter().copied()), "{integers:?}");
        assert!(integers.iter().enumerate().all(|(position, &q)| stored.at(position) == q), "{integers:?}");
        assert_eq!(matches!(stored, Integers::Bytes { .. }), n_bytes == 1, "{integers:?}");
    }
}

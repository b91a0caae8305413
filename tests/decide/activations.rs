//! Parameters of activations: groups, given and prescribed ranges, outputs, masks.

use super::*;

#[test]
fn a_finer_power_of_two_cuts_the_range_to_what_it_holds() {
    let planned = |qtype: &str, values: &[f32]| {
        let mut given = Given::new();
        given.activation("x", qtype, values);
        let planned = given.one();
        (planned.range, planned.params.scale, planned.params.zero_point)
    };
    let symmetric = |amax: f64| Range::symmetric(amax);
    // Values of one size have the least error where the largest is not cut: the range is the observed one.
    let even: Vec<f32> = (-30..=30).map(|i| i as f32 / 16.0).collect();
    assert_eq!(planned("pot", &even), (symmetric(1.875), 2f32.powi(-6), 0));
    // Steps of 1/64 make nothing of values of 0.003.
    let tail = long_tailed(0.003);
    let (range, scale, zero_point) = planned("pot", &tail);
    assert!(scale < 2f32.powi(-6), "{scale}");
    assert_eq!((range, zero_point), (symmetric(127.0 * f64::from(scale)), 0));
    let (range, scale, zero_point) = planned("pot_unsigned", &tail);
    assert_eq!((range, zero_point), (Range { min: 0.0, max: 255.0 * f64::from(scale) }, 0));
    assert_eq!(scale, 2f32.powi(-8));
    let mirrored: Vec<f32> = long_tailed(0.05).iter().map(|value| -value).chain([0.05; 9]).collect();
    let (range, scale, zero_point) = planned("pot_asymmetric", &mirrored);
    assert!(scale < 2f32.powi(-3), "{scale}");
    assert_eq!(range.min, f64::from(-8 - zero_point) * f64::from(scale));
}

#[test]
fn tensors_of_one_group_get_the_range_of_all_of_them() {
    let mut given = Given::new();
    given.activation("a", "u8", &[0.0, 2.0]);
    given.activation("b", "u8", &[-1.0, 1.0]).group = 0;
    given.activation("c", "u8", &[0.0, 9.0]);
    let [a, b, c] = <[PlannedActivation; 3]>::try_from(given.plan().activations).unwrap();
    assert_eq!((a.range, b.range, c.range.max), (Range { min: -1.0, max: 2.0 }, a.range, 9.0));
    assert_eq!((a.params, a.params.scale, a.params.zero_point), (b.params, (3.0f64 / 255.0) as f32, 85));
    assert_eq!([a.observed, b.observed], [Some((0.0, 2.0)), Some((-1.0, 1.0))]);
    assert_eq!((a.observer, a.candidates.len(), a.n_masked), ("max", 0, 0));
    given.activation = "auto";
    let of_auto = &given.plan().activations[0];
    let candidates: Vec<_> = of_auto.candidates.iter().map(|candidate| candidate.observer).collect();
    assert_eq!((of_auto.observer, candidates), ("mse", vec!["max", "percentile", "percentile", "entropy"]));
    given.statistics.pop();
    assert!(given.decide().unwrap_err().contains("2 statistics, expected 3"));
}

#[test]
fn given_ranges_take_the_place_of_what_was_observed() {
    let range = |min, max| GivenRange { range: Range { min, max }, amax: None };
    let mut given = Given::new();
    given.activation("x", "u8", &[-50.0, 50.0]);
    given.imported.insert("x".into(), range(-0.5, 2.05));
    let x = given.one();
    assert_eq!((x.range, x.observer), (Range { min: -0.5, max: 2.05 }, "imported"));
    assert_eq!((x.params.scale, x.params.zero_point), (0.01, 50));
    assert_eq!((&x.observed, &*x.quantizer.reason), (&Some((-50.0, 50.0)), "asked for"));
    // That of another tensor of the group, and what was observed of a third.
    given.activation("y", "u8", &[9.0]).group = 0;
    given.imported.insert("y".into(), range(0.0, 3.0));
    assert_eq!(given.plan().activations[0].range, Range { min: -0.5, max: 3.0 });
    given.activation("z", "u8", &[-4.0, 1.0]).group = 0;
    assert_eq!(given.plan().activations[0].range, Range { min: -4.0, max: 3.0 });
    // Outputs of the network are held by what was given for them.
    given.placement.activations.iter_mut().for_each(|quantizer| quantizer.holds_all = true);
    let plan = given.plan();
    assert_eq!(plan.activations[0].range, Range { min: -4.0, max: 3.0 });
    assert!(plan.activations.iter().all(|planned| planned.quantizer.reason == "asked for"));
    // The sign adapts to the lowest of both.
    let mut given = Given::new();
    given.activation("x", "ada", &[1.0]);
    given.imported.insert("x".into(), range(0.0, 2.0));
    assert!(!given.one().qtype.signed);
    given.activation("y", "ada", &[-1.0]).group = 0;
    assert!(given.plan().activations[0].qtype.signed);
}

#[test]
fn an_output_of_the_network_is_held_as_a_whole() {
    let observed: Vec<f32> = (0..1000).map(|i| i as f32 / 999.0).chain([50.0]).collect();
    let mut given = Given::new();
    given.activation = "percentile:99";
    given.activation("x", "u8", &observed);
    let cut = given.one();
    assert!(cut.range.max < 1.1 && cut.quantizer.reason == "asked for", "{:?}", cut.range);
    given.placement.activations[0].holds_all = true;
    let whole = given.one();
    assert_eq!((whole.range, whole.params.scale), (Range { min: 0.0, max: 50.0 }, (50.0f64 / 255.0) as f32));
    assert_eq!(whole.quantizer.reason, "asked for; its range includes all observed values");
    // Only what was seen of the output itself, with one of its group; who is none says nothing of it.
    given.activation("y", "u8", &[70.0, 0.5, 0.25]).group = 0;
    given.activation("z", "u8", &observed);
    let [x, y, z] = <[PlannedActivation; 3]>::try_from(given.plan().activations).unwrap();
    assert_eq!((x.range.max, y.range.max), (50.0, 50.0));
    assert_eq!((&*y.quantizer.reason, z.range), ("asked for", cut.range));
    // Nor does a search for a finer power of two cut it.
    let mut given = Given::new();
    given.activation("x", "pot", &long_tailed(0.003)).holds_all = true;
    let x = given.one();
    assert_eq!((x.range, x.params.scale), (Range::symmetric(1.0), 2f32.powi(-6)));
    // With a given range besides, which a mean of what was observed is added to.
    given.activation("y", "pot", &[0.5]).group = 0;
    given.imported.insert("y".into(), GivenRange { range: Range { min: -0.1, max: 0.1 }, amax: None });
    given.activation = "percentile:50";
    let x = &given.plan().activations[0];
    assert_eq!(x.range, Range::symmetric(1.0));
    assert_eq!(x.quantizer.reason, "asked for; its range includes all observed values");
    given.activation = "max";
    assert_eq!(given.plan().activations[0].quantizer.reason, "asked for");
}

#[test]
fn prescribed_parameters_are_taken_as_they_are() {
    let fixed = |scale, zero_point| Some(FixedGrid { scale, zero_point });
    let mut given = Given::new();
    given.activation("free", "s8", &[5.0]).group = 7;
    given.activation("first", "u8", &[3.0]).fixed = fixed(0.5, 10);
    given.activation("again", "u8", &[3.0]).fixed = fixed(0.5, 10);
    given.placement.activations[1].group = 7;
    given.placement.activations[2].group = 7;
    let plan = given.plan();
    for planned in &plan.activations {
        assert_eq!((planned.params.scale, planned.params.zero_point, planned.observer), (0.5, 10, "fixed"));
        assert_eq!(planned.range, Range { min: -5.0, max: 122.5 });
        assert_eq!((planned.params.q_max, planned.qtype.signed), (255, false));
    }
    assert!(given.warnings().is_empty());
    given.activation("other", "u8", &[3.0]).fixed = fixed(0.25, 10);
    given.placement.activations[3].group = 7;
    let plan = given.plan();
    assert_eq!(plan.activations[3].params.scale, 0.5);
    let [warning] = <[String; 1]>::try_from(given.warnings()).unwrap();
    assert!(warning.starts_with("tensors `first` and `other` share scale and zero point"), "{warning}");
    given.placement.activations[1].fixed = fixed(0.5, 256);
    let error = given.decide().unwrap_err();
    assert!(error.contains("tensor `first`") && error.contains("the prescribed zero point is 256, expected 0 to 255"));
}

#[test]
fn values_that_are_no_numbers_are_told_of_and_a_mask_is_not() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let mut given = Given::new();
    given.activation("x", "u8", &[1.0, nan, inf, 2.0, -inf]);
    let plan = given.plan();
    assert_eq!((plan.activations[0].n_non_finite, plan.activations[0].n_masked), (3, 0));
    assert_eq!(given.warnings(), ["tensor `x`: 3 of 5 values are NaN or infinite; they were ignored"]);
    given.activation("none", "u8", &[nan]);
    let error = given.decide().unwrap_err();
    assert!(error.contains("tensor `none`") && error.contains("no finite value"), "{error}");

    let scores = [-inf, -inf, -3.0, 5.0, -1e4];
    let mut given = Given::new();
    given.activation("scores", "u8", &scores).softmax = Some(SoftmaxRole::Input);
    let plan = given.plan();
    let planned = &plan.activations[0];
    assert_eq!((planned.n_non_finite, planned.n_masked, given.warnings().len()), (0, 3, 0));
    assert!((-15.1..=-15.0).contains(&planned.range.min) && planned.range.max == 5.0, "{:?}", planned.range);
    // With NaN beside them, that alone is told of; an output's lowest value is the raised one.
    given.activation("more", "u8", &[-inf, nan, 1.0, -2.0]).softmax = Some(SoftmaxRole::Input);
    given.placement.activations[0].holds_all = true;
    let plan = given.plan();
    assert_eq!((plan.activations[1].n_non_finite, plan.activations[1].n_masked), (1, 1));
    assert_eq!(given.warnings(), ["tensor `more`: 1 of 3 values are NaN or infinite; they were ignored"]);
    assert!(plan.activations[0].range.min > -15.2, "{:?}", plan.activations[0].range);
    // Where one of a group is read by others than a Softmax, there is a mask only if that one has no values as low.
    given.activation("plain", "u8", &[1.0]).group = 0;
    assert!(given.plan().activations[0].range.min > -15.2);
    given.activation("low", "u8", &[-9e3]).group = 0;
    assert_eq!(given.plan().activations[0].range.min, -1e4);
}

#[test]
fn a_clip_goes_where_the_grid_ends_as_it_does() {
    let relu = FoldableClip { node: 0, input: "a".into(), min: Some(0.0), max: None };
    let mut given = Given::new();
    given.activation("r", "u8", &[0.0, 2.0]).clip = Some(relu.clone());
    given.activation("s", "s8", &[0.0, 2.0]).clip = Some(relu.clone());
    given.activation("t", "u8", &[0.0, 2.0]);
    let plan = given.plan();
    let removed: Vec<_> = plan.activations.iter().map(PlannedActivation::removed_clip).collect();
    assert_eq!(removed, [Some(&relu), None, None]);
}

/// Below other values by their own width or by 32, below a single one by 1024, and nowhere lower than the mask.
#[test]
fn the_mask_that_is_added_to_scores_lies_as_far_down_as_they_may_reach() {
    let cases: [(&[f32], f64); 7] = [
        (&[-1e4, -1.0, 3.0], -33.0),
        (&[f32::NEG_INFINITY, -1.0, 3.0], -33.0),
        (&[-1e4, -30.0, 20.0], -80.0),
        (&[-1e4, 0.0], -1024.0),
        (&[-1e4, 5.0], -1024.0),
        (&[-1e4, -8.0], -1032.0),
        (&[-500.0, 0.0], -500.0),
    ];
    for (values, expected) in cases {
        let mut given = Given::new();
        given.activation("mask", "u8", values).softmax = Some(SoftmaxRole::Addend);
        let found = given.one().range.min;
        assert!((found - expected).abs() <= 0.005 * expected.abs(), "{values:?}: {found}");
    }
}

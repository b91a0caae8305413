//! The overlap of squared deviations, by hand.

use super::{Compared, INF, NAN, Pair, about, assert_near, compared, figure, first, measured, prepare};
use mqq::metrics::{
    ChannelGroup, EvaluatedOutput, FloatOutput, Measurement, OVERLAP, OutputGroups, OutputPair, PreparedMetrics,
    SamplePair,
};
use std::slice::from_ref;
use std::sync::Arc;

/// Samples of `n` values each.
fn samples<'a>(n: usize, float: &'a [f32], quantized: &'a [f32]) -> Vec<Pair<'a>> {
    float.chunks(n).zip(quantized.chunks(n)).collect()
}

/// Of one value a sample.
fn of_column(float: &[f32], quantized: &[f32]) -> f64 {
    figure(OVERLAP, &[1, 1], &samples(1, float, quantized))
}

/// Of vectors of `n` values, group by group.
fn by_group(n: usize, float: &[f32], quantized: &[f32]) -> Vec<f64> {
    let (shape, samples) = ([1, n], samples(n, float, quantized));
    let outputs = [compared("y", &shape, &samples)];
    measured(&[OVERLAP], &outputs).figures(OVERLAP).remove(0).unwrap().groups
}

/// The channels of a float output.
fn found(output: &Compared) -> OutputGroups {
    prepare(&[OVERLAP], from_ref(output)).groups()[0].clone()
}

/// The channels of vectors of `n` values.
fn channels(n: usize, float: &[f32]) -> Vec<String> {
    let output = found(&compared("y", &[1, n], &samples(n, float, float)));
    output.groups.iter().map(ChannelGroup::describe).collect()
}

#[test]
fn it_is_the_shared_part_of_squared_deviations_from_the_median() {
    // Shared 1 + 0 + 1 of 4 + 0.25 + 1.
    assert_near(of_column(&[-1.0, 0.0, 1.0], &[-2.0, 0.5, 1.0]), 2.0 / 5.25);
    // The median is 3, that of the quantized values makes no difference.
    assert_near(of_column(&[0.0, 2.0, 4.0, 10.0], &[0.0, 2.0, 4.0, 11.0]), 60.0 / 75.0);
    assert_near(of_column(&[10.0, 4.0, 0.0, 2.0], &[11.0, 4.0, 0.0, 2.0]), 60.0 / 75.0);
}

#[test]
fn nothing_is_shared_on_two_sides_of_the_median() {
    assert_near(of_column(&[0.0, 2.0, 4.0, 10.0], &[0.0, 2.0, 2.0, 10.0]), 59.0 / 63.0);
    assert_near(of_column(&[0.0, 2.0, 4.0, 10.0], &[0.0, 2.0, 3.0, 10.0]), 59.0 / 60.0);
    assert_eq!(of_column(&[-1.0, 0.0, 1.0], &[1.0, 0.0, -1.0]), 0.0);
}

#[test]
fn it_is_1_where_all_is_left_and_0_where_nothing_is() {
    assert_eq!(of_column(&[-1.0, 0.0, 1.0], &[-1.0, 0.0, 1.0]), 1.0);
    assert_eq!(of_column(&[-1.0, 0.0, 1.0], &[0.0, 0.0, 0.0]), 0.0);
    // An offset is an error.
    assert_near(of_column(&[-1.0, 0.0, 1.0], &[0.0, 1.0, 2.0]), 1.0 / 6.0);
}

#[test]
fn each_channel_has_its_median_and_the_weight_of_its_deviations() {
    let float = [0.0, 100.0, 1.0, 110.0, 2.0, 120.0];
    let quantized = [0.0, 100.0, 1.0, 110.0, 2.0, 125.0];
    assert_near(by_group(2, &float, &quantized)[0], 202.0 / 327.0);
    let quantized = [0.0, 100.0, 1.0, 110.0, 3.0, 120.0];
    assert_near(by_group(2, &float, &quantized)[0], 202.0 / 205.0);
}

/// Two samples of three channels of 4 by 4, as both layouts have them, float and quantized.
fn in_both_layouts() -> [[Vec<f32>; 4]; 2] {
    let value = |i: usize, c: usize, at: usize, step: usize| {
        let seed = (i * 3 + c) * 16 + at;
        [0.0, 20.0, -9.0][c] + ((seed * 7) % 11) as f32 / 4.0 + step as f32 * ((seed * 5) % 7) as f32 / 8.0
    };
    let first = |i: usize, step: usize| (0..48).map(|k| value(i, k / 16, k % 16, step)).collect::<Vec<f32>>();
    let last = |i: usize, step: usize| (0..48).map(|k| value(i, k % 3, k / 3, step)).collect::<Vec<f32>>();
    [[first(0, 0), first(0, 1), first(1, 0), first(1, 1)], [last(0, 0), last(0, 1), last(1, 0), last(1, 1)]]
}

#[test]
fn channels_may_come_first_or_last() {
    let [nchw, nhwc] = in_both_layouts();
    let of = |shape: &[usize], [a, b, c, d]: &[Vec<f32>; 4]| figure(OVERLAP, shape, &[(a, b), (c, d)]);
    let overlap = of(&[1, 3, 4, 4], &nchw);
    assert!((0.2..0.9).contains(&overlap), "{overlap}");
    assert_near(of(&[1, 4, 4, 3], &nhwc), overlap);
    let axis = |shape: &[usize], [a, b, ..]: &[Vec<f32>; 4]| found(&compared("y", shape, &[(a, b)])).axis;
    assert_eq!((axis(&[1, 3, 4, 4], &nchw), axis(&[1, 4, 4, 3], &nhwc)), (Some(1), Some(3)));
}

/// One value of 1 among zeros.
fn spike(n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    values[3] = 1.0;
    values
}

#[test]
fn channels_with_rare_large_values_are_sparse() {
    // Kurtosis of 9.1 and 10.1.
    assert_eq!(channels(1, &spike(11)), ["1 channel (0)"]);
    assert_eq!(channels(1, &spike(12)), ["1 channel of rare large values (0)"]);
}

#[test]
fn scores_beside_boxes_in_pixels_have_groups_of_their_own() {
    let sides = |largest: f32| {
        let mut float = vec![0.0; 80];
        (float[6], float[9]) = (largest, 0.9);
        let mut quantized = float.clone();
        quantized[9] = 0.0;
        (float, quantized)
    };
    let (float, quantized) = sides(600.0);
    assert_eq!(channels(2, &float), ["1 channel of rare large values (0)", "1 channel of rare large values (1)"]);
    assert_eq!(by_group(2, &float, &quantized), [1.0, 0.0]);
    let (float, quantized) = sides(2.0);
    assert_eq!(channels(2, &float), ["2 channels of rare large values (0-1)"]);
    assert_near(by_group(2, &float, &quantized)[0], 0.5);
}

#[test]
fn the_figure_is_the_mean_over_groups_and_then_over_outputs() {
    let mut float = [0.0, 1.0, 0.0, -1.0].repeat(10);
    float[6] = 1.0;
    let mut quantized = float.clone();
    quantized[6] = 0.5;
    assert_eq!(channels(2, &float), ["1 channel (1)", "1 channel of rare large values (0)"]);
    assert_eq!(by_group(2, &float, &quantized), [1.0, 0.25]);
    let pairs = samples(2, &float, &quantized);
    let flat: [Pair; 3] = [(&[0.0], &[0.0]), (&[2.0], &[0.5]), (&[-2.0], &[0.0])];
    let outputs = [compared("a", &[1, 2], &pairs), compared("b", &[1, 1], &flat)];
    let measured = measured(&[OVERLAP], &outputs);
    let figures: Vec<f64> = measured.figures(OVERLAP).into_iter().map(|figure| figure.unwrap().value).collect();
    assert_eq!(figures, [0.625, 0.25 / 8.0]);
    assert_eq!(measured.mean(OVERLAP), Some(0.5 * (0.625 + 0.25 / 8.0)));
    assert_eq!(measured.worst(OVERLAP), Some(0.25 / 8.0));
}

#[test]
fn a_dead_channel_has_no_say() {
    let float = [7.0, 0.0, 7.0, 1.0, 7.0, 2.0];
    assert_eq!(channels(2, &float), ["1 channel (1)"]);
    assert_eq!(by_group(2, &float, &[70.0, 0.0, 7.0, 1.0, -7.0, 2.0]), [1.0]);
    // Of 1e-12 and of 1e-8 of the largest variance.
    let of = |large: f32| [large, 1.0, -large, -1.0, large, -1.0, -large, 1.0];
    let spoiled = |large: f32| [large, 9.0, -large, 9.0, large, 9.0, -large, 9.0];
    assert_eq!(channels(2, &of(1e6)), ["1 channel (0)"]);
    assert_eq!(by_group(2, &of(1e6), &spoiled(1e6)), [1.0]);
    assert_eq!(channels(2, &of(1e4)), ["2 channels (0-1)"]);
    assert!(by_group(2, &of(1e4), &spoiled(1e4))[0] < 1.0);
}

#[test]
fn channels_are_listed_by_ranges() {
    let living = |is_alive: &dyn Fn(usize) -> bool, n: usize| {
        let float: Vec<f32> = (0..3 * n).map(|i| if is_alive(i % n) { (i / n) as f32 } else { 4.0 }).collect();
        channels(n, &float).remove(0)
    };
    assert_eq!(living(&|i| i != 4, 6), "5 channels (0-3, 5)");
    assert_eq!(living(&|i| i != 2, 5), "4 channels (0-1, 3-4)");
    assert_eq!(living(&|i| i % 2 == 0, 24), "12 channels (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22)");
    assert_eq!(living(&|i| i % 2 == 0, 26), "13 channels (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, …)");
}

#[test]
fn a_map_is_one_channel() {
    let turn = std::f32::consts::TAU / 16.0;
    let float: Vec<f32> = (0..256).map(|i| (turn * (i / 16 + i % 16) as f32).cos()).collect();
    let half: Vec<f32> = float.iter().map(|value| 0.5 * value).collect();
    let output = compared("y", &[1, 1, 16, 16], &[(&float, &half)]);
    let group = ChannelGroup { kind: "dense".to_string(), n_channels: 1, channels: "0".to_string() };
    assert_eq!(found(&output), OutputGroups { output: "y".to_string(), axis: None, groups: vec![group] });
    assert!((first(OVERLAP, &[output]).unwrap() - 0.25).abs() < 1e-6);
}

#[test]
fn cells_beside_boxes_are_no_channels() {
    let rough = |i: usize| (i * 617 % 997) as f32;
    let (boxes, scores): (Vec<f32>, Vec<f32>) = ((0..160).map(rough).collect(), (0..120).map(rough).collect());
    let axes = |shape: &[usize], n: usize| {
        let outputs = [
            compared("boxes", &[1, 40, 4], &[(&boxes, &boxes)]),
            compared("y", shape, &[(&scores[..n], &scores[..n])]),
        ];
        measured(&[OVERLAP], &outputs).prepared().groups().iter().map(|groups| groups.axis).collect::<Vec<_>>()
    };
    assert_eq!(axes(&[1, 3, 40], 120), [Some(2), Some(1)]);
    assert_eq!(axes(&[1, 40, 3], 120), [Some(2), Some(2)]);
    assert_eq!(axes(&[1, 40, 1], 40), [Some(2), Some(2)]);
    // Not of the boxes' cells.
    assert_eq!(axes(&[1, 30, 1], 30), [Some(2), Some(1)]);
}

#[test]
fn a_given_axis_is_taken() {
    let (float, quantized): ([f32; 12], [f32; 12]) = (
        [0.0, 1.0, 10.0, 11.0, 1.0, 2.0, 11.0, 12.0, 2.0, 3.0, 12.0, 13.0],
        [0.0, 1.0, 10.0, 12.0, 1.0, 2.0, 11.0, 12.0, 2.0, 3.0, 12.0, 13.0],
    );
    let samples = samples(4, &float, &quantized);
    let of = |channel_axis: Option<usize>| {
        let output = || {
            let about = EvaluatedOutput { channel_axis, ..about("y") };
            Compared { about, ..compared("y", &[1, 2, 2], &samples) }
        };
        (found(&output()).axis, first(OVERLAP, &[output()]).unwrap())
    };
    let ((found, by_found), (given, by_given)) = (of(None), of(Some(2)));
    assert_eq!((found, given), (Some(1), Some(2)));
    // Medians of 1.5 and 11.5, or of 6 and 7.
    assert_near(by_found, 10.75 / 11.75);
    assert_near(by_given, 308.0 / 317.0);
    // One that the output does not have.
    assert_eq!(of(Some(3)), (Some(1), by_found));
}

/// Whether an output has an overlap and groups of channels.
fn has_a_say(output: Compared) -> bool {
    let groups = found(&output).groups;
    let figure = first(OVERLAP, &[output]);
    assert_eq!(figure.is_none(), groups.is_empty());
    figure.is_some()
}

#[test]
fn integers_constants_and_outputs_of_varying_length_have_no_say() {
    let pairs: [Pair; 2] = [(&[1.0, 2.0], &[1.0, 2.0]), (&[3.0, 5.0], &[3.0, 5.0])];
    assert!(has_a_say(compared("y", &[1, 2], &pairs)));
    let about = EvaluatedOutput { is_float: false, ..about("y") };
    assert!(!has_a_say(Compared { about, ..compared("y", &[1, 2], &pairs) }));
    assert!(!has_a_say(compared("y", &[1, 2], &[pairs[0], (&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0])])));
    assert!(!has_a_say(compared("y", &[1, 2], &[(&[4.0, 4.0], &[4.0, 5.0])])));
    assert!(!has_a_say(compared("y", &[1, 0], &[(&[], &[])])));
    assert!(!has_a_say(compared("y", &[1, 2], &[])));
}

#[test]
fn what_is_the_same_for_every_sample_has_no_say() {
    let anchors: Pair = (&[1.0, 2.0, 3.0, 9.0, 8.0, 7.0], &[1.0, 2.0, 3.0, 9.0, 8.0, 7.5]);
    let other: Pair = (&[1.0, 2.0, 3.0, 9.0, 8.0, 7.1], anchors.1);
    assert!(!has_a_say(compared("y", &[1, 2, 3], &[anchors, anchors])));
    assert!(has_a_say(compared("y", &[1, 2, 3], &[anchors, other])));
    // Of one sample nothing can be told.
    assert!(has_a_say(compared("y", &[1, 2, 3], &[anchors])));
}

#[test]
fn no_sample_counts_more_than_all_others() {
    // Fifteen samples, and one that reaches a thousand times as far and is lost.
    let mut float = [-1.0, 0.0, 1.0].repeat(5);
    float.push(1000.0);
    let mut quantized = float.clone();
    quantized[15] = 0.0;
    // Its squares count 10, like those of the fifteen together.
    assert_near(of_column(&float, &quantized), 0.5);
    // Of seven samples each counts in full.
    assert_near(of_column(&float[9..], &quantized[9..]), 4.0 / 1_000_004.0);
}

#[test]
fn a_value_that_is_no_number_leaves_nothing_of_its_group() {
    for bad in [NAN, INF, -INF] {
        assert_eq!(of_column(&[-1.0, 0.0, 1.0, 2.0], &[-1.0, 0.0, 1.0, bad]), 0.0);
        assert_eq!(of_column(&[-1.0, 0.0, 1.0, bad], &[-1.0, 0.0, 1.0, 2.0]), 0.0);
    }
    for (float, quantized) in [(NAN, NAN), (INF, -INF), (INF, NAN)] {
        assert_eq!(of_column(&[-1.0, 0.0, 1.0, float], &[-1.0, 0.0, 1.0, quantized]), 0.0);
    }
    let mut float = [0.0, 1.0, 0.0, -1.0].repeat(10);
    float[6] = 1.0;
    let mut quantized = float.clone();
    quantized[7] = NAN;
    assert_eq!(by_group(2, &float, &quantized), [0.0, 1.0]);
}

#[test]
fn an_infinity_of_both_is_equal() {
    for infinity in [INF, -INF] {
        assert_eq!(of_column(&[-1.0, 0.0, 1.0, infinity], &[-1.0, 0.0, 1.0, infinity]), 1.0);
        assert_near(of_column(&[-1.0, 0.0, 1.0, infinity], &[-2.0, 0.5, 1.0, infinity]), 2.0 / 5.25);
    }
}

#[test]
fn a_dead_channel_that_is_no_number_any_more_is_not_overlooked() {
    let float = [7.0, 0.0, 7.0, 1.0, 7.0, 2.0];
    let masked = [-INF, 0.0, -INF, 1.0, -INF, 2.0];
    for (float, quantized) in [(float, [NAN, 0.0, 7.0, 1.0, 7.0, 2.0]), (masked, float), (float, masked)] {
        let measured = measured(&[OVERLAP], &[compared("y", &[1, 2], &samples(2, &float, &quantized))]);
        assert!(measured.has_non_finite(OVERLAP), "{float:?} {quantized:?}");
    }
    let same = measured(&[OVERLAP], &[compared("y", &[1, 2], &samples(2, &masked, &masked))]);
    assert!(!same.has_non_finite(OVERLAP) && same.mean(OVERLAP) == Some(1.0));
}

#[test]
fn samples_of_several_lengths_count_by_their_channels() {
    let about = EvaluatedOutput { channel_axis: Some(2), ..about("y") };
    let (float, quantized) = ([0.0, 5.0, 2.0, 1.0, 4.0, -3.0], [1.0, 5.0, 2.0, 2.0, 3.0, -3.0]);
    let overlap = |lengths: &[usize], is_open: bool| {
        let shapes: Vec<[usize; 3]> = lengths.iter().map(|&n| [1, n, 2]).collect();
        let shapes: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
        let parts = |values: &'static [f32]| {
            let mut rest = values;
            lengths.iter().map(|&n| rest.split_off(..2 * n).unwrap()).collect::<Vec<&[f32]>>()
        };
        let (float, quantized) = (parts(float.to_vec().leak()), parts(quantized.to_vec().leak()));
        let (shape, samples) = (shapes[0], float.clone());
        let of_open = if is_open { shapes.clone() } else { Vec::new() };
        let output = FloatOutput { about: &about, batch: 1, shape, samples, shapes: of_open };
        let prepared = Arc::new(PreparedMetrics::new(&[OVERLAP], &[output], None));
        let sums = (0..lengths.len()).map(|i| {
            let pair = OutputPair { shape: shapes[i], float: float[i], quantized: quantized[i] };
            prepared.sums(&SamplePair { outputs: &[Some(pair)], labels: None, truths: None })
        });
        let sums = sums.collect();
        Measurement::new(prepared, sums).mean(OVERLAP)
    };
    let whole = overlap(&[3], false).unwrap();
    assert!(whole > 0.1 && whole < 1.0);
    assert_near(overlap(&[1, 2], true).unwrap(), whole);
    assert_near(overlap(&[2, 1], true).unwrap(), whole);
    // Lengths that differ though the inputs have one shape are of detections, say.
    assert_eq!(overlap(&[1, 2], false), None);
}

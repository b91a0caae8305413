//! The gain of one quantized network over another.

use super::{Compared, INF, NAN, Pair, about, assert_near, compared, db, prepare, sums};
use mqq::metrics::{EvaluatedOutput, Gain, Measurement, Metric, OVERLAP, SQNR};
use std::sync::Arc;

const FLOAT: [f32; 4] = [-1.0, 1.0, -1.0, 1.0];

/// The values of four samples of which these shares are left, one of each.
fn of_shares(shares: [f32; 4]) -> [f32; 4] {
    let value = |i: usize| FLOAT[i] * shares[i].sqrt();
    [value(0), value(1), value(2), value(3)]
}

fn samples<'a>(float: &'a [f32], quantized: &'a [f32]) -> Vec<Pair<'a>> {
    float.chunks(1).zip(quantized.chunks(1)).collect()
}

/// Of outputs of one value a sample, each with its float values, and those before and after.
fn gain_of(outputs: &[[&[f32]; 3]]) -> Gain {
    gain(&[OVERLAP, SQNR], &compared_with(outputs, 1), &compared_with(outputs, 2))
}

fn compared_with<'a>(outputs: &[[&'a [f32]; 3]], which: usize) -> Vec<Compared<'a>> {
    let of = |(name, values): (&str, &[&'a [f32]; 3])| compared(name, &[1, 1], &samples(values[0], values[which]));
    ["a", "b"].into_iter().zip(outputs).map(of).collect()
}

fn gain(metrics: &[Metric], before: &[Compared], after: &[Compared]) -> Gain {
    let prepared = prepare(metrics, before);
    let [before, after] =
        [before, after].map(|outputs| Measurement::new(Arc::clone(&prepared), sums(&prepared, outputs, None)));
    Gain::of(&before, &after)
}

#[test]
fn a_gain_is_the_difference_of_the_overlaps() {
    let (before, after) = (of_shares([0.25; 4]), of_shares([1.0, 0.25, 1.0, 0.25]));
    let gain = gain_of(&[[&FLOAT, &before, &after]]);
    assert!(gain.metric == OVERLAP);
    assert_eq!((gain.figures, gain.gain()), ([0.25, 0.625], 0.375));
    // Errors of 0.5 at every sample, and at two of four.
    assert_near(gain.sqnr_db[0], db(4.0));
    assert_near(gain.sqnr_db[1], db(8.0));
}

#[test]
fn the_deviation_is_that_of_the_difference() {
    // Without one sample the gain is 0.25 or 0.5, twice each.
    let (before, after) = (of_shares([0.25; 4]), of_shares([1.0, 0.25, 1.0, 0.25]));
    let gain = gain_of(&[[&FLOAT, &before, &after]]);
    assert_near(gain.deviation, (4.0 * 0.125f64.powi(2) * 3.0 / 4.0).sqrt());
    // All samples gain as much, however different they are.
    let (before, after) = (of_shares([0.1, 0.3, 0.5, 0.7]), of_shares([0.2, 0.4, 0.6, 0.8]));
    let even = gain_of(&[[&FLOAT, &before, &after]]);
    assert!((even.gain() - 0.1).abs() < 1e-6 && even.deviation < 1e-6, "{even:?}");
    // Some gain as much as others lose.
    let (before, after) = (of_shares([0.5; 4]), of_shares([0.25, 0.75, 0.25, 0.75]));
    let mixed = gain_of(&[[&FLOAT, &before, &after]]);
    assert!(mixed.gain().abs() < 1e-6 && mixed.deviation > 0.1, "{mixed:?}");
}

#[test]
fn one_sample_has_no_deviation() {
    // Two channels of four positions.
    let float = [-1.0, 1.0, -1.0, 1.0, 9.0, 11.0, 9.0, 11.0];
    let other = [-1.0, 1.0, -1.0, 1.0, 9.0, 12.0, 9.0, 11.0];
    let of = |quantized| [compared("y", &[1, 2, 4], &[(&float, quantized)])];
    let gain = gain(&[OVERLAP, SQNR], &of(&other), &of(&float));
    assert!(gain.gain() > 0.0 && gain.deviation == 0.0 && gain.groups[0].deviation == 0.0, "{gain:?}");
}

#[test]
fn every_group_of_every_output_has_its_change() {
    let (half, whole, none) = (of_shares([0.25; 4]), of_shares([1.0; 4]), of_shares([0.0; 4]));
    let gain = gain_of(&[[&FLOAT, &half, &whole], [&FLOAT, &half, &none]]);
    assert_eq!((gain.figures, gain.deviation), ([0.25, 0.5], 0.0));
    let groups: Vec<(&str, [f64; 2])> = gain.groups.iter().map(|group| (group.name.as_str(), group.figures)).collect();
    let name = |output: &str| format!("output `{output}`, 1 channel (0)");
    assert_eq!(groups, [(name("a").as_str(), [0.25, 1.0]), (name("b").as_str(), [0.25, 0.0])]);
    assert_eq!((gain.groups[0].gain(), gain.groups[1].gain()), (0.75, -0.25));
}

#[test]
fn groups_of_one_output_are_told_apart() {
    let mut float = [0.0, 1.0, 0.0, -1.0].repeat(10);
    float[6] = 1.0;
    let mut quantized = float.clone();
    quantized[6] = 0.5;
    let of = |quantized| {
        let pairs: Vec<Pair> = float.chunks(2).zip(<[f32]>::chunks(quantized, 2)).collect();
        [compared("y", &[1, 2], &pairs)]
    };
    let gain = gain(&[OVERLAP, SQNR], &of(&float), &of(&quantized));
    let found: Vec<(&str, f64)> = gain.groups.iter().map(|group| (group.name.as_str(), group.gain())).collect();
    assert_eq!(found, [("output `y`, 1 channel (1)", 0.0), ("output `y`, 1 channel of rare large values (0)", -0.75)]);
    // Without the sample with the large value the channel has no error.
    assert!(gain.groups[0].deviation == 0.0 && gain.groups[1].deviation > 0.0);
}

#[test]
fn the_sqnr_decides_where_no_output_has_an_overlap() {
    let (float, near, far): ([f32; 2], [f32; 2], [f32; 2]) = ([3.0, 4.0], [3.0, 4.5], [3.0, 5.0]);
    let of = |quantized| {
        let about = EvaluatedOutput { is_float: false, ..about("n") };
        [Compared { about, ..compared("n", &[1, 2], &[(&float, quantized), (&float, quantized)]) }]
    };
    let gain = gain(&[OVERLAP, SQNR], &of(&far), &of(&near));
    assert!(gain.metric == SQNR);
    assert_near(gain.gain(), db(4.0));
    assert_eq!(gain.figures, gain.sqnr_db);
    let groups: Vec<&str> = gain.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(groups, ["output `n`"]);
    assert_eq!(gain.groups[0].figures, gain.figures);
}

#[test]
fn values_that_are_no_numbers_are_never_a_gain_and_in_no_doubt() {
    let good = of_shares([0.25; 4]);
    for bad in [NAN, INF, -INF] {
        let mut bad = [bad; 4];
        bad[..3].copy_from_slice(&FLOAT[..3]);
        let lost = gain_of(&[[&FLOAT, &good, &bad]]);
        assert_eq!((lost.figures, lost.deviation, lost.groups[0].deviation), ([0.25, 0.0], 0.0, 0.0));
        let found = gain_of(&[[&FLOAT, &bad, &good]]);
        assert_eq!((found.figures, found.deviation), ([0.0, 0.25], 0.0));
        assert_eq!(gain_of(&[[&FLOAT, &bad, &bad]]).gain(), 0.0);
    }
}

#[test]
fn an_output_without_numbers_is_not_hidden_by_others() {
    let (good, bad) = (of_shares([0.25; 4]), [-1.0, 1.0, NAN, 1.0]);
    let gain = gain_of(&[[&FLOAT, &good, &FLOAT], [&FLOAT, &good, &bad]]);
    assert_eq!((gain.groups[0].gain(), gain.groups[1].figures), (0.75, [0.25, 0.0]));
    assert_eq!(gain.groups[1].deviation, 0.0);
    assert!(gain.sqnr_db[1] < 0.0, "{gain:?}");
}

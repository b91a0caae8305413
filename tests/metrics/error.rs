//! Two networks against the float one, sample by sample.

use mqq::metrics::{Gain, LikelyPositions, MAX_DB, Part, QuantizationError, Units, ValuePair, gain_db, mean_sqnr_db};

/// Samples with a signal of 1 and these sums of squared errors.
fn error(samples: &[f64]) -> QuantizationError {
    let mut all = QuantizationError::default();
    for error in samples {
        all.push(ValuePair { float: &[1.0, 0.0], quantized: &[1.0, error.sqrt() as f32] });
    }
    all
}

/// Of one sample.
fn of(float: &[f32], quantized: &[f32], shape: &[usize], units: Units) -> QuantizationError {
    QuantizationError::of(&[ValuePair { float, quantized }], shape, units, Part::All)
}

#[test]
fn a_constant_in_front_of_a_softmax_is_no_error() {
    let (float, moved) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 3.0, 4.0, 1.0, 2.0, 3.5]);
    let error = of(&float, &moved, &[1, 2, 3], Units::Centred { axis: -1 });
    let third = 0.5f64 / 3.0;
    let (signal, expected) = (4.0, 2.0 * third.powi(2) + (0.5 - third).powi(2));
    assert_eq!(mean_sqnr_db(&[error]), 10.0 * f64::log10(signal / expected));
}

#[test]
fn values_that_are_no_numbers_are_never_a_gain() {
    let (good, better) = (error(&[1.0; 4]), error(&[0.1; 4]));
    for bad in [f64::NAN, f64::INFINITY] {
        let bad = error(&[0.1, bad, 0.1, 0.1]);
        let after = [better.clone(), bad.clone()];
        let before = [good.clone(), good.clone()];
        assert_eq!((gain_db(&before, &after), Gain::of(&before, &after).standard_deviation_db), (-MAX_DB, 0.0));
        assert_eq!((gain_db(&after, &after), gain_db(&after, &before)), (-MAX_DB, MAX_DB));
        assert_eq!((mean_sqnr_db(&[bad]), Gain::of(&after, &before).standard_deviation_db), (-MAX_DB, 0.0));
    }
}

#[test]
fn what_only_one_network_has_as_a_number_is_error_and_an_infinity_of_both_is_none() {
    let masked = [f32::NEG_INFINITY, 2.0, 3.0];
    for units in [Units::Values { axis: None }, Units::Centred { axis: 1 }] {
        let same = of(&masked, &[f32::NEG_INFINITY, 2.0, 2.0], &[1, 3], units);
        assert!((0.1..100.0).contains(&mean_sqnr_db(&[same])));
        let other = of(&masked, &[-9.0, 2.0, 3.0], &[1, 3], units);
        assert!(other.is_unknown(), "{other:?}");
    }
}

/// Two channels of 32 positions, coordinates in hundreds and values below 1, each with this factor on all it has.
fn two_channels(factors: [f32; 2]) -> Vec<f32> {
    let value = |i: usize| ((i * 7) % 13) as f32 / 13.0;
    (0..64).map(|i| value(i / 2) * [500.0, 1.0][i % 2] * factors[i % 2]).collect()
}

#[test]
fn each_channel_counts_by_its_own_variance() {
    let float = two_channels([1.0, 1.0]);
    let db = |factors, units| mean_sqnr_db(&[of(&float, &two_channels(factors), &[1, 32, 2], units)]);
    for axis in [Some(2), None] {
        let units = Units::Values { axis };
        let (large, small) = (db([1.1, 1.0], units), db([1.0, 1.1], units));
        assert!((large - small).abs() < 1e-4, "{large} {small}");
    }
    // As one sum, the small channel would not be seen.
    let all = |factors: [f32; 2]| {
        let mut error = QuantizationError::default();
        error.push(ValuePair { float: &float, quantized: &two_channels(factors) });
        mean_sqnr_db(&[error])
    };
    assert!(all([1.0, 1.1]) > all([1.1, 1.0]) + 40.0);
}

#[test]
fn a_channel_that_hardly_varies_does_not_decide() {
    let constant: Vec<f32> = (0..64).map(|i| if i % 2 == 0 { (i % 7) as f32 } else { 3.0 }).collect();
    let moved: Vec<f32> = constant.iter().enumerate().map(|(i, v)| v + if i % 2 == 0 { 0.0 } else { 1e-3 }).collect();
    let error = of(&constant, &moved, &[1, 32, 2], Units::Values { axis: Some(2) });
    assert!(mean_sqnr_db(&[error]) > 30.0);
}

/// Scores of one channel in front of a Sigmoid, likely at one position of 64.
fn scores(background: f32, object: f32) -> Vec<f32> {
    (0..64).map(|i| if i == 40 { object } else { background - (i % 5) as f32 / 4.0 }).collect()
}

#[test]
fn what_float_finds_likely_is_apart_from_the_background() {
    let float = scores(-6.0, 3.0);
    let db = |quantized: &[f32], likely| {
        let mut positions = LikelyPositions::default();
        positions.narrow(&[&float], &[1, 1, 64], 1);
        let part = if likely { Part::Likely(&positions) } else { Part::Others(&positions) };
        let pair = ValuePair { float: &float, quantized };
        mean_sqnr_db(&[QuantizationError::of(&[pair], &[1, 1, 64], Units::Scores { axis: Some(1) }, part)])
    };
    let (moved, missed) = (scores(-5.9, 3.0), scores(-6.0, -3.0));
    assert!(db(&moved, false) > 0.0 && db(&moved, true) == 0.0);
    assert!(db(&missed, true) < 0.0 && db(&missed, false) == 0.0);
    let unknown = of(&float, &scores(f32::NAN, 3.0), &[1, 1, 64], Units::Scores { axis: Some(1) });
    assert!(unknown.is_unknown());
}

#[test]
fn a_gain_of_the_mean_does_harm_where_one_of_them_loses() {
    let samples = |error_of_one: f64| error(&[error_of_one; 8]);
    let before = [samples(0.1), samples(0.1), samples(0.1)];
    let after = [samples(0.001), samples(0.001), samples(0.4)];
    let gain = Gain::of(&before, &after);
    assert!(gain.gain_db > 0.0 && gain.does_harm, "{gain:?}");
    assert!(!Gain::of(&before, &[samples(0.001), samples(0.001), samples(0.1)]).does_harm);
    // Within what the choice of samples does.
    let uneven = error(&[0.4, 0.02, 0.5, 0.03, 0.1, 0.1, 0.02, 0.3]);
    assert!(!Gain::of(&before, &[samples(0.001), samples(0.001), uneven]).does_harm);
    // So near to float that a loss is none.
    let gain = Gain::of(&[samples(0.1), samples(1e-9)], &[samples(0.01), samples(1e-8)]);
    assert!(!gain.does_harm, "{gain:?}");
}

#[test]
fn the_standard_deviation_is_what_samples_disagree_about() {
    let before = [error(&[1.0; 8])];
    assert!(Gain::of(&before, &[error(&[0.5; 8])]).standard_deviation_db < 1e-9);
    let mut mixed = [0.5f64; 8];
    mixed[4..].fill(2.0);
    let deviation = Gain::of(&before, &[error(&mixed)]).standard_deviation_db;
    // The typical gain is 0, each sample 3 dB off, less what the mean error of 1/4 levels.
    assert!((0.4..1.6).contains(&deviation), "{deviation}");
}

#[test]
fn most_samples_decide() {
    let before = error(&[1.0, 1.0, 1.0, 1.0, 20.0]);
    let after = error(&[0.1, 0.1, 0.1, 0.1, 30.0]);
    let (before, after) = ([before], [after]);
    assert!(mean_sqnr_db(&before) > mean_sqnr_db(&after));
    assert!(gain_db(&before, &after) > 0.0);
    assert!(gain_db(&after, &before) < 0.0);
}

#[test]
fn samples_without_error_to_speak_of_do_not() {
    let before = error(&[1.0, 1.0, 1e-9]);
    let after = error(&[0.5, 0.5, 1e-6]);
    assert!(gain_db(&[before], &[after]) > 1.0);
}

//! Two networks against the float one, sample by sample.

use mqq::metrics::{Centred, Gain, MAX_DB, QuantizationError, gain_db, mean_sqnr_db};

/// Samples with a signal of 1 and these sums of squared errors.
fn error(samples: &[f64]) -> QuantizationError {
    let mut all = QuantizationError::default();
    samples.iter().for_each(|&error| all.add(&[1.0, 0.0], &[1.0, error.sqrt() as f32], None));
    all
}

#[test]
fn a_constant_in_front_of_a_softmax_is_no_error() {
    let (float, moved) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 3.0, 4.0, 1.0, 2.0, 3.5]);
    let mut error = QuantizationError::default();
    error.add(&float, &moved, Some(Centred { shape: &[1, 2, 3], axis: 2 }));
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
    for centred in [None, Some(Centred { shape: &[1, 3], axis: 1 })] {
        let mut same = QuantizationError::default();
        same.add(&masked, &[f32::NEG_INFINITY, 2.0, 2.0], centred);
        assert!((0.1..100.0).contains(&mean_sqnr_db(&[same])));
        let mut other = QuantizationError::default();
        other.add(&masked, &[-9.0, 2.0, 3.0], centred);
        assert!(other.is_unknown(), "{other:?}");
    }
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

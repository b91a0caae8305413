//! All outputs of a network together.

use mqq::metrics::{MAX_DB, OutputErrors, relative_error_db};

/// One sample of outputs of this shape.
fn errors(shape: &[usize], float: &[&[f32]], other: &[&[f32]]) -> OutputErrors {
    let mut errors = OutputErrors::new(float.len());
    for (i, (float, other)) in float.iter().zip(other).enumerate() {
        errors.add(i, shape, float, other);
    }
    errors
}

#[test]
fn rows_of_scores_agree_where_their_largest_do() {
    let (float, other) = ([1.0, 2.0, 0.0, 3.0, 1.0, 0.0], [1.0, 1.5, 0.0, 0.0, 1.0, 0.0]);
    let scores = errors(&[2, 3, 1, 1], &[&float], &[&other]);
    assert_eq!(scores.agreement_percent(), Some(50.0));
    let boxes = errors(&[1, 2, 3], &[&float], &[&float]);
    assert_eq!((boxes.agreement_percent(), boxes.sqnr_db()), (None, MAX_DB));
}

#[test]
fn values_that_are_no_numbers_are_the_worst() {
    let good: &[f32] = &[1.0, 2.0];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let bad: &[f32] = &[bad, 2.0];
        // Of the quantized network, of both, of the float one.
        for (float, other) in [(good, bad), (bad, &[f32::NAN, 2.0]), (bad, good)] {
            let errors = errors(&[1, 2], &[float], &[other]);
            assert_eq!((errors.sqnr_db(), errors.relative_error()), (-MAX_DB, f64::MAX));
        }
        let agreement = errors(&[1, 2], &[good], &[bad]).agreement_percent();
        assert_eq!(agreement, Some(0.0));
    }
}

#[test]
fn one_output_without_numbers_is_not_hidden_by_others() {
    let [good, near, bad]: [&[f32]; 3] = [&[1.0, 2.0], &[1.0, 2.1], &[f32::NAN, 2.0]];
    let errors = |first, second| errors(&[1, 2], &[good, good], &[first, second]);
    let (before, after) = (errors(near, near), errors(good, bad));
    assert_eq!((after.sqnr_db(), after.relative_error()), (-MAX_DB, f64::MAX));
    assert_eq!((before.gain_db(&after), after.gain_db(&before)), (-MAX_DB, MAX_DB));
    // What is left of the error where one of two moves is no number is never NaN.
    assert_eq!(errors(bad, bad).relative_error() - after.relative_error(), 0.0);
}

#[test]
fn nothing_measured_reaches_no_goal() {
    assert_eq!(OutputErrors::default().sqnr_db(), -MAX_DB);
    let empty = errors(&[0, 2], &[&[]], &[&[]]);
    assert_eq!((empty.sqnr_db(), empty.agreement_percent()), (-MAX_DB, None));
    let of = relative_error_db;
    assert_eq!((of(f64::NAN), of(f64::INFINITY)), (-MAX_DB, -MAX_DB));
    assert_eq!((of(0.0), of(0.1)), (MAX_DB, 10.0));
}

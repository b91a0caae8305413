//! Figures of one output, and classes.

use mqq::metrics::{MAX_DB, Merge, NonFinite, OutputComparison, OutputFigures, n_classes};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn figures(samples: &[(&str, &[f32], &[f32])]) -> OutputFigures {
    let mut total = OutputComparison::default();
    for (name, float, quantized) in samples {
        let mut one = OutputComparison::default();
        one.add(name, float, quantized);
        total.merge(one);
    }
    total.figures("y")
}

#[test]
fn values_that_only_the_quantized_model_lacks_are_the_worst() {
    for bad in [NAN, INF, -INF] {
        let found = figures(&[("a", &[1.0, 2.0], &[1.0, 2.0]), ("b", &[3.0, 4.0], &[bad, bad])]);
        let expected = NonFinite { n_values: 2, first_sample: "b".into() };
        assert_eq!((found.sqnr_db, &found.non_finite), (Some(-MAX_DB), &Some(expected)));
        assert_eq!((found.max_difference, found.float_non_finite.as_ref()), (0.0, None));
        assert!(!found.reaches(-1000.0) && !found.reaches(f64::NAN));
    }
}

#[test]
fn nothing_passes_a_gate_that_float_has_no_numbers_for() {
    for (float, other) in [(NAN, NAN), (NAN, 1.0), (INF, 1.0), (INF, -INF), (INF, NAN)] {
        let found = figures(&[("a", &[float, 2.0], &[other, 2.0])]);
        let expected = NonFinite { n_values: 1, first_sample: "a".into() };
        assert_eq!((found.sqnr_db, &found.float_non_finite), (Some(-MAX_DB), &Some(expected)));
        assert!(found.non_finite.is_none() && !found.reaches(-1000.0), "{float} {other}");
    }
    assert!(!figures(&[("a", &[], &[])]).reaches(0.0));
    assert!(!figures(&[("a", &[0.0], &[1.0])]).reaches(0.0));
}

#[test]
fn an_infinity_of_both_is_equal() {
    let found = figures(&[("a", &[-INF, 2.0], &[-INF, 2.0])]);
    assert_eq!((found.sqnr_db, found.float_non_finite.as_ref()), (None, None));
    assert!(found.reaches(60.0));
    let found = figures(&[("a", &[-INF, 10.0], &[-INF, 9.0])]);
    assert_eq!(found.sqnr_db.map(f64::round), Some(20.0));
    assert!(found.reaches(19.9) && !found.reaches(20.1) && !found.reaches(f64::NAN));
}

#[test]
fn rows_are_classified_one_by_one() {
    let mut comparison = OutputComparison::default();
    let float = [0.0, 9.0, 1.0, 8.0, 0.0, 1.0, 0.0, 0.0, 7.0];
    let quantized = [0.0, 9.0, 1.0, 8.0, 0.0, 9.0, 0.0, 0.0, 7.0];
    comparison.add("a", &float, &quantized);
    comparison.add_scores(&float, &quantized, 3, Some(&[1, 0, 2]));
    let found = comparison.figures("y");
    let third = |n: usize| 100.0 * n as f64 / 3.0;
    assert_eq!((found.n_samples, found.agreement_percent), (1, Some(third(2))));
    assert_eq!(found.top1_percent, Some([third(3), third(2)]));
}

fn scores(float: &[f32], quantized: &[f32], label: usize) -> OutputFigures {
    let mut comparison = OutputComparison::default();
    comparison.add_scores(float, quantized, float.len(), Some(&[label]));
    comparison.figures("y")
}

/// The label by which a row of class scores is right.
fn class(row: &[f32]) -> Option<usize> {
    (0..row.len()).find(|&label| scores(row, row, label).top1_percent == Some([100.0; 2]))
}

fn same_class(float: &[f32], quantized: &[f32]) -> bool {
    scores(float, quantized, 0).agreement_percent == Some(100.0)
}

#[test]
fn rows_that_are_no_numbers_have_no_class() {
    assert_eq!((class(&[NAN, 1.0]), class(&[NAN, NAN])), (None, None));
    assert_eq!((class(&[1.0, 2.0, 2.0]), class(&[-INF, -INF])), (Some(1), Some(0)));
    assert!(same_class(&[1.0, -INF], &[2.0, -INF]));
    assert!(!same_class(&[NAN; 2], &[NAN; 2]) && !same_class(&[1.0, 0.0], &[NAN, NAN]));
    assert!(!same_class(&[1.0, 0.0], &[INF, 0.0]) && !same_class(&[1.0, 0.0], &[1.0, -INF]));
}

#[test]
fn class_scores_are_one_vector_per_part_of_the_batch() {
    let cases: [(&[usize], usize, Option<usize>); 11] = [
        (&[1, 10], 1, Some(10)),
        (&[4, 10], 4, Some(10)),
        (&[1, 10], 4, Some(10)),
        (&[4, 10, 1, 1], 4, Some(10)),
        (&[100, 4], 1, None),
        (&[1, 1], 1, None),
        (&[10], 1, None),
        (&[1, 100, 4], 1, None),
        (&[1, 10, 1], 1, None),
        (&[1, 2, 8, 8], 1, None),
        (&[], 1, None),
    ];
    for (shape, batch, expected) in cases {
        assert_eq!(n_classes(shape, batch), expected, "{shape:?}");
    }
}

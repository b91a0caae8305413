//! Single figures, by their definitions.

use super::{
    Compared, INF, NAN, Pair, about, assert_near, compared, db, figure, first, labelled, measured, of_outputs, scores,
};
use mqq::metrics::{
    AGREEMENT, Better, COSINE, EQUAL, EvaluatedOutput, F1, MAX_DB, MAX_ERROR, METRICS, SQNR, TOP1, TOP1_DROP, by_name,
    relative_error, relative_error_db,
};

#[test]
fn every_metric_is_found_by_its_name() {
    for metric in METRICS {
        assert!(by_name(metric.name).unwrap() == *metric);
        assert_eq!(METRICS.iter().filter(|other| other.name == metric.name).count(), 1, "{}", metric.name);
    }
    let error = by_name("sqnrs").unwrap_err();
    let names = METRICS.iter().map(|metric| metric.name).collect::<Vec<_>>().join(", ");
    assert_eq!(format!("{error:#}"), format!("metric `sqnrs` is unknown, expected one of: {names}"));
    assert_eq!(mqq::diag::hint_of(&error), "did you mean `sqnr`?");
    assert!(by_name("F1").unwrap() == F1);
    for (printed, name) in [("top-1", "top1"), ("largest difference", "max-error"), ("drop_of_top-1", "top1-drop")] {
        let hint = format!("did you mean `{name}`?");
        assert_eq!(mqq::diag::hint_of(&by_name(printed).unwrap_err()), hint);
    }
}

#[test]
fn every_metric_is_explained() {
    let document = std::fs::read_to_string(crate::support::repository("docs/compare.md")).unwrap();
    for metric in METRICS {
        let best = format!(" | {} |", metric.scale.best);
        let is_row = |line: &str| line.starts_with(&format!("| `{}` | ", metric.name)) && line.ends_with(&best);
        assert!(document.lines().any(is_row), "docs/compare.md: {}", metric.name);
    }
}

#[test]
fn equal_outputs_have_the_best_figure_and_one_nan_a_worse_one() {
    let float: [Pair; 3] = [
        (&[8.0, -1.0, 0.0], &[8.0, -1.0, 0.0]),
        (&[7.0, 0.0, 1.0], &[7.0, 0.0, 1.0]),
        (&[9.0, 2.0, 0.5], &[9.0, 2.0, 0.5]),
    ];
    let without_a_number = [NAN, 0.0, 1.0];
    let mut spoiled = float;
    spoiled[1].1 = &without_a_number;
    // Of integer outputs alone.
    for metric in of_outputs().into_iter().filter(|metric| *metric != EQUAL) {
        let of = |samples: &[Pair]| {
            let outputs = [compared("y", &[1, 3], samples)];
            labelled(&[metric], &outputs, Some(&[0])).figures(metric).remove(0).unwrap().value
        };
        assert_near(of(&float), metric.scale.best);
        let worse = of(&spoiled);
        assert!(
            metric.is_better(metric.scale.best, worse) && !metric.is_better(worse, metric.scale.best),
            "{}",
            metric.name
        );
        assert_eq!(metric.worse(metric.scale.best, worse), worse);
    }
}

#[test]
fn the_better_of_two_figures_follows_the_direction() {
    assert_eq!((SQNR.scale.better, MAX_ERROR.scale.better), (Better::Higher, Better::Lower));
    assert!(SQNR.is_better(2.0, 1.0) && !SQNR.is_better(1.0, 1.0) && !SQNR.is_better(1.0, 2.0));
    assert!(MAX_ERROR.is_better(1.0, 2.0) && !MAX_ERROR.is_better(2.0, 2.0) && !MAX_ERROR.is_better(2.0, 1.0));
    assert_eq!((SQNR.worse(1.0, 2.0), SQNR.worse(2.0, 1.0)), (1.0, 1.0));
    assert_eq!((MAX_ERROR.worse(1.0, 2.0), MAX_ERROR.worse(2.0, 1.0)), (2.0, 2.0));
    for metric in METRICS {
        assert!(!metric.is_better(f64::NAN, 1.0) && !metric.is_better(1.0, f64::NAN), "{}", metric.name);
        assert!(metric.worse(f64::NAN, 1.0).is_nan() && metric.worse(1.0, f64::NAN).is_nan(), "{}", metric.name);
    }
}

#[test]
fn a_bound_is_reached_by_as_much_as_it_asks_for() {
    assert!(SQNR.reaches(20.0, 20.0) && SQNR.reaches(21.0, 20.0) && !SQNR.reaches(20.0, 20.000_001));
    assert!(MAX_ERROR.reaches(0.5, 0.5) && MAX_ERROR.reaches(0.4, 0.5) && !MAX_ERROR.reaches(0.6, 0.5));
    assert!(!SQNR.reaches(f64::NAN, -1000.0) && !MAX_ERROR.reaches(f64::NAN, 1000.0));
}

#[test]
fn a_stricter_bound_ends_at_the_best_figure() {
    assert_eq!((SQNR.stricter(30.0, 2.0), SQNR.stricter(199.0, 5.0)), (32.0, MAX_DB));
    assert_eq!((AGREEMENT.stricter(99.0, 5.0), AGREEMENT.stricter(120.0, 1.0)), (100.0, 120.0));
    assert_eq!((MAX_ERROR.stricter(0.5, 0.25), MAX_ERROR.stricter(0.5, 1.0)), (0.25, 0.0));
}

#[test]
fn figures_are_spelled_with_their_unit() {
    assert_eq!((SQNR.with_unit(37.096), COSINE.with_unit(0.999_91)), ("37.10 dB".into(), "0.9999".into()));
    assert_eq!((AGREEMENT.with_unit(99.96), TOP1.with_unit(98.667)), ("100.0 %".into(), "98.67 %".into()));
}

#[test]
fn the_sqnr_is_of_all_values_of_all_samples() {
    // Signals of 25 and 4, errors of 1 and 4.
    let samples: [Pair; 2] = [(&[3.0, 4.0], &[3.0, 5.0]), (&[2.0, 0.0], &[2.0, 2.0])];
    assert_near(figure(SQNR, &[1, 2], &samples), db(29.0 / 5.0));
    assert_near(figure(SQNR, &[1, 2], &[(&[10.0, 0.0], &[9.0, 0.0])]), 20.0);
}

#[test]
fn the_mean_sqnr_is_over_outputs_that_differ() {
    let near = || compared("a", &[1, 2], &[(&[3.0, 4.0], &[3.0, 4.5])]);
    let far = || compared("b", &[1, 2], &[(&[1.0, 1.0], &[1.0, 2.0])]);
    let same = || compared("c", &[1, 2], &[(&[1.0, 2.0], &[1.0, 2.0])]);
    let mean = |outputs: &[Compared]| measured(&[SQNR], outputs).mean(SQNR);
    assert_near(mean(&[near(), far()]).unwrap(), 0.5 * (20.0 + db(2.0)));
    assert_near(mean(&[near(), same(), far()]).unwrap(), 0.5 * (20.0 + db(2.0)));
    assert_eq!((mean(&[same(), same()]), mean(&[])), (Some(MAX_DB), None));
    assert_near(measured(&[SQNR], &[near(), same(), far()]).worst(SQNR).unwrap(), db(2.0));
    let unknown = || compared("d", &[1, 2], &[(&[1.0, 1.0], &[NAN, 1.0])]);
    assert_near(mean(&[near(), unknown()]).unwrap(), 0.5 * (20.0 - MAX_DB));
}

#[test]
fn a_constant_output_has_no_sqnr() {
    let near = || compared("a", &[1, 2], &[(&[3.0, 4.0], &[3.0, 4.5])]);
    let constant = || compared("anchors", &[1, 2], &[]);
    let measured = measured(&[SQNR], &[constant(), near()]);
    assert_eq!(measured.figures(SQNR)[0], None);
    assert_near(measured.mean(SQNR).unwrap(), 20.0);
    assert_near(measured.worst(SQNR).unwrap(), 20.0);
}

#[test]
fn an_sqnr_ends_at_200_db() {
    assert_eq!(figure(SQNR, &[1, 1], &[(&[1e-30], &[1e30])]), -MAX_DB);
    assert_eq!(figure(SQNR, &[1, 2], &[(&[1e30, 0.0], &[1e30, 1e-30])]), MAX_DB);
    // Zeros that stay zeros are no error, though they have no signal.
    assert_eq!(figure(SQNR, &[1, 2], &[(&[0.0; 2], &[0.0; 2])]), MAX_DB);
    assert_eq!(figure(SQNR, &[1, 1], &[(&[0.0], &[1.0])]), -MAX_DB);
    assert_eq!(figure(SQNR, &[1, 0], &[(&[], &[])]), -MAX_DB);
}

#[test]
fn ratios_and_decibels_go_both_ways() {
    assert_eq!((relative_error_db(0.0), relative_error_db(0.1), relative_error_db(1e-30)), (MAX_DB, 10.0, MAX_DB));
    assert_eq!((relative_error_db(f64::NAN), relative_error_db(f64::INFINITY)), (-MAX_DB, -MAX_DB));
    assert_eq!((relative_error(MAX_DB), relative_error(-MAX_DB), relative_error(f64::NAN)), (0.0, f64::MAX, f64::MAX));
    assert_near(relative_error(20.0), 0.01);
    // The difference of two errors that could not be measured is not NaN.
    assert_eq!(relative_error(-MAX_DB) - relative_error(-MAX_DB), 0.0);
}

#[test]
fn values_that_only_the_quantized_network_lacks_are_the_worst() {
    for bad in [NAN, INF, -INF] {
        let samples: [Pair; 2] = [(&[1.0, 2.0], &[1.0, 2.0]), (&[3.0, 4.0], &[3.0, bad])];
        assert_eq!(figure(SQNR, &[1, 2], &samples), -MAX_DB);
        assert_eq!(figure(COSINE, &[1, 2], &samples), -1.0);
        assert_eq!(figure(MAX_ERROR, &[1, 2], &samples), f64::INFINITY);
        assert_eq!(first(AGREEMENT, &[scores(&[1, 2], &samples)]), Some(50.0));
    }
}

#[test]
fn values_that_float_lacks_are_the_worst() {
    for (float, quantized) in [(NAN, NAN), (NAN, 1.0), (INF, 1.0), (INF, -INF), (INF, NAN)] {
        let samples: [Pair; 1] = [(&[float, 2.0], &[quantized, 2.0])];
        let found = [SQNR, COSINE, MAX_ERROR].map(|metric| figure(metric, &[1, 2], &samples));
        assert_eq!(found, [-MAX_DB, -1.0, f64::INFINITY], "{float} {quantized}");
    }
}

#[test]
fn an_infinity_of_both_is_equal() {
    let same: [Pair; 1] = [(&[-INF, 2.0], &[-INF, 2.0])];
    assert_eq!([SQNR, COSINE, MAX_ERROR].map(|metric| figure(metric, &[1, 2], &same)), [MAX_DB, 1.0, 0.0]);
    assert_near(figure(SQNR, &[1, 2], &[(&[-INF, 10.0], &[-INF, 9.0])]), 20.0);
    assert_eq!(figure(MAX_ERROR, &[1, 2], &[(&[INF, 10.0], &[INF, 9.0])]), 1.0);
    assert_near(figure(COSINE, &[1, 3], &[(&[-INF, 3.0, 4.0], &[-INF, 4.0, 3.0])]), 0.96);
}

#[test]
fn the_cosine_is_a_mean_over_the_samples() {
    let turned: Pair = (&[3.0, 4.0], &[4.0, 3.0]);
    assert_near(figure(COSINE, &[1, 2], &[turned]), 0.96);
    // The length of the second sample makes no difference.
    assert_near(figure(COSINE, &[1, 2], &[turned, (&[300.0, 400.0], &[30.0, 40.0])]), 0.98);
    assert_near(figure(COSINE, &[1, 2], &[(&[1.0, 2.0], &[-1.0, -2.0])]), -1.0);
    assert_eq!(figure(COSINE, &[1, 2], &[(&[0.0; 2], &[0.0; 2])]), 1.0);
    let (zero, right, up): ([f32; 2], [f32; 2], [f32; 2]) = ([0.0, 0.0], [1.0, 0.0], [0.0, 1.0]);
    for (float, quantized) in [(zero, right), (right, zero), (right, up)] {
        assert_eq!(figure(COSINE, &[1, 2], &[(&float, &quantized)]), 0.0);
    }
}

#[test]
fn the_largest_difference_is_that_of_all_samples() {
    let samples: [Pair; 3] = [(&[1.0, 2.0], &[1.0, 2.5]), (&[0.0, 1.0], &[-3.0, 1.0]), (&[4.0, 4.0], &[5.0, 4.0])];
    assert_eq!(figure(MAX_ERROR, &[1, 2], &samples), 3.0);
    let outputs = [compared("a", &[1, 2], &samples), compared("b", &[1, 2], &samples[..1])];
    assert_eq!(measured(&[MAX_ERROR], &outputs).worst(MAX_ERROR), Some(3.0));
}

#[test]
fn agreement_is_of_rows() {
    let float: [f32; 9] = [0.0, 9.0, 1.0, 8.0, 0.0, 1.0, 0.0, 0.0, 7.0];
    let quantized: [f32; 9] = [0.0, 9.0, 1.0, 8.0, 0.0, 9.0, 0.0, 0.0, 7.0];
    let rows = Compared { batch: 3, ..scores(&[3, 3], &[(&float, &quantized), (&float, &float)]) };
    assert_near(first(AGREEMENT, &[rows]).unwrap(), 500.0 / 6.0);
    let whole = [compared("y", &[1, 3, 3], &[(&float, &quantized)])];
    assert_eq!(first(AGREEMENT, &whole), None);
}

fn same_class(float: &[f32], quantized: &[f32]) -> bool {
    first(AGREEMENT, &[scores(&[1, float.len()], &[(float, quantized)])]) == Some(100.0)
}

#[test]
fn a_row_has_a_class_where_all_of_its_values_are_numbers() {
    assert!(same_class(&[1.0, 2.0, 0.0], &[5.0, 6.0, 5.0]) && !same_class(&[1.0, 2.0, 0.0], &[2.0, 1.0, 0.0]));
    // Of equal ones the first.
    assert!(same_class(&[1.0, 2.0, 2.0], &[1.0, 3.0, 2.0]) && !same_class(&[1.0, 2.0, 2.0], &[1.0, 2.0, 3.0]));
    assert!(same_class(&[1.0, -INF], &[2.0, -INF]) && same_class(&[-INF, -INF], &[-INF, -INF]));
    assert!(!same_class(&[NAN; 2], &[NAN; 2]) && !same_class(&[1.0, 0.0], &[NAN, NAN]));
    assert!(!same_class(&[1.0, 0.0], &[INF, 0.0]) && !same_class(&[1.0, 0.0], &[1.0, -INF]));
}

/// Of both networks.
fn top1(outputs: &[Compared], labels: Option<&[usize]>) -> Vec<Option<[f64; 2]>> {
    let figures = labelled(&[TOP1], outputs, labels).figures(TOP1);
    figures.into_iter().map(|figure| figure.map(|figure| [figure.float.unwrap(), figure.value])).collect()
}

#[test]
fn labels_are_compared_row_by_row() {
    let float: [f32; 8] = [1.0, 0.0, 0.0, 1.0, 0.0, 2.0, -1.0, 3.0];
    let quantized: [f32; 8] = [0.0, 1.0, 0.0, 1.0, 0.0, 2.0, -1.0, NAN];
    let rows = || [Compared { batch: 4, ..scores(&[4, 2], &[(&float, &quantized), (&float, &float)]) }];
    let found = top1(&rows(), Some(&[0, 0, 1, 1]));
    // Three of four are right in float, one of four and three of four in the other.
    assert_eq!(found, [Some([75.0, 50.0])]);
    assert_eq!(top1(&rows(), None), [None]);
    // Not one for each row.
    assert_eq!(top1(&rows(), Some(&[0])), [None]);
}

#[test]
fn a_drop_is_in_percentage_points_and_never_below_0() {
    let (right, wrong): (&[f32], &[f32]) = (&[4.0, 0.0], &[0.0, 4.0]);
    let drop = |pairs: &[Pair]| labelled(&[TOP1_DROP], &[scores(&[1, 2], pairs)], Some(&[0])).figures(TOP1_DROP);
    let value = |pairs: &[Pair]| drop(pairs).remove(0).map(|figure| figure.value);
    assert_eq!(value(&[(right, wrong), (right, right), (right, right), (wrong, wrong)]), Some(25.0));
    assert_eq!(value(&[(wrong, right), (right, right)]), Some(0.0));
    assert_eq!(labelled(&[TOP1_DROP], &[scores(&[1, 2], &[(right, wrong)])], None).figures(TOP1_DROP), [None]);
}

#[test]
fn labels_are_of_the_class_scores_or_else_of_what_has_their_shape() {
    let logits: [Pair; 1] = [(&[-4.0, 9.0, 1.0], &[-4.0, 9.0, 1.0])];
    let sides: [Pair; 1] = [(&[10.0, 20.0, 30.0, 40.0], &[10.0, 20.0, 30.0, 40.0])];
    let (class, sides) = (|| compared("class", &[1, 3], &logits), || compared("box", &[1, 4], &sides));
    assert_eq!(top1(&[sides(), class()], Some(&[1])), [None, Some([100.0; 2])]);
    assert_eq!(top1(&[sides()], Some(&[3])), [Some([100.0; 2])]);
    let integers = Compared { about: EvaluatedOutput { is_float: false, ..about("n") }, ..class() };
    assert_eq!(top1(&[integers], Some(&[1])), [None]);
}

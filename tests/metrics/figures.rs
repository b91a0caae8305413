//! Figures of how far outputs are from the float ones, by their definitions.

use mqq::metrics::{
    Gain, InOrder, MAX_DB, Merge, NonFinite, OutputComparison, OutputErrors, Part, QuantizationError, Units, ValuePair,
    gain_db, mean_sqnr_db, n_classes, relative_error_db,
};
use std::slice::from_ref;

const NAN: f32 = f32::NAN;

/// Samples of one output: the float values and those of the other network.
type Sample<'a> = (&'a [f32], &'a [f32]);

fn error(samples: &[Sample]) -> QuantizationError {
    let mut error = QuantizationError::default();
    samples.iter().for_each(|(float, quantized)| error.push(ValuePair { float, quantized }));
    error
}

fn db(ratio: f64) -> f64 {
    10.0 * ratio.log10()
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
}

#[test]
fn the_mean_sqnr_is_over_outputs_that_have_an_error() {
    // Signals of 25 and 4 with errors of 1 and 2 squared.
    let first = error(&[(&[3.0, 4.0], &[3.0, 5.0]), (&[2.0, 0.0], &[2.0, 2.0])]);
    let second = error(&[(&[10.0, 0.0], &[9.0, 0.0])]);
    let same = error(&[(&[1.0], &[1.0])]);
    let nothing = error(&[(&[0.0], &[1.0])]);
    let (of_first, of_second) = (db(29.0 / 5.0), db(100.0));
    assert_near(mean_sqnr_db(from_ref(&first)), of_first);
    assert_near(mean_sqnr_db(&[first.clone(), same.clone(), second, nothing]), 0.5 * (of_first + of_second));
    let unknown = error(&[(&[1.0], &[NAN])]);
    assert_near(mean_sqnr_db(&[first, unknown.clone()]), 0.5 * (of_first - MAX_DB));
    assert_eq!((mean_sqnr_db(from_ref(&same)), mean_sqnr_db(&[])), (0.0, 0.0));
    assert!(unknown.is_unknown() && !same.is_unknown());
}

#[test]
fn only_differences_along_the_axis_count_where_an_output_is_centred() {
    let shape = [2, 3, 2];
    let float: Vec<f32> = (0..12).map(|i| ((i * 7) % 11) as f32).collect();
    let other: Vec<f32> = (0..12).map(|i| float[i] + ((i * 5) % 7) as f32 / 4.0).collect();
    let errors: Vec<f64> = float.iter().zip(&other).map(|(a, b)| f64::from(a - b)).collect();
    let values: Vec<f64> = float.iter().map(|&value| f64::from(value)).collect();
    for axis in 0..3 {
        let inner: usize = shape[axis + 1..].iter().product();
        // The lines along the axis that two positions lie on, by the position of their first value.
        let line = |i: usize| i - i / inner % shape[axis] * inner;
        let about_means = |values: &[f64]| -> f64 {
            let of_line = |first: usize| {
                let line: Vec<f64> = (0..12).filter(|&i| line(i) == first).map(|i| values[i]).collect();
                let mean = line.iter().sum::<f64>() / line.len() as f64;
                line.iter().map(|value| (value - mean).powi(2)).sum::<f64>()
            };
            (0..12).filter(|&i| line(i) == i).map(of_line).sum()
        };
        let pair = ValuePair { float: &float, quantized: &other };
        let centred = QuantizationError::of(&[pair], &shape, Units::Centred { axis: axis as i64 }, Part::All);
        assert_near(mean_sqnr_db(&[centred]), db(about_means(&values) / about_means(&errors)));
    }
}

/// The mean of what all samples gain and of what each does, with a quarter of the mean error added to each.
#[test]
fn a_gain_is_that_of_all_samples_and_of_the_typical_one() {
    let float: &[f32] = &[1.0, 1.0];
    // Errors of 1, 4 and 9 become 4, 1 and 0.25.
    let before = error(&[(float, &[2.0, 1.0]), (float, &[1.0, 3.0]), (float, &[4.0, 1.0])]);
    let after = error(&[(float, &[3.0, 1.0]), (float, &[1.0, 2.0]), (float, &[1.5, 1.0])]);
    let gain = |pairs: &[(f64, f64)]| {
        let n = pairs.len() as f64;
        let floor = 0.25 * pairs.iter().map(|pair| pair.0).sum::<f64>() / n;
        let typical = pairs.iter().map(|(a, b)| db((a + floor) / (b + floor))).sum::<f64>() / n;
        let all = pairs.iter().map(|pair| pair.0).sum::<f64>() / pairs.iter().map(|pair| pair.1).sum::<f64>();
        0.5 * (typical + db(all))
    };
    let pairs = [(1.0, 4.0), (4.0, 1.0), (9.0, 0.25)];
    let of = Gain::of(from_ref(&before), from_ref(&after));
    assert_near(of.gain_db, gain(&pairs));
    assert_near(of.sqnr_db[0], db(6.0 / 14.0));
    assert_near(of.sqnr_db[1], db(6.0 / 5.25));
    // One standard deviation by leaving out each of the samples.
    let without = [gain(&pairs[1..]), gain(&[pairs[0], pairs[2]]), gain(&pairs[..2])];
    let mean = without.iter().sum::<f64>() / 3.0;
    let spread: f64 = without.iter().map(|gain| (gain - mean).powi(2)).sum();
    assert_near(of.standard_deviation_db, (spread * 2.0 / 3.0).sqrt());
    // Over two outputs it is the mean, of those that had an error before.
    let outputs = [before.clone(), after.clone()];
    assert_near(gain_db(&outputs, &[after.clone(), after.clone()]), 0.5 * gain(&pairs));
    let same = error(&[(float, float); 3]);
    assert_near(gain_db(&[before.clone(), same.clone()], &[after.clone(), same.clone()]), gain(&pairs));
    assert_eq!(gain_db(from_ref(&same), from_ref(&after)), 0.0);
    assert!(gain_db(&[error(&[(float, &[1.0, 1.5])])], &[same]) > 1000.0);
    // An output may have fewer samples than another.
    let few = error(&[(float, &[2.0, 1.0])]);
    assert!(Gain::of(&[before.clone(), few.clone()], &[after.clone(), few]).standard_deviation_db > 0.0);
    let empty = QuantizationError::default;
    let of = Gain::of(&[empty()], &[empty()]);
    assert_eq!((of.gain_db, of.standard_deviation_db), (0.0, 0.0));
}

fn compared(name: &str, float: &[f32], quantized: &[f32]) -> OutputComparison {
    let mut comparison = OutputComparison::default();
    comparison.add(name, float, quantized);
    comparison
}

#[test]
fn comparisons_of_parts_add_up() {
    let parts = [
        compared("a", &[3.0, 4.0], &[3.0, 5.0]),
        compared("b", &[0.0, 2.0, 1.0], &[0.0, -1.0, 1.0]),
        compared("c", &[1.0], &[1.0]),
    ];
    // Signals of 25, 5 and 1, errors of 1 and 9, in whatever order they come.
    let mut in_order = InOrder::new(2);
    for i in [2, 0, 1] {
        let none = OutputComparison::default();
        in_order.add(i, vec![parts[i].clone(), none]);
    }
    let [total, none] = <[OutputComparison; 2]>::try_from(in_order.into_totals()).unwrap();
    let figures = total.figures("y");
    assert_near(figures.sqnr_db.unwrap(), db(31.0 / 10.0));
    assert_eq!((figures.output.as_str(), figures.max_difference, figures.n_samples), ("y", 3.0, 3));
    assert_eq!((figures.agreement_percent, figures.top1_percent), (None, None));
    assert_eq!((figures.non_finite, figures.float_non_finite), (None, None));
    assert_eq!((none.figures("z").sqnr_db, none.figures("z").n_samples), (Some(-MAX_DB), 0));
    // What could not be measured counts, by the first sample that has it.
    let mut total = compared("a", &[1.0, 1.0, NAN], &[1.0, 2.0, 3.0]);
    for name in ["b", "c"] {
        total.merge(compared(name, &[1.0, 1.0, NAN, NAN], &[NAN, NAN, 3.0, 3.0]));
    }
    total.merge(parts[2].clone());
    let figures = total.figures("y");
    assert_eq!(figures.non_finite, Some(NonFinite { n_values: 4, first_sample: "b".into() }));
    assert_eq!(figures.float_non_finite, Some(NonFinite { n_values: 5, first_sample: "a".into() }));
    assert_eq!((figures.sqnr_db, figures.max_difference), (Some(-MAX_DB), 1.0));
}

#[test]
fn a_sample_waits_until_those_before_it_are_added() {
    let mut in_order = InOrder::new(1);
    in_order.add(1, vec![compared("b", &[1.0], &[NAN])]);
    in_order.add(0, vec![compared("a", &[1.0], &[NAN])]);
    let totals = in_order.into_totals();
    assert_eq!(totals[0].figures("y").non_finite, Some(NonFinite { n_values: 2, first_sample: "a".into() }));
}

#[test]
fn labels_and_agreement_add_up() {
    let mut total = OutputComparison::default();
    // The second row's class differs, the first and the third are right in float, the third in the other.
    let (float, quantized) = ([1.0, 0.0, 0.0, 1.0, 0.0, 2.0], [0.0, 1.0, 0.0, 1.0, 0.0, 2.0]);
    for labels in [Some(&[0, 0, 1][..]), None] {
        let mut one = OutputComparison::default();
        one.add_scores(&float, &quantized, 2, labels);
        total.merge(one);
    }
    let figures = total.figures("y");
    let third = 100.0 / 3.0;
    assert_near(figures.agreement_percent.unwrap(), 2.0 * third);
    let [of_float, of_other] = figures.top1_percent.unwrap();
    assert_near(of_float, 2.0 * third);
    assert_near(of_other, third);
}

#[test]
fn a_goal_is_reached_by_as_much_as_it_asks_for() {
    // 20 dB.
    let figures = compared("a", &[10.0, 0.0], &[9.0, 0.0]).figures("y");
    assert!(figures.reaches(20.0) && !figures.reaches(20.000_001));
    let far = compared("a", &[1e-30], &[1e30]).figures("y");
    assert_eq!((far.sqnr_db, far.max_difference), (Some(-MAX_DB), f64::from(1e30f32)));
    assert_eq!(compared("a", &[1e30, 0.0], &[1e30, 1e-30]).figures("y").sqnr_db, Some(MAX_DB));
}

/// One sample of outputs of this shape.
fn errors(shape: &[usize], outputs: &[Sample]) -> OutputErrors {
    let mut errors = OutputErrors::new(outputs.len());
    for (i, (float, other)) in outputs.iter().enumerate() {
        errors.add(i, shape, float, other);
    }
    errors
}

#[test]
fn the_worst_output_counts_and_the_mean_of_the_errors() {
    let (near, far): (Sample, Sample) = ((&[3.0, 4.0], &[3.0, 4.5]), (&[1.0, 1.0], &[1.0, 2.0]));
    let exact: Sample = (&[1.0, 2.0], &[1.0, 2.0]);
    let all = errors(&[1, 2], &[near, far, exact]);
    assert_near(all.sqnr_db(), db(2.0));
    assert_near(all.relative_error(), (0.01 + 0.5) / 3.0);
    assert_near(errors(&[1, 2], &[near]).sqnr_db(), 20.0);
    assert_eq!((errors(&[1, 2], &[exact]).sqnr_db(), OutputErrors::default().relative_error()), (MAX_DB, 0.0));
    // Both samples of one output.
    let mut twice = errors(&[1, 2], &[near]);
    twice.add(0, &[1, 2], far.0, far.1);
    assert_near(twice.sqnr_db(), db(27.0 / 1.25));
    // Of the first output, whose classes agree, half as far off is 6 dB; of the second nothing.
    let better = errors(&[1, 2], &[(&[3.0, 4.0], &[3.0, 4.25]), far, exact]);
    assert_near(all.gain_db(&better), 0.25 * (db(0.3125 / 0.125) + db(4.0)));
    assert_eq!([all.agreement_percent(), errors(&[1, 2], &[near]).agreement_percent()], [Some(0.0), Some(100.0)]);
    // Zeros that stay zeros are no error, though they have no signal.
    let zeros = errors(&[1, 2], &[(&[0.0; 2], &[0.0; 2])]);
    assert_eq!((zeros.sqnr_db(), zeros.relative_error(), relative_error_db(1e-30)), (MAX_DB, 0.0, MAX_DB));
}

#[test]
fn agreement_is_of_rows_of_scores_alone() {
    let (float, other) = ([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 3.0, 2.0], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 3.0, 2.0]);
    let agreement = |shape: &[usize]| errors(shape, &[(&float, &other)]).agreement_percent();
    assert_eq!(agreement(&[4, 2]), Some(75.0));
    assert_eq!(agreement(&[2, 1, 4, 1]), Some(100.0));
    assert_eq!([agreement(&[2, 2, 2]), agreement(&[8]), agreement(&[8, 1])], [None; 3]);
    assert_eq!(errors(&[1, 0], &[(&[], &[])]).agreement_percent(), None);
    let twice = errors(&[4, 2], &[(&float, &float), (&float, &other)]);
    assert_eq!(twice.agreement_percent(), Some(75.0));
    assert_eq!(
        [n_classes(&[1, 2], 1), n_classes(&[2, 5, 1, 1], 2), n_classes(&[2, 5, 1, 1], 3)],
        [Some(2), Some(5), None]
    );
}

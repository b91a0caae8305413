//! The accumulator that drives all metrics.

use super::{Compared, INF, NAN, Pair, about, assert_near, compared, db, figure, measured, prepare, sums};
use mqq::metrics::{
    AGREEMENT, COSINE, EvaluatedOutput, InOrder, MAX_DB, MAX_ERROR, METRICS, Measurement, Metric, OVERLAP, OutputPair,
    SQNR, SamplePair, SampleSums, TOP1,
};
use std::sync::{Arc, Mutex};

/// Values whose sums depend on their order.
fn uneven() -> Vec<[Vec<f32>; 2]> {
    let value = |i: usize, k: usize| ((i * 31 + k * 17) % 23) as f32 * 10f32.powi((i % 7) as i32 - 3) - 1.0;
    let float = |i: usize| (0..3).map(|k| value(i, k)).collect::<Vec<f32>>();
    let other = |i: usize| (0..3).map(|k| value(i, k) * (1.0 + 0.01 * ((i + k) % 5) as f32)).collect::<Vec<f32>>();
    (0..40).map(|i| [float(i), other(i)]).collect()
}

fn pairs(values: &[[Vec<f32>; 2]]) -> Vec<Pair<'_>> {
    values.iter().map(|[float, other]| (float.as_slice(), other.as_slice())).collect()
}

/// The bits of all figures.
fn bits(measured: &Measurement) -> Vec<Option<u64>> {
    let bits = |metric: &Metric| measured.figures(*metric).into_iter().map(|it| it.map(|it| it.value.to_bits()));
    METRICS.iter().flat_map(bits).collect()
}

#[test]
fn the_order_in_which_samples_come_makes_no_difference() {
    let values = uneven();
    let outputs = [compared("y", &[1, 3], &pairs(&values))];
    let prepared = prepare(METRICS, &outputs);
    let sums = sums(&prepared, &outputs, None);
    let in_order = |order: &[usize]| {
        let mut in_order = InOrder::new(Arc::clone(&prepared));
        order.iter().for_each(|&i| in_order.add(i, sums[i].clone()));
        bits(&in_order.into_total())
    };
    let forward: Vec<usize> = (0..40).collect();
    let backward: Vec<usize> = (0..40).rev().collect();
    let mixed: Vec<usize> = (0..40).map(|i| i * 7 % 40).collect();
    let expected = in_order(&forward);
    assert!(expected.iter().flatten().count() >= 4);
    assert_eq!((in_order(&backward), in_order(&mixed)), (expected.clone(), expected.clone()));
    assert_eq!(bits(&Measurement::new(Arc::clone(&prepared), sums.clone())), expected);
}

#[test]
fn the_number_of_threads_makes_no_difference() {
    let values = uneven();
    let outputs = [compared("y", &[1, 3], &pairs(&values))];
    let prepared = prepare(METRICS, &outputs);
    let sums: &[SampleSums] = &sums(&prepared, &outputs, None);
    let on_threads = |n: usize| {
        let in_order = Mutex::new(InOrder::new(Arc::clone(&prepared)));
        std::thread::scope(|scope| {
            for thread in 0..n {
                let in_order = &in_order;
                let add = move |i: usize| in_order.lock().unwrap().add(i, sums[i].clone());
                scope.spawn(move || (thread..40).step_by(n).for_each(add));
            }
        });
        bits(&in_order.into_inner().unwrap().into_total())
    };
    let expected = on_threads(1);
    for n in [2, 3, 8] {
        assert_eq!(on_threads(n), expected, "{n}");
    }
}

#[test]
fn a_sample_waits_until_those_before_it_are_added() {
    let outputs = [compared("y", &[1, 1], &[(&[1.0], &[1.0]), (&[3.0], &[4.0]), (&[5.0], &[7.0])])];
    let prepared = prepare(&[MAX_ERROR], &outputs);
    let sums = sums(&prepared, &outputs, None);
    let total = |order: &[usize]| {
        let mut in_order = InOrder::new(Arc::clone(&prepared));
        order.iter().for_each(|&i| in_order.add(i, sums[i].clone()));
        in_order.into_total().mean(MAX_ERROR)
    };
    assert_eq!((total(&[2, 1]), total(&[2, 0]), total(&[1, 0]), total(&[])), (None, Some(0.0), Some(1.0), None));
    assert_eq!(total(&[2, 0, 1]), Some(2.0));
}

#[test]
fn sums_are_merged_as_each_metric_says() {
    let samples: [Pair; 2] = [(&[3.0, 4.0], &[3.0, 6.0]), (&[2.0, 0.0], &[1.0, 0.0])];
    let outputs = [compared("y", &[1, 2], &samples)];
    let prepared = prepare(METRICS, &outputs);
    let sums = sums(&prepared, &outputs, None);
    let mut in_order = InOrder::new(prepared);
    sums.into_iter().enumerate().for_each(|(i, sums)| in_order.add(i, sums));
    let total = in_order.into_total();
    assert_eq!(total.n_samples(), 1);
    assert_near(total.mean(SQNR).unwrap(), db(29.0 / 5.0));
    assert_eq!(total.mean(MAX_ERROR), Some(2.0));
    let cosine = 33.0 / (5.0 * 45f64.sqrt());
    assert_near(total.mean(COSINE).unwrap(), 0.5 * (cosine + 1.0));
    // Medians of 2.5 and 2.
    assert_near(total.mean(OVERLAP).unwrap(), (0.25 + 0.25 + 4.0 + 4.0) / (0.25 + 2.25 + 16.0 + 4.0));
}

#[test]
fn a_metric_that_was_not_prepared_has_no_figure() {
    let measured = measured(&[SQNR], &[compared("a", &[1, 1], &[(&[1.0], &[1.0])]), compared("b", &[1, 1], &[])]);
    assert_eq!(measured.figures(COSINE), [None, None]);
    assert_eq!((measured.mean(COSINE), measured.worst(COSINE)), (None, None));
    assert!(measured.has_non_finite(COSINE) && !measured.has_non_finite(SQNR));
    assert!(measured.prepared().groups().is_empty());
    assert_eq!(measured.prepared().outputs(), ["a", "b"]);
}

#[test]
fn an_output_that_is_not_compared_adds_nothing() {
    let outputs = [compared("a", &[1, 2], &[(&[3.0, 4.0], &[3.0, 4.5])])];
    let prepared = prepare(&[SQNR, COSINE, MAX_ERROR], &outputs);
    let mut sums = sums(&prepared, &outputs, None);
    sums.push(prepared.sums(&SamplePair { outputs: &[None], labels: None, truths: None }));
    sums.push(prepared.sums(&SamplePair { outputs: &[], labels: None, truths: None }));
    let measured = Measurement::new(Arc::clone(&prepared), sums);
    assert_near(measured.mean(SQNR).unwrap(), 20.0);
    assert_eq!(measured.mean(COSINE), Some(figure(COSINE, &[1, 2], &outputs[0].samples)));
    assert_eq!(measured.mean(MAX_ERROR), Some(0.5));
    let none = vec![prepared.sums(&SamplePair { outputs: &[], labels: None, truths: None })];
    let none = Measurement::new(prepared, none);
    assert_eq!((none.mean(SQNR), none.mean(COSINE), none.mean(MAX_ERROR)), (Some(-MAX_DB), None, None));
}

#[test]
fn data_for_which_nothing_changes_are_constant() {
    let (one, other): (Pair, Pair) = ((&[1.0, 2.0], &[1.0, 2.5]), (&[1.0, 2.1], &[1.0, 2.5]));
    let is_constant = |outputs: &[&[Pair]]| {
        let outputs: Vec<Compared> = outputs.iter().map(|samples| compared("y", &[1, 2], samples)).collect();
        prepare(METRICS, &outputs).is_constant()
    };
    assert!(is_constant(&[&[one, one]]) && is_constant(&[&[one, one], &[other, other]]));
    assert!(!is_constant(&[&[one, other]]) && !is_constant(&[&[one, one], &[one, other]]));
    // Of one sample, or none, nothing can be told.
    assert!(!is_constant(&[&[one]]) && !is_constant(&[&[]]));
}

#[test]
fn values_that_are_no_numbers_are_told_by_output() {
    let [good, nan, infinite, masked]: [Pair; 4] = [
        (&[1.0, 2.0], &[1.0, 2.5]),
        (&[1.0, 2.0], &[1.0, NAN]),
        (&[1.0, INF], &[1.0, 2.0]),
        (&[1.0, INF], &[1.0, INF]),
    ];
    let outputs = [("good", good), ("nan", nan), ("infinite", infinite), ("masked", masked)]
        .map(|(name, pair)| (name, [good, pair]));
    let outputs: Vec<Compared> = outputs.iter().map(|(name, pairs)| compared(name, &[1, 2], pairs)).collect();
    let all = measured(&[OVERLAP, SQNR], &outputs);
    assert_eq!(all.non_finite_outputs(), ["nan", "infinite"]);
    assert!(all.has_non_finite(SQNR));
    let sound = measured(&[SQNR, MAX_ERROR], &[compared("y", &[1, 2], &[good, masked])]);
    assert!(!sound.has_non_finite(SQNR) && !sound.has_non_finite(MAX_ERROR) && sound.non_finite_outputs().is_empty());
    // Numbers, however far off.
    let far = measured(&[SQNR], &[compared("y", &[1, 2], &[(&[0.0, 0.0], &[1.0, 2.0])])]);
    assert!(!far.has_non_finite(SQNR) && far.non_finite_outputs().is_empty());
}

#[test]
fn the_overlap_decides_where_an_output_has_one() {
    let samples: [Pair; 2] = [(&[1.0, 2.0], &[1.0, 2.5]), (&[3.0, 5.0], &[3.0, 5.0])];
    let integers = || {
        let about = EvaluatedOutput { is_float: false, ..about("n") };
        Compared { about, ..compared("n", &[1, 2], &samples) }
    };
    let deciding = |outputs: &[Compared]| measured(&[OVERLAP, SQNR], outputs).deciding();
    assert!(deciding(&[integers(), compared("y", &[1, 2], &samples)]) == OVERLAP);
    assert!(deciding(&[integers()]) == SQNR);
    assert!(measured(&[SQNR], &[compared("y", &[1, 2], &samples)]).deciding() == SQNR);
}

#[test]
fn figures_are_for_the_outputs_that_a_metric_is_about() {
    let logits: [Pair; 1] = [(&[-4.0, 9.0], &[-4.0, 9.0])];
    let other: [Pair; 1] = [(&[0.0, 0.5], &[0.5, 0.0])];
    let outputs = [compared("box", &[1, 2], &other), compared("class", &[1, 2], &logits)];
    let measured = measured(METRICS, &outputs);
    let has = |metric: Metric| measured.figures(metric).iter().map(Option::is_some).collect::<Vec<_>>();
    assert_eq!((has(AGREEMENT), has(TOP1), has(SQNR)), (vec![false, true], vec![false, false], vec![true, true]));
    assert_eq!((measured.mean(AGREEMENT), measured.worst(AGREEMENT)), (Some(100.0), Some(100.0)));
}

#[test]
fn samples_may_have_other_shapes_than_the_first() {
    let outputs = [compared("y", &[1, 2], &[(&[3.0, 4.0], &[3.0, 4.5])])];
    let prepared = prepare(METRICS, &outputs);
    let mut sums = sums(&prepared, &outputs, None);
    let longer = OutputPair { shape: &[1, 3], float: &[2.0, 0.0, 1.0], quantized: &[2.0, 2.0, 1.0] };
    sums.push(prepared.sums(&SamplePair { outputs: &[Some(longer)], labels: None, truths: None }));
    let measured = Measurement::new(prepared, sums);
    assert_near(measured.mean(SQNR).unwrap(), db(30.0 / 4.25));
    assert_eq!(measured.mean(MAX_ERROR), Some(2.0));
}

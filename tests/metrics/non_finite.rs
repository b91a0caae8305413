//! Values that are NaN or infinite, and outputs in front of a Softmax.

use super::{Compared, INF, NAN, assert_near, compared, db, figure, sums};
use mqq::heads::{TaskHead, resolve};
use mqq::metrics::{
    FloatOutput, MAP_SQNR, MAX_DB, Measurement, NonFinite, NonFiniteCounts, PreparedMetrics, SQNR, center_along,
};
use std::sync::Arc;

fn counts(position: usize, name: &str, float: &[f32], quantized: &[f32]) -> NonFiniteCounts {
    NonFiniteCounts::of((position, name), float, quantized)
}

fn some(n_values: usize, first_sample: &str, position: usize) -> Option<NonFinite> {
    Some(NonFinite { n_values, first_sample: first_sample.to_string(), position })
}

#[test]
fn values_are_counted_where_one_network_lacks_them() {
    for bad in [NAN, INF, -INF] {
        let found = counts(3, "a", &[1.0, 2.0, 3.0], &[bad, 2.0, bad]);
        assert_eq!((found.quantized.clone(), found.float.clone()), (some(2, "a", 3), None));
        assert!(found.any());
    }
    for (float, quantized) in [(NAN, NAN), (NAN, 1.0), (INF, 1.0), (INF, -INF), (INF, NAN)] {
        let found = counts(0, "a", &[float, 2.0], &[quantized, 2.0]);
        assert_eq!((found.quantized, found.float), (None, some(1, "a", 0)), "{float} {quantized}");
    }
    let both = counts(0, "a", &[NAN, 2.0, 3.0], &[NAN, INF, 3.0]);
    assert_eq!((both.quantized, both.float), (some(1, "a", 0), some(1, "a", 0)));
}

#[test]
fn numbers_and_an_infinity_of_both_are_none() {
    assert!(!counts(0, "a", &[1.0, -1e38], &[2.0, 1e38]).any());
    assert!(!counts(0, "a", &[INF, -INF], &[INF, -INF]).any());
    assert!(!counts(0, "a", &[], &[]).any());
}

#[test]
fn samples_add_up_in_any_order() {
    let parts = [
        counts(0, "a", &[1.0, 1.0], &[1.0, 1.0]),
        counts(1, "b", &[1.0, NAN], &[NAN, 1.0]),
        counts(2, "c", &[1.0, 1.0], &[INF, INF]),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let mut all = NonFiniteCounts::default();
        order.iter().for_each(|&i| all.merge(parts[i].clone()));
        assert_eq!((all.quantized, all.float), (some(3, "b", 1), some(1, "b", 1)), "{order:?}");
    }
}

#[test]
fn a_constant_in_front_of_a_softmax_is_no_error() {
    let (float, moved) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 3.0, 4.0, 1.0, 2.0, 3.0]);
    let centred = |values: &[f32]| center_along(values, &[1, 2, 3], 2);
    assert_eq!(centred(&float), [-1.0, 0.0, 1.0, -1.0, 0.0, 1.0]);
    assert_eq!(centred(&moved), centred(&float));
    let third = centred(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.5]);
    let expected = 2.0 * (1.0f64 / 6.0).powi(2) + (1.0f64 / 3.0).powi(2);
    let found = figure(SQNR, &[1, 2, 3], &[(&centred(&float), &third)]);
    assert!((found - db(4.0 / expected)).abs() < 1e-4, "{found}");
}

#[test]
fn only_differences_along_the_axis_count_where_an_output_is_centred() {
    let shape = [2, 3, 2];
    let values: Vec<f32> = (0..12).map(|i| ((i * 7) % 11) as f32).collect();
    for (axis, inner) in [(0, 6), (1, 2), (2, 1)] {
        let found = center_along(&values, &shape, axis);
        let n = shape[axis as usize];
        for first in (0..12).filter(|i| i / inner % n == 0) {
            let line = |values: &[f32]| (0..n).map(|k| f64::from(values[first + k * inner])).collect::<Vec<_>>();
            let (before, after) = (line(&values), line(&found));
            assert!(after.iter().sum::<f64>().abs() < 1e-5, "{axis} {after:?}");
            let moved = before[0] - after[0];
            assert!(before.iter().zip(&after).all(|(a, b)| (a - b - moved).abs() < 1e-5), "{axis}");
        }
        assert_eq!(center_along(&values, &shape, axis - 3), found);
    }
    assert_eq!(center_along(&[], &[1, 0], 1), [0.0; 0]);
}

#[test]
fn a_mask_in_front_of_a_softmax_is_no_error() {
    let centred = |values: [f32; 3]| center_along(&values, &[1, 3], 1);
    let float = centred([-INF, 2.0, 4.0]);
    assert_eq!(float, [-INF, -1.0, 1.0]);
    // Errors of 0.5 each about the mean of what is no mask.
    assert_near(figure(SQNR, &[1, 3], &[(&float, &centred([-INF, 2.0, 5.0]))]), db(2.0 / 0.5));
    let unmasked = centred([-9.0, 2.0, 4.0]);
    assert_eq!(figure(SQNR, &[1, 3], &[(&float, &unmasked)]), -200.0);
}

#[test]
fn a_map_that_is_nan_somewhere_has_no_good_figure() {
    let (float, broken): ([f32; 4], [f32; 4]) = ([1.0, 2.0, 3.0, 5.0], [1.0, NAN, 3.0, 5.0]);
    let outputs = [compared("y", &[1, 1, 2, 2], &[(&float, &broken)])];
    let head = TaskHead { head: resolve("map").unwrap(), input: None, reason: None };
    let of_float: Vec<FloatOutput> = outputs.iter().map(Compared::float).collect();
    let prepared = Arc::new(PreparedMetrics::new(&[MAP_SQNR], &of_float, Some(&head)));
    let sums = sums(&prepared, &outputs, None);
    let found = Measurement::new(prepared, sums).figures(MAP_SQNR).remove(0).unwrap().value;
    assert!(found <= -MAX_DB, "{found}");
}

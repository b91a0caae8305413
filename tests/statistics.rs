//! Statistics of tensors: counts, and independence of the order.

use mqq::statistics::{Bin, Histogram, TensorStatistics};
use proptest::prelude::*;

#[test]
fn counts_what_is_not_finite_and_leaves_it_out() {
    let mut statistic = TensorStatistics::default();
    statistic.observe(&[1.0, f32::NAN, -2.0, f32::INFINITY, f32::NEG_INFINITY, 0.0]);
    assert_eq!((statistic.n_finite(), statistic.n_non_finite()), (3, 3));
    assert_eq!(statistic.min_max(), Some((-2.0, 1.0)));
    assert_eq!(statistic.histogram.bins().map(|bin| bin.count).sum::<u64>(), 3);
    assert_eq!(statistic.histogram.n_non_finite(), 3);

    let mut twice = statistic.clone();
    twice.merge(&statistic);
    assert_eq!((twice.n_finite(), twice.n_non_finite()), (6, 6));

    let mut nothing = TensorStatistics::default();
    nothing.observe(&[f32::NAN]);
    assert_eq!(nothing.min_max(), None);
}

#[test]
fn zero_has_no_sign() {
    let mut statistic = TensorStatistics::default();
    statistic.observe(&[-0.0; 3]);
    let (min, max) = statistic.min_max().unwrap();
    assert!(min.is_sign_positive() && max.is_sign_positive());
}

proptest! {
    #[test]
    fn parts_make_the_whole_in_any_order(
        values in prop::collection::vec(any::<f32>(), 0..200), split in 0usize..200, size in 1usize..9
    ) {
        let (mut whole, mut left, mut right) = <(TensorStatistics, TensorStatistics, TensorStatistics)>::default();
        for (i, sample) in values.chunks(7).enumerate() {
            whole.observe_in(i / size, sample);
            let part = if i * 7 < split { &mut left } else { &mut right };
            part.observe_in(i / size, sample);
        }
        let mut other_order = right.clone();
        other_order.merge(&left);
        left.merge(&right);
        prop_assert_eq!(&other_order, &left);
        prop_assert_eq!(left, whole);
    }

    #[test]
    fn extremes_are_those_of_the_finite_values(values in prop::collection::vec(any::<f32>(), 0..99)) {
        let mut statistic = TensorStatistics::default();
        statistic.observe_extremes(&values);
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let expected = finite().reduce(f32::min).zip(finite().reduce(f32::max));
        prop_assert_eq!(statistic.min_max(), expected);
        prop_assert_eq!(statistic.n_finite(), finite().count() as u64);
        prop_assert_eq!(statistic.n_non_finite(), (values.len() - finite().count()) as u64);
    }
}

proptest! {
    #[test]
    fn a_value_lies_in_its_bin_and_the_bin_is_narrow(value in any::<f32>()) {
        let mut histogram = Histogram::default();
        histogram.observe(&[value]);
        let bins: Vec<Bin> = histogram.bins().collect();
        prop_assert_eq!(bins.len(), usize::from(value.is_finite()));
        if let Some(bin) = bins.first() {
            let size = f64::from(value.abs());
            prop_assert!(bin.inner.abs() <= size && size < bin.outer.abs());
            if value.is_normal() {
                prop_assert!(bin.outer.abs() - bin.inner.abs() <= 0.004 * size);
            }
        }
    }
}

#[test]
fn both_zeros_share_a_bin_and_bins_come_in_order() {
    let mut histogram = Histogram::default();
    histogram.observe(&[3.0, -0.0, 0.0, -1.0, -2.0]);
    let bins: Vec<Bin> = histogram.bins().collect();
    assert_eq!(bins.iter().map(|b| b.count).collect::<Vec<_>>(), [1, 1, 2, 1]);
    assert!(bins.windows(2).all(|w| w[0].center() < w[1].center()));
    assert_eq!(bins[2].center(), 0.0);
}

#[test]
fn values_up_to_a_mark_are_counted_as_another() {
    let of = |values: &[f32]| {
        let mut histogram = Histogram::default();
        histogram.observe(values);
        histogram
    };
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let mut histogram = of(&[-inf, -1e4, -8.0, -3.0, 0.0, 5.0, nan, -inf, inf]);
    assert_eq!((histogram.n_minus_infinity(), histogram.n_non_finite()), (2, 4));
    let mut infinite = histogram.clone();
    infinite.raise(f64::NEG_INFINITY, -1024.0);
    assert_eq!(infinite, of(&[-1024.0, -1e4, -8.0, -3.0, 0.0, 5.0, nan, -1024.0, inf]));
    histogram.raise(-8.0, -4.0);
    assert_eq!(histogram, of(&[-4.0, -4.0, -4.0, -3.0, 0.0, 5.0, nan, -4.0, inf]));
    assert_eq!((histogram.n_minus_infinity(), histogram.n_non_finite()), (0, 2));
    // Neither the counts of finite values nor those of others alone make two histograms equal.
    assert_ne!(of(&[1.0, nan]), of(&[1.0]));
    assert_ne!(of(&[1.0, nan]), of(&[1.0, 1.0, nan]));
    assert_eq!(format!("{:?}", of(&[0.0; 3])), format!("[{:?}]", of(&[0.0; 3]).bins().next().unwrap()));
    let mut none = Histogram::default();
    none.raise(-8.0, -4.0);
    assert_eq!((none.bins().count(), none.n_minus_infinity()), (0, 0));
}

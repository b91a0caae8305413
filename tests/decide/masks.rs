//! Masks of attention.

use mqq::place::SoftmaxRole;
use mqq::plan::Mask;
use mqq::statistics::TensorStatistics;

fn mask(values: &[f32], role: SoftmaxRole) -> Option<Mask> {
    let mut statistic = TensorStatistics::default();
    statistic.observe(values);
    Mask::in_values(&statistic, role)
}

#[test]
fn only_what_lies_far_below_all_others_is_a_mask() {
    let scores: Vec<f32> = (-400..=400).map(|i| i as f32 / 4.0).collect();
    assert_eq!(mask(&scores, SoftmaxRole::Input), None);
    assert_eq!(mask(&[-100.0, -30.0, 5.0], SoftmaxRole::Input), None);
    assert_eq!(mask(&[-70.0, -70.5], SoftmaxRole::Input), None);
    assert_eq!(mask(&[-20.0, 3.0, 70.0], SoftmaxRole::Input), None);
    let found = mask(&[-1e4, -9990.0, -8.0, 5.0], SoftmaxRole::Input).unwrap();
    assert_eq!(found.raise(-8.0), -8.0);
    assert!((-20.1..=-20.0).contains(&found.raise(-9990.0)), "{found:?}");
    assert_eq!(found.raise(f32::NEG_INFINITY), found.raise(-1e4));
}

#[test]
fn a_factor_that_makes_a_mask_is_raised_as_the_mask_is() {
    assert_eq!(mask(&[f32::MIN], SoftmaxRole::Factor).unwrap().raise(f32::MIN), -1024.0);
    // A product with a smaller factor may be no mask.
    for values in [&[-1e4][..], &[f32::MIN, 1.0], &[8.0]] {
        assert_eq!(mask(values, SoftmaxRole::Factor), None, "{values:?}");
    }
}

#[test]
fn an_addend_of_zeros_goes_as_far_as_its_mask_but_not_farther_than_any_score() {
    let raised = |low| mask(&[low, 0.0], SoftmaxRole::Addend).unwrap().raise(low);
    assert!((-100.5..=-100.0).contains(&raised(-100.0)));
    assert_eq!(raised(f32::MIN), -1024.0);
    assert_eq!(raised(f32::NEG_INFINITY), -1024.0);
    let alone = mask(&[f32::NEG_INFINITY], SoftmaxRole::Addend).unwrap();
    assert_eq!(alone.raise(f32::NEG_INFINITY), -1024.0);
}

#[test]
fn a_statistic_is_raised_as_its_values_are() {
    let values = [f32::NEG_INFINITY, -1e4, 2.0, -3.0];
    let found = mask(&values, SoftmaxRole::Input).unwrap();
    let (mut statistic, mut expected) = (TensorStatistics::default(), TensorStatistics::default());
    statistic.observe(&values);
    expected.observe(&values.map(|value| found.raise(value)));
    assert_eq!(found.n_masked(&statistic), 2);
    found.raise_all(&mut statistic);
    assert_eq!(statistic.histogram, expected.histogram);
    assert_eq!(statistic.min_max(), expected.min_max());
}

#[test]
fn batches_are_raised_as_their_values_are() {
    let batches = [[-1e4, 2.0], [-1e4, -3.0], [-2.0, 1.0]];
    let mut statistic = TensorStatistics::default();
    for (batch, values) in [0, 1, 3].into_iter().zip(&batches) {
        statistic.observe_in(batch, values);
    }
    let found = Mask::in_values(&statistic, SoftmaxRole::Input).unwrap();
    found.raise_all(&mut statistic);
    let raised = found.raise(-1e4);
    let seen: Vec<_> = statistic.batches.iter().map(|batch| batch.get()).collect();
    assert_eq!(seen, [Some((raised, 2.0)), Some((raised, -3.0)), None, Some((-2.0, 1.0))]);
}

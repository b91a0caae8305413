//! When a change is accepted.

use mqq::metrics::{F1, Gain, GroupChange, OVERLAP, SQNR, TaskChange};
use mqq::tune::accept::{Acceptance, CHANGE, ERRATIC, INSERTION, NARROW, WHOLE};

/// A change of all outputs by this gain and deviation, and of groups by others.
fn change(gain: f64, deviation: f64, groups: &[(f64, f64)]) -> Gain {
    let figures = |gain: f64| [0.5, 0.5 + gain];
    let group = |&(gain, deviation): &(f64, f64)| GroupChange {
        name: format!("group {gain}"),
        figures: figures(gain),
        deviation,
    };
    Gain {
        metric: OVERLAP,
        figures: figures(gain),
        deviation,
        groups: groups.iter().map(group).collect(),
        task: None,
        sqnr_db: [0.0; 2],
        has_non_finite: false,
    }
}

fn accepts(acceptance: Acceptance, gain: f64, deviation: f64, groups: &[(f64, f64)]) -> bool {
    acceptance.rejects(&change(gain, deviation, groups)).is_none()
}

#[test]
fn a_gain_is_above_chance() {
    assert!(accepts(CHANGE, 0.02, 0.01, &[]) && !accepts(CHANGE, 0.02, 0.03, &[]));
    assert!(!accepts(NARROW, 0.02, 0.015, &[]) && accepts(NARROW, 0.04, 0.015, &[]));
    assert!(!accepts(CHANGE, 0.0, 0.0, &[]) && accepts(CHANGE, 1e-9, 0.0, &[]));
    assert_eq!(CHANGE.rejects(&change(-0.1, 0.0, &[])).unwrap(), "no gain");
    assert!(accepts(INSERTION, 0.06, 0.01, &[]) && !accepts(INSERTION, 0.06, 0.04, &[]));
    let little = INSERTION.rejects(&change(0.04, 0.001, &[])).unwrap();
    assert_eq!(little, "it recovers less than 10 % of the loss");
    assert!(accepts(ERRATIC, 0.11, 0.01, &[]) && !accepts(ERRATIC, 0.09, 0.01, &[]));
    let in_db =
        |gain: f64| INSERTION.rejects(&Gain { metric: SQNR, figures: [20.0, 20.0 + gain], ..change(gain, 0.1, &[]) });
    assert!(in_db(1.0).is_none() && in_db(0.8).is_some());
}

#[test]
fn a_gain_within_chance_is_enough_where_the_sqnr_rises_too() {
    let seconded = |sqnr_db: [f64; 2]| Gain { sqnr_db, ..change(0.004, 0.008, &[]) };
    assert_eq!(CHANGE.rejects(&seconded([20.0, 19.0])).unwrap(), "the gain is within noise");
    assert!(CHANGE.rejects(&seconded([20.0, 20.1])).is_none());
    assert!(NARROW.rejects(&seconded([20.0, 20.1])).is_some());
    assert!(CHANGE.rejects(&Gain { sqnr_db: [20.0, 30.0], ..change(-0.004, 0.008, &[]) }).is_some());
    // Too much is at stake.
    assert!(CHANGE.rejects(&Gain { sqnr_db: [20.0, 30.0], ..change(0.04, 0.07, &[]) }).is_some());
}

#[test]
fn no_group_loses_more_than_chance() {
    assert!(accepts(CHANGE, 0.1, 0.01, &[(0.3, 0.1), (-0.05, 0.03)]));
    let reason = CHANGE.rejects(&change(0.1, 0.01, &[(0.3, 0.1), (-0.05, 0.01), (-0.2, 0.01)])).unwrap();
    assert_eq!(reason, "worse at group -0.2: overlap 0.500 -> 0.300");
    assert!(!accepts(CHANGE, 0.1, 0.01, &[(-1e-6, 0.0)]) && accepts(CHANGE, 0.1, 0.01, &[(0.0, 0.0)]));
}

#[test]
fn the_task_loses_no_more_than_chance() {
    let with_task = |figures: [f64; 2], deviation: f64| Gain {
        task: Some(TaskChange { metric: F1, figures, deviation }),
        ..change(0.1, 0.01, &[])
    };
    assert!(CHANGE.rejects(&with_task([0.9, 0.85], 0.03)).is_none());
    assert!(CHANGE.rejects(&with_task([0.9, 0.9], 0.0)).is_none());
    assert_eq!(CHANGE.rejects(&with_task([0.9, 0.8], 0.03)).unwrap(), "worse at the task: F1 0.900 -> 0.800");
    // A gain of the task does not make up for a loss of the outputs.
    let lost = Gain { figures: [0.5, 0.4], ..with_task([0.5, 0.9], 0.01) };
    assert_eq!(CHANGE.rejects(&lost).unwrap(), "no gain");
    assert!(CHANGE.rejects(&with_task([0.9, f64::NAN], 0.03)).is_some());
}

#[test]
fn all_changes_together_may_not_be_worse_than_none() {
    assert!(accepts(WHOLE, 0.0, 0.01, &[]) && accepts(WHOLE, -0.005, 0.01, &[]) && !accepts(WHOLE, -0.02, 0.01, &[]));
    assert!(accepts(WHOLE, 0.0, 0.0, &[(0.0, 0.0)]));
}

#[test]
fn what_could_not_be_measured_is_no_gain() {
    for unknown in [f64::NAN, f64::INFINITY] {
        for acceptance in [CHANGE, NARROW, WHOLE] {
            assert!(!accepts(acceptance, unknown, 0.0, &[]) && !accepts(acceptance, 1.0, unknown, &[]));
            assert!(!accepts(acceptance, 1.0, 0.0, &[(f64::NAN, 0.0)]));
            assert!(acceptance.rejects(&Gain { has_non_finite: true, ..change(0.5, 0.0, &[]) }).is_some());
        }
    }
}

#[test]
fn more_samples_are_run_where_they_may_bring_a_gain_that_matters() {
    let open =
        |gain: f64, deviation: f64| CHANGE.leaves_open(&Gain { sqnr_db: [20.0, 20.1], ..change(gain, deviation, &[]) });
    assert!(open(0.012, 0.014));
    assert!(!open(0.001, 0.002), "too small");
    assert!(!open(0.02, 0.01), "accepted");
    assert!(!open(-0.01, 0.03), "no gain");
}

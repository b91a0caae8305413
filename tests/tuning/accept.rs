//! When a change is accepted.

use mqq::metrics::Gain;
use mqq::tune::accept::{Acceptance, NARROW_OBSERVER, TUNING, WIDE_OBSERVER};

fn is_gain_by(gain_db: f64, standard_deviation_db: f64, deviations: f64) -> bool {
    Acceptance { deviations }.accepts(gain_db, standard_deviation_db)
}

#[test]
fn a_gain_is_above_what_chance_does() {
    assert!(is_gain_by(0.5, 0.2, 2.0) && !is_gain_by(0.5, 0.3, 2.0));
    assert!(is_gain_by(-0.5, 0.3, -2.0) && !is_gain_by(-0.5, 0.2, -2.0));
    assert!(!is_gain_by(0.0, 0.0, 0.0) && !is_gain_by(0.0, 0.0, -2.0));
    assert!(TUNING.accepts(1e-9, 0.0) && !TUNING.accepts(0.0, 0.0));
}

#[test]
fn what_could_not_be_measured_is_no_gain() {
    for unknown in [f64::NAN, f64::INFINITY] {
        for deviations in [-2.0, 0.0, 2.0] {
            assert!(!is_gain_by(unknown, 0.0, deviations));
            assert!(!is_gain_by(1.0, unknown, deviations));
            assert!(!is_gain_by(-1.0, unknown, deviations));
        }
    }
}

#[test]
fn an_observer_wins_by_what_was_measured() {
    let of = |gain_db, standard_deviation_db| Gain { sqnr_db: [0.0; 2], gain_db, standard_deviation_db };
    assert!(NARROW_OBSERVER.is_best(&of(1.0, 0.4), 0.5));
    assert!(!NARROW_OBSERVER.is_best(&of(1.0, 0.6), 0.5) && !NARROW_OBSERVER.is_best(&of(1.0, 0.4), 1.5));
    for unknown in [f64::NAN, f64::INFINITY] {
        assert!(!WIDE_OBSERVER.is_best(&of(unknown, 0.1), 0.0) && !WIDE_OBSERVER.is_best(&of(1.0, unknown), 0.0));
        assert!(!WIDE_OBSERVER.is_best(&of(1.0, 0.1), f64::NAN));
    }
}

//! When a change is accepted.

use mqq::metrics::Gain;
use mqq::tune::accept::{Acceptance, NARROW_OBSERVER, TUNING, WIDE_OBSERVER};

fn gain(gain_db: f64, standard_deviation_db: f64) -> Gain {
    Gain { sqnr_db: [0.0; 2], gain_db, standard_deviation_db, does_harm: false }
}

fn is_gain_by(gain_db: f64, standard_deviation_db: f64, deviations: f64) -> bool {
    Acceptance { deviations }.accepts(&gain(gain_db, standard_deviation_db))
}

#[test]
fn a_gain_is_above_what_chance_does() {
    assert!(is_gain_by(0.5, 0.2, 2.0) && !is_gain_by(0.5, 0.3, 2.0));
    assert!(is_gain_by(-0.5, 0.3, -2.0) && !is_gain_by(-0.5, 0.2, -2.0));
    assert!(!is_gain_by(0.0, 0.0, 0.0) && !is_gain_by(0.0, 0.0, -2.0));
    assert!(TUNING.accepts(&gain(1e-9, 0.0)) && !TUNING.accepts(&gain(0.0, 0.0)));
    assert!(!TUNING.accepts(&Gain { does_harm: true, ..gain(5.0, 0.1) }));
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
fn a_narrow_observer_must_gain_beyond_chance() {
    assert!(NARROW_OBSERVER.accepts(&gain(1.0, 0.4)) && !NARROW_OBSERVER.accepts(&gain(1.0, 0.6)));
    assert!(WIDE_OBSERVER.accepts(&gain(1.0, 0.6)) && !WIDE_OBSERVER.accepts(&gain(-0.1, 0.6)));
}

//! Bounds of `--fail-under`.

use super::{Pair, compared, measured, of_outputs};
use mqq::metrics::{
    AGREEMENT, COSINE, MAX_ERROR, METRICS, Measurement, MetricBound, MissedGate, OVERLAP, SQNR, TOP1, TOP1_DROP,
};

fn error(text: &str) -> String {
    format!("{:#}", MetricBound::parse(text).unwrap_err())
}

#[test]
fn a_gate_is_a_metric_and_a_number() {
    assert_eq!(MetricBound::parse("overlap=0.9").unwrap(), MetricBound { metric: OVERLAP, bound: 0.9 });
    assert_eq!(MetricBound::parse(" sqnr = -3e1").unwrap(), MetricBound { metric: SQNR, bound: -30.0 });
    assert_eq!(MetricBound::parse("max-error=0").unwrap(), MetricBound { metric: MAX_ERROR, bound: 0.0 });
    for percent in ["agreement=99", "agreement=99%", "agreement = 99 %"] {
        assert_eq!(MetricBound::parse(percent).unwrap(), MetricBound { metric: AGREEMENT, bound: 99.0 });
    }
    for (text, bound) in [("agreement=0", 0.0), ("agreement=0.5%", 0.5), ("agreement=1.5", 1.5)] {
        assert_eq!(MetricBound::parse(text).unwrap(), MetricBound { metric: AGREEMENT, bound });
    }
    for text in ["agreement=0.99", "top1=0.75", "top5=1"] {
        assert!(error(text).contains(", expected a percentage above 1 for metric `"), "{text}");
    }
    assert_eq!(MetricBound::parse("top1-drop=0.5").unwrap(), MetricBound { metric: TOP1_DROP, bound: 0.5 });
    assert_eq!(error("overlap=90%"), "found `90%`, expected a number for metric `overlap`");
    assert_eq!(error("overlap"), "found `overlap`, expected NAME=VALUE");
    let names = METRICS.iter().map(|metric| metric.name).collect::<Vec<_>>().join(", ");
    assert_eq!(error("overlapp=0.9"), format!("metric `overlapp` is unknown, expected one of: {names}"));
    assert!(error("=1").contains(&names));
    assert!(error("sqnr=high").starts_with("found `high`, expected a number for metric `sqnr`"));
    assert_eq!(error("f1=1.01"), "found `1.01`, expected 0 to 1 for metric `f1`");
    assert_eq!(error("ssim=-2"), "found `-2`, expected -1 to 1 for metric `ssim`");
    assert_eq!(error("max-error=-1"), "found `-1`, expected 0 or more for metric `max-error`");
    assert_eq!(error("sqnr=201"), "found `201`, expected 200 dB or less for metric `sqnr`");
    for metric in METRICS {
        assert!(
            metric.ensure_possible(metric.scale.best).is_ok()
                && metric.is_better(metric.scale.best, metric.scale.worst)
        );
    }
    for infinite in ["inf", "-inf", "nan"] {
        assert!(error(&format!("sqnr={infinite}")).contains("expected a finite number for metric `sqnr`"));
    }
}

/// Two outputs with 20 dB and 3 dB, of which the first is off by 0.5, the second by 1.
fn two_outputs() -> Measurement {
    let near: [Pair; 1] = [(&[3.0, 4.0], &[3.0, 4.5])];
    let far: [Pair; 1] = [(&[1.0, 1.0], &[1.0, 2.0])];
    let outputs = [compared("near", &[1, 2], &near), compared("far", &[1, 2], &far)];
    measured(&[SQNR, COSINE, AGREEMENT, MAX_ERROR], &outputs)
}

/// Without one of two samples, the SQNR is 20 or 10 dB: they deviate from their mean by 5 each.
#[test]
fn a_figure_has_a_deviation_over_the_samples() {
    let samples: [Pair; 2] = [(&[10.0, 0.0], &[10.0, 1.0]), (&[0.0, 10.0], &[10f32.sqrt(), 10.0])];
    let measured_on = |n: usize| measured(&[SQNR], &[compared("y", &[1, 2], &samples[..n])]);
    assert!((measured_on(2).deviation(SQNR).unwrap() - 5.0).abs() < 1e-5);
    assert_eq!((measured_on(1).deviation(SQNR), measured_on(2).deviation(COSINE)), (None, None));
}

fn missed(gate: &str, is_known: impl Fn(usize) -> bool) -> Vec<MissedGate> {
    MetricBound::parse(gate).unwrap().missed(&two_outputs(), is_known)
}

fn outputs_that_miss(gate: &str) -> Vec<String> {
    missed(gate, |_| true).into_iter().map(|missed| missed.tensor.unwrap()).collect()
}

#[test]
fn every_output_has_to_pass() {
    assert_eq!(outputs_that_miss("sqnr=3"), [""; 0]);
    assert_eq!(outputs_that_miss("sqnr=4"), ["far"]);
    assert_eq!(outputs_that_miss("sqnr=21"), ["near", "far"]);
}

#[test]
fn the_bound_itself_passes() {
    assert_eq!(outputs_that_miss("max-error=1"), [""; 0]);
    assert_eq!(outputs_that_miss("max-error=0.5"), ["far"]);
    assert_eq!(outputs_that_miss("max-error=0.499"), ["near", "far"]);
}

#[test]
fn an_output_with_values_that_are_no_numbers_misses_every_gate() {
    let found = missed("sqnr=-300", |output_idx| output_idx != 1);
    assert_eq!(found, [MissedGate { metric: SQNR, tensor: Some("far".into()), value: None, bound: -300.0 }]);
    assert_eq!(found[0].to_string(), "output `far`: SQNR was not measured, expected -300 dB or more");
    assert_eq!(missed("max-error=1000", |_| false).len(), 2);
}

#[test]
fn an_infinite_figure_misses_every_gate() {
    let infinite = measured(&[MAX_ERROR], &[compared("y", &[1, 1], &[(&[1.0], &[f32::INFINITY])])]);
    let found = MetricBound::parse("max-error=1e300").unwrap().missed(&infinite, |_| true);
    assert_eq!((found.len(), found[0].value), (1, None));
}

#[test]
fn an_output_without_values_misses_every_gate_but_the_sqnr() {
    let empty = measured(&of_outputs(), &[compared("y", &[1, 0], &[(&[], &[]), (&[], &[])])]);
    for gate in ["max-error=1e30", "cosine=-1", "overlap=0", "equal=0"] {
        let found = MetricBound::parse(gate).unwrap().missed(&empty, |_| true);
        assert_eq!((found.len(), found[0].value, &found[0].tensor), (1, None, &None), "{gate}");
    }
    assert_eq!(empty.worst(SQNR), Some(-200.0));
    // Samples with values alone have a cosine.
    let some = measured(&[COSINE, MAX_ERROR], &[compared("y", &[1, 2], &[(&[], &[]), (&[3.0, 4.0], &[4.0, 3.0])])]);
    assert_eq!([COSINE, MAX_ERROR].map(|metric| some.worst(metric)), [Some(0.96), Some(1.0)]);
}

#[test]
fn a_figure_that_no_output_has_misses() {
    for metric in [AGREEMENT, TOP1] {
        let found = missed(&format!("{}=2", metric.name), |_| true);
        assert_eq!(found, [MissedGate { metric, tensor: None, value: None, bound: 2.0 }]);
    }
    let text = missed("top1=99", |_| true)[0].to_string();
    assert_eq!(text, "no output has this metric: top-1 was not measured, expected 99 % or more");
}

#[test]
fn outputs_that_a_metric_is_not_about_pass() {
    let logits: [Pair; 1] = [(&[-4.0, 9.0], &[-4.0, 9.0])];
    let other: [Pair; 1] = [(&[0.0, 0.5], &[0.5, 0.0])];
    let outputs = [compared("class", &[1, 2], &logits), compared("box", &[1, 2], &other)];
    let measured = measured(&[AGREEMENT], &outputs);
    assert!(MetricBound::parse("agreement=100").unwrap().missed(&measured, |_| true).is_empty());
}

#[test]
fn a_missed_gate_says_by_how_much() {
    let texts = |gate: &str| missed(gate, |_| true).iter().map(MissedGate::to_string).collect::<Vec<_>>();
    assert_eq!(texts("sqnr=4.5"), ["output `far`: SQNR is 3.01 dB, expected 4.5 dB or more"]);
    assert_eq!(texts("max-error=0.5"), ["output `far`: largest difference is 1.0000, expected 0.5 or less"]);
    assert_eq!(texts("cosine=0.98"), ["output `far`: cosine is 0.9487, expected 0.98 or more"]);
}

#[test]
fn it_is_an_object_in_json() {
    let json = |missed: &MissedGate| serde_json::to_value(missed).unwrap();
    let found = missed("max-error=0.5", |_| true);
    let expected = serde_json::json!({ "metric": "max-error", "tensor": "far", "value": 1.0, "bound": 0.5 });
    assert_eq!(json(&found[0]), expected);
    let found = missed("top1=99", |_| true);
    assert_eq!(json(&found[0]), serde_json::json!({ "metric": "top1", "bound": 99.0 }));
}

//! Messages for the user: hints and suggestions.

use anyhow::{Context, anyhow};
use mqq::diag::{WithHint, copy_of, did_you_mean, explain, hint_of, place_of};

#[test]
fn suggests_only_what_is_near() {
    let names = ["tensorrt", "onnxruntime", "tvm", "nnie", "rgb"];
    assert_eq!(did_you_mean("tensort", names), "did you mean `tensorrt`?");
    assert_eq!(did_you_mean("tensor", names), "did you mean `tensorrt`?");
    assert_eq!(did_you_mean("rbg", names), "did you mean `rgb`?");
    for far in ["openvino", "trt", "nope", "x", ""] {
        assert_eq!(did_you_mean(far, names), "", "{far}");
    }
}

#[test]
fn hints_stay_beside_the_text() {
    let error = anyhow!("is blue").hint("paint it").hint("").hint("or leave it");
    let error = Err::<(), _>(error).context("node `a` (Conv)").context("`m.onnx`");
    let error: anyhow::Error = error.unwrap_err();
    assert_eq!(format!("{error:#}"), "`m.onnx`: node `a` (Conv): is blue");
    assert_eq!(hint_of(&error), "paint it\nor leave it");
    assert_eq!(explain(&copy_of(&error)), explain(&error));
    assert!(explain(&error).ends_with("is blue\nhint: paint it\nhint: or leave it"));
    assert_eq!(explain(&anyhow!("is blue")), "is blue");
}

#[test]
fn the_place_is_what_a_text_begins_with() {
    for (text, place) in [
        ("`a b.onnx`: node `x`: is blue", Some("a b.onnx")),
        ("node `x` (Conv): is blue", Some("x")),
        ("input `x`: is blue", Some("x")),
        ("backend `x` is unknown, expected one of: a", None),
        ("--set a.b=1: `a` is unknown", None),
        ("`x` has no end", None),
        ("is blue", None),
    ] {
        assert_eq!(place_of(text), place, "{text}");
    }
}

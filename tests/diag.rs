//! Messages for the user: hints and suggestions.

use anyhow::{Context, anyhow};
use mqq::diag::{
    WithHint, and_more, copy_of, did_you_mean, explain, explain_with_hint, grouped, hint_of, hint_or_general,
    in_plain_words, none_of, place_of, printable,
};

#[test]
fn digits_are_in_groups_of_three() {
    let texts = [(0, "0"), (999, "999"), (1000, "1,000"), (16_384, "16,384"), (7_095_296, "7,095,296")];
    texts.iter().for_each(|(n, text)| assert_eq!(grouped(*n), *text));
}

#[test]
fn suggests_only_what_is_near() {
    let names = ["tensorrt", "onnxruntime", "tvm", "nnie", "rgb"];
    assert_eq!(did_you_mean("tensort", names), "did you mean `tensorrt`?");
    assert_eq!(did_you_mean("tensor", names), "did you mean `tensorrt`?");
    assert_eq!(did_you_mean("rbg", names), "did you mean `rgb`?");
    assert_eq!(did_you_mean("RGB", names), "did you mean `rgb`?");
    for far in ["openvino", "trt", "nope", "x", ""] {
        assert_eq!(did_you_mean(far, names), "", "{far}");
    }
    let family = none_of("none", "trt", ["trt-cache", "trt-json", "ncnn"]);
    assert_eq!(hint_of(&family), "did you mean `trt-cache` or `trt-json`?");
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
fn an_error_without_a_hint_has_that_of_its_kind() {
    for (text, hint) in [
        ("`m.onnx`: node `a.npy` is blue", "onnx.checker"),
        ("`m.onnx`: input `x`: --shape is blue", "mqq help"),
        ("`m.onnx`: `x.NPZ`: is blue", "--skip-bad-data"),
        ("`m.onnx`: `good.npy[0]`: node `a` (Gather): is blue", "--skip-bad-data"),
        ("`m.onnx`: `d.npy[x]`: is blue", "mqq help"),
        ("`é.yaml`:3: `a`: is blue", "docs/backends.md"),
        ("é ``: is blue", "mqq help"),
        ("``: ``: is blue", "mqq help"),
        ("is blue", "mqq help"),
    ] {
        assert!(hint_or_general(&anyhow!("{text}")).contains(hint), "{text}");
        assert!(explain_with_hint(&anyhow!("{text}")).contains("is blue\nhint: "), "{text}");
    }
    assert_eq!(explain_with_hint(&anyhow!("is blue").hint("paint it")), "is blue\nhint: paint it");
}

#[test]
fn errors_of_the_system_are_in_plain_words() {
    let opened = |path: &str| explain_with_hint(&std::fs::File::open(path).context("`m.onnx`").unwrap_err());
    assert_eq!(opened("no/such/file"), "`m.onnx`: does not exist\nhint: check the path");
    assert_eq!(opened(&"x".repeat(5000)), "`m.onnx`: the name is too long\nhint: use a shorter name");
    let own = "`x (os error 2)`: is blue";
    assert!(explain_with_hint(&anyhow!("{own}")).starts_with(own));
}

#[test]
fn words_of_the_readers_are_plain() {
    for (message, expected) in [
        ("invalid type: sequence, expected field identifier", "found a list, expected keys with values"),
        (
            "invalid type: integer `1`, expected struct A at line 3 column 4",
            "line 3, column 4: found `1`, expected keys with values",
        ),
        ("invalid length 0, expected struct A with 3 elements", "found an empty list, expected keys with values"),
        ("invalid length 3, expected an array of length 4", "found a list of 3 values, expected a list of 4 values"),
        ("missing field `a` at line 1 column 7", "line 1, column 7: missing key `a`"),
        ("EOF while parsing a value at line 1 column 0", "line 1, column 0: ends too early"),
        ("is blue at line x", "is blue at line x"),
    ] {
        assert_eq!(in_plain_words(message), expected);
    }
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

#[test]
fn foreign_text_is_shown_in_one_line_of_limited_length() {
    assert_eq!(printable("node `a` (Conv): é is 3, expected 4"), "node `a` (Conv): é is 3, expected 4");
    assert_eq!(printable("a\nerror: b\r\t\u{1b}[31m\u{9b}m\u{202e}"), "a\\nerror: b\\r\\t\\u{1b}[31m\\u{9b}m\\u{202e}");
    let long = "x".repeat(1 << 20);
    let line = format!("node `{long}` (Conv): is 3");
    let text = printable(&line);
    assert!(
        text.len() < 600 && text.starts_with("node `xxx") && text.contains('…') && text.ends_with("` (Conv): is 3")
    );
    assert!(printable(&"a b ".repeat(1 << 20)).len() < 11_000);
    assert_eq!(explain(&anyhow!("a\nhint: b").hint("c\nd")), "a\\nhint: b\nhint: c\nhint: d");
}

#[test]
fn a_list_says_how_many_names_it_leaves_out() {
    assert_eq!([0, 1, 6].map(and_more), ["", ", and 1 more", ", and 6 more"]);
}

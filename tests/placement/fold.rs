//! Relu and Clip in front of a quantized tensor go exactly where the grid has their effect.

use super::{graph, place_by, scheme_with};
use crate::support::GraphBuilder;
use mqq::onnx::proto::ModelProto;
use mqq::place::clips::FoldableClip;
use mqq::quant::{Grid, Range, params_for_range};
use proptest::prelude::*;

const RULES: &str = "[quantize_weighted_inputs, { quantize_outputs: { past: [Relu, Clip] } }, \
                     quantize_network_outputs, { fold_clips: { ops: [Relu, Clip] } }]";

/// `tensor: min max` of every Clip that may go.
fn foldable(build: impl Fn(&mut GraphBuilder), outputs: &[&str]) -> Vec<String> {
    let model: ModelProto = graph(build, outputs);
    let placement = place_by(&model, &scheme_with(RULES), &[]);
    let clips = placement.activations.iter().filter_map(|quantizer| Some((quantizer, quantizer.clip.as_ref()?)));
    clips.map(|(quantizer, clip)| format!("{}: {:?} {:?}", quantizer.tensor, clip.min, clip.max)).collect()
}

fn clip6(g: &mut GraphBuilder, input: &str, output: &str) {
    g.scalars(&[("zero", 0.0), ("six", 6.0)]);
    g.op("Clip", &[input, "zero", "six"], output);
}

#[test]
fn only_where_nothing_else_reads_either_tensor() {
    let plain = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "a");
        clip6(g, "a", "c");
        g.conv("c", 16, 16, 3, 1, "b");
        g.op("Relu", &["b"], "r");
        g.conv("r", 16, 16, 3, 1, "y");
    };
    assert_eq!(foldable(plain, &["y"]), ["c: Some(0.0) Some(6.0)", "r: Some(0.0) None"]);
    // The tensor before it has another reader, or is an output; the one behind it is read in float, or
    // is an output that stays float.
    let before_is_read = |g: &mut GraphBuilder| {
        plain(g);
        g.op("Exp", &["a"], "z");
    };
    assert_eq!(foldable(before_is_read, &["y", "z"]), ["r: Some(0.0) None"]);
    assert_eq!(foldable(plain, &["y", "b"]), ["c: Some(0.0) Some(6.0)"]);
    assert_eq!(foldable(plain, &["y", "r"]), ["c: Some(0.0) Some(6.0)"]);
    // Bounds that are computed are not known.
    let computed = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "a");
        g.op("ReduceMax", &["x"], "high");
        g.op("Clip", &["a", "", "high"], "c");
        g.conv("c", 16, 16, 3, 1, "y");
    };
    assert!(foldable(computed, &["y"]).is_empty());
    // One at the network's input has nothing to run at the end of.
    let first = |g: &mut GraphBuilder| {
        g.op("Relu", &["x"], "r");
        g.conv("r", 16, 16, 3, 1, "y");
    };
    assert!(foldable(first, &["y"]).is_empty());
}

#[test]
fn grids_with_and_without_the_effect() {
    let clip = |min, max| FoldableClip { node: 0, input: String::new(), min, max };
    let relu = clip(Some(0.0), None);
    let relu6 = clip(Some(0.0), Some(6.0));
    let u8 = |min, max| params_for_range(Range { min, max }, &Grid::UINT8_ASYMMETRIC).unwrap();
    let s8 = |amax| params_for_range(Range::symmetric(amax), &Grid::INT8_SYMMETRIC).unwrap();
    assert!(relu.has_no_effect_on(&u8(0.0, 5.0)));
    assert!(relu6.has_no_effect_on(&u8(0.0, 5.0)));
    assert!(relu6.has_no_effect_on(&u8(0.0, 6.0)));
    // Values below 0, or well above 6, are on the grid.
    assert!(!relu.has_no_effect_on(&u8(-1.0, 5.0)));
    assert!(!relu6.has_no_effect_on(&u8(0.0, 6.1)));
    assert!(!relu.has_no_effect_on(&s8(5.0)));
    assert!(clip(None, None).has_no_effect_on(&s8(5.0)));
    assert!(clip(Some(-9.0), Some(9.0)).has_no_effect_on(&s8(5.0)));
    assert!(!clip(Some(f32::NAN), None).has_no_effect_on(&u8(0.0, 5.0)));
}

#[test]
fn a_range_without_width_is_no_special_case() {
    let clip = FoldableClip { node: 0, input: String::new(), min: Some(0.0), max: Some(0.0) };
    let params = params_for_range(Range { min: 0.0, max: 0.0 }, &Grid::UINT8_ASYMMETRIC).unwrap();
    let differs = |x: f32| params.quantize(x.clamp(0.0, 0.0)) != params.quantize(x);
    assert_eq!(clip.has_no_effect_on(&params), !differs(f32::MAX) && !differs(f32::MIN));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The rule's promise: the same integers with and without the Clip, for every value.
    #[test]
    fn removing_changes_no_integer(
        low in -8.0f32..1.0, high in 0.0f32..8.0, min in -8.0f32..8.0, width in 0.0f32..8.0,
        values in prop::collection::vec(-20.0f32..20.0, 64),
    ) {
        let clip = FoldableClip { node: 0, input: String::new(), min: Some(min), max: Some(min + width) };
        let range = Range { min: f64::from(low.min(high)), max: f64::from(high) };
        let params = params_for_range(range, &Grid::UINT8_ASYMMETRIC).unwrap();
        let differs = |x: &f32| params.quantize(x.clamp(min, min + width)) != params.quantize(*x);
        let ends = [min, min + width, f32::MAX, f32::MIN];
        if clip.has_no_effect_on(&params) {
            prop_assert!(!values.iter().chain(&ends).any(differs));
        } else {
            // And it is not refused where it could go.
            prop_assert!(ends.iter().any(differs));
        }
    }
}

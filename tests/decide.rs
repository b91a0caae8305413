//! What a plan decides: parameters of activations, weights and biases, by tables and graphs that are made here.

use crate::support::GraphBuilder;
use mqq::diag::explain;
use mqq::observers::by_spelling;
use mqq::onnx::edit::ModelEdit;
use mqq::place::clips::FoldableClip;
use mqq::place::{ActivationQuantizer, BiasQuantizer, Placement, SoftmaxRole, WeightQuantizer};
use mqq::plan::{Observers, PlannedActivation, PlannedWeight, QuantPlan, bias_grids, decide, decide_biases, round};
use mqq::quant::{GivenRange, Range};
use mqq::scheme::{FixedGrid, Scheme};
use mqq::statistics::TensorStatistics;
use std::collections::BTreeMap;

const TABLE: &str = "\
name: test
source: test
min_opset: 21
types:
  u8: { bits: 8, signed: false, symmetry: asymmetric }
  s8: { bits: 8, signed: true, symmetry: symmetric, narrow_range: true }
  s4: { bits: 4, signed: true, symmetry: symmetric }
  s16: { bits: 16, signed: true, symmetry: symmetric }
  ada: { bits: 8, signed: true, symmetry: symmetric, ada_sign: true }
  pairs: { bits: 8, signed: true, symmetry: symmetric, narrow_range: true, max_pair_sum: 128 }
  pot: { bits: 8, signed: true, symmetry: symmetric, scale: power_of_two, pot_search: 4 }
  pot_unsigned: { bits: 8, signed: false, symmetry: asymmetric, scale: power_of_two, pot_search: 4 }
  pot_asymmetric: { bits: 4, signed: true, symmetry: asymmetric, scale: power_of_two, pot_search: 4 }
observers: { activation: max, weight: max }
ops: {}
placement: []
";

/// What a plan is decided from: quantizers, what was observed, constants.
struct Given {
    scheme: Scheme,
    graph: GraphBuilder,
    placement: Placement,
    statistics: Vec<TensorStatistics>,
    imported: BTreeMap<String, GivenRange>,
    activation: &'static str,
    weight: &'static str,
}

impl Given {
    fn new() -> Given {
        Given {
            scheme: serde_yaml::from_str(TABLE).unwrap(),
            graph: GraphBuilder::new(21),
            placement: Placement::default(),
            statistics: Vec::new(),
            imported: BTreeMap::new(),
            activation: "max",
            weight: "max",
        }
    }

    /// An activation in a group of its own, which was observed to hold `values`.
    fn activation(&mut self, tensor: &str, qtype: &str, values: &[f32]) -> &mut ActivationQuantizer {
        let mut statistic = TensorStatistics::default();
        statistic.observe(values);
        self.statistics.push(statistic);
        self.placement.activations.push(ActivationQuantizer {
            tensor: tensor.into(),
            qtype: qtype.into(),
            edges: Vec::new(),
            network_output: false,
            holds_all: false,
            clip: None,
            group: self.placement.activations.len(),
            fixed: None,
            softmax: None,
            rule: "test",
            reason: "asked for".into(),
        });
        self.placement.activations.last_mut().unwrap()
    }

    /// A weight with scales along `axis`, read by the first node.
    fn weight(
        &mut self,
        tensor: &str,
        qtype: &str,
        axis: Option<usize>,
        shape: &[usize],
        values: &[f32],
    ) -> &mut WeightQuantizer {
        self.graph.values(tensor, shape, values);
        self.placement.weights.push(WeightQuantizer {
            tensor: tensor.into(),
            qtype: qtype.into(),
            axis,
            block: None,
            edges: vec![(0, 1)],
            softmax: None,
        });
        self.placement.weights.last_mut().unwrap()
    }

    /// A bias of the weight at this position and the activation `x`.
    fn bias(&mut self, tensor: &str, weight: usize, values: &[f32]) -> &mut BiasQuantizer {
        self.graph.values(tensor, &[values.len()], values);
        let (tensor, input) = (tensor.into(), "x".into());
        self.placement.biases.push(BiasQuantizer { tensor, qtype: None, input, weight, edge: (0, 2) });
        self.placement.biases.last_mut().unwrap()
    }

    fn decide(&self) -> Result<QuantPlan, String> {
        let model = self.graph.build();
        let observer = |spelling| by_spelling(spelling).unwrap();
        let observers = Observers { activation: &observer(self.activation), weight: &observer(self.weight) };
        let given = Some(&self.imported);
        let graph = model.graph.as_ref().unwrap();
        decide(graph, &self.placement, &self.statistics, given, &self.scheme, observers)
            .map_err(|error| explain(&error))
    }

    fn plan(&self) -> QuantPlan {
        self.decide().unwrap()
    }

    fn one(&self) -> PlannedActivation {
        let [planned] = <[PlannedActivation; 1]>::try_from(self.plan().activations).unwrap();
        planned
    }
}

fn scales(weight: &PlannedWeight) -> Vec<f32> {
    weight.params.iter().map(|params| params.scale).collect()
}

/// One value of 1 and a thousand small ones: a finer scale than that of the largest has less error.
fn long_tailed(small: f32) -> Vec<f32> {
    let mut values: Vec<f32> = (0..1000).map(|i| small * (1.0 + (i % 7) as f32 / 10.0)).collect();
    values.push(1.0);
    values
}

/// The float model's Conv reads `x` with the scale 0.01, `far` lies beside it.
fn of_conv() -> Given {
    let mut given = Given::new();
    given.activation("far", "s8", &[12.7]);
    given.activation("x", "s8", &[-1.27]);
    given.graph.op("Conv", &["x", "w", "b"], "y");
    given
}

#[test]
fn a_bias_has_the_product_of_the_scales_of_its_input_and_its_weight() {
    let mut given = of_conv();
    given.weight("w", "s8", Some(0), &[2, 2], &[1.27, 0.0, 0.5, -2.54]);
    given.weight("one", "s8", None, &[3, 1], &[1.27, 0.0, 0.5]);
    given.bias("b", 0, &[0.5, -0.5]);
    given.bias("of_one", 1, &[0.5, -0.5, 1e-9]);
    given.bias("misfit", 0, &[0.5, -0.5, 0.1]);
    given.bias("of_float", 0, &[0.5, -0.5]).input = "z".into();
    let plan = given.plan();
    assert_eq!(scales(&plan.weights[0]), [0.01, 0.02]);
    let biases: Vec<_> = plan.biases.iter().map(|bias| (bias.quantizer.tensor.as_str(), &*bias.integers)).collect();
    assert_eq!(biases, [("b", &[5000, -2500][..]), ("of_one", &[5000, -5000, 0])]);
    let product = |scale: f32| (f64::from(0.01f32) * f64::from(scale)) as f32;
    assert_eq!(plan.biases[0].scales, [product(0.01), product(0.02)]);
    assert_eq!(plan.biases[1].scales, [product(0.01)]);
    assert_eq!((plan.biases[0].zero_point, &plan.biases[0].qtype), (0, &None));
    assert_eq!(plan.biases[0].dequantized(), [5000.0 * product(0.01), -2500.0 * product(0.02)]);
    assert_eq!(plan.biases[1].dequantized()[1], -5000.0 * product(0.01));
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
}

#[test]
fn a_weight_whose_bias_would_overflow_gets_a_wider_scale() {
    let needed = |bias: f64| (bias / (f64::from(0.01f32) * f64::from(i32::MAX)) * (1.0 + 1e-6)) as f32;
    let mut given = of_conv();
    given.weight("w", "s8", Some(0), &[2, 2], &[1.27, 0.0, 0.5, -1.27]);
    given.bias("b", 0, &[0.5, -1e6]);
    let plan = given.plan();
    assert_eq!(scales(&plan.weights[0]), [0.01, needed(1e6)]);
    assert_eq!(plan.warnings, ["initializer `b`: channel 1 overflows int32; the scale of `w` was widened".to_string()]);
    // The weight's integers are those of the wider scale.
    assert_eq!(plan.weights[0].integers[3], (-1.27 / needed(1e6)).round() as i32);
    assert!((i32::MAX - 10_000..=i32::MAX).contains(&-plan.biases[0].integers[1]));

    // Without the right to widen, the bias is saturated; and what is planned already is planned anew.
    let model = given.graph.build();
    let mut narrow = plan.clone();
    narrow.weights[0].params[1].scale = 0.01;
    let observer = by_spelling("max").unwrap();
    let graph = model.graph.as_ref().unwrap();
    decide_biases(graph, &given.placement, &given.scheme, &observer, &mut narrow, false).unwrap();
    assert_eq!((narrow.biases.len(), narrow.biases[0].integers[1]), (1, -i32::MAX));
    assert_eq!(narrow.weights[0].params[1].scale, 0.01);

    // Values beyond the channels widen the last scale; with powers of two to the next of them.
    given.bias("longer", 0, &[0.5, 0.5, 2e6]);
    assert_eq!(scales(&given.plan().weights[0]), [0.01, needed(2e6)]);
    given.placement.weights[0].qtype = "pot".into();
    let exponent = f64::from(needed(2e6)).log2().ceil();
    assert_eq!(given.plan().weights[0].params[1].scale, exponent.exp2() as f32);
}

/// Without a warning: nothing overflows.
#[test]
fn the_scale_of_a_bias_is_a_normal_number() {
    let mut given = of_conv();
    given.weight("w", "s8", Some(0), &[2, 1], &[1e-36, 1e-36]);
    given.weight("one", "s8", None, &[2, 1], &[1e-36, 1e-36]);
    given.bias("b", 0, &[0.0, 0.0]);
    given.bias("of_one", 1, &[0.0, 0.0]);
    let plan = given.plan();
    let least = (1024.0 * f64::from(f32::MIN_POSITIVE) / f64::from(0.01f32)) as f32;
    assert_eq!(scales(&plan.weights[0]), [least; 2]);
    assert_eq!(scales(&plan.weights[1]), [least]);
    assert!(plan.warnings.is_empty() && plan.biases.iter().all(|bias| bias.scales[0].is_normal()));
}

#[test]
fn a_bias_of_a_type_of_its_own_may_have_finer_powers_of_two() {
    let mut given = of_conv();
    given.weight("w", "s8", None, &[1, 1], &[1.27]);
    given.bias("b", 0, &[0.0, 2.0]).qtype = Some("u8".into());
    given.bias("negative", 0, &[-1.0, 2.0]).qtype = Some("ada".into());
    given.bias("positive", 0, &[1.0, 2.0]).qtype = Some("ada".into());
    let plan = given.plan();
    let found: Vec<_> = plan.biases.iter().map(|bias| (&*bias.scales, bias.zero_point, &*bias.integers)).collect();
    assert_eq!(found[0], (&[2.0 / 255.0][..], 0, &[0, 255][..]));
    assert_eq!(found[1], (&[2.0 / 127.0][..], 0, &[-64, 127][..]));
    assert_eq!(found[2], (&[2.0 / 255.0][..], 0, &[127, 255][..]));
    assert_eq!(plan.biases[1].qtype.as_ref().unwrap().dtype(), "int8");
    assert_eq!(plan.biases[0].dequantized(), [0.0, 255.0 * (2.0 / 255.0)]);

    let observer = by_spelling("max").unwrap();
    let grids = |qtype: &str| -> Vec<f32> {
        let grids = bias_grids(&long_tailed(0.003), &given.scheme.types[qtype], &observer).unwrap();
        grids.iter().map(|params| params.scale).collect()
    };
    assert_eq!(grids("pot"), [-6, -7, -8, -9, -10].map(|exponent| 2f32.powi(exponent)));
    assert_eq!(grids("s8"), [1.0 / 127.0]);
}

#[test]
fn a_finer_power_of_two_cuts_the_range_to_what_it_holds() {
    let planned = |qtype: &str, values: &[f32]| {
        let mut given = Given::new();
        given.activation("x", qtype, values);
        let planned = given.one();
        (planned.range, planned.params.scale, planned.params.zero_point)
    };
    let symmetric = |amax: f64| Range::symmetric(amax);
    // Values of one size have the least error where the largest is not cut: the range is the observed one.
    let even: Vec<f32> = (-30..=30).map(|i| i as f32 / 16.0).collect();
    assert_eq!(planned("pot", &even), (symmetric(1.875), 2f32.powi(-6), 0));
    // Steps of 1/64 make nothing of values of 0.003.
    let tail = long_tailed(0.003);
    let (range, scale, zero_point) = planned("pot", &tail);
    assert!(scale < 2f32.powi(-6), "{scale}");
    assert_eq!((range, zero_point), (symmetric(127.0 * f64::from(scale)), 0));
    let (range, scale, zero_point) = planned("pot_unsigned", &tail);
    assert_eq!((range, zero_point), (Range { min: 0.0, max: 255.0 * f64::from(scale) }, 0));
    assert_eq!(scale, 2f32.powi(-8));
    let mirrored: Vec<f32> = long_tailed(0.05).iter().map(|value| -value).chain([0.05; 9]).collect();
    let (range, scale, zero_point) = planned("pot_asymmetric", &mirrored);
    assert!(scale < 2f32.powi(-3), "{scale}");
    assert_eq!(range.min, f64::from(-8 - zero_point) * f64::from(scale));
}

#[test]
fn tensors_of_one_group_get_the_range_of_all_of_them() {
    let mut given = Given::new();
    given.activation("a", "u8", &[0.0, 2.0]);
    given.activation("b", "u8", &[-1.0, 1.0]).group = 0;
    given.activation("c", "u8", &[0.0, 9.0]);
    let [a, b, c] = <[PlannedActivation; 3]>::try_from(given.plan().activations).unwrap();
    assert_eq!((a.range, b.range, c.range.max), (Range { min: -1.0, max: 2.0 }, a.range, 9.0));
    assert_eq!((a.params, a.params.scale, a.params.zero_point), (b.params, (3.0f64 / 255.0) as f32, 85));
    assert_eq!([a.observed, b.observed], [Some((0.0, 2.0)), Some((-1.0, 1.0))]);
    assert_eq!((a.observer, a.candidates.len(), a.n_masked), ("max", 0, 0));
    given.activation = "auto";
    let of_auto = &given.plan().activations[0];
    let candidates: Vec<_> = of_auto.candidates.iter().map(|candidate| candidate.observer).collect();
    assert_eq!((of_auto.observer, candidates), ("mse", vec!["max", "percentile", "percentile", "entropy"]));
    given.statistics.pop();
    assert!(given.decide().unwrap_err().contains("2 statistics, expected 3"));
}

#[test]
fn given_ranges_take_the_place_of_what_was_observed() {
    let range = |min, max| GivenRange { range: Range { min, max }, amax: None };
    let mut given = Given::new();
    given.activation("x", "u8", &[-50.0, 50.0]);
    given.imported.insert("x".into(), range(-0.5, 2.05));
    let x = given.one();
    assert_eq!((x.range, x.observer), (Range { min: -0.5, max: 2.05 }, "imported"));
    assert_eq!((x.params.scale, x.params.zero_point), (0.01, 50));
    assert_eq!((&x.observed, &*x.quantizer.reason), (&Some((-50.0, 50.0)), "asked for"));
    // That of another tensor of the group, and what was observed of a third.
    given.activation("y", "u8", &[9.0]).group = 0;
    given.imported.insert("y".into(), range(0.0, 3.0));
    assert_eq!(given.plan().activations[0].range, Range { min: -0.5, max: 3.0 });
    given.activation("z", "u8", &[-4.0, 1.0]).group = 0;
    assert_eq!(given.plan().activations[0].range, Range { min: -4.0, max: 3.0 });
    // Outputs of the network are held by what was given for them.
    given.placement.activations.iter_mut().for_each(|quantizer| quantizer.holds_all = true);
    let plan = given.plan();
    assert_eq!(plan.activations[0].range, Range { min: -4.0, max: 3.0 });
    assert!(plan.activations.iter().all(|planned| planned.quantizer.reason == "asked for"));
    // The sign adapts to the lowest of both.
    let mut given = Given::new();
    given.activation("x", "ada", &[1.0]);
    given.imported.insert("x".into(), range(0.0, 2.0));
    assert!(!given.one().qtype.signed);
    given.activation("y", "ada", &[-1.0]).group = 0;
    assert!(given.plan().activations[0].qtype.signed);
}

#[test]
fn an_output_of_the_network_is_held_as_a_whole() {
    let observed: Vec<f32> = (0..1000).map(|i| i as f32 / 999.0).chain([50.0]).collect();
    let mut given = Given::new();
    given.activation = "percentile:99";
    given.activation("x", "u8", &observed);
    let cut = given.one();
    assert!(cut.range.max < 1.1 && cut.quantizer.reason == "asked for", "{:?}", cut.range);
    given.placement.activations[0].holds_all = true;
    let whole = given.one();
    assert_eq!((whole.range, whole.params.scale), (Range { min: 0.0, max: 50.0 }, (50.0f64 / 255.0) as f32));
    assert_eq!(whole.quantizer.reason, "asked for; its range holds all values that were seen");
    // Only what was seen of the output itself, with one of its group; who is none says nothing of it.
    given.activation("y", "u8", &[70.0, 0.5, 0.25]).group = 0;
    given.activation("z", "u8", &observed);
    let [x, y, z] = <[PlannedActivation; 3]>::try_from(given.plan().activations).unwrap();
    assert_eq!((x.range.max, y.range.max), (50.0, 50.0));
    assert_eq!((&*y.quantizer.reason, z.range), ("asked for", cut.range));
    // Nor does a search for a finer power of two cut it.
    let mut given = Given::new();
    given.activation("x", "pot", &long_tailed(0.003)).holds_all = true;
    let x = given.one();
    assert_eq!((x.range, x.params.scale), (Range::symmetric(1.0), 2f32.powi(-6)));
    // With a given range besides, which a mean of what was observed is added to.
    given.activation("y", "pot", &[0.5]).group = 0;
    given.imported.insert("y".into(), GivenRange { range: Range { min: -0.1, max: 0.1 }, amax: None });
    given.activation = "percentile:50";
    let x = &given.plan().activations[0];
    assert_eq!(x.range, Range::symmetric(1.0));
    assert_eq!(x.quantizer.reason, "asked for; its range holds all values that were seen");
    given.activation = "max";
    assert_eq!(given.plan().activations[0].quantizer.reason, "asked for");
}

#[test]
fn prescribed_parameters_are_taken_as_they_are() {
    let fixed = |scale, zero_point| Some(FixedGrid { scale, zero_point });
    let mut given = Given::new();
    given.activation("free", "s8", &[5.0]).group = 7;
    given.activation("first", "u8", &[3.0]).fixed = fixed(0.5, 10);
    given.activation("again", "u8", &[3.0]).fixed = fixed(0.5, 10);
    given.placement.activations[1].group = 7;
    given.placement.activations[2].group = 7;
    let plan = given.plan();
    for planned in &plan.activations {
        assert_eq!((planned.params.scale, planned.params.zero_point, planned.observer), (0.5, 10, "fixed"));
        assert_eq!(planned.range, Range { min: -5.0, max: 122.5 });
        assert_eq!((planned.params.q_max, planned.qtype.signed), (255, false));
    }
    assert!(plan.warnings.is_empty());
    given.activation("other", "u8", &[3.0]).fixed = fixed(0.25, 10);
    given.placement.activations[3].group = 7;
    let plan = given.plan();
    assert_eq!(plan.activations[3].params.scale, 0.5);
    let [warning] = <[String; 1]>::try_from(plan.warnings).unwrap();
    assert!(warning.starts_with("tensors `first` and `other` share quantization parameters"), "{warning}");
    given.placement.activations[1].fixed = fixed(0.5, 256);
    let error = given.decide().unwrap_err();
    assert!(error.contains("tensor `first`") && error.contains("zero point 256 is prescribed, expected 0 to 255"));
}

#[test]
fn values_that_are_no_numbers_are_told_of_and_a_mask_is_not() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let mut given = Given::new();
    given.activation("x", "u8", &[1.0, nan, inf, 2.0, -inf]);
    let plan = given.plan();
    assert_eq!((plan.activations[0].n_non_finite, plan.activations[0].n_masked), (3, 0));
    assert_eq!(plan.warnings, ["tensor `x`: 3 of 5 values are NaN or infinite; they were left out"]);
    given.activation("none", "u8", &[nan]);
    let error = given.decide().unwrap_err();
    assert!(error.contains("tensor `none`") && error.contains("no finite value"), "{error}");

    let scores = [-inf, -inf, -3.0, 5.0, -1e4];
    let mut given = Given::new();
    given.activation("scores", "u8", &scores).softmax = Some(SoftmaxRole::Input);
    let plan = given.plan();
    let planned = &plan.activations[0];
    assert_eq!((planned.n_non_finite, planned.n_masked, plan.warnings.len()), (0, 3, 0));
    assert!((-15.1..=-15.0).contains(&planned.range.min) && planned.range.max == 5.0, "{:?}", planned.range);
    // With NaN beside them, that alone is told of; an output's lowest value is the raised one.
    given.activation("more", "u8", &[-inf, nan, 1.0, -2.0]).softmax = Some(SoftmaxRole::Input);
    given.placement.activations[0].holds_all = true;
    let plan = given.plan();
    assert_eq!((plan.activations[1].n_non_finite, plan.activations[1].n_masked), (1, 1));
    assert_eq!(plan.warnings, ["tensor `more`: 1 of 3 values are NaN or infinite; they were left out"]);
    assert!(plan.activations[0].range.min > -15.2, "{:?}", plan.activations[0].range);
    // Where one of a group is read by others than a Softmax, there is no mask; two roles have the shorter mask's.
    given.activation("plain", "u8", &[1.0]).group = 0;
    assert_eq!(given.plan().activations[0].range.min, -1e4);
}

#[test]
fn a_constant_mask_is_raised_to_where_its_grid_begins() {
    let mut given = Given::new();
    given.graph.op("Add", &["x", "mask"], "y");
    given.weight("mask", "u8", None, &[4], &[0.0, f32::NEG_INFINITY, 0.0, f32::MIN]).softmax =
        Some(SoftmaxRole::Addend);
    let weight = &given.plan().weights[0];
    assert_eq!((weight.observed, &**weight.integers), ((-1024.0, 0.0), &[255, 0, 255, 0][..]));
    given.placement.weights[0].softmax = None;
    let error = given.decide().unwrap_err();
    assert!(error.contains("initializer `mask`: 1 of 4 values are NaN or infinite"), "{error}");
    assert!(error.contains("--exclude"), "{error}");
    given.placement.weights[0].tensor = "missing".into();
    assert!(given.decide().unwrap_err().contains("initializer `missing` does not exist"));
}

#[test]
fn a_slice_without_values_takes_the_median_scale_of_the_others() {
    let mut given = of_conv();
    let step = 2f32.powi(-24);
    // The fourth channel is at the mark of nothing beside 1.27 * 2, the last one above it.
    let values = [0.0, 0.0, 1.27, 0.1, 0.2, -2.54, 2.54 * step, 0.0, 2.54 * 2.0 * step, 0.0];
    given.weight("w", "s8", Some(0), &[5, 2], &values);
    let plan = given.plan();
    let weight = &plan.weights[0];
    assert_eq!(weight.dead, [0, 3]);
    let last = (f64::from(2.54f32 * 2.0 * step) / 127.0) as f32;
    assert_eq!(scales(weight), [0.01, 0.01, 0.02, 0.01, last]);
    assert_eq!((weight.observed, weight.observer, weight.learned), ((-2.54, 2.54 / 2.0), "max", false));
    assert_eq!(**weight.integers, [0, 0, 127, 10, 10, -127, 0, 0, 127, 0]);
    let dequantized = weight.dequantized();
    assert_eq!((dequantized.len(), dequantized[2], dequantized[5]), (10, 127.0 * 0.01, -127.0 * 0.02));
    assert_eq!((weight.scale_shape(), weight.scale_of_value()(5)), (vec![5], 2));
    let [warning] = <[String; 1]>::try_from(plan.warnings).unwrap();
    assert!(warning.starts_with("initializer `w`: 2 of 5 channels are zero, or nearly (the first is 0)"), "{warning}");

    let mut given = of_conv();
    given.weight("w", "s8", Some(1), &[1, 4], &[1.0, 1.0, 0.0, 0.0]).block = Some(2);
    given.weight("zero", "s8", None, &[2], &[0.0, 0.0]);
    let plan = given.plan();
    let [warning] = <[String; 1]>::try_from(plan.warnings).unwrap();
    assert!(warning.starts_with("initializer `w`: 1 of 2 blocks are zero, or nearly (the first is 1)"), "{warning}");
    assert_eq!((plan.weights[1].params[0].scale, &*plan.weights[1].dead), (1.0, &[0][..]));
}

/// One scale for many small values and one large one is less than the largest asks for.
#[test]
fn ranges_of_weights_are_those_of_their_observer() {
    let scale = |observer: &'static str, qtype: &str, values: &[f32]| {
        let mut given = of_conv();
        given.weight = observer;
        given.weight("w", qtype, None, &[values.len()], values);
        given.plan().weights[0].params[0].scale
    };
    assert_eq!(scale("max", "s4", &long_tailed(0.05)), 1.0 / 7.0);
    assert!(scale("mse", "s4", &long_tailed(0.05)) < 0.9 / 7.0);
    assert!(scale("max", "pot", &long_tailed(0.003)) < 2f32.powi(-6));
}

#[test]
fn scales_widen_until_no_pair_of_neighbours_overflows() {
    let mut given = of_conv();
    given.weight("w", "pairs", Some(0), &[2, 2, 1, 1], &[1.27, 1.27, 1.27, -1.27]);
    let weight = &given.plan().weights[0];
    let wider = (f64::from(0.01f32) * (254.0 / 128.0)) as f32;
    assert_eq!(scales(weight), [wider, 0.01]);
    assert_eq!(**weight.integers, [64, 64, 127, -127]);
    assert_eq!(weight.pairs.map(|pairs| pairs.limit), Some(128));
    // One scale for both rows.
    given.placement.weights[0].axis = None;
    let weight = &given.plan().weights[0];
    assert_eq!((scales(weight), &**weight.integers), (vec![wider], &[64, 64, 64, -64][..]));
    // Scales that do not go by rows, and blocks, stay as they are.
    given.placement.weights[0].axis = Some(1);
    assert_eq!(given.plan().weights[0].pairs, None);
    assert_eq!(scales(&given.plan().weights[0]), [0.01; 2]);
    let quantizer = &mut given.placement.weights[0];
    (quantizer.axis, quantizer.block) = (Some(0), Some(1));
    assert_eq!(given.plan().weights[0].pairs, None);
    // Rounding may leave a step too much.
    let mut given = of_conv();
    given.weight("w", "pairs", None, &[1, 2, 1, 1], &[1.27, 0.0151]);
    let weight = &given.plan().weights[0];
    assert_eq!(
        (scales(weight), &**weight.integers),
        (vec![(f64::from(0.01f32) * (129.0 / 128.0)) as f32], &[126, 1][..])
    );
}

#[test]
fn a_weight_is_coarse_below_8_bits_or_with_one_scale() {
    let cases = [
        ("s4", Some(0), None, true),
        ("s4", None, None, true),
        ("s8", None, None, true),
        ("s8", Some(0), None, false),
        ("s16", None, None, false),
        ("s16", Some(0), None, false),
        ("s8", Some(1), Some(2), false),
    ];
    for (qtype, axis, block, expected) in cases {
        let mut given = of_conv();
        // One block, and more than one channel where there are channels.
        let shape = if block.is_some() { [1, 2] } else { [2, 1] };
        given.weight("w", qtype, axis, &shape, &[1.0, -1.0]).block = block;
        assert_eq!(given.plan().weights[0].is_coarse(), expected, "{qtype} {axis:?} {block:?}");
    }
}

#[test]
fn learned_integers_are_told_by_their_differences() {
    let mut given = of_conv();
    given.weight("w", "s8", Some(0), &[2, 2], &[1.27, 0.1, 0.5, -2.54]);
    given.weight("nearest", "s8", None, &[1, 2], &[1.0, 1.0]);
    given.weight("read", "s8", None, &[1, 2], &[1.0, 1.0]);
    given.graph.op("Neg", &["nearest"], "n");
    given.graph.op("Conv", &["y", "read"], "z");
    given.graph.op("Neg", &["read"], "m");
    let model = given.graph.build();
    let graph = model.graph.as_ref().unwrap();
    let mut plan = given.plan();
    assert!(plan.learned_weights(graph).is_empty());
    let weight = &mut plan.weights[0];
    assert_eq!(weight.differences(graph).unwrap(), [0; 4]);
    weight.integers = vec![127, 11, 24, -127].into();
    weight.learned = true;
    assert_eq!(weight.differences(graph).unwrap(), [0, 1, -1, 0]);
    // Of another, which two nodes read, the second as it is.
    plan.weights[2].learned = true;
    let values = plan.weights[0].dequantized();
    assert_eq!(values[1..3], [11.0 * 0.01, 24.0 * 0.02]);
    assert_eq!(plan.learned_weights(graph), [ModelEdit::ReplaceValues { tensor: "w".into(), values }]);
    round(graph, &mut plan.weights[0]).unwrap();
    assert_eq!(**plan.weights[0].integers, [127, 10, 25, -127]);
}

#[test]
fn a_clip_goes_where_the_grid_ends_as_it_does() {
    let relu = FoldableClip { node: 0, input: "a".into(), min: Some(0.0), max: None };
    let mut given = Given::new();
    given.activation("r", "u8", &[0.0, 2.0]).clip = Some(relu.clone());
    given.activation("s", "s8", &[0.0, 2.0]).clip = Some(relu.clone());
    given.activation("t", "u8", &[0.0, 2.0]);
    let plan = given.plan();
    let removed: Vec<_> = plan.activations.iter().map(PlannedActivation::removed_clip).collect();
    assert_eq!(removed, [Some(&relu), None, None]);
}

#[test]
fn a_plan_that_replaces_another_keeps_its_edits_and_what_it_told() {
    let edit = |tensor: &str| ModelEdit::ReplaceValues { tensor: tensor.into(), values: Vec::new() };
    let plan = |edits: &[&str], warnings: &[&str]| QuantPlan {
        edits: edits.iter().map(|tensor| edit(tensor)).collect(),
        warnings: warnings.iter().map(|warning| warning.to_string()).collect(),
        ..QuantPlan::default()
    };
    let mut new = plan(&["c"], &["again", "new"]);
    new.replace(plan(&["a", "b"], &["old", "again"]));
    assert_eq!(new.edits, ["a", "b", "c"].map(edit));
    assert_eq!(new.warnings, ["old", "again", "new"]);
}

//! Tensors of unlike ranges that a Concat or an Add brings to one grid.

use crate::support::GraphBuilder;
use mqq::observers::by_spelling;
use mqq::onnx::proto::ModelProto;
use mqq::onnx::value_info::ValueInfos;
use mqq::place::{Placement, Selection, place};
use mqq::plan::{Observers, decide, narrow_tensors, warning_of_unlike};
use mqq::scheme::Scheme;
use mqq::statistics::TensorStatistics;
use std::collections::BTreeMap;

/// `narrow` and `wide` are joined; `past` names what reads the Concat, and both are read besides where `is_read`.
struct Case {
    join: &'static str,
    past: &'static str,
    is_read: bool,
    rules: &'static str,
    bits: u8,
}

const CONCAT: Case = Case {
    join: "Concat",
    past: "Conv",
    is_read: true,
    rules: "[quantize_inputs, share_scales: { unlike_apart: 1 }]",
    bits: 8,
};

impl Case {
    fn model(&self) -> ModelProto {
        let mut g = GraphBuilder::new(17);
        g.input("x", &[1, 16, 8, 8]);
        g.conv("x", 16, 16, 1, 1, "narrow");
        g.conv("x", 16, 16, 1, 1, "wide");
        g.op(self.join, &["narrow", "wide"], "joined");
        match self.past {
            "Conv" => g.conv("joined", 32, 16, 1, 1, "y"),
            op => g.op(op, &["joined"], "y"),
        };
        g.output("y");
        if self.is_read {
            for (tensor, output) in [("narrow", "z"), ("wide", "u")] {
                g.conv(tensor, 16, 16, 1, 1, output);
                g.output(output);
            }
        }
        g.build()
    }

    fn scheme(&self) -> Scheme {
        let Case { rules, bits, .. } = self;
        let table = format!(
            "name: test
source: test
min_opset: 13
types: {{ a: {{ bits: {bits}, signed: false, symmetry: asymmetric }}, w: {{ bits: 8, signed: true, symmetry: symmetric }} }}
observers: {{ activation: max, weight: max }}
ops:
  Conv: {{ input: a, weight: {{ type: w }} }}
  Concat: {{ input: a, constraint: same_as_output }}
  Add: {{ input: a, constraint: same_inputs }}
  Transpose: {{ input: a, output: a, constraint: same_as_input }}
placement: {rules}
"
        );
        serde_yaml::from_str(&table).unwrap()
    }

    fn placed(&self, selection: &Selection) -> Placement {
        let model = self.model();
        place(model.graph.as_ref().unwrap(), &ValueInfos::of_model(&model), &self.scheme(), selection)
    }

    /// Of values up to 1 in `narrow` and up to `width` elsewhere: which tensors keep grids of their own, the scales
    /// then, and the warning.
    fn outcome(&self, width: f32) -> (Vec<String>, BTreeMap<String, f32>, Option<String>) {
        let statistics = |placement: &Placement| -> Vec<TensorStatistics> {
            let of = |tensor: &str| {
                let mut statistic = TensorStatistics::default();
                statistic.observe(&[0.0, if matches!(tensor, "narrow" | "x") { 1.0 } else { width }]);
                statistic
            };
            placement.activations.iter().map(|quantizer| of(&quantizer.tensor)).collect()
        };
        let (model, scheme) = (self.model(), self.scheme());
        let graph = model.graph.as_ref().unwrap();
        let before = self.placed(&Selection::default());
        let unlike = narrow_tensors(&before, &statistics(&before), &scheme);
        let placement = self.placed(&Selection { narrow_tensors: unlike.clone(), ..Selection::default() });
        let observer = by_spelling("max").unwrap();
        let observers = Observers { activation: &observer, weight: &observer };
        let (plan, _) = decide(graph, &placement, &statistics(&placement), None, &scheme, observers).unwrap();
        let scales = plan.activations.iter().map(|it| (it.quantizer.tensor.clone(), it.params.scale)).collect();
        (unlike.into_iter().collect(), scales, warning_of_unlike(graph, &placement, &plan))
    }
}

#[test]
fn a_tensor_that_is_read_elsewhere_keeps_its_own_grid() {
    let (unlike, scales, _) = CONCAT.outcome(100.0);
    assert_eq!(unlike, ["narrow"]);
    assert_eq!(scales["narrow"], 1.0 / 255.0);
    assert_eq!(scales["wide"], scales["joined"]);
    let reason = |unlike: &[&str]| {
        let unlike = unlike.iter().map(|name| name.to_string()).collect();
        let placement = CONCAT.placed(&Selection { narrow_tensors: unlike, ..Selection::default() });
        placement.activations.into_iter().find(|it| it.tensor == "narrow").unwrap().reason
    };
    assert!(reason(&["narrow"]).contains("its own scale") && !reason(&[]).contains("its own scale"));
}

#[test]
fn ranges_are_unlike_from_an_eighth_of_the_levels() {
    let shared = |case: &Case, width: f32| case.outcome(width).0.is_empty();
    assert!(shared(&CONCAT, 31.0) && !shared(&CONCAT, 33.0));
    assert!(shared(&Case { bits: 16, ..CONCAT }, 8000.0) && !shared(&Case { bits: 16, ..CONCAT }, 8300.0));
}

#[test]
fn a_concat_with_one_grid_loses_in_any_case() {
    let alone = Case { is_read: false, ..CONCAT };
    assert_eq!(alone.outcome(100.0).0, [""; 0]);
    // Behind a float output nothing is lost with grids of their own.
    let float = Case { past: "Exp", ..alone };
    let (unlike, scales, warning) = float.outcome(100.0);
    assert_eq!((unlike, scales["narrow"], warning), (vec!["narrow".to_string()], 1.0 / 255.0, None));
}

#[test]
fn a_table_that_demands_one_grid_gets_it() {
    let case = Case { rules: "[quantize_inputs, share_scales]", ..CONCAT };
    let (unlike, scales, warning) = case.outcome(100.0);
    assert!(unlike.is_empty() && scales["narrow"] == scales["wide"]);
    let expected = "tensors `narrow` (0 to 1) and `wide` (0 to 100) share the scale 0.392 at `Concat_joined`, which leaves `narrow` only 2.5 \
                    levels: use 16-bit activations, or keep `Concat_joined` float with --exclude";
    assert_eq!(warning.unwrap(), expected);
    assert_eq!(case.outcome(31.0).2, None);
    // The same inputs of an Add.
    let add = Case { join: "Add", past: "Exp", ..case };
    assert!(
        add.outcome(400.0)
            .2
            .unwrap()
            .contains("share the scale 1.57 at `Add_joined`, which leaves `narrow` only 0.6 levels")
    );
}

#[test]
fn a_small_tensor_that_is_only_added_loses_nothing_beside_a_large_one() {
    let rules = "[quantize_inputs, share_scales]";
    let add = Case { join: "Add", past: "Exp", is_read: false, rules, ..CONCAT };
    assert_eq!(add.outcome(400.0).2, None);
}

#[test]
fn exclude_is_advised_only_where_it_parts_the_tensors() {
    let advises = |rules: &'static str| {
        let warning = Case { rules, ..CONCAT }.outcome(100.0).2.unwrap();
        assert!(warning.contains("use 16-bit activations"), "{warning}");
        warning.contains("--exclude")
    };
    assert!(advises("[quantize_inputs, share_scales]"));
    // Every use of the two tensors is quantized, that by an excluded Concat too.
    assert!(!advises("[quantize_inputs: { all_uses: 1 }, share_scales]"));
}

#[test]
fn a_concat_that_is_left_float_shares_nothing() {
    let case = Case { past: "Exp", rules: "[quantize_inputs: { all_uses: 1 }, share_scales]", ..CONCAT };
    let exclude = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let placement = case.placed(&Selection::new(&names, &[]).unwrap());
        let group = |name: &str| placement.activations.iter().find(|it| it.tensor == name).map(|it| it.group);
        assert!(group("narrow").is_some() && group("wide").is_some());
        group("narrow") == group("wide")
    };
    assert!(exclude(&[]));
    assert!(!exclude(&["Concat_joined"]));
}

#[test]
fn a_concat_does_not_take_the_grid_of_another_concat_of_its_input() {
    let scheme = CONCAT.scheme();
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 16, 8, 8]);
    ["shared", "narrow", "wide"].iter().for_each(|name| _ = g.conv("x", 16, 16, 1, 1, name));
    g.op("Transpose", &["shared"], "moved");
    for (inputs, joined, output) in
        [(["moved", "narrow"], "narrow_joined", "y"), (["shared", "wide"], "wide_joined", "z")]
    {
        g.op("Concat", &inputs, joined);
        g.conv(joined, 32, 16, 1, 1, output);
        g.output(output);
    }
    let model = g.build();
    let value_info = ValueInfos::of_model(&model);
    let placed = |selection: &Selection| place(model.graph.as_ref().unwrap(), &value_info, &scheme, selection);
    let together = placed(&Selection::default());
    let unlike = |width: f32| {
        let statistics = together.activations.iter().map(|quantizer| {
            let mut statistic = TensorStatistics::default();
            statistic.observe(&[0.0, if quantizer.tensor.starts_with("wide") { width } else { 1.0 }]);
            statistic
        });
        narrow_tensors(&together, &statistics.collect::<Vec<_>>(), &scheme)
    };
    assert!(unlike(3.9).is_empty());
    let shared = unlike(4.1);
    assert_eq!(shared.iter().collect::<Vec<_>>(), ["moved", "shared"]);
    let group = |placement: &Placement, name: &str| {
        placement.activations.iter().find(|it| it.tensor == name).map(|it| it.group).unwrap()
    };
    let apart = placed(&Selection { narrow_tensors: shared, ..Selection::default() });
    assert_eq!(group(&together, "narrow"), group(&together, "wide"));
    assert_ne!(group(&apart, "narrow"), group(&apart, "wide"));
    assert_eq!(group(&apart, "narrow"), group(&apart, "narrow_joined"));
}

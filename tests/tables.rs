//! Backend tables: every built-in one, tables that extend others, values set on the command line, and what
//! the keys of types and rows do to scales.

use crate::support::command::{mqq, run};
use crate::support::{GraphBuilder, repository};
use mqq::backends;
use mqq::backends::BUILT_IN;
use mqq::diag::explain;
use mqq::mixed::{Goal, Wanted};
use mqq::observers::by_spelling;
use mqq::onnx::inputs::Shapes;
use mqq::onnx::proto::ModelProto;
use mqq::onnx::value_info::ValueInfos;
use mqq::place::{Placement, Selection, place};
use mqq::plan::{Observers, QuantPlan, decide};
use mqq::prepare::prepare_file;
use mqq::quant::Symmetry;
use mqq::scheme::{self, BiasRow, Scheme, line_of};
use mqq::statistics::TensorStatistics;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

#[test]
fn every_built_in_table_is_sound_and_places_on_the_fixture() {
    let mut descriptions = std::collections::BTreeSet::new();
    for (name, _) in backends::BUILT_IN {
        let scheme = backends::resolve(name).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert_eq!(scheme.name, *name);
        assert!(!scheme.description.is_empty(), "{name}");
        assert!(descriptions.insert(scheme.description.clone()), "{name}: description of another");
        for (op, row) in &scheme.ops {
            let source = row.source.as_ref().unwrap_or(&scheme.source);
            assert!(source.contains('/') || source.contains(' '), "{name}: {op}: `{source}`");
        }
        let fixture = repository("fixtures/digits_cnn.onnx");
        let prepared = prepare_file(&fixture, &scheme, &[], &Shapes::default()).unwrap();
        let graph = prepared.model.graph.as_ref().unwrap();
        let placement = place(graph, &prepared.value_info, &scheme, &Selection::default());
        let has_ranges = scheme.ops.values().any(|row| row.input.is_some() || row.output.is_some());
        assert_eq!(placement.activations.is_empty(), !has_ranges, "{name}");
        assert!(!placement.weights.is_empty(), "{name}: no weight is quantized");
        for quantizer in &placement.activations {
            assert!(scheme.types.contains_key(&quantizer.qtype), "{name}: `{}`", quantizer.tensor);
        }
    }
}

/// Files of a folder of their own, and the path of the first.
fn files(files: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let first = folder.path().join(files[0].0);
    (folder, first)
}

fn resolve(path: &Path) -> Result<Scheme, String> {
    backends::resolve(path.to_str().unwrap()).map_err(|error| explain(&error))
}

#[test]
fn a_table_extends_another_key_by_key() {
    let (_folder, path) = files(&[
        (
            "sub/mine.yaml",
            "name: mine\nextends: ../base.yaml\ntypes:\n  act8: { signed: false, symmetry: asymmetric }\n\
             ops:\n  Concat: null\n  Relu: { input: act8 }\n  Conv: { bias: int32 }\nemit: null\n\
             placement: [quantize_weighted_inputs]\ncheck: []\n",
        ),
        ("base.yaml", "name: base\nextends: tensorrt\nmin_opset: 17\n"),
    ]);
    let base = backends::resolve("tensorrt").unwrap();
    let mine = resolve(&path).unwrap();
    assert_eq!((mine.name.as_str(), mine.min_opset), ("mine", 17));
    assert_eq!((mine.types["act8"].bits, mine.types["act8"].signed), (8, false));
    assert_eq!(mine.types["wgt8"], base.types["wgt8"]);
    assert!(!mine.ops.contains_key("Concat") && base.ops.contains_key("Concat"));
    assert!(mine.ops.contains_key("Relu"));
    assert_eq!(mine.ops["Conv"].bias, BiasRow::Int32);
    assert_eq!(mine.ops["Conv"].weight, base.ops["Conv"].weight);
    assert_eq!(mine.placement.len(), 1);
    assert!(mine.emit.is_empty() && !base.emit.is_empty());
    assert_eq!(mine.source, base.source);
}

#[test]
fn mistakes_in_a_chain_are_found_in_their_file_and_line() {
    let mine = "name: mine\nextends: base.yaml\n";
    let base = "name: base\nextends: tensorrt\n";
    let cases: &[(&str, &str, &[&str])] = &[
        // The file at fault, its text below the first two lines, what the message says.
        ("mine.yaml", "types:\n  act8:\n    bitz: 4\n", &["mine.yaml`: line 5", "bitz", "`bits`"]),
        ("base.yaml", "types:\n  act8: {\n    bits: 40 }\n", &["base.yaml`: line 5", "2 to 16"]),
        ("mine.yaml", "ops:\n  Concta: null\n", &["mine.yaml`: line 4", "did you mean `Concat`"]),
        ("mine.yaml", "ops:\n\n  Conv: { input: act9 }\n", &["mine.yaml`: line 5", "`act8`"]),
        ("mine.yaml", "ops:\n  Gemm: { weight: { axis: columns } }\n", &["line 4", "MatMul only"]),
        ("mine.yaml", "ops:\n  Conv: { bias: int31 }\n", &["mine.yaml`: line 4", "{ type: NAME }"]),
        ("mine.yaml", "ops:\n  Add: { constraint: { fixed: 1 } }\n", &["line 4", "fixed_output"]),
        ("mine.yaml", "placement:\n  - share_scales\n  - shar_scales\n", &["line 5", "did you mean"]),
        ("mine.yaml", "check:\n  - 3\n", &["line 4: check.0: found `3`, expected the name of a rule"]),
        ("mine.yaml", "check:\n  - dtypes: 3\n", &["line 4: check.0.dtypes: found `3`, expected keys with values"]),
        (
            "mine.yaml",
            "check:\n  - quantized_inputs: { ops: [{ a: 1 }] }\n",
            &["line 4: check.0.quantized_inputs.ops: found a list, expected a whole number, a name or a list of names"],
        ),
        ("base.yaml", "observers:\n  weight: percentile:0\n", &["base.yaml`: line 4", "from 50 to 100"]),
        ("mine.yaml", "types:\n  wgt8:\n    granularity: per_block\n", &["block_size", "per_block"]),
        ("mine.yaml", "types:\n  act8: { pot_search: 4 }\n", &["line 4", "power_of_two"]),
        ("mine.yaml", "types:\n  act8: { max_fraction_bits: 4 }\n", &["line 4", "power_of_two"]),
        ("mine.yaml", "types:\n  act8:\n    bits: 4\n", &["line 5", "min_opset"]),
        ("mine.yaml", "mixed: { flaot: {} }\n", &["line 3", "mixed.flaot", "did you mean `float`"]),
        ("mine.yaml", "mixed:\n  float: { weight: wgt8 }\n", &["line 4", "expected none"]),
        ("mine.yaml", "mixed:\n  a:\n    weigth: wgt8\n", &["line 5", "did you mean `weight`"]),
        ("base.yaml", "mixed:\n  a: { weight: wgt9 }\n", &["base.yaml`: line 4", "`wgt8`"]),
        ("mine.yaml", "mixed:\n  a: { activation: wgt8 }\n", &["line 4", "several scales"]),
        (
            "mine.yaml",
            "mixed: { a: { weight: w } }\nops: { Gemm: { bias: int32 } }\ntypes:\n  w: { bits: 4, \
             signed: true, symmetry: symmetric, granularity: per_block, block_size: 32 }\n",
            &["line 3", "int32 bias of Gemm"],
        ),
        ("mine.yaml", "min_opset: 99\n", &["line 3", "99, expected 13 to "]),
        ("base.yaml", "min_opset: 12\n", &["base.yaml`: line 3", "12, expected 13 to "]),
        ("mine.yaml", "types:\n  wgt8: { max_pair_sum: 0 }\n", &["line 4", "1 or more"]),
        ("mine.yaml", "types:\n  act8: { min_real_range: 1.0e+39 }\n", &["line 4", "0 or more"]),
        ("mine.yaml", "placement: [{ skip_small_matmuls: { min_dim: -5 } }]\n", &["line 3", "0 or more"]),
        ("mine.yaml", "placement: [{ share_scales: { clips_apart: 7 } }]\n", &["line 3", "0 or 1"]),
        ("mine.yaml", "wider: tensort\n", &["line 3", "did you mean `tensorrt`"]),
        ("mine.yaml", "types: [\n", &["mine.yaml`: line"]),
        ("base.yaml", "switches: { x: { description: d, types: { act8: 1 } } }\n", &["base.yaml`: line 3"]),
    ];
    for (at_fault, extra, expected) in cases {
        let with = |name: &str, text: &str| match name == *at_fault {
            true => format!("{text}{extra}"),
            false => text.to_string(),
        };
        let (_folder, path) =
            files(&[("mine.yaml", &with("mine.yaml", mine)), ("base.yaml", &with("base.yaml", base))]);
        let error = resolve(&path).unwrap_err();
        for part in *expected {
            assert!(error.contains(part), "{extra}: `{part}` is not in: {error}");
        }
    }
}

#[test]
fn chains_that_lead_nowhere_are_errors() {
    let (_folder, path) = files(&[
        ("a.yaml", "name: a\nextends: b.yaml\n"),
        ("b.yaml", "name: b\nextends: ./c.yaml\n"),
        ("c.yaml", "name: c\n\nextends: a.yaml\n"),
    ]);
    let error = resolve(&path).unwrap_err();
    assert!(error.contains("c.yaml`: line 3"), "{error}");
    let places: Vec<usize> = ["a.yaml -> ", "b.yaml -> ", "c.yaml -> "]
        .iter()
        .map(|name| error.find(name).unwrap_or_else(|| panic!("{name}: {error}")))
        .collect();
    assert!(places.is_sorted(), "{error}");
    let cases = [
        ("name: a\nextends: a.yaml\n", "a.yaml -> "),
        ("name: a\nextends: tensort\n", "did you mean `tensorrt`"),
        ("name: a\nextends: missing.yaml\n", "does not exist"),
        ("name: a\nextends: [tensorrt]\n", "expected the name of a backend"),
        ("extends: tensorrt\n", "`name` is missing"),
        ("- name\n", "is not a table"),
        ("name: a\n", "missing key"),
    ];
    for (text, expected) in cases {
        let (_folder, path) = files(&[("a.yaml", text)]);
        let error = resolve(&path).unwrap_err();
        assert!(error.contains(expected) && error.contains("a.yaml"), "{text}: {error}");
    }
}

#[test]
fn an_alias_is_one_table_and_is_not_inherited() {
    let mut names: Vec<String> = BUILT_IN.iter().map(|(name, _)| name.to_string()).collect();
    for (name, _) in BUILT_IN {
        for alias in backends::resolve(name).unwrap().aliases {
            assert_eq!(backends::resolve(&alias).unwrap().name, *name);
            assert!(!names.contains(&alias), "{alias}");
            names.push(alias);
        }
    }
    let (_folder, path) = files(&[("mine.yaml", "name: mine\nextends: trt\n")]);
    let mine = resolve(&path).unwrap();
    assert_eq!((mine.aliases.len(), mine.types), (0, backends::resolve("tensorrt").unwrap().types));
    let (_folder, path) = files(&[("mine.yaml", "name: mine\nextends: qnn-htp\n")]);
    assert!(resolve(&path).unwrap().wider.is_none() && backends::resolve("qnn").unwrap().wider.is_some());
}

#[test]
fn values_are_set_after_switches() {
    let own = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    let with = |backend: &str, switches: &[&str], sets: &[&str]| {
        backends::resolve_with(backend, &own(switches), &own(sets)).map_err(|error| explain(&error))
    };
    let scheme = with("academic", &[], &["types.act.bits=4", "types.wgt.bits=3"]).unwrap();
    assert_eq!((scheme.types["act"].bits, scheme.types["wgt"].bits), (4, 3));
    assert_eq!(scheme.types["act"].dtype(), "uint8");
    let sets = [
        "types.wgt8.storage_bits=8", "types.wgt8.bits=5", "ops.Conv.bias=float", "ops.Add=null",
        "ops.Relu={input: act8}",
    ];
    let scheme = with("onnxruntime", &["full-range-weights"], &sets).unwrap();
    assert_eq!(scheme.types["wgt8"].bits, 5);
    assert_eq!(scheme.ops["Conv"].bias, BiasRow::Float);
    assert!(!scheme.ops.contains_key("Add") && scheme.ops.contains_key("Relu"));
    let openvino = with("openvino", &["asymmetric-activations"], &[]).unwrap();
    assert_eq!((&*openvino.types["act8"].dtype(), openvino.types["act8"].symmetry), ("uint8", Symmetry::Asymmetric));
    let cases = [
        ("types.act8.bits", "expected KEY=VALUE"),
        ("types.act9.bits=4", "did you mean `act8`"),
        ("types.act8.bitz=4", "did you mean `bits`"),
        ("types.act8.bits=99", "2 to 16"),
        ("types.act8.bits=4", "--set types.act8.storage_bits=8"),
        ("types.act8.bits=16", "--set min_opset=21"),
        ("types.act8.bits=four", "types.act8.bits"),
        ("ops.Nothing=null", "`Nothing`, but the table has no such key"),
        ("name.deeper=1", "no keys"),
        ("types.act8={", "is not valid YAML"),
        ("min_opset=18446744073709551616", "found `18446744073709551616`, expected a smaller number"),
        ("=3", "unknown key"),
        ("ops.Conv.weight.axis=99", "ops.Conv.weight.axis: 99, expected -5 to 4"),
        ("ops.Gemm.weight.axis=-3", "ops.Gemm.weight.axis: -3, expected -2 to 1"),
        ("ops.Conv.weight.axis=1", "ops.Conv.weight.axis: 1, expected 0 by rule `per_channel_axis`"),
        ("name=a/b", "name: found `a/b`, expected a name without slashes"),
    ];
    for (set, expected) in cases {
        let error = with("tensorrt", &[], &[set]).unwrap_err();
        assert!(error.contains(expected) && error.contains(&format!("--set {set}")), "{error}");
    }
}

#[test]
fn types_that_a_tables_own_rules_refuse_are_told_when_it_is_read() {
    let with = |backend: &str, sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        backends::resolve_with(backend, &[], &sets).map_err(|error| explain(&error))
    };
    let error = with("onnxruntime", &["types.act8.bits=4", "min_opset=21"]).unwrap_err();
    assert!(
        error
            .contains("types.act8: uint4 for input of Add, expected uint8 or int8 or uint16 or int16 by rule `dtypes`"),
        "{error}"
    );
    let error = with("qnn-htp", &["types.wgt8.bits=16", "min_opset=21"]).unwrap_err();
    assert!(
        error.contains("types.wgt8: uint16 for weight of Gemm, expected uint8 or int8 by rule `dtypes`"),
        "{error}"
    );
    let error = with("tensorrt", &["types.act8.symmetry=asymmetric"]).unwrap_err();
    assert!(
        error
            .contains("types.act8: asymmetric for input of Add, expected symmetric by rule `symmetric` of the table's"),
        "{error}"
    );
    with("tflite", &["types.act8.symmetry=asymmetric"]).unwrap();
    // Weights of 4 bits are allowed there.
    with("onnxruntime", &["types.wgt8.bits=4", "min_opset=21"]).unwrap();
}

#[test]
fn values_of_the_command_line_also_change_the_table_of_wider_types() {
    let wider = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        let scheme = backends::resolve_with("qnn-htp", &[], &sets).unwrap();
        backends::resolve_wider(&scheme, &[], &sets).map_err(|error| explain(&error))
    };
    let of_table = wider(&["min_opset=22"]).unwrap().unwrap();
    assert_eq!((of_table.name.as_str(), of_table.min_opset), ("qnn-htp-a16", 22));
    // It has no region that could be removed.
    assert!(wider(&["region=null"]).unwrap().unwrap().region.is_none());
    assert!(wider(&["wider=null"]).unwrap().is_none());
    // Nor the type of the region.
    let error = wider(&["types.act16.min_real_range=0.1"]).unwrap_err();
    for part in ["`qnn-htp-a16`", "`qnn-htp`", "--set types.act16.min_real_range=0.1", "--set wider=null"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn types_for_single_layers_need_their_operator_set_only_where_they_are_chosen() {
    let (_folder, path) = files(&[(
        "mine.yaml",
        "name: mine\nextends: tensorrt\ntypes:\n  wide: { bits: 16, signed: true, symmetry: symmetric }\n\
         mixed:\n  int16: { activation: wide }\n",
    )]);
    let mut scheme = resolve(&path).unwrap();
    assert_eq!(scheme.min_opset, 13);
    assert!(scheme.mixed.contains_key("float") && scheme.mixed.contains_key("int16"));
    let wanted = Wanted::new(Goal::target(mqq::metrics::SQNR, 30.0), None, &mut scheme).unwrap();
    assert_eq!((wanted.precisions, scheme.min_opset), (vec!["float".to_string()], 13));
    let wanted = Wanted::new(Goal::target(mqq::metrics::SQNR, 30.0), Some("int16"), &mut scheme).unwrap();
    assert_eq!((wanted.precisions, scheme.min_opset), (vec!["int16".to_string()], 21));
    let (_folder, path) = files(&[(
        "mine.yaml",
        "name: mine\nextends: tensorrt\ntypes:\n  wide: { bits: 16, signed: true, symmetry: symmetric }\n\
         mixed:\n  int16: { activation: wide }\nops:\n  Add: { input: wide }\n",
    )]);
    let error = resolve(&path).unwrap_err();
    assert!(error.contains("line 4") && error.contains("min_opset"), "{error}");
}

/// The plan of `model` for a table; activations were observed to hold what `values` gives.
fn plan(model: &ModelProto, scheme: &Scheme, values: fn(&str) -> Vec<f32>) -> (Placement, QuantPlan) {
    let graph = model.graph.as_ref().unwrap();
    let placement = place(graph, &ValueInfos::of_model(model), scheme, &Selection::default());
    let statistic = |tensor: &str| {
        let mut statistic = TensorStatistics::default();
        statistic.observe(&values(tensor));
        statistic
    };
    let statistics: Vec<_> = placement.activations.iter().map(|quantizer| statistic(&quantizer.tensor)).collect();
    let activation = by_spelling(&scheme.observers.activation).unwrap();
    let weight = by_spelling(&scheme.observers.weight).unwrap();
    let observers = Observers { activation: &activation, weight: &weight };
    let (plan, _) = decide(graph, &placement, &statistics, None, scheme, observers).unwrap();
    (placement, plan)
}

/// Conv, Relu, Conv, Sigmoid, Conv.
fn model() -> ModelProto {
    let mut g = GraphBuilder::new(21);
    g.input("x", &[1, 16, 8, 8]);
    g.conv("x", 16, 16, 3, 1, "a");
    g.op("Relu", &["a"], "r");
    g.conv("r", 16, 16, 3, 1, "b");
    g.op("Sigmoid", &["b"], "s");
    g.conv("s", 16, 16, 3, 1, "y");
    g.output("y");
    g.build()
}

/// A ramp from the lowest to the highest value that a tensor of [`model`] is said to hold.
fn values(tensor: &str) -> Vec<f32> {
    let (min, max) = match tensor {
        "r" => (0.0, 5.1),
        "s" => (0.0, 1.0),
        _ => (-2.0, 2.55),
    };
    (0..=1000).map(|i| min + (max - min) * i as f32 / 1000.0).collect()
}

fn activation<'p>(plan: &'p QuantPlan, tensor: &str) -> &'p mqq::plan::PlannedActivation {
    plan.activations.iter().find(|planned| planned.quantizer.tensor == tensor).unwrap()
}

#[test]
fn the_sign_of_a_type_adapts_to_what_was_observed() {
    let mut scheme = backends::resolve("mqbench-openvino").unwrap();
    scheme.observers.activation = "max".into();
    let (_, plan) = plan(&model(), &scheme, values);
    let (x, r) = (activation(&plan, "x"), activation(&plan, "r"));
    assert_eq!((x.qtype.dtype().as_str(), x.params.q_min, x.params.zero_point), ("int8", -128, 0));
    let max = |planned: &mqq::plan::PlannedActivation| f64::from(planned.observed.unwrap().1);
    assert_eq!(x.params.scale, (max(x) / 127.5) as f32);
    assert_eq!((r.qtype.dtype().as_str(), r.params.q_min, r.params.zero_point), ("uint8", 0, 0));
    assert_eq!(r.params.scale, (max(r) / 255.0) as f32);
    let weight = &plan.weights[0];
    assert_eq!((weight.params[0].q_min, weight.params[0].q_max), (-64, 63));
    assert!(weight.integers.iter().any(|q| q < -60) && weight.integers.iter().all(|q| q >= -64));
    assert_eq!(weight.qtype.dtype(), "int8");
}

#[test]
fn prescribed_outputs_and_biases_of_their_own_type() {
    let (_, plan_of_stpu) = plan(&model(), &backends::resolve("stpu").unwrap(), values);
    let s = activation(&plan_of_stpu, "s");
    assert_eq!((s.params.scale, s.params.zero_point, s.observer), ((1.0 / 127.0) as f32, 0, "fixed"));
    assert_ne!(activation(&plan_of_stpu, "b").observer, "fixed");

    let (_, plan) = plan(&model(), &backends::resolve("vitis").unwrap(), values);
    assert_eq!(plan.biases.len(), 3);
    let scales = plan.biases.iter().flat_map(|bias| &bias.scales);
    let scales = scales.chain(plan.activations.iter().map(|planned| &planned.params.scale));
    let weights = plan.weights.iter().flat_map(|weight| &weight.params);
    for &scale in scales.chain(weights.map(|params| &params.scale)) {
        assert_eq!(scale.to_bits() & 0x007f_ffff, 0, "{scale} is no power of two");
    }
    let bias = &plan.biases[0];
    assert_eq!(bias.qtype.as_ref().unwrap().dtype(), "int8");
    assert!(bias.integers.iter().all(|q| (-128..=127).contains(q)));
    assert!(bias.integers.iter().any(|q| q.abs() >= 32), "the grid is far too coarse");
}

#[test]
fn no_scale_is_finer_than_the_fraction_bits_of_its_type() {
    let mut scheme = backends::resolve("vitis").unwrap();
    assert!(scheme.types.values().all(|qtype| qtype.max_fraction_bits == Some(12)));
    let scales = |scheme: &Scheme| -> Vec<f32> {
        let (_, plan) = plan(&model(), scheme, values);
        let activations = plan.activations.iter().map(|planned| planned.params.scale);
        let weights = plan.weights.iter().flat_map(|weight| &weight.params);
        let biases = plan.biases.iter().flat_map(|bias| bias.scales.clone());
        activations.chain(weights.map(|params| params.scale)).chain(biases).collect()
    };
    let free = scales(&scheme);
    scheme.types.values_mut().for_each(|qtype| qtype.max_fraction_bits = Some(6));
    let finest = 2f32.powi(-6);
    assert!(free.iter().any(|scale| *scale < finest), "{free:?}");
    for (limited, free) in scales(&scheme).into_iter().zip(free) {
        assert_eq!(limited, free.max(finest));
    }
}

#[test]
fn every_type_of_scale_covers_what_was_observed() {
    // A ramp of -2 to 2.55: with powers of two rounded up, nothing is clipped.
    for backend in ["tidl-wc8symp2-at8symp2", "tidl-wc8p2-at8p2"] {
        let mut scheme = backends::resolve(backend).unwrap();
        scheme.observers.activation = "max".into();
        let (_, plan) = plan(&model(), &scheme, values);
        let x = activation(&plan, "x").params;
        // 2.55 / 127.5 = 0.02 and 4.55 / 255 = 0.0178 both become 1/32.
        assert_eq!(x.scale, 2f32.powi(-5), "{backend}");
        let expected = if backend.contains("symp2") { 0 } else { 64 };
        assert_eq!(x.zero_point, expected, "{backend}");
        for value in [-2.0f32, 2.55] {
            assert!((x.fake_quantize(value) - value).abs() <= 0.5 * x.scale, "{backend}: {value}");
        }
        let r = activation(&plan, "r");
        assert_eq!((r.params.scale, r.qtype.dtype().as_str()), (2f32.powi(-5), "uint8"));
    }
}

/// A table without input rows: four-bit weights in blocks, and activations as they are.
#[test]
fn weights_alone_are_quantized_where_the_table_has_only_them() {
    const TABLE: &str = "\
name: weights
description: int4 weights in blocks
source: test
min_opset: 21
types:
  w4: { bits: 4, signed: true, symmetry: symmetric, granularity: per_block, block_size: 16 }
observers: { activation: max, weight: max }
weight_storage: integer
ops:
  MatMul: { weight: { type: w4 } }
placement: [skip_non_constant_weights, quantize_weights_alone]
";
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("weights.yaml");
    std::fs::write(&path, TABLE).unwrap();
    let scheme = backends::resolve(path.to_str().unwrap()).unwrap();
    let mut g = GraphBuilder::new(21);
    g.input("x", &[8, 40]);
    g.weight("w", &[40, 24]);
    g.ops("a = MatMul x w; y = Relu a");
    g.output("y");
    let (placement, plan) = plan(&g.build(), &scheme, values);
    assert!(placement.activations.is_empty() && placement.quantized_nodes == [0]);
    assert_eq!(plan.weights.len(), 1);
    assert_eq!(plan.weights[0].scale_shape(), [3, 24]);
}

#[test]
fn scales_per_block_follow_the_reduction_axis() {
    let mut scheme = backends::resolve("tensorrt").unwrap();
    scheme.min_opset = 21;
    let wgt = scheme.types.get_mut("wgt8").unwrap();
    *wgt = serde_yaml_type("{ bits: 4, signed: true, symmetry: symmetric, granularity: per_block, block_size: 16 }");
    scheme.placement.retain(|call| !call.rule.starts_with("skip_small"));
    let mut g = GraphBuilder::new(21);
    g.input("x", &[8, 40]);
    g.weight("w1", &[40, 24]);
    g.op("MatMul", &["x", "w1"], "a");
    g.weight("w2", &[32, 24]);
    g.op_with("Gemm", &["a", "w2"], "y", &[("transB", crate::support::Attr::Int(1))]);
    g.output("y");
    let (placement, plan) = plan(&g.build(), &scheme, values);
    let axes: Vec<_> = placement.weights.iter().map(|quantizer| (quantizer.axis, quantizer.block)).collect();
    assert_eq!(axes, [(Some(0), Some(16)), (Some(1), Some(16))]);
    let shapes: Vec<_> = plan.weights.iter().map(|weight| weight.scale_shape()).collect();
    assert_eq!(shapes, [[3, 24], [32, 2]]);
    for weight in &plan.weights {
        assert_eq!(weight.params.len(), weight.scale_shape().iter().product::<usize>());
        assert!(weight.integers.iter().all(|q| (-8..=7).contains(&q)));
        let full = weight.integers.iter().filter(|q| q.abs() >= 7).count();
        assert!(full >= weight.params.len(), "every block reaches an end of its grid");
    }
}

fn serde_yaml_type(yaml: &str) -> scheme::QType {
    let (_folder, path) =
        files(&[("one.yaml", &format!("name: one\nextends: tensorrt\nmin_opset: 21\ntypes:\n  one: {yaml}\n"))]);
    resolve(&path).unwrap().types["one"].clone()
}

#[test]
fn the_command_line_sets_values() {
    let shown = run(mqq().args(["backends", "academic", "--json", "--set", "types.act.bits=4"])).done();
    assert_eq!(shown.json()["types"]["act"]["bits"], 4);
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("q.onnx");
    let calibrate = |set: &str| {
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "academic", "--set", set]);
        command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess=half", "--limit=2", "--quiet"]);
        run(command.arg("-o").arg(&out))
    };
    let ran = calibrate("types.act.bits=1");
    assert!(ran.code == 2 && ran.stderr.contains("--set types.act.bits=1"), "{}", ran.stderr);
    assert!(!out.exists());
    calibrate("types.act.bits=3").done();
    let sidecar = fs::read_to_string(out.with_extension("json")).unwrap();
    let sidecar: serde_json::Value = serde_json::from_str(&sidecar).unwrap();
    assert_eq!(sidecar["scheme"]["resolved"]["types"]["act"]["bits"], 3);
    let encodings = sidecar["activation_encodings"].as_array().unwrap();
    let bits: Vec<u64> = encodings.iter().map(|e| e["bits"].as_u64().unwrap()).collect();
    // The first and the last layer keep their 8.
    let (Some((8, inner)), Some(8)) = (bits.split_first(), bits.last()) else { panic!("{bits:?}") };
    assert!(inner.len() > 3 && inner[..inner.len() - 1].iter().all(|&bits| bits == 3), "{bits:?}");
}

#[test]
fn integers_of_16_bits_can_be_compared() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("q.onnx");
    let fixture = repository("fixtures/digits_cnn.onnx");
    let images = repository("calib_data/calib");
    let done = |command: &str, models: &[&Path], rest: &[&str]| {
        let mut line = mqq();
        line.arg(command).args(models).arg("--data").arg(&images);
        run(line.args(["--preprocess=half", "--limit=2", "--quiet"]).args(rest)).done();
    };
    done("calibrate", &[&fixture], &["-b", "pplw8a16", "-o", out.to_str().unwrap()]);
    // 28.7 dB with the ranges of two images.
    done("compare", &[&fixture, &out], &["--min-sqnr=26.7"]);
}

const TEXT: &str = "name: a\n# comment\ntypes:\n  act8: { bits: 8,\n    signed: true }\n  wgt:\n    \
                    bits: 4\nplacement:\n  - one\n  - two: { x: 1 }\n  - three\n";

#[test]
fn lines_of_keys_and_elements_are_found_in_every_style() {
    let cases = [
        ("name", Some(1)),
        ("types", Some(3)),
        ("types.act8", Some(4)),
        ("types.act8.signed", Some(5)),
        ("types.wgt.bits", Some(7)),
        ("placement.0", Some(9)),
        ("placement.1", Some(10)),
        ("placement.1.two.x", Some(10)),
        ("placement.2", Some(11)),
        ("placement.3", None),
        ("types.act9", None),
        ("name.deeper", None),
    ];
    for (at, line) in cases {
        let steps: Vec<&str> = at.split('.').collect();
        assert_eq!(line_of(TEXT, &steps), line, "{at}");
    }
}

//! Tuned weights and biases on the bundled models: the simulation against the written model, the gain of each level of
//! effort, and weights for kernels with 16-bit sums. The parts of tuning by themselves.

mod accept;
mod layers;
mod local_bias;
mod ranges;
mod rounding;
mod smooth;

use crate::support::command::{mqq, run};
use crate::support::{Attr, GraphBuilder, repository, silent, value_info};
use mqq::backends;
use mqq::data::{Array, Dataset, PRESETS, Preprocessing, Values};
use mqq::engine::{Engine, Parsed, Value};
use mqq::equalize::find;
use mqq::observers::by_spelling;
use mqq::onnx;
use mqq::onnx::edit::{ModelEdit, apply, edited};
use mqq::onnx::inputs::Shapes;
use mqq::onnx::proto::ModelProto;
use mqq::onnx::value_info::ValueInfos;
use mqq::place::{Placement, Selection, place};
use mqq::plan::{Observers, QuantPlan, decide};
use mqq::prepare::prepare;
use mqq::progress::Progress;
use mqq::quant::ChannelScaling;
use mqq::rewrite::rewrite;
use mqq::scheme::{Scheme, WeightStorage};
use mqq::simulate::{CachedNetwork, CachedSamples, FloatReference, OutputOptions, PreparedNodes, Samples, simulate};
use mqq::statistics::TensorStatistics;
use mqq::tune::{
    Biases, Case, Compared, Effort, METHODS, PlannedModel, Tuned, Tuning, WeightScheme, compare_plans, methods, tune,
};
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

fn half() -> Preprocessing {
    PRESETS.iter().find(|preset| preset.name == "half").unwrap().preprocessing()
}

fn engine(model: &ModelProto, watched: &[String]) -> Engine {
    Parsed::new(model, &Shapes::new()).and_then(|parsed| parsed.build(watched)).unwrap()
}

/// A prepared model with a plan, and the samples that both are observed on.
#[derive(Clone)]
struct Planned {
    model: ModelProto,
    placement: Placement,
    plan: QuantPlan,
    inputs: Vec<String>,
    samples: Vec<Vec<Array>>,
    values: Vec<Vec<Value>>,
}

fn prepared(fixture: &str, scheme: &Scheme) -> (ModelProto, ValueInfos) {
    let mut model = onnx::load_whole(&repository(fixture)).unwrap().model;
    prepare(&mut model, scheme.min_opset).unwrap();
    let value_info = value_info(&model);
    (model, value_info)
}

fn planned(model: ModelProto, value_info: &ValueInfos, scheme: &Scheme) -> Planned {
    let graph = model.graph.as_ref().unwrap();
    let placement = place(graph, value_info, scheme, &Selection::default());
    let watched: Vec<String> = placement.activations.iter().map(|s| s.tensor.clone()).collect();
    let float = engine(&model, &watched);
    let folder = repository("calib_data/calib").display().to_string();
    let dataset = Dataset::open(&[folder], float.inputs(), &half(), Some(12)).unwrap();
    let mut statistics = vec![TensorStatistics::default(); watched.len()];
    let mut session = float.session().unwrap();
    let mut samples = Vec::new();
    for i in 0..dataset.len() {
        let sample = dataset.load(i).unwrap();
        let mut seen = |watched: usize, _: &[usize], values: &[f32]| {
            statistics[watched].observe(values);
            Ok(())
        };
        session.run(&sample, &mut seen).unwrap();
        samples.push(sample);
    }
    let observers = Observers { activation: &by_spelling("mse").unwrap(), weight: &by_spelling("max").unwrap() };
    let (plan, _) = decide(graph, &placement, &statistics, None, scheme, observers).unwrap();
    let input = &float.inputs()[0];
    let value = |sample: &Vec<Array>| vec![Value::of_array(&sample[0], input).unwrap()];
    let values = samples.iter().map(value).collect();
    let inputs = vec![input.name.clone()];
    Planned { model, placement, plan, inputs, samples, values }
}

/// Every bit of the simulation but the order of additions is that of the written model.
#[test]
fn the_simulation_is_the_written_model() {
    for (fixture, backend) in [
        ("fixtures/digits_cnn.onnx", "tensorrt"),
        ("fixtures/digits_cnn.onnx", "openvino"),
        ("fixtures/digits_old.onnx", "tensorrt"),
        ("fixtures/digits_cnn.onnx", "xint8"),
    ] {
        let scheme = backends::resolve(backend).unwrap();
        let (model, value_info) = prepared(fixture, &scheme);
        let Planned { model, plan, inputs, samples, values, .. } = planned(model, &value_info, &scheme);
        let data = Samples { names: &inputs, values: &values };
        let simulated = simulate(&model, &plan, data).unwrap().outputs;
        let written = rewrite(model, &plan, WeightStorage::Integer).unwrap().into_model();
        let written = engine(&written, &[]);
        let mut session = written.session().unwrap();
        let (mut signal, mut noise) = (0.0, 0.0);
        for (sample, simulated) in samples.iter().zip(&simulated[0]) {
            let outputs = session.run(sample, &mut |_, _, _| Ok(())).unwrap();
            let Values::F32(outputs) = &outputs[0].values else { panic!("not float") };
            for (a, b) in outputs.iter().zip(simulated.f32s().unwrap()) {
                signal += f64::from(*a).powi(2);
                noise += f64::from(a - b).powi(2);
            }
        }
        // A value on the edge of two integers may fall to either side, now and then.
        let db = 10.0 * (signal / f64::max(noise, 1e-30)).log10();
        assert!(db > 50.0, "{fixture} {backend}: {db} dB");
    }
}

/// Candidates side by side and one plan after another are the same network, to the bit; so is what was kept of a run.
#[test]
fn both_drivers_simulate_the_same_network() {
    for backend in ["tensorrt", "openvino"] {
        let scheme = backends::resolve(backend).unwrap();
        let (model, value_info) = prepared("fixtures/digits_cnn.onnx", &scheme);
        let Planned { model, plan, inputs, values, .. } = planned(model, &value_info, &scheme);
        let samples = Samples { names: &inputs, values: &values };
        let simulated = simulate(&model, &plan, samples).unwrap().outputs;
        let mut network = CachedNetwork::new(&model, samples, None).unwrap();
        let mut cached = CachedSamples::new(samples, 1 << 24);
        for plan in [&QuantPlan::default(), &plan, &plan] {
            let outputs = network.run(plan, &mut cached, true, None).unwrap();
            let same = outputs[0].iter().zip(&simulated[0]).all(|(a, b)| a.f32s() == b.f32s());
            assert_eq!(same, !plan.weights.is_empty(), "{backend}");
        }
    }
}

/// A plan that differs from the one before in a single integer of a weight gets nothing that was kept of that one, neither
/// in one network nor in another one with the same prepared nodes.
#[test]
fn a_plan_with_another_integer_is_run_again() {
    let scheme = backends::resolve("tensorrt").unwrap();
    let (model, value_info) = prepared("fixtures/digits_cnn.onnx", &scheme);
    let Planned { model, mut plan, inputs, values, .. } = planned(model, &value_info, &scheme);
    let samples = Samples { names: &inputs, values: &values[..2] };
    let shared = PreparedNodes::default();
    let mut network = CachedNetwork::new(&model, samples, Some(&shared)).unwrap();
    let mut cached = CachedSamples::new(samples, 1 << 24);
    network.run(&plan, &mut cached, true, None).unwrap();
    for weight_idx in 0..plan.weights.len() {
        let weight = &mut plan.weights[weight_idx];
        let mut integers: Vec<i32> = weight.integers.iter().collect();
        integers[0] = if integers[0] > 0 { -127 } else { 127 };
        weight.integers = Arc::new(integers.into());
        let run = network.run(&plan, &mut cached, true, None).unwrap();
        let mut other = CachedNetwork::new(&model, samples, Some(&shared)).unwrap();
        let of_other = other.run(&plan, &mut CachedSamples::new(samples, 1 << 24), true, None).unwrap();
        let simulated = simulate(&model, &plan, samples).unwrap().outputs;
        for run in [run, of_other] {
            let same = run[0].iter().zip(&simulated[0]).all(|(a, b)| a.f32s() == b.f32s());
            assert!(same, "{}", plan.weights[weight_idx].quantizer.tensor);
        }
    }
}

/// Reference values that are converted by channel factors are bit-identical to those of running the other float
/// network; so are biases that were corrected on all samples.
#[test]
fn a_float_network_in_other_units_need_not_be_run() {
    let mut n_corrected = 0;
    for (fixture, backend, corrected) in [
        ("fixtures/digits_cnn.onnx", "tensorrt", true),
        ("fixtures/digits_cnn.onnx", "xint8", true),
        ("fixtures/digits_old.onnx", "onnxruntime", true),
        ("fixtures/digits_cnn.onnx", "openvino", false),
    ] {
        let scheme = backends::resolve(backend).unwrap();
        let (model, value_info) = prepared(fixture, &scheme);
        let (mut scaled, mut scalings) = (model.clone(), BTreeMap::new());
        for space in find(model.graph.as_ref().unwrap(), &value_info).0 {
            let factors: Vec<f32> = (0..space.n).map(|c| ((c % 3) as f32 - 1.0).exp2()).collect();
            apply(scaled.graph.as_mut().unwrap(), &space.edits(&factors).unwrap()).unwrap();
            let tensors = space.tensors.into_iter();
            scalings.extend(tensors.map(|(tensor, at)| (tensor, at.scaling(&factors))));
        }
        assert!(scalings.len() > 3, "{fixture} {backend}");
        let (before, after) = (planned(model, &value_info, &scheme), planned(scaled, &value_info, &scheme));
        let table = WeightScheme { scheme: &scheme, observer: &by_spelling("max").unwrap() };
        let compare = |scalings: Option<&BTreeMap<String, ChannelScaling>>| {
            let (models, plans) = ([&before.model, &after.model], [&before.plan, &after.plan]);
            let (placements, outputs) = ([&before.placement; 2], OutputOptions::default());
            let biases = if corrected { Biases::Tried(methods::bias::BIAS) } else { Biases::Kept };
            let stage: (&Progress, &str) = (&silent, "");
            let prepared = &PreparedNodes::default();
            let compared = Compared { models, plans, placements, scalings, table, outputs, prepared, stage, biases };
            let samples = Samples { names: &before.inputs, values: &before.values[..7] };
            compare_plans(compared, samples, None).unwrap()
        };
        let (run, _) = compare(None);
        let (known, [of_model, of_scaled]) = compare(Some(&scalings));
        assert_eq!(run, known, "{fixture} {backend}");
        assert!(run.gain() != 0.0, "{fixture} {backend}");
        for (planned, reference) in [(before, of_model), (after, of_scaled)] {
            let tune = |reference: Option<&FloatReference>| {
                let Planned { model, plan, placement, inputs, values, .. } = planned.clone();
                let samples = Samples { names: &inputs, values: &values[..7] };
                let methods = &methods::named(&["bias"]);
                let tuning = Tuning {
                    table,
                    samples,
                    n_tune: 5,
                    methods,
                    known: reference,
                    outputs: OutputOptions::default(),
                    prepared: &PreparedNodes::default(),
                    progress: &silent,
                };
                let mut tuned = PlannedModel::new(model, placement, plan);
                let Tuned { judged, .. } = tune(&mut tuned, tuning).unwrap().unwrap();
                assert!(edited(&planned.model, &tuned.edits).unwrap() == tuned.model);
                (tuned.edits, judged)
            };
            let tuned = tune(None);
            n_corrected += usize::from(!tuned.0.is_empty());
            if corrected {
                assert_eq!(tuned, tune(Some(&reference)), "{fixture} {backend}");
            }
        }
    }
    assert!(n_corrected > 3, "too few biases were corrected for this to show something: {n_corrected}");
}

/// The tensors behind a Concat lie on one grid, and the layer behind it hardly looks at the channel that needs the most
/// of it; the Concat's inputs, which come first, are read by no layer.
#[test]
fn a_range_follows_the_layer_behind_a_concat() {
    let build = |first: f32, last: f32| {
        let mut g = GraphBuilder::new(13);
        let x = g.input("x", &[1, 1, 16, 16]);
        let parts = [("a", 1.0f32), ("b", 40.0)].map(|(name, by)| {
            let w = g.values(&format!("{name}.w"), &[2, 1, 1, 1], &[by, 1.3]);
            let y = g.op("Conv", &[&x, &w], &format!("{name}.conv"));
            g.op("Relu", &[&y], name)
        });
        let joined = g.op_with("Concat", &[&parts[0], &parts[1]], "joined", &[("axis", Attr::Int(1))]);
        let w = g.values("w", &[2, 4, 1, 1], &[first, 0.8, last, -0.7, -0.6, first, last, 0.9]);
        let y = g.op("Conv", &[&joined, &w], "y");
        g.output(&y);
        g.build()
    };
    let scheme = backends::resolve("onnxruntime").unwrap();
    let scales = |model: ModelProto| -> Vec<[f32; 2]> {
        let value_info = value_info(&model);
        let Planned { model, plan, placement, inputs, values, .. } = planned(model, &value_info, &scheme);
        let before = plan.clone();
        let table = WeightScheme { scheme: &scheme, observer: &by_spelling("max").unwrap() };
        let samples = Samples { names: &inputs, values: &values };
        let methods = &methods::named(&["ranges"]);
        let tuning = Tuning {
            table,
            samples,
            n_tune: 9,
            methods,
            known: None,
            outputs: OutputOptions::default(),
            prepared: &PreparedNodes::default(),
            progress: &silent,
        };
        let mut planned = PlannedModel::new(model, placement, plan);
        let tuned = tune(&mut planned, tuning).unwrap().unwrap();
        assert_eq!(tuned.methods[0].accepted, tuned.n_ranges > 0);
        let pairs = before.activations.iter().zip(&planned.plan.activations);
        let joined = pairs.filter(|(a, _)| ["a", "b", "joined"].contains(&a.quantizer.tensor.as_str()));
        joined.map(|(a, b)| [a.params.scale, b.params.scale]).collect()
    };
    // The wide channel is the third: what it loses weighs little, or most.
    let narrower = scales(build(0.9, 1e-4));
    assert_eq!(narrower.len(), 3);
    assert!(narrower.iter().all(|[before, after]| *after == before * 0.5), "{narrower:?}");
    let kept = scales(build(0.9, 0.9));
    assert!(kept.iter().all(|[before, after]| after == before), "{kept:?}");
}

/// Of 6 samples, 2 judge and teach afterwards: which they are makes no difference. Of 12, those that judge do not teach.
#[test]
fn where_samples_are_few_those_that_judged_teach_too() {
    let scheme = backends::resolve("tensorrt").unwrap();
    let (model, value_info) = prepared("fixtures/digits_cnn.onnx", &scheme);
    let planned = planned(model, &value_info, &scheme);
    let table = WeightScheme { scheme: &scheme, observer: &by_spelling("max").unwrap() };
    let biases = |n: usize, n_tune: usize, first: usize| -> Vec<f32> {
        let Planned { model, plan, placement, inputs, mut values, .. } = planned.clone();
        values.truncate(n);
        values.rotate_left(first);
        let samples = Samples { names: &inputs, values: &values };
        let methods = &methods::named(&["bias"]);
        let tuning = Tuning {
            table,
            samples,
            n_tune,
            methods,
            known: None,
            outputs: OutputOptions::default(),
            prepared: &PreparedNodes::default(),
            progress: &silent,
        };
        let mut changed = PlannedModel::new(model, placement, plan);
        let tuned = tune(&mut changed, tuning).unwrap().unwrap();
        assert!(tuned.methods[0].accepted, "{:?}", tuned.methods);
        assert_eq!((tuned.n_samples, tuned.judged.n_samples), (n_tune, n - n_tune));
        let values = |edit: ModelEdit| match edit {
            ModelEdit::ReplaceBias(bias) => bias.values,
            other => panic!("{other:?}"),
        };
        changed.edits.into_iter().flat_map(values).collect()
    };
    let apart = |a: &[f32], b: &[f32]| {
        let difference = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        (difference / a.iter().map(|a| a.powi(2)).sum::<f32>()).sqrt()
    };
    let few = apart(&biases(6, 4, 0), &biases(6, 4, 3));
    let many = apart(&biases(12, 9, 0), &biases(12, 9, 3));
    assert!(few < 1e-4 && many > 1e-3, "{few} {many}");
}

/// Samples are too few for the only method.
#[test]
fn a_pass_without_methods_is_a_comparison() {
    let scheme = backends::resolve("tensorrt").unwrap();
    let (model, value_info) = prepared("fixtures/digits_cnn.onnx", &scheme);
    let Planned { model, plan, placement, inputs, values, .. } = planned(model, &value_info, &scheme);
    let stages = Mutex::new(Vec::new());
    let progress = |stage: &str, n: usize| {
        stages.lock().unwrap().push(stage.to_string());
        silent(stage, n)
    };
    let tuning = Tuning {
        table: WeightScheme { scheme: &scheme, observer: &by_spelling("max").unwrap() },
        samples: Samples { names: &inputs, values: &values[..6] },
        n_tune: 4,
        methods: &methods::named(&["local-bias"]),
        known: None,
        outputs: OutputOptions::default(),
        prepared: &PreparedNodes::default(),
        progress: &progress,
    };
    let tuned = tune(&mut PlannedModel::new(model, placement, plan), tuning).unwrap().unwrap();
    assert!(!tuned.methods[0].accepted);
    assert_eq!(*stages.lock().unwrap(), ["comparison"]);
}

/// The methods that were tried on the plan.
fn steps_of(report: &serde_json::Value) -> Vec<serde_json::Value> {
    let methods = report["results"][0]["summary"]["methods"].as_array().unwrap();
    let before = |it: &&serde_json::Value| {
        !["equalize", "insert-scales", "smooth", "keep-first", "observer"].contains(&it["method"].as_str().unwrap())
    };
    methods.iter().filter(before).cloned().collect()
}

fn calibrate(fixture: &str, backend: &str, output: &Path, extra: &[&str]) -> serde_json::Value {
    let mut command = mqq();
    command.arg("calibrate").arg(repository(fixture)).args(["-b", backend, "--json"]);
    command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess", "half"]);
    let ran = run(command.arg("-o").arg(output).args(extra)).done();
    ran.json()
}

#[test]
fn tuning_pays_on_samples_that_were_held_back_or_is_undone() {
    let folder = TempDir::new().unwrap();
    let mut n_rounded = 0;
    // Weights of one scale, also with a zero point, are coarse: their rounding is learned at every level.
    for (backend, coarse) in [("tensorrt", false), ("onnxruntime", false), ("xint8", true), ("onnx-qnn", true)] {
        for effort in ["1", "2", "3"] {
            let output = folder.path().join("out.onnx");
            let extra = ["--effort", effort];
            let report = calibrate("fixtures/digits_cnn.onnx", backend, &output, &extra);
            let tuned = &report["results"][0]["summary"]["tuning"];
            let figures =
                |of: &serde_json::Value| -> [f64; 2] { [0, 1].map(|i| of["judged"]["figures"][i].as_f64().unwrap()) };
            let [before, after] = figures(tuned);
            let steps: Vec<serde_json::Value> = steps_of(&report);
            let names: Vec<&str> = steps.iter().map(|s| s["method"].as_str().unwrap()).collect();
            let expected = match effort {
                "1" if !coarse => &["local-bias", "bias"][..],
                "2" if !coarse => &["local-bias", "bias", "ranges"],
                _ => &["local-bias", "bias", "rounding"],
            };
            assert_eq!(names, expected, "{backend} {effort}");
            for step in &steps {
                let [before, after] = figures(step);
                assert!(step["accepted"] == false || after > before, "{step}");
                assert_eq!(step["accepted"] == true, step.get("reason").is_none(), "{step}");
            }
            let kept = |name: &str| steps.iter().any(|s| s["method"] == name && s["accepted"] == true);
            let n = |key: &str| tuned[key].as_u64().unwrap();
            assert_eq!(n("n_rounded") > 0, kept("rounding"), "{backend} {effort}: {tuned}");
            assert!(!kept("bias") || n("n_biases") > 0);
            assert!(after >= before, "{backend} {effort}: {tuned}");
            if effort == "3" {
                assert!(after > before, "{backend}: {tuned}");
                n_rounded += usize::from(kept("rounding"));
            }
        }
    }
    // Pixels of 8 bits lie on ties of power-of-two scales, where the last bit of a sum decides.
    assert!(n_rounded >= 3, "rounding kept for {n_rounded} of 4 backends");
    let report =
        calibrate("fixtures/digits_cnn.onnx", "tensorrt", &folder.path().join("plain.onnx"), &["--effort", "0"]);
    assert!(report["results"][0]["summary"]["tuning"].is_null());
}

#[test]
fn auto_takes_for_each_tensor_what_the_layers_behind_ask_for() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out.onnx");
    let mut chosen = std::collections::BTreeSet::new();
    let backends = ["tensorrt", "onnxruntime", "tidl-wc8-at8"];
    let runs = backends.map(|backend| [(backend, None), (backend, Some("bias,ranges"))]);
    for (backend, methods) in runs.into_iter().flatten() {
        let mut extra = vec!["--observer", "auto", "--effort", "2"];
        extra.extend(methods.into_iter().flat_map(|methods| ["--methods", methods]));
        let report = calibrate("fixtures/digits_old.onnx", backend, &output, &extra);
        let tuned = &report["results"][0]["summary"]["tuning"];
        let ranges = steps_of(&report).pop().unwrap();
        let kept = ranges["accepted"] == true;
        assert_eq!((ranges["method"].as_str(), tuned["n_ranges"] != 0), (Some("ranges"), kept));
        let sidecar = std::fs::read(output.with_extension("json")).unwrap();
        let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
        assert_eq!(sidecar["calibration"]["activation_observer"], "auto");
        let encodings = sidecar["activation_encodings"].as_array().unwrap();
        let observers = encodings.iter().map(|e| e["observer"].as_str().unwrap().to_string());
        let others: Vec<String> = observers.filter(|observer| observer != "mse").collect();
        assert_eq!(!others.is_empty(), kept, "{backend}: {others:?}");
        chosen.extend(others);
    }
    assert!(chosen.contains("percentile"), "{chosen:?}");
    for (extra, message) in [
        (&["--observer", "auto", "--effort", "0"], "--effort 0, expected 1 or more"),
        (&["--weight-observer", "auto", "--effort", "1"], "is for activations"),
    ] {
        let mut command = mqq();
        let model = repository("fixtures/digits_old.onnx");
        command.arg("calibrate").arg(model).args(["-b", "tensorrt"]).args(extra);
        let ran = run(command.arg("--data").arg(repository("calib_data/calib")));
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
}

#[test]
fn what_only_samples_can_evaluate_needs_data() {
    for (extra, message) in [
        (["--methods", "bias"], "--methods without --data, expected samples to evaluate"),
        (["--rescue", "10"], "--rescue without --data, expected samples to evaluate"),
        (["--task", "classify"], "because nothing is evaluated, expected --data, or a goal"),
    ] {
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_old.onnx")).args(["-b", "weight-only-int8", "-o"]);
        let ran = run(command.arg(TempDir::new().unwrap().path().join("q.onnx")).args(extra));
        assert!(ran.code == 2 && ran.stderr.contains(message), "{extra:?}: {}", ran.stderr);
    }
}

#[test]
fn bias_calibration_of_ti_is_a_method_like_the_others() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out.onnx");
    let extra = ["--methods", "bias-calibration"];
    let report = calibrate("fixtures/digits_cnn.onnx", "tidl-wc8-at8", &output, &extra);
    let tuned = &report["results"][0]["summary"]["tuning"];
    let steps = steps_of(&report);
    assert_eq!(steps[0]["method"], "bias-calibration");
    let kept = steps[0]["accepted"] == true;
    assert_eq!(tuned["n_biases"].as_u64().unwrap() > 0, kept, "{tuned}");
}

/// All methods share one walk until one of them is undone; the result is that of those that were kept.
#[test]
fn the_document_of_methods_is_their_list() {
    let document = std::fs::read_to_string(repository("docs/methods.md")).unwrap();
    let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
    let cases = [(false, false), (false, true), (true, false), (true, true)];
    let cases = cases.iter().flat_map(|&(few_bits, rounding_matters)| {
        [false, true].map(|transformer| (few_bits, rounding_matters, transformer))
    });
    let cases: Vec<(bool, bool, bool)> = cases.collect();
    let expected = METHODS.iter().map(|method| {
        let levels = Effort::LEVELS.iter().map(|(level, _)| *level);
        let tried: Vec<&str> = levels
            .filter(|level| {
                let effort = Effort::of(level).unwrap();
                let tried = |&(few_bits, rounding_matters, transformer): &_| {
                    (method.is_tried)(Case { effort, few_bits, rounding_matters, transformer })
                };
                cases.iter().any(tried)
            })
            .collect();
        let tried = if tried.is_empty() { "by name only".to_string() } else { tried.join(", ") };
        let (name, title, stage, about) = (method.name, method.title, method.action.works_on(), method.about);
        format!("| `{name}` | {title} | {stage} | {tried} | {about} |")
    });
    assert_eq!(rows, expected.collect::<Vec<_>>());
}

#[test]
fn methods_that_were_undone_leave_no_trace() {
    let folder = TempDir::new().unwrap();
    let steps_by = |model: &str, methods: &str| -> (Vec<(String, bool)>, Vec<u8>) {
        let output = folder.path().join("out.onnx");
        let extra = ["--effort", "3", "--methods", methods];
        let report = calibrate(model, "tensorrt", &output, &extra);
        let steps = steps_of(&report);
        let of = |step: &serde_json::Value| (step["method"].as_str().unwrap().to_string(), step["accepted"] == true);
        (steps.iter().map(of).collect(), std::fs::read(&output).unwrap())
    };
    let mut n_undone = 0;
    for model in ["fixtures/digits_cnn.onnx", "fixtures/digits_old.onnx"] {
        let (steps, all) = steps_by(model, "clip,bias,ranges,rounding");
        let kept = steps.iter().filter(|(_, kept)| *kept).map(|(method, _)| method.clone());
        let kept: Vec<String> = kept.collect();
        n_undone += steps.len() - kept.len();
        let (again, alone) = steps_by(model, &kept.join(","));
        assert!(again.iter().all(|(_, kept)| *kept), "{again:?}");
        assert!(all == alone, "{model}: {steps:?}");
    }
    assert!(n_undone > 0, "no method was undone: this shows nothing");
}

/// Where grids make 0 of a divisor, the output is infinite: no gain of another output makes up for that.
#[test]
fn nothing_is_kept_while_an_output_is_infinite() {
    let folder = TempDir::new().unwrap();
    let mut model = onnx::load_whole(&repository("fixtures/digits_cnn.onnx")).unwrap().model;
    let relu = model.graph.as_ref().unwrap().node.iter().find(|node| node.op_type() == "Relu");
    let relu = relu.unwrap().output[0].clone();
    let mut g = GraphBuilder::new(13);
    // Positive in float, and 0 for two inputs that are rounded on different grids.
    g.values("more", &[], &[1.01]);
    g.op("Mul", &[&relu, "more"], "scaled");
    g.values("least", &[], &[0.01]);
    g.ops(&format!("larger = Add scaled least; positive = Sub larger {relu}"));
    g.values("minus_one", &[], &[-1.0]);
    g.op("Pow", &["positive", "minus_one"], "inverse");
    g.output("inverse");
    let (added, graph) = (g.build().graph.unwrap(), model.graph.as_mut().unwrap());
    graph.node.extend(added.node);
    graph.initializer.extend(added.initializer);
    graph.output.extend(added.output);
    let path = folder.path().join("inverse.onnx");
    onnx::save(&model, &path).unwrap();
    let output = folder.path().join("out.onnx");
    for backend in ["esp-dl", "xint8"] {
        let report = calibrate(path.to_str().unwrap(), backend, &output, &[]);
        let summary = &report["results"][0]["summary"];
        let steps: Vec<_> =
            summary["methods"].as_array().unwrap().iter().filter(|it| it["judged"].is_object()).collect();
        assert!(!steps.is_empty(), "{summary}");
        assert!(steps.iter().all(|step| step["accepted"] == false), "{summary}");
        assert!(summary["tuning"]["judged"]["sqnr_db"][1].as_f64().unwrap() < 0.0, "{summary}");
        let warned = summary["warnings"].to_string();
        assert!(
            warned.contains("output `inverse`: the simulated quantized network has NaN or infinite values"),
            "{summary}"
        );
    }
}

#[test]
fn tuned_models_are_the_same_for_any_number_of_threads() {
    let folder = TempDir::new().unwrap();
    for effort in ["1", "3"] {
        let bytes = |threads: &str| {
            let output = folder.path().join(format!("{threads}.onnx"));
            let extra = ["--effort", effort, "--threads", threads];
            calibrate("fixtures/digits_cnn.onnx", "onnxruntime", &output, &extra);
            (std::fs::read(&output).unwrap(), std::fs::read(output.with_extension("json")).unwrap())
        };
        assert!(bytes("1") == bytes("2"), "effort {effort}");
    }
}

/// Rows of a weight that comes first, or last, or transposed: their scales go by the output's channels.
#[test]
fn weights_on_either_side_of_a_product_have_rows() {
    type Case = (&'static str, [&'static str; 2], &'static [usize], [i64; 2], Vec<(&'static str, Attr)>);
    let cases: [Case; 4] = [
        ("MatMul", ["w", "x"], &[24, 64], [64, 32], vec![]),
        ("MatMul", ["x", "w"], &[64, 24], [32, 64], vec![]),
        ("Gemm", ["x", "w"], &[24, 64], [32, 64], vec![("transB", Attr::Int(1))]),
        ("Gemm", ["x", "w"], &[64, 24], [32, 64], vec![]),
    ];
    for (op_type, inputs, weight, input, attributes) in cases {
        let folder = TempDir::new().unwrap();
        let mut g = GraphBuilder::new(13);
        g.input("x", &input);
        g.weight("w", weight);
        g.op_with(op_type, &inputs, "y", &attributes);
        let model = g.output("y").build();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        let n = input.iter().product::<i64>() as usize;
        let sample: Vec<f32> = (0..n).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let data = folder.path().join("x.pb");
        let shape = input.map(|dim| dim as usize);
        let tensor = onnx::tensor::from_f32("x", &shape, &sample).unwrap();
        std::fs::write(&data, tensor.encode_to_vec()).unwrap();
        let output = folder.path().join("out.onnx");
        let mut command = mqq();
        command.arg("calibrate").arg(&path).args(["-b", "onnxruntime", "--data"]).arg(&data);
        let ran = run(command.arg("-o").arg(&output));
        assert_eq!(ran.code, 0, "{op_type} {inputs:?}: {}", ran.stderr);
        let graph = onnx::load_whole(&output).unwrap().model.graph.unwrap();
        let scale = graph.initializer.iter().find(|t| t.name() == "w_scale").unwrap();
        // ONNX Runtime takes several scales for a matrix on the right alone.
        let n_scales: &[i64] = if (op_type, inputs[0]) == ("MatMul", "w") { &[] } else { &[24] };
        assert_eq!(scale.dims, n_scales, "{op_type} {inputs:?}");
    }
}

/// Weights exist once, however many samples are looked at: they take none of the memory that the samples may take.
#[test]
fn a_large_weight_costs_no_samples() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 1, 8, 8]);
    g.conv("x", 1, 64, 3, 1, "c");
    g.ops("r = Relu c; p = GlobalAveragePool r; f = Flatten p");
    g.weight("w", &[64, 60_000]);
    g.weight("v", &[60_000, 4]);
    g.ops("h = MatMul f w; y = MatMul h v");
    let model = g.output("y").build();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let output = folder.path().join("out.onnx");
    let report = calibrate(path.to_str().unwrap(), "onnxruntime", &output, &[]);
    let tuned = &report["results"][0]["summary"]["tuning"];
    // 2^22 values of the largest activation, a quarter of the samples held back.
    assert_eq!(tuned["n_samples"].as_u64().unwrap(), 69 - 17, "{tuned}");
}

/// `vpmaddubsw` adds the products of two neighbouring channels in 16 bits: 255 times the sum of two
/// weights of one sign must not pass 32767.
#[test]
fn neighbouring_weights_fit_16_bits_where_the_table_asks_for_it() {
    let folder = TempDir::new().unwrap();
    for (backend, fits) in [("onnxruntime", true), ("onnxruntime-vnni", false)] {
        for effort in ["0", "3"] {
            let output = folder.path().join("out.onnx");
            calibrate("fixtures/digits_cnn.onnx", backend, &output, &["--effort", effort]);
            let model = onnx::load_whole(&output).unwrap().model;
            let graph = model.graph.unwrap();
            let (mut n_convs, mut heaviest, mut largest) = (0, 0, 0);
            for tensor in &graph.initializer {
                let &[_, channels, height, width] = &tensor.dims[..] else { continue };
                if tensor.data_type() != 3 || channels < 2 {
                    continue;
                }
                n_convs += 1;
                let q: Vec<i32> = tensor.raw_data().iter().map(|&byte| i32::from(byte as i8)).collect();
                largest = largest.max(q.iter().map(|q| q.abs()).max().unwrap());
                let (channels, area) = (channels as usize, (height * width) as usize);
                for row in q.chunks(channels * area) {
                    // In the kernels' order: channels of a position side by side.
                    let order: Vec<i32> = (0..row.len()).map(|k| row[k % channels * area + k / channels]).collect();
                    for pair in order.chunks_exact(2) {
                        let up = pair[0].max(0) + pair[1].max(0);
                        let down = -(pair[0].min(0) + pair[1].min(0));
                        heaviest = heaviest.max(up).max(down);
                    }
                }
            }
            assert!(n_convs > 2);
            assert_eq!(255 * heaviest <= 32767, fits, "{backend} {effort}: {heaviest}");
            assert!(largest > 100, "{backend} {effort}: the other channels keep 8 bits, {largest}");
        }
    }
}

#[test]
fn another_plan_keeps_earlier_warnings_once() {
    let of = |warnings: &[&str]| warnings.iter().map(|warning| warning.to_string()).collect::<Vec<_>>();
    let mut planned = PlannedModel::new(ModelProto::default(), Placement::default(), QuantPlan::default());
    planned.warnings = of(&["old", "again"]);
    planned.replan((QuantPlan::default(), of(&["again", "new"])));
    assert_eq!(planned.warnings, ["old", "again", "new"]);
}

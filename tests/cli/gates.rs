//! Gates and comparisons: `--fail-under`, labels, outputs that are no numbers, rules of targets.

use super::*;

#[test]
fn a_gate_on_quality_exits_with_3() {
    let folder = TempDir::new().unwrap();
    assert_eq!(run(&mut calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path())).code, 0);
    let gate = |db: &str| {
        let mut command = mqq();
        command.arg("compare").arg(repository("fixtures/digits_cnn.onnx"));
        command.arg(folder.path().join("digits_cnn.tensorrt.onnx"));
        command.arg("--data").arg(repository("calib_data/eval")).args(["--limit", "20", "--quiet"]);
        run(command.args(["--preprocess", "half", "--min-sqnr", db]))
    };
    assert_eq!(gate("5").code, 0);
    let ran = gate("90");
    assert_eq!(ran.code, 3);
    assert!(ran.stdout.starts_with("logits: overlap 0.9") && ran.stdout.contains(" dB, "), "{}", ran.stdout);
    let text = ran.stderr.trim_end();
    assert!(text.starts_with("gate missed: output `logits`: SQNR is ") && text.ends_with("dB, expected 90 dB or more"));
}

#[test]
fn every_metric_is_a_gate() {
    let model = repository("fixtures/digits_cnn.onnx");
    let data = repository("calib_data/eval");
    let gates = |gates: &[&str]| {
        let gates = gates.iter().flat_map(|gate| ["--fail-under", *gate]);
        let extra: Vec<&str> = ["--preprocess", "half", "--limit", "4", "--json"].into_iter().chain(gates).collect();
        compare([&model, &model], &data, &extra)
    };
    let passed = gates(&["overlap=1", "sqnr=200", "cosine=0.999", "agreement=100", "max-error=0"]);
    let report: serde_json::Value = serde_json::from_str(&passed.stdout).unwrap();
    let warning = not_quantized(&model);
    assert_eq!((passed.code, &report["missed"], &passed.stderr), (0, &serde_json::json!([]), &warning));
    let missed = gates(&["top1=50", "sqnr=10"]);
    let report: serde_json::Value = serde_json::from_str(&missed.stdout).unwrap();
    let expected = serde_json::json!([{ "metric": "top1", "bound": 50.0 }]);
    assert_eq!((missed.code, &report["missed"]), (3, &expected));
    let lines: Vec<&str> = missed.stderr.strip_prefix(&warning).unwrap().lines().collect();
    let expected = [
        "gate missed: no output has this metric: top-1 was not measured, expected 50 % or more",
        "hint: --labels gives the classes or boxes of the samples (docs/compare.md)",
    ];
    assert_eq!(lines, expected);
    for (gate, words) in [
        ("psnr=10", "metric `psnr` is unknown, expected one of: overlap, sqnr, cosine, agreement, top1, max-error"),
        ("sqnr", "found `sqnr`, expected NAME=VALUE"),
        ("sqnr=high", "expected a number for metric `sqnr`"),
        ("sqnr=nan", "expected a finite number for metric `sqnr`"),
        ("overlap=1.5", "--fail-under: found `1.5`, expected 0 to 1 for metric `overlap`"),
        ("agreement=-1", "--fail-under: found `-1`, expected 0 to 100 % for metric `agreement`"),
        ("agreement=0.99", "--fail-under: found `0.99`, expected a percentage above 1 for metric `agreement`\nhint: "),
    ] {
        let ran = gates(&[gate]);
        assert!(ran.code == 2 && ran.stderr.contains(words), "{gate}: {}", ran.stderr);
    }
}

#[test]
fn the_channel_axis_of_an_output_may_be_given() {
    let model = repository("fixtures/digits_cnn.onnx");
    let data = repository("calib_data/eval");
    let with = |extra: &[&str]| {
        let extra: Vec<&str> = ["--preprocess", "half", "--limit", "4"].iter().chain(extra).copied().collect();
        compare([&model, &model], &data, &extra)
    };
    let found = with(&["-v"]);
    assert!(found.stdout.ends_with("\nlogits: channels along axis 1: 10 channels (0-9)\n"), "{}", found.stdout);
    assert_eq!(with(&["-v", "-q"]).stdout, "");
    let given = with(&["-v", "--channel-axis", "logits=0"]);
    assert!(given.stdout.contains("\nlogits: channels along axis 0: 1 channel (0)"), "{}", given.stdout);
    assert_eq!(first_output(&with(&["--json", "--channel-axis", "logits=0"]))["axis"], 0);
    let ran = with(&["--channel-axis", "logits=2"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("--channel-axis logits=2: output `logits` has 2 axes, expected an axis below 2"));
    let ran = with(&["--channel-axis", "probabilities=1"]);
    let words = "--channel-axis names `probabilities`, expected one of the outputs: logits";
    assert!(ran.code != 0 && ran.stderr.contains(words), "{}", ran.stderr);
    for text in ["logits", "logits=last", "logits=-1"] {
        let ran = with(&["--channel-axis", text]);
        let words = format!("--channel-axis is `{text}`, expected for instance boxes=1");
        assert!(ran.code == 2 && ran.stderr.contains(&words), "{}", ran.stderr);
    }
}

/// `mqq compare` of two models on `data`, with a line about the first output or its JSON object.
fn compare(models: [&Path; 2], data: &Path, extra: &[&str]) -> Ran {
    run(mqq().arg("compare").args(models).arg("--data").arg(data).args(extra))
}

/// The warning about a second model that is float.
fn not_quantized(model: &Path) -> String {
    let operators = "QuantizeLinear, DequantizeLinear or integer operator";
    format!("warning: `{}` is not quantized: it has no {operators}\n", model.display())
}

fn first_output(ran: &Ran) -> serde_json::Value {
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    report["outputs"][0].clone()
}

/// `y` is what `op_type` makes of inputs [1, 4], with a constant.
fn of_constant(folder: &Path, name: &str, op_type: &str, constant: [f32; 4]) -> PathBuf {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 4]);
    g.values("c", &[1, 4], &constant);
    g.op(op_type, &["x", "c"], "y");
    g.output("y");
    let path = folder.join(name);
    mqq::onnx::save(&g.build(), &path).unwrap();
    path
}

/// A TensorProto of the shape [1, 4].
fn sample(folder: &Path, name: &str, values: [f32; 4]) {
    let tensor = mqq::onnx::tensor::from_f32("x", &[1, 4], &values).unwrap();
    fs::write(folder.join(name), prost::Message::encode_to_vec(&tensor)).unwrap();
}

#[test]
fn values_that_are_no_numbers_fail_every_gate_and_are_named() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let data = folder.join("data");
    fs::create_dir(&data).unwrap();
    // Logits: of both signs, and confident.
    sample(&data, "0.pb", [-1.0, 2.0, 3.0, 4.0]);
    sample(&data, "1.pb", [1.0, 0.0, 0.0, 4.0]);
    let finite = of_constant(folder, "finite.onnx", "Add", [0.0; 4]);
    let nan = of_constant(folder, "nan.onnx", "Div", [1.0, 0.0, 0.0, 1.0]);
    let second = data.join("1.pb").display().to_string();
    let first = data.join("0.pb").display().to_string();
    // Infinity for the first sample, NaN for the second.
    for (models, key, words) in [
        ([&finite, &nan], "non_finite", "NaN or infinite where the float model is finite: 4 values"),
        ([&nan, &finite], "float_non_finite", "NaN or infinite in the float model: 4 values"),
    ] {
        let models = models.map(|path| path.as_path());
        let ran = compare(models, &data, &["--json", "--min-sqnr=-300"]);
        let output = first_output(&ran);
        assert_eq!((ran.code, &output["sqnr_db"]), (3, &(-200.0).into()), "{}", ran.stdout);
        assert_eq!(output[key]["n_values"], 4);
        assert_eq!(output[key]["first_sample"], first);
        assert_eq!((&output["tensor"], output.get("max_difference")), (&"y".into(), None));
        // Where float has no numbers its values are not recognized as class scores.
        let agreement = output.get("agreement_percent").and_then(serde_json::Value::as_f64);
        assert_eq!(agreement, (key == "non_finite").then_some(0.0));
        let ran = compare(models, &data, &["--min-sqnr", "60"]);
        let line = format!("y: {words}, first for `{first}`, ");
        assert!(ran.code == 3 && ran.stdout.starts_with(&line), "{}", ran.stdout);
        assert!(ran.stdout.contains(", no figures, 2 samples"), "{}", ran.stdout);
        let missed = "gate missed: output `y`: SQNR was not measured, expected 60 dB or more\n";
        assert_eq!(ran.stderr, not_quantized(models[1]) + missed);
        assert_eq!(compare(models, &data, &["--fail-under", "max-error=1000"]).code, 3);
        assert_eq!(compare(models, &data, &[]).code, 0);
    }
    // NaN of both models, but an infinity that both have is equal.
    let ran = compare([&nan, &nan], &data, &["--json", "--min-sqnr", "60"]);
    let output = first_output(&ran);
    assert_eq!((ran.code, &output["float_non_finite"]["n_values"]), (3, &2.into()));
    assert_eq!(output["float_non_finite"]["first_sample"], second);
    let infinite = of_constant(folder, "infinite.onnx", "Add", [0.0, f32::NEG_INFINITY, 0.0, 0.0]);
    let ran = compare([&infinite, &infinite], &data, &["--min-sqnr", "60"]);
    let line = "y: overlap 1.000, equal, cosine 1.0000, agreement 100.0 %, largest difference 0.0000, 2 samples\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (0, line));
    assert_eq!(compare([&finite, &finite], &data, &["--min-sqnr", "nan"]).code, 2);
}

#[test]
fn a_batch_is_classified_image_by_image() {
    let model = repository("fixtures/digits_cnn.onnx");
    let top1 = |batch: &str| {
        let extra = ["--preprocess", "half", "--json", "--shape", batch, "--labels"];
        let labels = repository("calib_data/eval.csv").display().to_string();
        let extra: Vec<&str> = extra.into_iter().chain([labels.as_str()]).collect();
        let ran = compare([&model, &model], &repository("calib_data/eval"), &extra);
        let output = first_output(&ran);
        (output["top1_percent"][0].clone(), output["agreement_percent"].clone(), output["n_samples"].clone())
    };
    let (one, four) = (top1("input=1x3x32x32"), top1("input=4x3x32x32"));
    assert_eq!((&one.0, &one.1, &one.2), (&four.0, &four.1, &300.into()));
    assert!(one.0.as_f64().unwrap() > 98.0 && four.2 == 75, "{one:?} {four:?}");
    let ran = compare(
        [&model, &model],
        &repository("calib_data/eval"),
        &["--preprocess", "half", "--shape", "input=400x3x32x32"],
    );
    assert!(ran.code != 0 && ran.stderr.contains("hint: pass 400 images or more"), "{}", ran.stderr);
}

#[test]
fn labels_are_found_by_path() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let model = repository("fixtures/digits_cnn.onnx");
    // A three and a five, both `1.png`.
    for (class, image) in [("three", "0003.png"), ("five", "0015.png")] {
        fs::create_dir_all(folder.join("images").join(class)).unwrap();
        let to = folder.join("images").join(class).join("1.png");
        fs::copy(repository("calib_data/eval").join(image), to).unwrap();
    }
    let labels = folder.join("labels.csv");
    let compare = |lines: &str| {
        fs::write(&labels, format!("file,class_index\n{lines}")).unwrap();
        let labels = labels.display().to_string();
        let extra = ["--preprocess", "half", "--json", "--labels", &labels];
        compare([&model, &model], &folder.join("images/*/*.png"), &extra)
    };
    for lines in ["three/1.png,3\nfive/1.png,5\n", "images/five/1.png,5\nthree/1.png,3\n"] {
        let ran = compare(lines);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(first_output(&ran)["top1_percent"][0], 100.0);
    }
    let ran = compare("1.png,3\n");
    assert!(ran.code != 0 && ran.stderr.contains("both match line 2 of"), "{}", ran.stderr);
    let ran = compare("three/1.png,3\n");
    assert!(ran.code != 0 && ran.stderr.contains("five/1.png` has no class in"), "{}", ran.stderr);
    let ran = compare("three/1.png,3\nfive/1.png,10\n");
    let expected = "five/1.png`: the label is class 10, expected 0 to 9 as the output has 10 class scores\nhint: classes are numbered from 0";
    assert!(ran.code == 1 && ran.stderr.contains(expected), "{}", ran.stderr);
}

#[test]
fn agreement_is_of_class_scores_alone() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut g = GraphBuilder::new(13);
    g.input("x", &[2, 6]);
    let reshape = |g: &mut GraphBuilder, name: &str, shape: &[i64]| {
        let n = shape.len();
        let tensor = mqq::onnx::tensor::from_i64(&format!("{name}_shape"), &[n], shape).unwrap();
        g.tensor(tensor);
        g.op("Reshape", &["x", &format!("{name}_shape")], name);
        g.output(name);
    };
    for (name, shape) in [
        ("scores", &[2i64, 6][..]),
        ("pooled", &[2, 6, 1, 1]),
        ("boxes", &[3, 4]),
        ("map", &[1, 2, 2, 3]),
        ("one", &[12, 1]),
    ] {
        reshape(&mut g, name, shape);
    }
    g.op_with("ArgMax", &["x"], "classes", &[("axis", Attr::Int(1)), ("keepdims", Attr::Int(0))]);
    g.output("classes");
    let mut model = g.build();
    let of_classes = model.graph.as_mut().unwrap().output.last_mut().unwrap();
    of_classes.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().elem_type = Some(7);
    let path = folder.join("model.onnx");
    mqq::onnx::save(&model, &path).unwrap();
    let data = folder.join("x.pb");
    let write = |first: f32| {
        let values: Vec<f32> = (0..12u8).map(|i| first + f32::from(i)).collect();
        let tensor = mqq::onnx::tensor::from_f32("x", &[2, 6], &values).unwrap();
        fs::write(&data, prost::Message::encode_to_vec(&tensor)).unwrap();
    };
    let with_agreement = || {
        let report = compare([&path, &path], &data, &["--json"]).stdout;
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let outputs = report["outputs"].as_array().unwrap().iter();
        let outputs = outputs.filter(|output| output.get("agreement_percent").is_some());
        outputs.map(|output| output["tensor"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    // Sides of boxes are of one sign, logits of both.
    write(0.0);
    assert_eq!(with_agreement(), [""; 0]);
    write(-3.0);
    assert_eq!(with_agreement(), ["scores", "pooled"]);
    let text = compare([&path, &path], &data, &[]).stdout;
    assert!(
        text.contains("\nboxes: overlap 1.000, equal, cosine 1.0000, largest difference 0.0000, 1 sample"),
        "{text}"
    );
    let mut g = GraphBuilder::new(13);
    g.input("x", &[2, 6]);
    reshape(&mut g, "map", &[1, 2, 2, 3]);
    let map = folder.join("map.onnx");
    mqq::onnx::save(&g.build(), &map).unwrap();
    let labels = folder.join("labels.csv");
    fs::write(&labels, "file,class_index\nx.pb[0],5\nx.pb[1],4\n").unwrap();
    let labels = labels.display().to_string();
    let ran = compare([&path, &path], &data, &["--json", "--labels", &labels]);
    assert_eq!(first_output(&ran)["top1_percent"], serde_json::json!([50.0, 50.0]));
    let ran = compare([&map, &map], &data, &["--labels", &labels]);
    let expected = "no output has class scores for --labels, expected one of shape [2, classes], found [1, 2, 2, 3]";
    assert!(ran.code != 0 && ran.stderr.contains(expected), "{}", ran.stderr);
}

#[test]
fn models_in_the_wrong_order_are_an_error() {
    let folder = TempDir::new().unwrap();
    assert_eq!(run(&mut calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path())).code, 0);
    let quantized = folder.path().join("digits_cnn.tensorrt.onnx");
    let float = repository("fixtures/digits_cnn.onnx");
    let data = repository("calib_data/eval");
    let extra = ["--preprocess", "half", "--limit", "2"];
    let ran = compare([&quantized, &float], &data, &extra);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("hint: give the models in the other order"), "{}", ran.stderr);
    let ran = compare([&quantized, &quantized], &data, &extra);
    assert_eq!((ran.code, ran.stderr.contains("is not quantized")), (0, false), "{}", ran.stderr);
    assert_eq!(compare([&float, &float], &data, &extra).code, 0);
}

#[test]
fn a_broken_rule_exits_with_4_an_unreadable_model_with_1() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    assert_eq!(run(&mut calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder)).code, 0);
    assert_eq!(run(&mut calibrate("fixtures/digits_cnn.onnx", "onnxruntime", folder)).code, 0);
    let bad = folder.join("bad.onnx");
    fs::write(&bad, "no model").unwrap();
    let (signed, unsigned) = (folder.join("digits_cnn.tensorrt.onnx"), folder.join("digits_cnn.onnxruntime.onnx"));
    let check = |backend: &str, extra: &[&str], models: &[&Path]| {
        run(mqq().arg("check").args(models).args(["-b", backend]).args(extra))
    };
    let ran = check("tensorrt", &[], &[&signed]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.contains("passes the rules of tensorrt: 0 errors"), "{}", ran.stdout);
    assert_eq!(check("onnxruntime", &["--quiet"], &[&unsigned, &signed]).stdout, "");

    let ran = check("tensorrt", &["--json"], &[&signed, &unsigned]);
    assert_eq!((ran.code, ran.stderr.as_str()), (4, ""));
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((report["schema_version"].as_str(), &report["results"][0]["status"]), (Some("3.0"), &"ok".into()));
    let broken = &report["results"][1];
    assert_eq!(broken["status"], "broken");
    let findings = broken["findings"].as_array().unwrap();
    let n_errors = findings.iter().filter(|f| f["severity"] == "error").count();
    assert_eq!(broken["n_errors"], n_errors);
    let dtypes = findings.iter().find(|f| f["rule"] == "dtypes").unwrap();
    assert_eq!((&dtypes["found"], &dtypes["op_type"]), (&"uint8".into(), &"QuantizeLinear".into()));
    assert!(!dtypes["tensor"].as_str().unwrap().is_empty() && !dtypes["node"].as_str().unwrap().is_empty());

    let ran = check("tensorrt", &[], &[&unsigned]);
    assert!(ran.code == 4 && ran.stdout.contains("more of [dtypes]"), "{}", ran.stdout);
    let ran = check("tensorrt", &["--verbose"], &[&unsigned]);
    assert!(ran.code == 4 && !ran.stdout.contains("more of"), "{}", ran.stdout);

    let ran = check("tensorrt", &[], &[&bad, &signed]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.starts_with(&format!("error: `{}`: ", bad.display())), "{}", ran.stderr);
    let ran = check("tensorrt", &["--keep-going"], &[&bad, &unsigned]);
    assert!(ran.code == 1 && ran.stdout.contains("violates the rules"), "{}", ran.stdout);
    assert_eq!(check("tensort", &[], &[&signed]).code, 2);
    let ran = check("tensorrt", &[], &[&repository("fixtures/digits_cnn.onnx")]);
    let float = "violates the rules of tensorrt: 1 error, 0 warnings; 0 Q, 0 DQ\n  error [quantized] model is float";
    assert!(ran.code == 4 && ran.stdout.contains(float), "{}", ran.stdout);
}

/// By their values alone, doubtful logits are no class scores.
#[test]
fn a_named_task_makes_class_scores() {
    let folder = TempDir::new().unwrap();
    let float = model_of(folder.path(), "float", "scores");
    let data = folder.path().join("x.pb");
    let tensor = mqq::onnx::tensor::from_f32("x", &[1, 4], &[0.1, 0.2, 0.5, 0.4]).unwrap();
    fs::write(&data, prost::Message::encode_to_vec(&tensor)).unwrap();
    let gate = ["--fail-under", "agreement=90"];
    let ran = compare([&float, &float], &data, &gate);
    let hint = "\nhint: --task classify takes outputs as class scores; row-agreement is for several rows";
    assert!(ran.code == 3 && ran.stderr.contains(hint), "{}", ran.stderr);
    let ran = compare([&float, &float], &data, &["--fail-under", "f1=0.5"]);
    let hint =
        "gate missed: F1 was not measured, expected 0.5 or more\nhint: --head names the head that decodes the outputs";
    assert!(ran.code == 3 && ran.stderr.contains(hint), "{}", ran.stderr);
    let ran = compare([&float, &float], &data, &["--head", "picodet"]);
    assert!(ran.code == 1 && ran.stderr.contains("head `picodet` (ppyoloe): "), "{}", ran.stderr);
    let ran = compare([&float, &float], &data, &[&gate[..], &["--task", "classify"]].concat());
    assert!(ran.code == 0 && ran.stdout.contains("agreement 100.0 %"), "{} {}", ran.stdout, ran.stderr);
}

#[test]
fn a_model_that_ends_inside_the_other_is_told() {
    let folder = TempDir::new().unwrap();
    let [float, cut, other] = [("float", "scores"), ("cut", "inner"), ("other", "logits")]
        .map(|(name, output)| model_of(folder.path(), name, output));
    let data = folder.path().join("x.pb");
    let tensor = mqq::onnx::tensor::from_f32("x", &[1, 4], &[1.0, -2.0, 3.0, -4.0]).unwrap();
    fs::write(&data, prost::Message::encode_to_vec(&tensor)).unwrap();
    let ran = compare([&float, &cut], &data, &[]);
    let warning =
        "output `scores` is compared with `inner`, a tensor inside the float model: the second model is cut there";
    assert!(ran.code == 0 && ran.stderr.contains(warning), "{}", ran.stderr);
    let ran = compare([&float, &other], &data, &[]);
    let warning = "compared by position, because names differ: `scores` is compared with `logits`";
    assert!(ran.code == 0 && ran.stderr.contains(warning), "{}", ran.stderr);
}

#[test]
fn models_with_other_inputs_are_told_before_a_sample() {
    let folder = TempDir::new().unwrap();
    let float = repository("fixtures/digits_cnn.onnx");
    let other = model_of(folder.path(), "other", "inner");
    let ran = compare([&float, &other], &repository("calib_data/eval"), &["--preprocess", "half"]);
    let expected = format!("`{}` has `x` [1, 4], expected `input` [1, 3, 32, 32] as in ", other.display());
    assert!(ran.code == 1 && ran.stderr.contains(&expected), "{}", ran.stderr);
    assert!(!ran.stderr.contains(".png"), "{}", ran.stderr);
}

#[test]
fn a_cut_model_has_the_hint_to_join_its_tail() {
    let folder = TempDir::new().unwrap();
    let float = model_of(folder.path(), "float", "scores");
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 4]);
    g.ops("inner = Relu x; other = Neg x");
    g.output("inner");
    g.output("other");
    let path = folder.path().join("cut.onnx");
    mqq::onnx::save(&g.build(), &path).unwrap();
    let data = folder.path().join("x.npy");
    crate::support::write_npy(&data, &[1, 4], &[1.0, -2.0, 3.0, -4.0]);
    for with_tail in [false, true] {
        if with_tail {
            fs::copy(&float, folder.path().join("cut.tail.onnx")).unwrap();
        }
        let ran = compare([&float, &path], &data, &[]);
        assert!(
            ran.code == 1 && ran.stderr.contains("has 2 outputs, expected 1 as in the float model"),
            "{}",
            ran.stderr
        );
        assert_eq!(ran.stderr.contains("cut.tail.onnx` computes the outputs of the float model: join"), with_tail);
    }
}

/// Two operators on `x`, `[1, 4]`, as far as `output`: `inner` or one behind it.
fn model_of(folder: &Path, name: &str, output: &str) -> PathBuf {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 4]);
    g.op("Relu", &["x"], "inner");
    if output != "inner" {
        g.op("Abs", &["inner"], output);
    }
    g.output(output);
    let path = folder.join(format!("{name}.onnx"));
    mqq::onnx::save(&g.build(), &path).unwrap();
    path
}

#[test]
fn a_goal_that_no_figure_can_have_is_wrong_usage() {
    for (option, value, words) in [
        ("--target", "overlap=2", "--target: found `2`, expected 0 to 1 for metric `overlap`"),
        ("--target", "agreement=101", "--target: found `101`, expected 0 to 100 % for metric `agreement`"),
        ("--target", "max-error=-1", "--target: found `-1`, expected 0 or more for metric `max-error`"),
        ("--target-sqnr", "201", "--target-sqnr: found `201`, expected 200 dB or less for metric `sqnr`"),
    ] {
        let folder = TempDir::new().unwrap();
        let mut command = calibrate("fixtures/digits_cnn.onnx", "onnxruntime", folder.path());
        let ran = run(command.args([option, value]));
        assert!(ran.code == 2 && ran.stderr.contains(words), "{value}: {} {}", ran.code, ran.stderr);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    let (model, labels) = (repository("fixtures/digits_cnn.onnx"), repository("calib_data/eval.csv"));
    for (option, value, words) in [
        ("--min-sqnr", "300", "--min-sqnr: found `300`, expected 200 dB or less for metric `sqnr`"),
        ("--max-top1-drop", "101", "--max-top1-drop: found `101`, expected 0 to 100 % for metric `top1-drop`"),
    ] {
        let extra = [option, value, "--labels", labels.to_str().unwrap()];
        let ran = compare([&model, &model], &repository("calib_data/eval"), &extra);
        assert!(ran.code == 2 && ran.stderr.contains(words), "{value}: {} {}", ran.code, ran.stderr);
    }
}

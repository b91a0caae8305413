//! Runs of `mqq calibrate`: the files that they write, and the same bytes for the same input.

use super::*;

/// The output of a Conv is quantized for all its readers: a Concat of one quantized and one float tensor, a Slice.
#[test]
fn a_part_of_the_nodes_makes_a_valid_model() {
    let folder = TempDir::new().unwrap();
    let mut command = calibrate("fixtures/digits_old.onnx", "xint8", folder.path());
    let ran = run(command.args(["--effort", "0", "--only", "Conv"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let mut command = calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path());
    let ran = run(command.args(["--effort", "0", "--only", "Conv"]));
    let line = |title: &str| ran.stdout.lines().find(|line| line.trim_start().starts_with(title)).unwrap_or_default();
    assert!(line("fused ").contains(" Relu") && line("fused ").contains(" Clip"), "{}", ran.stdout);
    assert!(line("float ").contains("1 MaxPool") && !line("float ").contains("6 Relu"), "{}", ran.stdout);
}

#[test]
fn writes_model_and_sidecar_and_says_so() {
    let folder = TempDir::new().unwrap();
    let ran = run(&mut calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path()));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.contains("\n  effort            1\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains(" learned from ") && !ran.stdout.contains(" skipped"), "{}", ran.stdout);
    assert!(ran.stdout.contains("100 samples") && ran.stdout.contains("mean"), "{}", ran.stdout);
    let line = |title: &str| ran.stdout.lines().find(|line| line.trim_start().starts_with(title)).unwrap_or_default();
    assert!(line("equalization ").contains(" dB on 32 samples"), "{}", ran.stdout);
    assert!(line("bias correction ").contains(" dB on 24 held-out samples"), "{}", ran.stdout);
    assert_eq!(line("expected ").matches(" (± ").count(), 2, "{}", ran.stdout);
    assert_eq!(files(folder.path()), ["digits_cnn.tensorrt.json", "digits_cnn.tensorrt.onnx"]);
}

#[test]
fn json_is_one_object_on_stdout_and_quiet_is_silent() {
    let folder = TempDir::new().unwrap();
    let mut command = calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path());
    let ran = run(command.arg(repository("fixtures/digits_old.onnx")).arg("--json"));
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["backend"], "tensorrt");
    assert_eq!(report["results"].as_array().unwrap().len(), 2);
    for result in report["results"].as_array().unwrap() {
        assert_eq!(result["status"], "ok");
        assert!(Path::new(result["output"].as_str().unwrap()).is_file());
        assert_eq!(result["summary"]["n_samples"], 100);
    }
    let ran = run(calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path()).arg("--quiet"));
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
}

#[test]
fn one_bad_model_of_many_gives_one_error() {
    let folder = TempDir::new().unwrap();
    let bad = folder.path().join("bad.onnx");
    fs::write(&bad, "no model").unwrap();
    let out = folder.path().join("out");
    let with_bad = |keep_going: bool| {
        let mut command = mqq();
        command.arg("calibrate").arg(&bad).arg(repository("fixtures/digits_old.onnx"));
        command.args(["-b", "onnxruntime", "--preprocess", "half", "--json", "--out-dir"]).arg(&out);
        command.arg("--data").arg(repository("calib_data/calib"));
        if keep_going {
            command.arg("--keep-going");
        }
        run(&mut command)
    };
    let ran = with_bad(false);
    assert_eq!((ran.code, ran.stderr.matches("error: ").count()), (1, 1));
    assert!(ran.stderr.starts_with(&format!("error: `{}`: ", bad.display())), "{}", ran.stderr);
    let left = "\nhint: 1 model not run: --keep-going continues after a model that fails\n";
    assert!(ran.stderr.ends_with(left), "{}", ran.stderr);
    assert!(!out.exists(), "a folder is left in which nothing was written");
    let ran = with_bad(true);
    assert_eq!((ran.code, ran.stderr.matches("error: ").count()), (1, 1));
    assert!(!ran.stderr.contains("not tried"), "{}", ran.stderr);
    assert_eq!(files(&out), ["digits_old.onnxruntime.json", "digits_old.onnxruntime.onnx"]);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["results"][0]["status"], "failed");
    assert_eq!(report["results"][1]["status"], "ok");
}

/// Results are kept where model, data, options and version are those that they were made of.
#[test]
fn existing_results_are_left_alone_when_asked() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("digits_cnn.tensorrt.onnx");
    let calibrate = |extra: &[&str]| {
        let mut command = calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path());
        let ran = run(command.args(["--skip-existing", "--effort", "0"]).args(extra));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
    };
    // Of unknown origin.
    fs::write(&output, "old").unwrap();
    fs::write(output.with_extension("json"), "old").unwrap();
    assert!(!calibrate(&[]).contains("skipped"));
    assert!(fs::metadata(&output).unwrap().len() > 1000);
    assert_eq!(files(folder.path()).len(), 3);
    let modified = || fs::metadata(&output).unwrap().modified().unwrap();
    let before = modified();
    assert!(calibrate(&["--threads", "1", "-v"]).contains("results exist, skipped"));
    assert_eq!(modified(), before);
    let said = calibrate(&["--set", "observers.activation=max"]);
    assert!(said.contains("fixtures/digits_cnn.onnx: options changed, quantized again"), "{said}");
    let said = calibrate(&["--limit", "9"]);
    assert!(said.contains("options changed, quantized again"), "{said}");
}

/// Every table, every observer and every method, on the same images in another order and on any number of threads.
#[test]
fn same_input_gives_same_bytes() {
    // Two batches of a moving average, and more than some methods take; fewer for the other tables. No step of an order
    // shares a factor with either.
    const N_IMAGES: usize = 37;
    const N_FEWER: usize = 17;
    let tables = backends::BUILT_IN.iter().map(|(name, _)| {
        let is_average = backends::resolve(name).unwrap().observers.activation.starts_with("ema");
        (*name, vec![], if is_average { N_IMAGES } else { N_FEWER })
    });
    let observers = OBSERVERS.iter().map(|it| ("onnxruntime", vec!["--observer", it.name], N_IMAGES));
    let methods =
        METHODS.iter().map(|it| ("academic", vec!["--set", "types.wgt.bits=4", "--methods", it.name], N_IMAGES));
    let cases: Vec<_> = tables.chain(observers).chain(methods).enumerate().collect();
    let images = repository("calib_data/calib");
    let images: Vec<String> =
        files(&images)[..N_IMAGES].iter().map(|name| images.join(name).display().to_string()).collect();
    let differs = |(case, (backend, extra, n_images)): &(usize, (&str, Vec<&str>, usize))| -> Option<String> {
        let folder = TempDir::new().unwrap();
        let model = ["fixtures/digits_cnn.onnx", "fixtures/digits_old.onnx"][case % 2];
        let made = |threads: usize, step: usize| {
            let list = folder.path().join(format!("{step}.txt"));
            let order = (0..*n_images).map(|i| images[i * step % n_images].as_str());
            fs::write(&list, order.collect::<Vec<_>>().join("\n")).unwrap();
            let output = folder.path().join(format!("{step}.onnx"));
            let mut command = mqq();
            command.arg("calibrate").arg(repository(model)).args(["-b", backend]).args(extra);
            command.args(["--preprocess", "half", "-q", "--threads", &threads.to_string()]);
            let ran = run(command.arg("--data").arg(&list).arg("-o").arg(&output));
            assert_eq!(ran.code, 0, "{backend} {extra:?}: {}", ran.stderr);
            (fs::read(&output).unwrap(), fs::read(output.with_extension("json")).unwrap())
        };
        let expected = made(1, 1);
        let same = [(2 + case % 3, 5), (2 + (case + 1) % 3, 12)]
            .into_iter()
            .all(|(threads, step)| made(threads, step) == expected);
        (!same).then(|| format!("{model} {backend} {}", extra.join(" ")))
    };
    let differ: Vec<String> = cases.par_iter().filter_map(differs).collect();
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn what_is_left_out_is_named_in_the_same_order() {
    let folder = TempDir::new().unwrap();
    let images = repository("calib_data/calib");
    let mut data: Vec<String> =
        files(&images)[..4].iter().map(|name| images.join(name).display().to_string()).collect();
    for name in ["a.png", "z.png"] {
        let bad = folder.path().join(name);
        fs::write(&bad, "no image").unwrap();
        data.push(bad.display().to_string());
    }
    let sidecar = |data: &[String]| {
        let output = folder.path().join("q.onnx");
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx"));
        command.args(["-b", "tensorrt", "--preprocess", "half", "-q", "--skip-bad-data"]);
        command.args(data.iter().flat_map(|path| ["--data", path]));
        assert_eq!(run(command.arg("-o").arg(&output)).code, 0);
        fs::read_to_string(output.with_extension("json")).unwrap()
    };
    let expected = sidecar(&data);
    assert_eq!(expected.matches("skipped sample: ").count(), 2, "{expected}");
    data.reverse();
    assert_eq!(sidecar(&data), expected);
}

#[test]
fn inspect_explains_without_data() {
    let model = repository("fixtures/digits_cnn.onnx");
    let ran = run(mqq().arg("inspect").arg(&model));
    assert_eq!(ran.code, 0);
    assert!(ran.stdout.contains("opset 13") && ran.stdout.contains("BatchNormalization"));
    let ran = run(mqq().arg("inspect").arg(&model).args(["-b", "tensorrt", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let placement = &report["placement"];
    assert!(!placement["quantized_tensors"].as_array().unwrap().is_empty());
    for node in placement["float_nodes"].as_array().unwrap() {
        assert!(!node["reason"].as_str().unwrap().is_empty(), "{node}");
    }
    let gemm = placement["float_nodes"].as_array().unwrap().iter().find(|n| n["op_type"] == "Gemm");
    assert_eq!(gemm.unwrap()["rule"], "skip_small_matmuls");
}

#[test]
fn backends_are_listed_and_printed() {
    let ran = run(mqq().arg("backends"));
    assert!(ran.stdout.contains("tensorrt") && ran.stdout.contains("onnxruntime"));
    let ran = run(mqq().args(["backends", "onnxruntime", "--json"]));
    let table: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(table["types"]["wgt8"]["max_pair_sum"], 128);
    assert_eq!(run(mqq().args(["backends", "nothing"])).code, 2);
}

//! Arguments: wrong usage, names and suggestions, patterns.

use super::*;

#[test]
fn wrong_usage_exits_with_2_before_any_work() {
    let folder = TempDir::new().unwrap();
    let base = |extra: &[&str]| {
        let mut command = calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path());
        run(command.args(extra))
    };
    let cases: &[(&[&str], &str)] = &[
        (&["--observer", "entrpy"], "did you mean `entropy`"),
        (&["--observer", "percentile:101"], "found 101, expected a percentage from 50 to 100, such as 99.99"),
        (&["--observer", "percentile:0.9999"], "found 0.9999, expected a percentage from 50 to 100, such as 99.99"),
        (&["--methods", "bias-correction"], "hint: did you mean `bias`?"),
        (&["--methods", "equalization"], "hint: did you mean `equalize`?"),
        (&["--methods", "inserted channel scales"], "hint: did you mean `insert-scales`?"),
        (&["--methods", "rescue"], "hint: rescue is an option of its own: --rescue PERCENT"),
        (&["--switch", "full-range-weights"], "conv-transpose-per-channel"),
        (&["--shape", "input=1x0x3"], "--shape"),
        (&["--limit", "0"], "expected a whole number, 1 or more"),
        (&["--filter", "bilinar"], "hint: did you mean `bilinear`?"),
        (&["--exclude", "["], "not a valid pattern"),
        (&["--mean", "1,2,x"], "--mean"),
        (&["--frobnicate"], "--frobnicate"),
        (&["--limit", "-1"], "invalid value '-1' for '--limit <N>': expected a whole number, 1 or more"),
        (&["--keep-float", "-1"], "expected a whole number, 0 or more"),
        (&["--save-stats", "x.mqqs", "--for", "tensort"], "--for: backend `tensort` is unknown"),
        (&["--report", "x.pdf"], "`x.pdf`: its ending names no format, expected one of: .html, .md, .txt, .json"),
    ];
    for (extra, expected) in cases {
        let ran = base(extra);
        assert_eq!(ran.code, 2, "{extra:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{extra:?}: {}", ran.stderr);
    }
    let ran = run(&mut calibrate("fixtures/digits_cnn.onnx", "tensort", folder.path()));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("hint: did you mean `tensorrt`?"), "{}", ran.stderr);
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tensorrt"]);
    let ran = run(command.args(["--data", "x", "--preprocess", "imagnet"]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("did you mean `imagenet`"), "{}", ran.stderr);
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_missing_command_is_an_error_behind_the_help() {
    for command in [&[][..], &["stats"]] {
        let ran = run(mqq().args(command));
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
        assert!(ran.stderr.contains("\nCommands:\n  "), "{}", ran.stderr);
        let last = ran.stderr.trim_end().lines().last();
        assert_eq!(last, Some("error: a command is missing, expected one of the list above"));
    }
}

#[test]
fn a_pattern_that_the_shell_expanded_is_told_before_anything_is_written() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model.onnx");
    fs::copy(repository("fixtures/digits_cnn.onnx"), &model).unwrap();
    let image = |n: usize| {
        let images = repository("calib_data/calib");
        images.join(&files(&images)[n])
    };
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::copy(image(0), data.join("a.png")).unwrap();
    fs::copy(image(1), data.join("b.png")).unwrap();
    fs::copy(image(2), data.join("c")).unwrap();
    let hint = format!("--data '{}/*.png'", data.display());
    let out = folder.path().join("out");
    for backend in ["tensorrt", "onnxruntime"] {
        let mut command = mqq();
        command.arg("calibrate").arg(&model).args(["-b", backend, "--preprocess", "half"]);
        command.arg("--out-dir").arg(&out).arg("--keep-going");
        let ran = run(command.arg("--data").args([data.join("a.png"), data.join("b.png")]));
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(&hint), "{}", ran.stderr);
        assert!(ran.stderr.contains("b.png` is data, expected a model"), "{}", ran.stderr);
    }
    // By its first bytes, too, and wherever a model is named.
    let of = |args: &[&str], paths: &[&Path]| {
        let ran = run(mqq().args(args).args(paths));
        let has_hint = ran.stderr.contains("quote the pattern");
        assert!(ran.code == 2 && has_hint == args.contains(&"--data"), "{args:?}: {}", ran.stderr);
    };
    let (a, b, c) = (data.join("a.png"), data.join("b.png"), data.join("c"));
    of(&["check", "-b", "tensorrt"], &[&model, &c]);
    of(&["inspect"], &[&a]);
    of(&["prepare", "-b", "tensorrt", "-o", "never.onnx"], &[&a]);
    of(&["compare", "--data"], &[&a, &b, &model]);
    of(&["compare", "--data"], &[&a, &b, &model, &model]);
    assert!(!out.exists());
    assert_eq!(files(folder.path()), ["data", "model.onnx"]);
}

#[test]
fn every_file_is_looked_for_before_the_first_model_is_touched() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let model = repository("fixtures/digits_cnn.onnx").display().to_string();
    let data = repository("calib_data/calib").display().to_string();
    let out = path("out");
    fs::write(path("bad.yaml"), "name: bad\n").unwrap();
    fs::write(path("bad.csv"), "name\nx\n").unwrap();
    let base = ["calibrate", &model, "--preprocess", "half", "--out-dir", &out];
    let with_data = [&base[..], &["--data", &data]].concat();
    let (none_onnx, none_yaml, none_json, none_csv) =
        (path("none.onnx"), path("none.yaml"), path("none.json"), path("none.csv"));
    let (bad_yaml, bad_csv) = (path("bad.yaml"), path("bad.csv"));
    let compare = ["compare", &model, &model, "--data", &data];
    let cases: &[(&[&str], &[&str])] = &[
        (&with_data, &["-b", "tensorrt", &none_onnx]),
        (&with_data, &["-b", "tensorrt", &data]),
        (&with_data, &["-b", &none_yaml]),
        (&with_data, &["-b", &bad_yaml]),
        (&with_data, &["-b", "tensorrt", "--preprocess", &none_yaml]),
        (&with_data, &["-b", "tensorrt", "--preprocess", &bad_yaml]),
        (&with_data, &["-b", "tensorrt", "--ranges-from", &none_json]),
        (&with_data, &["-b", "tensorrt", "--data", &none_csv]),
        (&base, &["-b", "tensorrt", "--data", &none_csv]),
        (&compare, &["--labels", &none_csv]),
        (&compare, &["--labels", &bad_csv]),
        (&compare, &["--preprocess", &none_yaml]),
        (&compare, &["--data", &none_csv]),
        (&["compare", &model, &none_onnx], &["--data", &data]),
        (&["check", &model, &none_onnx], &["-b", "tensorrt"]),
        (&["inspect"], &[&none_onnx]),
        (&["inspect", &model], &["-b", &none_yaml]),
        (&["prepare", &none_onnx], &["-b", "tensorrt", "-o", &out]),
        (&["export"], &[&none_json, "-f", "ppq"]),
        (&["backends"], &[&none_yaml]),
    ];
    for (base, extra) in cases {
        // A later --preprocess would be one too many.
        let has_own = extra.contains(&"--preprocess");
        let base: Vec<&str> = match has_own && base.len() > 5 {
            true => base.iter().filter(|&&arg| arg != "--preprocess" && arg != "half").copied().collect(),
            false => base.to_vec(),
        };
        let ran = run(mqq().args(&base).args(*extra));
        assert_eq!(ran.code, 1, "{base:?} {extra:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error: `"), "{extra:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{extra:?}");
    }
    assert_eq!(files(folder.path()), ["bad.csv", "bad.yaml"]);
    // With --keep-going a model that is not there fails alone.
    let extra = ["-b", "tensorrt", "--keep-going", "--effort", "0", &none_onnx];
    let ran = run(mqq().args(&with_data).args(extra));
    assert_eq!((ran.code, ran.stderr.matches("error: ").count()), (1, 1), "{}", ran.stderr);
    assert_eq!(files(Path::new(&out)), ["digits_cnn.tensorrt.json", "digits_cnn.tensorrt.onnx"]);
}

#[test]
fn a_model_is_given_once() {
    let folder = TempDir::new().unwrap();
    let own = folder.path().join("a.onnx");
    fs::copy(repository("fixtures/digits_cnn.onnx"), &own).unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let dotted = folder.path().join("sub/../a.onnx");
    for command in ["calibrate", "check"] {
        let mut command_line = mqq();
        command_line.args([command, "-b", "tensorrt"]).args([&own, &dotted]);
        if command == "calibrate" {
            command_line.arg("--data").arg(repository("calib_data/calib"));
            command_line.args(["--preprocess", "half", "--out-dir"]).arg(folder.path().join("out"));
        }
        let ran = run(&mut command_line);
        assert!(ran.code == 2 && ran.stderr.contains("is given twice"), "{}", ran.stderr);
    }
    assert_eq!(files(folder.path()), ["a.onnx", "sub"]);
}

#[test]
fn names_of_the_field_are_taken() {
    let aliases = [
        ("trt", "tensorrt"),
        ("ort", "onnxruntime"),
        ("ov", "openvino"),
        ("qnn", "qnn-htp"),
        ("htp", "qnn-htp"),
        ("coral", "tflite"),
        ("tidl", "tidl-msa-wc8-at8"),
    ];
    let list = run(mqq().arg("backends")).stdout;
    for (alias, name) in aliases {
        let ran = run(mqq().args(["backends", alias, "--json"]));
        let table: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(table["name"], name);
        let shown = list.lines().skip_while(|line| !line.starts_with(&format!("{name} "))).nth(1);
        let shown = shown.unwrap().trim().strip_prefix("also: ").unwrap();
        assert!(shown.split(", ").any(|shown| shown == alias), "{alias}: {shown}");
    }
    // A table that extends another has not its aliases.
    let ran = run(mqq().args(["backends", "onnxruntime-vnni", "--json"]));
    assert!(!ran.stdout.contains("\"ort\""), "{}", ran.stdout);

    let folder = TempDir::new().unwrap();
    let observed = |command: &str, backend: &str, observer: &str| {
        let mut line = mqq();
        line.args([command, "-b", backend, "--preprocess", "half", "--limit", "8", "--effort", "0"]);
        line.arg("--out-dir").arg(folder.path()).args(["--observer", observer]);
        line.arg(repository("fixtures/digits_cnn.onnx"));
        let ran = run(line.arg("--data").arg(repository("calib_data/calib")));
        assert_eq!(ran.code, 0, "{observer}: {}", ran.stderr);
        let results = ["digits_cnn.tensorrt.onnx", "digits_cnn.tensorrt.json"];
        results.map(|name| fs::read(folder.path().join(name)).unwrap())
    };
    let max = observed("calibrate", "tensorrt", "max");
    assert!(max == observed("quantize", "trt", "minmax"));
    let percentile = observed("calibrate", "tensorrt", "percentile:99.9");
    assert!(percentile == observed("calibrate", "tensorrt", "percentile=99.9"));
    assert!(percentile != max);
}

#[test]
fn options_of_a_zoo_are_refused_with_one_output() {
    let folder = TempDir::new().unwrap();
    for zoo in [["--junit", "x.xml"], ["--memory", "8G"]] {
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tensorrt", "--data"]);
        command.arg(repository("calib_data/calib")).arg("-o").arg(folder.path().join("q.onnx"));
        let ran = run(command.args(zoo));
        assert!(ran.code == 2 && ran.stderr.contains("cannot be used with"), "{}", ran.stderr);
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn an_output_of_another_format_is_refused() {
    let folder = TempDir::new().unwrap();
    let output = |name: &str| {
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tensorrt", "--effort", "0"]);
        command.args(["--preprocess", "half", "--limit", "4", "--data"]).arg(repository("calib_data/calib"));
        run(command.arg("-o").arg(folder.path().join(name)))
    };
    for name in ["q.tflite", "q.ENGINE", "q.pb"] {
        let ran = output(name);
        let expected = format!("{name}`, expected the ending .onnx: an ONNX model is written");
        assert!(ran.code == 2 && ran.stderr.contains(&expected), "{}", ran.stderr);
    }
    assert!(files(folder.path()).is_empty());
    assert_eq!(output("q.quantized").code, 0);
}

#[test]
fn changes_of_a_table_need_its_backend() {
    let commands: [&[&str]; 3] = [&["inspect", "m.onnx"], &["doctor", "m.onnx"], &["backends"]];
    for command in commands {
        for change in [["--switch", "full-range-weights"], ["--set", "min_opset=17"]] {
            let ran = run(mqq().args(command).args(change));
            let is_refused = ran.stderr.starts_with("error: the following required arguments were not provided:\n");
            assert!(ran.code == 2 && is_refused && ran.stderr.contains("<NAME|FILE>"), "{command:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_folder_in_place_of_a_model_has_the_hint_of_data() {
    let (model, folder) = (repository("fixtures/digits_cnn.onnx"), repository("calib_data/calib"));
    let ran = run(mqq().arg("calibrate").args([&model, &folder]).args(["-b", "tensorrt"]));
    let expected = format!("hint: samples are given with an option: --data {}\n", folder.display());
    assert!(ran.code == 2 && ran.stderr.contains(&expected), "{}", ran.stderr);
}

#[test]
fn only_what_is_near_is_suggested() {
    const LISTED: &str = "`mqq backends` lists them; docs/targets.md names the backend of each device";
    for (found, hint) in [
        ("tensort", "did you mean `tensorrt`?"),
        ("tidll", "did you mean `tidl`?"),
        ("nope", LISTED),
        ("int8", format!("a backend is a runtime or a chip instead of a type: {LISTED}").as_str()),
        ("xyz", LISTED),
        ("coreml", LISTED),
    ] {
        let ran = run(mqq().args(["backends", found]));
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.ends_with(&format!("\nhint: {hint}\n")), "{}", ran.stderr);
    }
    for (device, names) in [
        ("Jetson", "`tensorrt`"),
        ("orin", "`tensorrt`"),
        ("gpu", "`tensorrt`"),
        ("cuda", "`pplcuda` or `tensorrt`"),
        ("rk3588", "`rknn`"),
        ("snapdragon", "`qnn-htp` or `qnn-htp-a16`"),
        ("npu", "`qnn-htp` or `qnn-htp-a16` or `rknn` or `xint8`"),
        ("android", "`tflite`"),
    ] {
        let ran = run(mqq().args(["backends", device]));
        let hint = format!("\nhint: did you mean {names}? docs/targets.md names the backend of each device\n");
        assert!(ran.code == 2 && ran.stderr.ends_with(&hint), "{}", ran.stderr);
    }
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("mynpu.yaml"), "name: mynpu\nextends: tensorrt\n").unwrap();
    let ran = run(mqq().args(["backends", "mynpu"]).current_dir(&folder));
    assert!(ran.code == 2 && ran.stderr.contains("hint: did you mean the file `mynpu.yaml`?"), "{}", ran.stderr);
    let ran = run(calibrate("fixtures/digits_cnn.onnx", "trt", folder.path()).args(["--observer", "kurtosis"]));
    assert!(ran.code == 2 && !ran.stderr.contains("did you mean"), "{}", ran.stderr);
}

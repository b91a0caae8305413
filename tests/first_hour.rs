//! Wrong names, data that cannot be read, and results that are not what they seem: what newcomers run into.

use crate::data::{npy_f32, write_npz_stored};
use crate::support::command::{Ran, mqq, run};
use crate::support::{GraphBuilder, noise, repository, write_noise};
use assert_cmd::Command;
use image::{ImageFormat, RgbImage};
use mqq::data::Preprocessing;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn calibrate(backend: &str, data: &Path, folder: &Path) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(float_model()).args(["-b", backend, "--effort", "0"]);
    command.arg("--data").arg(data).arg("--out-dir").arg(folder);
    command
}

fn float_model() -> PathBuf {
    repository("fixtures/digits_cnn.onnx")
}

fn digits() -> PathBuf {
    repository("calib_data/calib")
}

fn refused(command: &mut Command, code: i32, expected: &str) -> Ran {
    let ran = run(command);
    assert_eq!(ran.code, code, "{}", ran.stderr);
    assert!(ran.stderr.contains(expected), "{}\nexpected: {expected}", ran.stderr);
    ran
}

#[test]
fn a_backend_has_its_name_in_any_case_and_near_ones_are_suggested() {
    let folder = TempDir::new().unwrap();
    for name in ["TensorRT", "TRT", "OnnxRuntime"] {
        let ran = run(calibrate(name, &digits(), folder.path()).args(["--preprocess", "half", "--limit", "4"]));
        assert_eq!(ran.code, 0, "{name}: {}", ran.stderr);
    }
    for (name, suggested) in [
        ("esp32", "did you mean `esp-dl`?"),
        ("ryzen", "did you mean `xint8` or `xint8-a16`?"),
        ("tensort", "did you mean `tensorrt`?"),
        ("zzz", "`mqq backends` lists them"),
    ] {
        refused(&mut calibrate(name, &digits(), folder.path()), 2, suggested);
    }
}

#[test]
fn a_wrong_option_with_json_leaves_an_error_object() {
    let folder = TempDir::new().unwrap();
    let ran = refused(calibrate("tensorrt", &digits(), folder.path()).args(["--json", "--nosuch"]), 2, "--nosuch");
    let report = ran.json();
    assert_eq!(report["error"], "unexpected argument '--nosuch' found");
    assert!(report["hint"].as_str().unwrap().starts_with("`mqq help calibrate` lists"), "{report}");
    for wrong in ["fixtures/digits_cnn.onnx", "convert"] {
        refused(mqq().arg(wrong), 2, "tip: did you mean `mqq calibrate`, which quantizes a model?");
    }
    let ran = refused(calibrate("tensorrt", &digits(), folder.path()).args(["--json", "--limit", "x"]), 2, "--limit");
    let report = ran.json();
    assert!(report["error"].as_str().unwrap().starts_with("invalid value 'x' for '--limit <N>'"), "{report}");
    let ran = refused(calibrate("tensorrt", &digits(), folder.path()).arg("--nosuch"), 2, "--nosuch");
    assert!(ran.stdout.is_empty() && !ran.stderr.contains("tip: "), "{}", ran.stderr);
    let ran = refused(mqq().args(["inspect", "a.onnx", "--task", "map"]), 2, "tip: --task is an option of `mqq");
    assert!(ran.stderr.contains("`mqq calibrate`") && !ran.stderr.contains("as a value"), "{}", ran.stderr);
}

#[test]
fn preprocessing_that_was_not_asked_for_or_has_no_effect_is_a_warning() {
    let folder = TempDir::new().unwrap();
    let ran = run(&mut calibrate("tensorrt", &digits(), folder.path())).done();
    assert!(ran.stderr.contains("no preprocessing is given, so defaults are used: images"), "{}", ran.stderr);
    let array = folder.path().join("x.npy");
    write_noise(&array, &[16, 3, 32, 32], 1);
    let ran = run(calibrate("tensorrt", &array, folder.path()).args(["--preprocess", "half"])).done();
    assert!(ran.stderr.contains("the preprocessing options have no effect"), "{}", ran.stderr);
    for ran in [
        run(&mut calibrate("tensorrt", &array, folder.path())),
        run(calibrate("tensorrt", &digits(), folder.path()).args(["--preprocess", "half"])),
    ] {
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    }
    let mean = ["--mean", "123.675,116.28,103.53", "--std", "58.395,57.12,57.375"];
    for (scale, is_far) in [("1/255", true), ("1", false)] {
        let mut command = calibrate("tensorrt", &digits(), folder.path());
        let ran = run(command.args(mean).args(["--scale", scale, "--no-preprocess-check"]));
        let found =
            ran.stderr.contains("the mean 123.675 is outside the range of the scaled pixels, 0 to 1.000; --scale 1");
        assert!(ran.code == 0 && found == is_far, "{scale}: {}", ran.stderr);
    }
    let ran = run(mqq().arg("presets"));
    assert!(ran.stdout.lines().any(|line| line.starts_with("imagenet ")), "{}", ran.stdout);
    // A preset is a file to start from.
    let ran = run(mqq().args(["presets", "imagenet"]));
    let [file, named] = [
        Preprocessing::from_yaml(&ran.stdout, "imagenet.yaml").unwrap(),
        Preprocessing { preset: None, ..Preprocessing::named("imagenet").unwrap() },
    ];
    assert_eq!(file, named, "{}", ran.stdout);
    refused(mqq().args(["presets", "imagnet"]), 2, "did you mean `imagenet`?");
}

#[test]
fn few_samples_for_ranges_are_a_warning() {
    let folder = TempDir::new().unwrap();
    for (limit, is_few) in [("15", true), ("16", false)] {
        let mut command = calibrate("tensorrt", &digits(), folder.path());
        let ran = run(command.args(["--preprocess", "half", "--limit", limit]));
        let expected = "the ranges of the activations come from only 15 samples, expected 16 or more";
        assert!(ran.code == 0 && ran.stderr.contains(expected) == is_few, "{limit}: {}", ran.stderr);
    }
}

#[test]
fn a_table_without_a_row_for_most_of_the_work_is_a_warning() {
    let folder = TempDir::new().unwrap();
    for backend in ["onnxruntime-dynamic", "weight-only-int4"] {
        let mut command = mqq();
        command.arg("calibrate").arg(float_model()).args(["-b", backend]);
        let ran = run(command.arg("--out-dir").arg(folder.path()));
        let expected = format!("8 Conv stay float, because backend `{backend}` does not quantize Conv\n");
        assert!(ran.code == 0 && ran.stderr.contains(&expected), "{}", ran.stderr);
    }
    // Layers that the user excludes have a row.
    let mut command = calibrate("onnxruntime", &digits(), folder.path());
    let ran = run(command.args(["--preprocess", "half", "--exclude", "Conv"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

#[test]
fn strict_makes_warnings_an_error_and_writes_nothing() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    for (args, expected) in [
        (["--exclude", "*"], "no node was quantized: the written model is the float model"),
        (["--exclude", "nothere"], "`nothere` matches no node name and no operator type of the model"),
    ] {
        let mut command = calibrate("tensorrt", &digits(), &out);
        refused(command.args(["--preprocess", "half", "--strict"]).args(args), 3, expected);
        assert!(!out.exists());
        let ran = run(calibrate("tensorrt", &digits(), &out).args(["--preprocess", "half"]).args(args));
        assert!(ran.code == 0 && ran.stderr.contains(expected), "{}", ran.stderr);
        fs::remove_dir_all(&out).unwrap();
    }
    run(calibrate("tensorrt", &digits(), &out).args(["--preprocess", "half", "--strict"])).done();
}

#[test]
fn a_picture_that_cannot_be_decoded_is_an_error_or_counted() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join("data").join(name);
    let out = folder.path().join("out");
    fs::create_dir_all(at("more")).unwrap();
    let picture = RgbImage::from_fn(64, 64, |x, y| image::Rgb([x as u8 * 4, y as u8 * 4, 0]));
    picture.save_with_format(at("more/whole.jpg"), ImageFormat::Jpeg).unwrap();
    let whole = fs::read(at("more/whole.jpg")).unwrap();
    for n in [whole.len() / 2, whole.len() - 2] {
        fs::write(at("cut.jpg"), &whole[..n]).unwrap();
        refused(&mut calibrate("tensorrt", &at(""), &out), 1, "cut.jpg`: is truncated: ");
    }
    // Bytes after the end of an image are ignored.
    fs::write(at("cut.jpg"), [&whole[..], b"more"].concat()).unwrap();
    assert_eq!(run(&mut calibrate("tensorrt", &at(""), &out)).code, 0);
    fs::write(at("new.avif"), b"\0\0\0\x1cftypavif\0\0\0\0").unwrap();
    refused(&mut calibrate("tensorrt", &at(""), &out), 1, "new.avif`: ");
    let ran = run(calibrate("tensorrt", &at(""), &out).arg("--skip-bad-data")).done();
    assert!(ran.stderr.contains("skipped sample: ") && ran.stderr.contains("new.avif"), "{}", ran.stderr);
    assert!(ran.stdout.contains("calibration data  2 samples"), "{}", ran.stdout);
}

#[test]
fn entries_of_lists_that_are_missing_are_an_error_or_counted() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut images: Vec<String> =
        fs::read_dir(digits()).unwrap().map(|entry| entry.unwrap().path().display().to_string()).collect();
    images.sort_unstable();
    let image = |i: usize| images[i].clone();
    fs::write(at("notes.md"), "no data").unwrap();
    let lines = [image(0), "gone.png".to_string(), image(1), "notes.md".to_string(), image(2)];
    fs::write(at("list.txt"), lines.join("\n")).unwrap();
    let rows: String = lines.iter().map(|path| format!("{path},3\n")).collect();
    fs::write(at("list.csv"), format!("file,class_index\n{rows}")).unwrap();
    for (list, line) in [("list.txt", 2), ("list.csv", 3)] {
        let out = at(&format!("{list}.out"));
        let expected =
            format!("{list}`: line {line}: `gone.png`: does not exist, expected a path relative to the list");
        let ran = refused(&mut calibrate("tensorrt", &at(list), &out), 1, &expected);
        assert!(ran.stderr.contains("hint: --skip-bad-data skips "), "{}", ran.stderr);
        let ran = run(calibrate("tensorrt", &at(list), &out).args(["--skip-bad-data", "--methods", "none"])).done();
        assert!(ran.stdout.contains("calibration data  3 samples, 2 skipped"), "{}", ran.stdout);
        assert_eq!(ran.stderr.matches("skipped sample: ").count(), 2, "{}", ran.stderr);
        assert!(
            ran.stderr.contains(&expected) && ran.stderr.contains("`notes.md`: is not supported"),
            "{}",
            ran.stderr
        );
    }
    // Where several images form a sample, the one with the missing image is left out, and the others stay as they are.
    let lines = [image(0), image(1), image(2), "gone.png".to_string(), image(4), image(5)];
    fs::write(at("list.txt"), lines.join("\n")).unwrap();
    let mut command = calibrate("tensorrt", &at("list.txt"), &at("batches"));
    let ran = run(command.args(["--shape", "input=2x3x32x32", "--skip-bad-data", "--methods", "none"])).done();
    assert!(ran.stdout.contains("calibration data  2 samples, 1 skipped"), "{}", ran.stdout);
    fs::write(at("list.txt"), "gone.png\nlost.png").unwrap();
    refused(calibrate("tensorrt", &at("list.txt"), &at("none")).arg("--skip-bad-data"), 1, "gone.png`: does not exist");
}

#[test]
fn folders_for_results_are_made_and_do_not_stay_empty() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("new/folder/x.onnx");
    let run_with = |data: &Path| {
        let mut command = mqq();
        command.arg("calibrate").arg(float_model()).args(["-b", "tvm", "--effort", "0"]);
        run(command.args(["--preprocess", "half", "--data"]).arg(data).arg("-o").arg(&output))
    };
    let bad = folder.path().join("bad.npy");
    fs::write(&bad, "none").unwrap();
    assert_eq!(run_with(&bad).code, 1);
    assert!(!folder.path().join("new").exists());
    let ran = run_with(&digits());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(output.exists() && output.with_extension("json").exists());
    assert!(ran.stdout.contains("load it with      tvm.relax.frontend.onnx.from_onnx"), "{}", ran.stdout);
    for (backend, expected) in [("tflite-16x8", "keeps these integers; see"), ("esp-dl", "takes this model, since")] {
        let ran = run(calibrate(backend, &digits(), folder.path()).args(["--preprocess", "half"]));
        let line = format!("  on the target     no converter {expected}");
        assert!(ran.code == 0 && ran.stdout.contains(&line), "{}{}", ran.stdout, ran.stderr);
    }
    let ran = run(&mut calibrate("tensorrt", &digits(), &folder.path().join("my models")));
    assert!(ran.stdout.contains("load it with      trtexec --onnx='/"), "{}", ran.stdout);
    assert!(ran.stdout.contains("/my models/digits_cnn.tensorrt.onnx' --saveEngine"), "{}", ran.stdout);
}

#[test]
fn open_dimensions_have_the_shape_of_the_data() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut graph = GraphBuilder::new(17);
    for name in ["a", "b"] {
        graph.input(name, &[-1, 3, -1, -1]);
    }
    let sum = graph.op("Add", &["a", "b"], "sum");
    let y = graph.conv(&sum, 3, 4, 3, 1, "y");
    let model = graph.output(&y).build();
    mqq::onnx::save(&model, &at("open.onnx")).unwrap();
    let one = |name: &str, shape: &[usize]| {
        let file = at(name);
        write_noise(&file, shape, 1);
        fs::read(file).unwrap()
    };
    let command = |shape: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(at("open.onnx")).args(["-b", "tvm", "--effort", "0", "--data"]);
        command.arg(at("x.npz")).args(shape).arg("--out-dir").arg(at("out"));
        command
    };
    // Five samples, as one batch or with an axis of samples in front.
    let archive = |a: &[usize], b: &[usize]| write_npz_stored(&at("x.npz"), &[("a", one("a", a)), ("b", one("b", b))]);
    archive(&[5, 3, 12, 10], &[5, 1, 3, 12, 10]);
    let ran = run(&mut command(&[])).done();
    assert!(ran.stdout.contains("5 samples"), "{}", ran.stdout);
    refused(
        &mut command(&["--shape", "aa=1x3x12x10"]),
        1,
        "--shape: the model has no input `aa`, expected one of: a, b",
    );
    // An option wins, and an array of another rank says nothing.
    refused(
        &mut command(&["--shape", "a=1x3x9x9"]),
        1,
        "array has shape [5, 3, 12, 10], expected for input `a`: [1, 3, 9, 9]",
    );
    archive(&[5, 3, 12, 10], &[12, 10]);
    let error = refused(&mut command(&[]), 1, "input `b` has the shape [?, 3, ?, ?], expected fixed dimensions");
    assert!(error.stderr.contains("for instance --shape b=1x3x224x224"), "{}", error.stderr);
    let of_x = [5usize, 3, 12, 10];
    write_npz_stored(&at("x.npz"), &[("a", one("a", &of_x)), ("c", one("c", &of_x))]);
    let named = "\nhint: name each array as its input: numpy.savez(\"x.npz\", b=array)";
    refused(&mut command(&[]), 1, &format!("x.npz`: has no array for input `b`, found `a`, `c`{named}"));
    // The hint for tokens is a length, not the side of an image.
    let mut graph = GraphBuilder::new(17);
    graph.input("ids", &[-1, -1]);
    let y = graph.op("Relu", &["ids"], "y");
    mqq::onnx::save(&graph.output(&y).build(), &at("tokens.onnx")).unwrap();
    let mut command = mqq();
    command.arg("calibrate").arg(at("tokens.onnx")).args(["-b", "tvm", "--data"]).arg(digits());
    refused(command.arg("--out-dir").arg(at("out")), 1, "for instance --shape ids=1x128");
}

/// A batch of 1 makes products too small for TensorRT's table, and an open batch is 1.
#[test]
fn a_batch_of_one_that_leaves_products_float_is_named() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (file, batch) in [("open.onnx", -1), ("one.onnx", 1)] {
        let mut graph = GraphBuilder::new(17);
        graph.input("columns", &[batch, 32]);
        graph.weight("w", &[32, 32]);
        graph.op("MatMul", &["columns", "w"], "y");
        mqq::onnx::save(&graph.output("y").build(), &at(file)).unwrap();
    }
    write_noise(&at("x.npy"), &[64, 32], 1);
    let command = |file: &str, options: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(at(file)).args(["-b", "tensorrt", "--effort", "0", "--data"]);
        command.arg(at("x.npy")).arg("--out-dir").arg(at("out")).args(options);
        run(&mut command)
    };
    let ran = command("open.onnx", &[]);
    assert!(ran.stderr.contains("`columns` has an open batch, which is 1 without --shape"), "{}", ran.stderr);
    let ran = command("open.onnx", &["--shape", "columns=16x32"]);
    assert!(ran.code == 0 && !ran.stderr.contains("batch"), "{}", ran.stderr);
    let ran = command("one.onnx", &[]);
    assert!(ran.stderr.contains("`columns` has a batch of 1, and products of a batch of 1"), "{}", ran.stderr);
}

#[test]
fn images_give_an_open_height_and_width() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut graph = GraphBuilder::new(17);
    graph.input("image", &[-1, 3, -1, -1]);
    graph.conv("image", 3, 4, 3, 1, "y");
    mqq::onnx::save(&graph.output("y").build(), &at("open.onnx")).unwrap();
    fs::create_dir(at("data")).unwrap();
    let write = |name: &str, [width, height]: [usize; 2]| {
        let header = format!("P6 {width} {height} 255\n");
        let pixels = (0..3 * width * height).map(|i| (i * 37 % 256) as u8);
        fs::write(at("data").join(name), header.into_bytes().into_iter().chain(pixels).collect::<Vec<u8>>()).unwrap();
    };
    let command = |options: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(at("open.onnx")).args(["-b", "tvm", "--effort", "0", "--data"]).arg(at("data"));
        command.args(["--preprocess", "unit", "--out-dir"]).arg(at("out")).args(options);
        command
    };
    write("a.ppm", [12, 10]);
    write("b.ppm", [12, 10]);
    let ran = run(&mut command(&[]));
    assert!(ran.code == 0 && ran.stdout.contains("2 samples"), "{}{}", ran.stdout, ran.stderr);
    write("c.ppm", [9, 10]);
    let error = refused(&mut command(&[]), 1, "input `image` is [1, 3, 10, 9] in `");
    let named = ["c.ppm` and [1, 3, 10, 12] in `", "expected images of one size", "--resize exact=HxW"];
    assert!(named.iter().all(|text| error.stderr.contains(text)), "{}", error.stderr);
    for sized in [["--resize", "exact=8x8"], ["--shape", "image=1x3x8x8"]] {
        let ran = run(&mut command(&sized));
        assert!(ran.code == 0 && ran.stdout.contains("3 samples"), "{}{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn more_threads_than_cores_are_not_used() {
    let folder = TempDir::new().unwrap();
    let ran =
        run(calibrate("tensorrt", &digits(), folder.path()).args(["--preprocess", "half", "--threads", "999"])).done();
    assert!(ran.stderr.contains("--threads is 999, but there are"), "{}", ran.stderr);
}

#[test]
fn inspect_begins_with_shapes_and_float_nodes_and_lists_tensors_where_asked() {
    let inspect = |more: &[&str]| {
        let ran = run(mqq().arg("inspect").arg(float_model()).args(["-b", "tvm"]).args(more)).done();
        ran.stdout
    };
    let text = inspect(&[]);
    assert!(
        text.contains("\n  input    input: float32 [N, 3, 32, 32]\n  output   logits: float32 [N, 10]\n"),
        "{text}"
    );
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("\nfloat nodes (") < at("\nquantized activations ("), "{text}");
    assert!(at(" quantize_inputs, ") < at("\nquantized weights ("), "{text}");
    for tensors in ["fused into", "input of Conv (quantize_inputs) -> ", "  stem.0.weight\n"] {
        assert!(!text.contains(tensors) && inspect(&["-v"]).contains(tensors), "{tensors}: {text}");
    }
    let report: serde_json::Value = serde_json::from_str(&inspect(&["--json"])).unwrap();
    assert_eq!(report["input_types"], serde_json::json!(["float32 [N, 3, 32, 32]"]));
}

#[test]
fn the_share_of_multiply_adds_on_integers_is_said() {
    let folder = TempDir::new().unwrap();
    let ran = |args: &[&str]| {
        let mut command = calibrate("tensorrt", &digits(), folder.path());
        run(command.args(["--preprocess", "half"]).args(args))
    };
    let share = |args: &[&str]| {
        let ran = ran(&[&["--json"], args].concat());
        let report = ran.json();
        report["results"][0]["summary"]["integer_share"].as_f64().unwrap()
    };
    let (all, some) = (share(&[]), share(&["--exclude", "/stem/stem.0/Conv"]));
    // The one layer in float, Gemm, has 640 of some million.
    assert!(all > 0.99 && all < 1.0 && some < all - 0.05, "{all} {some}");
    let text = ran(&[]).stdout;
    assert!(text.contains("; over 99.9 % of the multiply-adds\n"), "{text}");
}

/// `mqq compare` of the bundled model and a quantized one on bundled images.
fn compare(float: &Path, quantized: &Path, data: &Path, more: &[&str]) -> Ran {
    run(mqq().arg("compare").args([float, quantized]).arg("--data").arg(data).args(more))
}

#[test]
fn compare_says_where_its_preprocessing_is_not_the_sidecars() {
    let folder = TempDir::new().unwrap();
    let model = float_model();
    run(calibrate("tensorrt", &digits(), folder.path()).args(["--preprocess", "half"])).done();
    let quantized = folder.path().join("digits_cnn.tensorrt.onnx");
    let compared = |more: &[&str]| compare(&model, &quantized, &digits(), more);
    let ran = compared(&["--preprocess", "unit"]);
    let expected = "warning: the preprocessing differs from that of calibration: images for input `input` (unit): ";
    assert!(ran.code == 0 && ran.stderr.starts_with(expected), "{}", ran.stderr);
    assert!(ran.stderr.contains("digits_cnn.tensorrt.json`: images for input `input` (half): "), "{}", ran.stderr);
    assert_eq!(compared(&["--preprocess", "unit", "--quiet"]).stderr, "");
    let report: serde_json::Value =
        serde_json::from_str(&compared(&["--preprocess", "unit", "--json"]).stdout).unwrap();
    assert_eq!(report["warnings"].as_array().unwrap().len(), 1);
    // The same steps, asked for in another way; arrays; no sidecar.
    let spelled = ["--color", "rgb", "--scale", "1/255", "--mean", "0.5,0.5,0.5", "--std", "0.5", "--resize", "exact"];
    let array = folder.path().join("x.npy");
    write_noise(&array, &[4, 3, 32, 32], 1);
    for ran in [compared(&["--preprocess", "half"]), compared(&spelled), compare(&model, &quantized, &array, &[])] {
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    }
    fs::remove_file(quantized.with_extension("json")).unwrap();
    assert_eq!(compared(&["--preprocess", "unit"]).stderr, "");
}

#[test]
fn one_sample_is_not_plural() {
    let model = float_model();
    let ran = compare(&model, &model, &digits(), &["--preprocess", "half", "--limit", "1", "--task", "classify"]);
    assert!(ran.code == 0 && ran.stdout.contains("1 sample"), "{} {}", ran.stdout, ran.stderr);
    assert!(!ran.stdout.contains("1 samples"), "{}", ran.stdout);
}

#[test]
fn classes_are_the_names_of_folders() {
    let folder = TempDir::new().unwrap();
    let model = float_model();
    let labels = fs::read_to_string(repository("calib_data/eval.csv")).unwrap();
    let names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    // Letters in the order of the classes; the classes themselves; names in another order.
    let name_of = |tree: &str, class: usize| match tree {
        "letters" => char::from(b'a' + class as u8).to_string(),
        "numbers" => class.to_string(),
        _ => names[class].to_string(),
    };
    for line in labels.lines().skip(1).take(60) {
        let (file, class) = line.split_once(',').unwrap();
        for tree in ["letters", "numbers", "names"] {
            let to = folder.path().join(tree).join(name_of(tree, class.parse().unwrap()));
            fs::create_dir_all(&to).unwrap();
            fs::copy(repository("calib_data").join(file), to.join(Path::new(file).file_name().unwrap())).unwrap();
        }
    }
    let compared = |data: &Path| compare(&model, &model, data, &["--preprocess", "half", "--labels", "folders"]);
    let float_top1 = |tree: &str| {
        let ran = compared(&folder.path().join(tree));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let (_, top1) = ran.stdout.split_once("top-1 float ").unwrap();
        top1.split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(float_top1("letters") > 90.0 && float_top1("numbers") > 90.0);
    // As torchvision's ImageFolder: eight, five, four and so on.
    assert!(float_top1("names") < 50.0);
    // Numbers are classes even where others are missing, and names are not.
    for class in 0..5 {
        for tree in ["numbers", "names"] {
            fs::remove_dir_all(folder.path().join(tree).join(name_of(tree, class))).unwrap();
        }
    }
    assert!(float_top1("numbers") > 90.0);
    let ran = compared(&folder.path().join("names"));
    let expected = "--labels folders: found 5 folders, expected one for each of 10 class scores";
    assert!(ran.code == 1 && ran.stderr.contains(expected), "{}", ran.stderr);
    let loose = folder.path().join("letters/loose.png");
    fs::copy(repository("calib_data/eval/0003.png"), &loose).unwrap();
    let ran = compared(&folder.path().join("letters"));
    assert!(ran.code == 1 && ran.stderr.contains("loose.png` is not in the folder of a class"), "{}", ran.stderr);
    let ran = compared(&digits());
    assert!(ran.code == 1 && ran.stderr.contains("has no subfolders, expected one for each class"), "{}", ran.stderr);
    let ran = compare(&model, &model, &digits(), &["--preprocess", "half", "--labels", "folder"]);
    assert!(ran.code == 1 && ran.stderr.contains("`folder`"), "{}", ran.stderr);
}

#[test]
fn compare_upgrades_an_operator_set_as_calibrate_does() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut graph = GraphBuilder::new(9);
    graph.input("x", &[1, 3, 8, 8]);
    let y = graph.conv("x", 3, 4, 3, 1, "y");
    graph.values("scales", &[4], &[1.0, 1.0, 2.0, 2.0]);
    let up = graph.op("Upsample", &[&y, "scales"], "up");
    let model = graph.output(&up).build();
    mqq::onnx::save(&model, &at("up.onnx")).unwrap();
    write_noise(&at("x.npy"), &[4, 3, 8, 8], 1);
    let mut command = mqq();
    command.arg("calibrate").arg(at("up.onnx")).args(["-b", "tensorrt", "--effort", "0", "--data"]).arg(at("x.npy"));
    run(&mut command).done();
    let ran = compare(&at("up.onnx"), &at("up.tensorrt.onnx"), &at("x.npy"), &["--min-sqnr", "20"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn the_sensitivity_of_each_layer_is_printed() {
    let folder = TempDir::new().unwrap();
    let mut command = calibrate("tensorrt", &digits(), folder.path());
    let ran = run(command.args(["--preprocess", "half", "--keep-float", "0", "-v"]));
    let is_one = |line: &&str| line.trim_start().starts_with("sensitivity: ") && line.contains(" dB with Conv ");
    let lines = ran.stdout.lines().filter(is_one);
    assert_eq!(lines.clone().count(), 8, "{}", ran.stdout);
    assert!(
        lines.clone().any(|line| line.contains(" dB with Conv `/stem/stem.0/Conv` alone quantized")),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_float_model_with_nan_has_no_ordinary_figures() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut model = mqq::onnx::load_whole(&float_model()).unwrap().model;
    let weight = model.graph.as_mut().unwrap().initializer.iter_mut().find(|t| t.name() == "stem.0.weight").unwrap();
    let (shape, mut values) =
        (mqq::onnx::tensor::shape(weight).unwrap(), mqq::onnx::tensor::f32_values(weight).unwrap());
    values[3] = f32::NAN;
    *weight = mqq::onnx::tensor::from_f32("stem.0.weight", &shape, &values).unwrap();
    mqq::onnx::save(&model, &at("nan.onnx")).unwrap();
    let calibrated = |more: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(at("nan.onnx")).args(["-b", "tensorrt", "--effort", "0", "--preprocess", "half"]);
        run(command.arg("--data").arg(digits()).args(more))
    };
    let ran = calibrated(&[]);
    assert!(ran.code == 1 && ran.stderr.contains("hint: export the float model again"), "{}", ran.stderr);
    let ran = calibrated(&["--exclude", "/stem/stem.0/Conv"]);
    assert!(ran.code == 0 && ran.stderr.contains("weight [3] is NaN"), "{}", ran.stderr);
    let compared = |more: &[&str]| {
        compare(&at("nan.onnx"), &at("nan.tensorrt.onnx"), &digits(), &[&["--preprocess", "half"], more].concat())
    };
    let ran = compared(&[]);
    assert!(ran.code == 0 && ran.stderr.contains("nan.onnx`: node "), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("weight [3] is NaN") && ran.stderr.contains("so a runtime gives NaN outputs"),
        "{}",
        ran.stderr
    );
    assert_eq!(compared(&["--min-sqnr=-300"]).code, 3);
}

#[test]
fn pixel_values_that_fit_clearly_better_are_named() {
    let folder = TempDir::new().unwrap();
    let warned = |data: &Path, more: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(float_model()).args(["-b", "tensorrt", "--data"]);
        let ran = run(command.arg(data).arg("--out-dir").arg(folder.path()).args(more)).done();
        ran.stderr
    };
    let fits = "the network tells classes apart clearly better with --color rgb --scale 1/255 --mean 0.5 --std 0.5 (as in \
                `imagenet-tf`, `minus-one-to-one`, `half`): ";
    for preset in ["unit", "raw"] {
        let said = warned(&digits(), &["--preprocess", preset]);
        assert!(said.contains(fits) && said.contains(", on 16 images"), "{preset}: {said}");
    }
    // The right values; the check is off; too few images; arrays.
    let array = folder.path().join("x.npy");
    write_noise(&array, &[30, 3, 32, 32], 1);
    for said in [
        warned(&digits(), &["--preprocess", "half"]),
        warned(&digits(), &["--preprocess", "unit", "--no-preprocess-check"]),
        warned(&digits(), &["--preprocess", "unit", "--limit", "11"]),
        warned(&array, &[]),
        // Without tuning, the check may take as many runs as there are samples: 20 for each of 16 images.
        warned(&digits(), &["--preprocess", "unit", "--effort", "0"]),
    ] {
        assert!(!said.contains("clearly better"), "{said}");
    }
    let list = folder.path().join("five_times.txt");
    let mut files: Vec<_> = fs::read_dir(digits()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let lines: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
    fs::write(&list, lines.repeat(5)).unwrap();
    let said = warned(&list, &["--preprocess", "unit", "--effort", "0"]);
    assert!(said.contains(fits) && said.contains(", on 16 images"), "{said}");
}

/// A network without class scores, whose normalizations are those of pixels from -1 to 1.
#[test]
fn normalizations_tell_the_scale() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut model = mqq::onnx::load_whole(&float_model()).unwrap().model;
    let graph = model.graph.as_mut().unwrap();
    // The map in front of the pooling is the output.
    let pool = graph.node.iter().position(|node| node.op_type() == "GlobalAveragePool").unwrap();
    graph.output[0].name = Some(graph.node[pool].input[0].clone());
    graph.output[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape = None;
    graph.node.truncate(pool);
    mqq::onnx::save(&model, &at("map.onnx")).unwrap();
    // Without tuning, the check may take as many runs as there are samples: 6 for each of 24 images.
    let list = at("twice.txt");
    let mut files: Vec<_> = fs::read_dir(digits()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let lines: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
    fs::write(&list, lines.repeat(2)).unwrap();
    let warned = |preset: &str| {
        let mut command = mqq();
        command.arg("calibrate").arg(at("map.onnx")).args(["-b", "tensorrt", "--effort", "0", "--preprocess", preset]);
        let ran = run(command.arg("--data").arg(&list)).done();
        ran.stderr
    };
    let said = warned("raw");
    assert!(
        said.contains("another scale of the pixels fits the network clearly better: --color rgb --scale 1/255 "),
        "{said}"
    );
    assert!(said.contains(" --mean 0.5 --std 0.5 (as in "), "{said}");
    assert!(said.contains("its 8 BatchNormalization nodes deviate by "), "{said}");
    assert_eq!(warned("half"), "");
}

#[test]
fn a_format_that_cannot_hold_the_types_is_refused_before_the_data_are_read() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("bad.png"), "no image").unwrap();
    let mut command = calibrate("onnxruntime", folder.path(), &folder.path().join("out"));
    refused(
        command.args(["--preprocess", "half", "--emit", "trt-cache"]),
        2,
        "format `trt-cache` holds only symmetric int8",
    );
}

#[test]
fn a_long_stage_is_reported_while_it_runs() {
    use std::io::{BufRead, BufReader};
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut graph = GraphBuilder::new(17);
    graph.input("x", &[1, 3, 224, 224]);
    let first = graph.conv("x", 3, 32, 3, 1, "first");
    let y = graph.conv(&first, 32, 32, 3, 1, "y");
    mqq::onnx::save(&graph.output(&y).build(), &at("slow.onnx")).unwrap();
    write_noise(&at("x.npy"), &[1, 3, 224, 224], 1);
    fs::write(at("many.txt"), "x.npy\n".repeat(10_000)).unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("mqq"));
    command.arg("calibrate").arg(at("slow.onnx")).args(["-b", "tvm", "--effort", "0", "--threads", "1", "--data"]);
    command.arg(at("many.txt")).arg("--out-dir").arg(at("out")).stderr(std::process::Stdio::piped());
    let mut running = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let line = BufReader::new(running.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    let is_running = running.try_wait().unwrap().is_none();
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(line.contains("slow.onnx: calibration: ") && line.contains(" of 10000 steps in "), "{line}");
    assert!(is_running);
}

#[test]
fn ranges_that_are_given_are_counted() {
    let folder = TempDir::new().unwrap();
    assert_eq!(run(&mut calibrate("tensorrt", &digits(), folder.path())).code, 0);
    let mut command = mqq();
    command.arg("calibrate").arg(float_model()).args(["-b", "tensorrt", "--ranges-from"]);
    command.arg(folder.path().join("digits_cnn.tensorrt.json")).arg("-o").arg(folder.path().join("again.onnx"));
    let ran = run(&mut command);
    let expected = "given ranges      11 tensors from `digits_cnn.tensorrt.json` (sidecar)";
    assert!(ran.code == 0 && ran.stdout.contains(expected), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn the_size_stands_beside_that_of_the_float_model() {
    let (folder, model) = (TempDir::new().unwrap(), float_model());
    let mut command = mqq();
    command.arg("calibrate").arg(&model).args(["-b", "weight-only-int8", "--out-dir"]).arg(folder.path());
    let ran = run(&mut command);
    let size = |path: &Path| format!("{:.0} kB", fs::metadata(path).unwrap().len() as f64 / 1e3);
    let [written, float] = [&folder.path().join("digits_cnn.weight-only-int8.onnx"), &model].map(|path| size(path));
    let expected = format!("  size              {written} (float model {float})\n");
    assert!(ran.code == 0 && ran.stdout.contains(&expected), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn errors_of_options_and_formats_have_advice() {
    let ran = refused(mqq().args(["calibrate", "m.onnx", "-b", "tensorrt", "--limitt", "3", "--json"]), 2, "--limitt");
    let error = ran.json();
    assert_eq!(error["hint"], "a similar argument exists: '--limit'");
    for (option, tip) in [
        ("--subset-size", "tip: --subset-size of NNCF is --limit N"),
        ("--calibrate_method", "tip: --calibrate_method of ONNX Runtime is --observer NAME"),
        ("--overwrite", "tip: --overwrite is not needed: results are replaced, unless --skip-existing is given"),
        ("--smaples", "Usage: mqq calibrate [OPTIONS]"),
    ] {
        let ran = refused(mqq().args(["calibrate", "m.onnx", "-b", "tensorrt", option, "3"]), 2, tip);
        assert!(!ran.stderr.contains("a similar argument"), "{}", ran.stderr);
    }
    let folder = TempDir::new().unwrap();
    assert_eq!(run(&mut calibrate("tensorrt", &digits(), folder.path())).code, 0);
    let sidecar = folder.path().join("digits_cnn.tensorrt.json");
    let mut two = mqq();
    two.arg("export").arg(&sidecar).args(["--format", "trt-cache,tidl"]);
    let ran = refused(&mut two, 2, "--format names 2 formats, expected one");
    assert!(ran.stderr.contains("hint: run `mqq export` once per format"), "{}", ran.stderr);
    let ran = refused(mqq().arg("export").arg(sidecar).args(["--format", "vitis"]), 1, "expected a power of two");
    assert!(ran.stderr.contains("hint: docs/formats.md lists the requirements of `vitis`"), "{}", ran.stderr);
    refused(
        mqq().args(["calibrate", ".", "-b", "tvm", "--data"]).arg(digits()),
        2,
        "`.`: is a directory, expected a file",
    );
    let mut emit = calibrate("openvino", &digits(), folder.path());
    let advice = "hint: docs/formats.md lists the requirements of `ort-flatbuffers`";
    refused(emit.args(["--emit", "ort-flatbuffers"]), 1, advice);
    let mut shape = calibrate("tensorrt", &digits(), folder.path());
    refused(shape.args(["--shape", "input=1x4x8x8"]), 1, "hint: --shape gives numbers to open dimensions");
    let bad = folder.path().join("bad.npy");
    fs::write(&bad, "no array").unwrap();
    let mut skipped = calibrate("tensorrt", &bad, folder.path());
    refused(skipped.arg("--skip-bad-data"), 1, "hint: docs/guide.md explains how to pass data\n");
    let advice =
        "`: is a model, expected a sidecar\nhint: the sidecar of a quantized model is the .json file beside it";
    refused(mqq().arg("report").arg(float_model()), 1, advice);
}

#[test]
fn hints_are_about_the_option_or_the_file_that_is_wrong() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).into_os_string().into_string().unwrap()
    };
    let steps = write("steps.yaml", "zzz: rgb\n");
    let head = write("head.yaml", "tusk: detect\n");
    let statistics = write("s.mqqs", "x");
    let model = write("q.onnx", "x");
    let numbers = "hint: separate the numbers of an option by commas, without spaces";
    for (extra, code, expected) in [
        (&["--scale", "0"][..], 2, "`scale` is 0, expected a finite number other than 0\nhint: `mqq help calibrate`"),
        (&["--mean", "0.485", "0.456", "0.406"], 2, numbers),
        (&["--preprocess", steps.as_str()], 1, "hint: docs/guide.md lists the keys of preprocessing\n"),
        (&["--head", head.as_str(), "--effort", "1"], 1, "hint: docs/tasks.md lists the keys of heads\n"),
        (
            &["--ranges-from", model.as_str()],
            1,
            "hint: the sidecar of a quantized model is the .json file beside it: `q.json`",
        ),
        (&["--ranges-from", statistics.as_str()], 1, "hint: `mqq solve --stats FILE` quantizes from them\n"),
        (&["--strict", "--limit", "2"], 3, "hint: without --strict, the model is written despite warnings\n"),
    ] {
        let mut command = mqq();
        command.arg("calibrate").arg(float_model()).args(["-b", "tensorrt", "--data"]);
        refused(command.arg(digits()).arg("--out-dir").arg(folder.path()).args(extra), code, expected);
    }
    let models = [float_model(), float_model()];
    let mut compare = mqq();
    compare.arg("compare").args(models).arg("--data").arg(digits()).args(["--mean", "0.5", "0.5", "0.5"]);
    refused(&mut compare, 2, "tip: separate the numbers of an option by commas");
}

#[test]
fn inputs_and_outputs_in_another_order_are_paired_by_name() {
    let folder = TempDir::new().unwrap();
    let mut graph = GraphBuilder::new(17);
    for name in ["a", "b"] {
        let x = graph.input(&format!("of_{name}"), &[1, 3, 6, 6]);
        let y = graph.conv(&x, 3, 4, 1, 1, name);
        graph.output(&y);
    }
    let model = graph.build();
    let mut turned = model.clone();
    turned.graph.as_mut().unwrap().input.reverse();
    turned.graph.as_mut().unwrap().output.reverse();
    // Where a name is another, the place counts.
    let mut renamed = turned.clone();
    let graph = renamed.graph.as_mut().unwrap();
    graph.output[1].name = Some("c".into());
    graph
        .node
        .iter_mut()
        .for_each(|node| node.output.iter_mut().filter(|name| *name == "a").for_each(|name| *name = "c".into()));
    let at = |name: &str| folder.path().join(name);
    for (name, model) in [("m.onnx", &model), ("t.onnx", &turned), ("r.onnx", &renamed)] {
        fs::write(at(name), prost::Message::encode_to_vec(model)).unwrap();
    }
    let array = |seed: u32| npy_f32(&[4, 3, 6, 6], &noise(4 * 108, seed));
    write_npz_stored(&at("x.npz"), &[("of_a", array(3)), ("of_b", array(4))]);
    for other in ["t.onnx", "m.onnx"] {
        let ran = compare(&at("m.onnx"), &at(other), &at("x.npz"), &[]);
        assert!(ran.code == 0 && !ran.stderr.contains("compared by position"), "{}", ran.stderr);
        let lines: Vec<&str> = ran.stdout.lines().map(|line| line.split(", cosine").next().unwrap()).collect();
        assert_eq!(lines, ["a: overlap 1.000, equal", "b: overlap 1.000, equal"], "{}", ran.stdout);
    }
    let ran = compare(&at("m.onnx"), &at("r.onnx"), &at("x.npz"), &[]);
    let expected = "warning: outputs are compared by position, because names differ: `b` is compared with `c`";
    assert!(ran.code == 0 && ran.stderr.contains(expected), "{}", ran.stderr);
}

#[test]
fn a_pattern_or_an_output_that_matches_nothing_has_advice() {
    let folder = TempDir::new().unwrap();
    let of = |extra: &[&str]| {
        let mut command = calibrate("tensorrt", &digits(), folder.path());
        run(command.args(["--preprocess", "half", "--limit", "4"]).args(extra)).stderr
    };
    for (extra, expected) in [
        (&["--exclude", "conv"][..], "operator type of the model: did you mean `Conv`?"),
        (&["--exclude", "Conv,Gemm"], "give one option per pattern, not a list with commas"),
        (&["--only", "/Concatt"], "did you mean `/Concat`?"),
        (&["--exclude", "/stem/.*"], "of the model: patterns are globs: `*stem*` matches "),
        (&["--outputs", "/Concat"], "hint: that is a node; its output is `/Concat_output_0`"),
    ] {
        let found = of(extra);
        assert!(found.contains(expected), "{extra:?}: {found}");
    }
}

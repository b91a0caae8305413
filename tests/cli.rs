//! The command line as scripts use it: exit codes, what is printed where, what is left behind.

use crate::support::command::{Ran, mqq, run};
use crate::support::{Attr, GraphBuilder, repository};
use assert_cmd::Command;
use mqq::backends;
use mqq::observers::OBSERVERS;
use mqq::onnx;
use mqq::tune::METHODS;
use rayon::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;

/// `mqq calibrate` of a bundled model into `folder`, with the bundled images.
fn calibrate(model: &str, backend: &str, folder: &Path) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(repository(model)).args(["--backend", backend, "--preprocess", "half"]);
    command.arg("--data").arg(repository("calib_data/calib")).arg("--out-dir").arg(folder);
    command
}

/// The output of a Conv is quantized for all its readers: a Concat of one quantized and one float tensor, a Slice.
#[test]
fn a_part_of_the_nodes_makes_a_valid_model() {
    let folder = TempDir::new().unwrap();
    let mut command = calibrate("fixtures/digits_old.onnx", "xint8", folder.path());
    let ran = run(command.args(["--effort", "0", "--only", "Conv"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

fn files(folder: &Path) -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(|e| name(e.unwrap())).collect();
    names.sort();
    names
}

#[test]
fn writes_model_and_sidecar_and_says_so() {
    let folder = TempDir::new().unwrap();
    let ran = run(&mut calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path()));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.contains("100 samples") && ran.stdout.contains("mean"), "{}", ran.stdout);
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
    assert!(!out.exists(), "a folder is left in which nothing was written");
    let ran = with_bad(true);
    assert_eq!((ran.code, ran.stderr.matches("error: ").count()), (1, 1));
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

/// Written beside and renamed: who has the old files still has them whole.
#[test]
fn results_take_the_place_of_older_ones_at_once() {
    let folder = TempDir::new().unwrap();
    let names = ["digits_cnn.tensorrt.onnx", "digits_cnn.tensorrt.json"];
    for name in names {
        fs::write(folder.path().join(name), "old").unwrap();
        fs::hard_link(folder.path().join(name), folder.path().join(format!("{name}.old"))).unwrap();
    }
    assert_eq!(run(&mut calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path())).code, 0);
    for name in names {
        assert!(fs::metadata(folder.path().join(name)).unwrap().len() > 1000);
        let old = fs::read_to_string(folder.path().join(format!("{name}.old"))).unwrap();
        assert_eq!(old, "old", "{name}");
    }
}

#[test]
fn wrong_usage_exits_with_2_before_any_work() {
    let folder = TempDir::new().unwrap();
    let base = |extra: &[&str]| {
        let mut command = calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path());
        run(command.args(extra))
    };
    let cases: &[(&[&str], &str)] = &[
        (&["--observer", "entrpy"], "did you mean `entropy`"),
        (&["--observer", "percentile:101"], "expected above 0 and at most 100"),
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

/// `float.onnx` in `folder`, whose tensors are in `data`.
fn model_with_external_data(folder: &Path, data: &str) {
    let model = onnx::load_whole(&repository("fixtures/digits_cnn.onnx")).unwrap().model;
    let name = folder.join(data.strip_suffix(".data").unwrap());
    onnx::Staged::model(model, &name, true).unwrap().commit().unwrap();
    fs::rename(name, folder.join("float.onnx")).unwrap();
}

#[test]
fn what_a_run_reads_is_never_written() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    model_with_external_data(folder.path(), "q.onnx.data");
    let images = repository("calib_data/calib");
    let image = images.join(files(&images).swap_remove(0));
    fs::copy(&image, at("image.png")).unwrap();
    fs::copy(&image, at("image.json")).unwrap();
    fs::copy(repository("fixtures/digits_cnn.onnx"), at("other.onnx")).unwrap();
    fs::copy(repository("fixtures/digits_cnn.onnx"), at("other.tensorrt.onnx")).unwrap();
    fs::write(at("list.txt"), image.display().to_string()).unwrap();
    fs::write(at("half.yaml"), "preset: half\n").unwrap();
    fs::write(at("base.yaml"), "extends: tensorrt\nname: base\n").unwrap();
    fs::write(at("table.yaml"), "extends: ./base.yaml\nname: other\n").unwrap();
    fs::hard_link(at("q.onnx.data"), at("hard.onnx")).unwrap();
    let mqq_in_folder = |line: &str| run(mqq().args(line.split(' ')).current_dir(folder.path()));
    let calibrate = "calibrate float.onnx -b tensorrt --effort 0 --preprocess";
    let half = format!("{calibrate} half");
    let ran = mqq_in_folder(&format!("{half} -d list.txt -o ranges.onnx"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let contents = || {
        let read = |name: String| (fs::read(at(&name)).unwrap(), name);
        files(folder.path()).into_iter().map(read).collect::<Vec<_>>()
    };
    let before = contents();
    let tensors = "external data of `float.onnx`";
    let cases = [
        (format!("{half} -d list.txt -o q.onnx"), "q.onnx.data", tensors),
        (format!("{half} -d list.txt -o hard.onnx"), "hard.onnx", tensors),
        (format!("{half} -d list.txt -o ./float.onnx"), "./float.onnx", "float model"),
        (
            format!("{half} -d list.txt other.onnx other.tensorrt.onnx --out-dir ."),
            "./other.tensorrt.onnx",
            "float model",
        ),
        (format!("{half} -d list.txt -o list.txt"), "list.txt", "calibration data"),
        (format!("{half} -d *.png -o image.png"), "image.png", "calibration data"),
        (format!("{half} -d image.json -o image.onnx"), "image.json", "calibration data"),
        (format!("{half} --ranges-from ranges.json -o ranges.onnx"), "ranges.json", "ranges to import"),
        (format!("{calibrate} half.yaml -d list.txt -o half.yaml"), "half.yaml", "preprocessing"),
        ("calibrate other.onnx -b table.yaml -d list.txt -o base.yaml".to_string(), "base.yaml", "backend's table"),
        ("prepare float.onnx -b tensorrt -o q.onnx".to_string(), "q.onnx.data", tensors),
        ("prepare other.onnx -b table.yaml -o table.yaml".to_string(), "table.yaml", "backend's"),
        ("export ranges.json -f deploy --model float.onnx -o q.onnx.data".to_string(), "q.onnx.data", tensors),
        ("export ranges.json -f ppq -o ./ranges.json".to_string(), "./ranges.json", "sidecar"),
    ];
    for (line, output, role) in cases {
        let ran = mqq_in_folder(&line);
        assert_eq!(ran.code, 2, "{line}: {}", ran.stderr);
        for part in [
            format!("error: `{output}` would be written as the "),
            format!("the run reads it as the {role}"),
            "hint: use another name for the output".to_string(),
        ] {
            assert!(ran.stderr.contains(&part), "{line}: {}", ran.stderr);
        }
        assert!(contents() == before, "{line}");
    }
}

#[test]
fn outputs_are_files_each_its_own() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let digits = repository("fixtures/digits_cnn.onnx");
    fs::copy(&digits, at("float.onnx")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::create_dir(at("copies")).unwrap();
    fs::copy(&digits, at("copies/float.onnx")).unwrap();
    let command = |line: &str| run(mqq().args(line.split(' ')).current_dir(folder.path()));
    let calibrate = format!(
        "calibrate float.onnx -b tensorrt --effort 0 --preprocess half -d {}",
        repository("calib_data/calib").display()
    );
    let ran = command(&format!("{calibrate} --limit 2 -o old.onnx"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    #[cfg(unix)]
    {
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink("pipe", at("link.json")).unwrap();
        std::os::unix::fs::symlink("one.json", at("one.onnx")).unwrap();
    }
    let before = files(folder.path());
    let mut cases = vec![
        ("-", "is not a file name: mqq writes no results to stdout"),
        ("folder", "is a folder, expected a file"),
        ("folder/", "is a folder, expected a file"),
        ("none/", "is a folder, expected a file"),
        (".", "is a folder, expected a file"),
        ("float.onnx/out.onnx", "`float.onnx/out.onnx`: cannot be written"),
    ];
    if cfg!(unix) {
        cases.push(("pipe", "is a device, pipe or socket, expected a file"));
    }
    let prepare = "prepare float.onnx -b tensorrt";
    let export = "export old.json -f ppq";
    for (output, expected) in cases {
        for line in [&calibrate, prepare, export] {
            let ran = command(&format!("{line} -o {output}"));
            assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{line} -o {output}");
            assert!(ran.stderr.contains(expected), "{line} -o {output}: {}", ran.stderr);
        }
    }
    let mut cases = vec![
        ("-o out.json", "`out.json` would be written twice"),
        ("copies/float.onnx --out-dir new", "`new/float.tensorrt.onnx` would be written twice"),
    ];
    if cfg!(unix) {
        cases.push(("-o link.onnx", "`link.json`: is a device, pipe or socket"));
        cases.push(("-o one.onnx", "`one.json` would be written twice"));
    }
    for (extra, expected) in cases {
        let ran = command(&format!("{calibrate} {extra}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{extra}");
        assert!(ran.stderr.contains(expected), "{extra}: {}", ran.stderr);
    }
    assert_eq!(files(folder.path()), before);
}

/// `mqq prepare` of a bundled model in `folder`, in a shell behind `setup`.
#[cfg(unix)]
fn prepare_after(setup: &str, folder: &Path, output: &str) -> std::process::ExitStatus {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("{setup}; exec \"$0\" \"$@\"")]);
    command.arg(assert_cmd::cargo::cargo_bin!("mqq")).args(["prepare", "-b", "tensorrt"]);
    command.arg(repository("fixtures/digits_cnn.onnx")).args(["-o", output]);
    command.current_dir(folder).output().unwrap().status
}

#[cfg(unix)]
#[test]
fn outputs_have_the_mode_of_the_umask_or_keep_theirs() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o7777;
    for (umask, expected) in [("077", 0o600), ("027", 0o640), ("002", 0o664)] {
        assert!(prepare_after(&format!("umask {umask}"), folder.path(), umask).success());
        assert_eq!(mode(umask), expected, "{umask}");
    }
    let kept = folder.path().join("077");
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(prepare_after("umask 027", folder.path(), "077").success());
    assert_eq!(mode("077"), 0o666);
    assert!(prepare_after("umask 000", folder.path(), "027").success());
    assert_eq!(mode("027"), 0o640);
}

#[cfg(unix)]
#[test]
fn outputs_go_where_links_lead() {
    use std::os::unix::fs::symlink;
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("store")).unwrap();
    fs::write(at("store/there.onnx"), "old").unwrap();
    symlink("store/there.onnx", at("link.onnx")).unwrap();
    symlink("link.onnx", at("second.onnx")).unwrap();
    symlink("store/new.onnx", at("dangling.onnx")).unwrap();
    symlink("circle.onnx", at("circle.onnx")).unwrap();
    for link in ["second.onnx", "dangling.onnx"] {
        assert!(prepare_after("umask 022", folder.path(), link).success());
    }
    let links = ["link.onnx", "second.onnx", "dangling.onnx", "circle.onnx"];
    assert!(links.iter().all(|link| at(link).is_symlink()));
    let written = fs::read(at("store/there.onnx")).unwrap();
    assert!(written.len() > 1000 && written == fs::read(at("store/new.onnx")).unwrap());
    assert_eq!(files(&at("store")), ["new.onnx", "there.onnx"]);
    assert_eq!(prepare_after("umask 022", folder.path(), "circle.onnx").code(), Some(2));
    symlink("nowhere/new.onnx", at("gone.onnx")).unwrap();
    assert_eq!(prepare_after("umask 022", folder.path(), "gone.onnx").code(), Some(2));
}

#[cfg(unix)]
#[test]
fn temporary_files_of_killed_runs_are_removed_by_the_next() {
    let folder = TempDir::new().unwrap();
    // A run that fails removes its own.
    assert_eq!(prepare_after("ulimit -f 8", folder.path(), "out.onnx").code(), Some(1));
    assert_eq!(files(folder.path()), [""; 0]);
    fs::write(folder.path().join(".mqq-1-killed.tmp"), "half").unwrap();
    // Another run, which lives, and files of others.
    let lives = folder.path().join(".mqq-1-lives.tmp");
    let file = fs::File::create(&lives).unwrap();
    file.lock().unwrap();
    let others = [".mqq-notes", ".tmpAbCdEf"];
    others.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
    let left = [".mqq-1-lives.tmp", ".mqq-notes", ".tmpAbCdEf", "out.onnx"];
    assert!(prepare_after("umask 022", folder.path(), "out.onnx").success());
    assert_eq!(files(folder.path()), left);
    drop(file);
    assert!(prepare_after("umask 022", folder.path(), "out.onnx").success());
    assert_eq!(files(folder.path()), left[1..]);
}

/// Many runs at once into one folder take no file away from each other.
#[cfg(unix)]
#[test]
fn runs_at_the_same_time_leave_each_other_alone() {
    let folder = TempDir::new().unwrap();
    let (folder, n) = (folder.path(), 8);
    std::thread::scope(|scope| {
        for i in 0..n {
            scope.spawn(move || {
                for _ in 0..4 {
                    let output = format!("{i}.onnx");
                    assert!(prepare_after("umask 022", folder, &output).success());
                }
            });
        }
    });
    assert_eq!(files(folder).len(), n);
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
    assert_eq!((passed.code, &report["missed"], passed.stderr.as_str()), (0, &serde_json::json!([]), ""));
    let missed = gates(&["overlap=1.5", "top1=50", "sqnr=10"]);
    let report: serde_json::Value = serde_json::from_str(&missed.stdout).unwrap();
    let expected = serde_json::json!([
        { "metric": "overlap", "tensor": "logits", "value": 1.0, "bound": 1.5 },
        { "metric": "top1", "bound": 50.0 },
    ]);
    assert_eq!((missed.code, &report["missed"]), (3, &expected));
    let lines: Vec<&str> = missed.stderr.lines().collect();
    assert_eq!(
        lines,
        [
            "gate missed: output `logits`: overlap is 1.000, expected 1.5 or more",
            "gate missed: no output has this figure: top-1 was not measured, expected 50 % or more",
        ]
    );
    for (gate, words) in [
        ("psnr=10", "metric `psnr` is unknown, expected one of: overlap, sqnr, cosine, agreement, top1, max-error"),
        ("sqnr", "found `sqnr`, expected NAME=VALUE"),
        ("sqnr=high", "expected a number for metric `sqnr`"),
        ("sqnr=nan", "expected a finite number for metric `sqnr`"),
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
    assert!(found.stdout.ends_with("\nlogits: channels along axis 1: 10 dense channels (0-9)\n"), "{}", found.stdout);
    let given = with(&["-v", "--channel-axis", "logits=0"]);
    assert!(given.stdout.contains("\nlogits: channels along axis 0: 1 dense channel (0)"), "{}", given.stdout);
    assert_eq!(first_output(&with(&["--json", "--channel-axis", "logits=0"]))["axis"], 0);
    let ran = with(&["--channel-axis", "logits=2"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("--channel-axis logits=2: output `logits` has 2 axes, expected one below 2"));
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
        assert_eq!(ran.stderr, "gate missed: output `y`: SQNR was not measured, expected 60 dB or more\n");
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
    let expected = "five/1.png`: has the class 10, expected 0 to 9, as there are 10 class scores\nhint: classes are numbered from 0";
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
    let expected = "no output is class scores, expected one of shape [2, classes] for --labels; found [1, 2, 2, 3]";
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
    assert_eq!(compare([&quantized, &quantized], &data, &extra).code, 0);
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
    assert!(ran.stdout.contains("keeps the rules of tensorrt: 0 errors"), "{}", ran.stdout);
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
    assert!(ran.code == 1 && ran.stdout.contains("breaks the rules"), "{}", ran.stdout);
    assert_eq!(check("tensort", &[], &[&signed]).code, 2);
    let ran = check("tensorrt", &[], &[&repository("fixtures/digits_cnn.onnx")]);
    let float = "breaks the rules of tensorrt: 1 error, 0 warnings; 0 Q, 0 DQ\n  error [quantized] model is float";
    assert!(ran.code == 4 && ran.stdout.contains(float), "{}", ran.stdout);
}

/// Runs a command with its stdout, stderr or both going to `file`. Returns its exit code and the text on the other
/// stream.
fn run_into(args: &[&str], stdout: Stdio, stderr: Stdio) -> (i32, String) {
    let binary = assert_cmd::cargo::cargo_bin!("mqq");
    let child = std::process::Command::new(binary)
        .current_dir(repository("."))
        .args(args)
        .stdout(stdout)
        .stderr(stderr)
        .spawn();
    let output = child.unwrap().wait_with_output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A pipe that nobody reads.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

const PRINTING: &[&[&str]] = &[
    &["--help"],
    &["calibrate", "--help"],
    &["--version"],
    &["completions", "bash"],
    &["backends"],
    &["backends", "tensorrt"],
    &["backends", "--json"],
    &["export", "--list"],
    &["inspect", "fixtures/digits_cnn.onnx", "-b", "tensorrt"],
    &["inspect", "fixtures/digits_cnn.onnx", "-b", "tensorrt", "--json"],
];

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in PRINTING {
        let (code, stderr) = run_into(args, closed_pipe(), Stdio::piped());
        assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
    }
    // The exit code is that of the work.
    let (code, stderr) = run_into(&["inspect", "none.onnx"], closed_pipe(), Stdio::piped());
    assert!(code == 1 && !stderr.contains("panicked"), "{stderr}");
    for args in [&["inspect", "none.onnx"][..], &["backends", "nope"], &["--nope"]] {
        let usage = args[0] != "inspect";
        let (code, _) = run_into(args, Stdio::piped(), closed_pipe());
        assert_eq!(code, if usage { 2 } else { 1 }, "{args:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn what_cannot_be_written_is_an_error() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for args in PRINTING {
        let (code, stderr) = run_into(args, full().into(), Stdio::piped());
        assert!(code == 1 && stderr.starts_with("error: stdout: "), "{args:?}: {code} {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    }
    let (code, _) = run_into(&["backends", "nope"], full().into(), full().into());
    assert_eq!(code, 2);
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
fn only_what_is_near_is_suggested() {
    for (found, hint) in [
        ("tensort", "did you mean `tensorrt`?"),
        ("tidll", "did you mean `tidl`?"),
        ("nope", "`mqq backends` lists them"),
        ("xyz", "`mqq backends` lists them"),
    ] {
        let ran = run(mqq().args(["backends", found]));
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.ends_with(&format!("\nhint: {hint}\n")), "{}", ran.stderr);
    }
    let folder = TempDir::new().unwrap();
    let ran = run(calibrate("fixtures/digits_cnn.onnx", "trt", folder.path()).args(["--observer", "kurtosis"]));
    assert!(ran.code == 2 && !ran.stderr.contains("did you mean"), "{}", ran.stderr);
}

/// The options under each heading of a command's help.
fn sections(command: &str) -> Vec<(String, Vec<String>)> {
    let help = run(mqq().args([command, "--help"])).stdout;
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for line in help.lines() {
        if !line.starts_with(' ') && line.ends_with(':') {
            sections.push((line.trim_end_matches(':').to_string(), Vec::new()));
        }
        let line = line.trim_start();
        let option = line.split_whitespace().find(|word| word.starts_with("--"));
        if let (true, Some(option), Some((_, options))) = (line.starts_with('-'), option, sections.last_mut()) {
            options.push(option.trim_end_matches(',').to_string());
        }
    }
    sections
}

#[test]
fn help_has_every_option_under_its_heading() {
    let preprocessing = "Preprocessing of images";
    let precision = "Precision of single layers (one goal)";
    for command in ["calibrate", "compare"] {
        for (heading, options) in sections(command) {
            let expected: &[&str] = match heading.as_str() {
                heading if heading == preprocessing => &[
                    "--preprocess", "--resize", "--filter", "--crop", "--pad-value", "--color", "--scale", "--mean",
                    "--std", "--layout",
                ],
                heading if heading == precision => {
                    &["--keep-float", "--target-sqnr", "--target", "--max-drop", "--bits-budget", "--raise-to"]
                }
                _ => continue,
            };
            assert_eq!(options, expected, "{command}: {heading}");
        }
        assert!(sections(command).iter().any(|(heading, _)| heading == preprocessing));
    }
    let help = run(mqq().args(["calibrate", "--help"])).stdout;
    let of = |option: &str| {
        let (_, rest) = help.split_once(&format!("{option} <")).unwrap();
        rest.split("\n  -").next().unwrap().split("\n      --").next().unwrap().to_string()
    };
    for name in ["max", "ema", "percentile", "shrink", "entropy", "mse", "auto"] {
        assert!(of("--observer").contains(name), "{name}: {}", of("--observer"));
    }
    for level in ["\n  0  range observers only\n", "\n  1  equalization, ", "\n  3  as 1, "] {
        assert!(help.contains(level), "{help}");
    }
    let quiet = |command: &str| {
        let help = run(mqq().args([command, "--help"])).stdout;
        let (_, rest) = help.split_once("--quiet").unwrap();
        rest.split("\n  -").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for command in ["calibrate", "compare", "check"] {
        assert!(quiet(command).starts_with("Print errors only, and the object of --json"), "{}", quiet(command));
    }
}

/// The lines of a command's help from `begin` on, up to the next line without an indent.
fn help_block<'a>(help: &'a str, begin: &str) -> Vec<&'a str> {
    let lines = help.lines().skip_while(|line| *line != begin).skip(1);
    lines.take_while(|line| line.is_empty() || line.starts_with(' ')).filter(|line| !line.is_empty()).collect()
}

const COMMANDS: [&str; 16] = [
    "calibrate", "solve", "stats show", "stats diff", "stats merge", "inspect", "doctor", "backends", "presets",
    "prepare", "export", "compare", "eval", "diff", "check", "completions",
];

#[test]
fn help_has_one_line_per_option() {
    for command in COMMANDS.into_iter().filter(|command| *command != "compare") {
        let help = run(mqq().args(command.split(' ')).arg("--help")).stdout;
        let headings = [
            "Options:",
            "Preprocessing of images:",
            "Statistics of the data, for mqq solve:",
            "Many models:",
            "Precision of single layers (one goal):",
        ];
        for line in headings.into_iter().flat_map(|heading| help_block(&help, heading)) {
            assert!(line.trim_start().starts_with('-'), "{command}: {line}");
        }
        assert!(help_block(&help, "Examples:").iter().all(|line| line.starts_with("  mqq ")), "{help}");
    }
}

#[test]
fn the_examples_of_the_help_run() {
    let folder = TempDir::new().unwrap();
    for name in ["resnet50.onnx", "bert.onnx"] {
        fs::copy(repository("fixtures/digits_cnn.onnx"), folder.path().join(name)).unwrap();
    }
    fs::create_dir(folder.path().join("images")).unwrap();
    for entry in fs::read_dir(repository("calib_data/calib")).unwrap().take(48) {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join("images").join(entry.file_name())).unwrap();
    }
    let binary = assert_cmd::cargo::cargo_bin!("mqq");
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let helps = COMMANDS.map(|command| command.split(' ').chain(["--help"]).collect::<Vec<&str>>());
    let helps = [vec!["--help"]].into_iter().chain(helps);
    for args in helps {
        let help = run(mqq().args(&args)).stdout;
        let begin = if args.len() == 1 { "First steps:" } else { "Examples:" };
        let examples = help_block(&help, begin);
        assert!(!examples.is_empty(), "{args:?}: {help}");
        for example in examples {
            let mut shell = std::process::Command::new("sh");
            let output = shell.arg("-c").arg(example).env("PATH", &path).current_dir(folder.path()).output().unwrap();
            // Here are no photographs: `doctor` says so.
            let finds = example.contains("mqq doctor") && output.status.code() == Some(3);
            assert!(output.status.success() || finds, "{example}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn quiet_means_errors_only() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    // Two samples are too few to tune by: warnings.
    let mut command = calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder);
    assert_eq!(run(command.args(["--limit", "2", "--quiet"])).stderr, "");
    let mut command = calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder);
    assert!(run(command.args(["--limit", "2"])).stderr.contains("warning: "));
    let quantized = folder.join("digits_cnn.tensorrt.onnx");
    let compare = |extra: &[&str]| {
        let mut command = mqq();
        command.arg("compare").arg(repository("fixtures/digits_cnn.onnx")).arg(&quantized);
        command.arg("--data").arg(repository("calib_data/eval")).args(["--limit", "4"]);
        run(command.args(["--preprocess", "half"]).args(extra))
    };
    let silent = compare(&["-q", "--min-sqnr", "3"]);
    assert_eq!((silent.code, silent.stdout.as_str(), silent.stderr.as_str()), (0, "", ""));
    let missed = compare(&["-q", "--min-sqnr", "90"]);
    assert!(missed.code == 3 && missed.stdout.contains("SQNR"), "{}", missed.stdout);
    assert!(compare(&["-q", "--json"]).stdout.starts_with('{'));
}

#[test]
fn errors_have_fields_in_json() {
    let folder = TempDir::new().unwrap();
    let bad = folder.path().join("bad.onnx");
    let quantized = folder.path().join("digits_cnn.tensorrt.onnx");
    fs::write(&bad, "no model").unwrap();
    let mut command = calibrate("fixtures/digits_cnn.onnx", "tensorrt", folder.path());
    assert_eq!(run(command.args(["--limit", "4", "--effort", "0"])).code, 0);
    let json = |command: &mut Command, code: i32| {
        let ran = run(command.arg("--json"));
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
        let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["schema_version"], "3.0");
        report
    };
    // Of one model among others.
    let mut command = mqq();
    command.args(["calibrate", "-b", "trt"]).arg(&quantized).arg("--data");
    let report = json(command.arg(repository("calib_data/calib")), 1);
    let result = &report["results"][0];
    let text = result["error"].as_str().unwrap();
    assert_eq!(result["where"], quantized.to_str().unwrap());
    assert_eq!(result["hint"], "quantize the float model that it comes from");
    assert!(text.contains("already quantized") && !text.contains("hint"), "{text}");
    let report = json(mqq().args(["check", "-b", "trt"]).arg(&bad), 1);
    assert_eq!(report["results"][0]["where"], bad.to_str().unwrap());
    assert!(report["results"][0].get("hint").is_none());
    // Of the whole command.
    let report = json(mqq().args(["backends", "tensort"]), 2);
    assert_eq!(report["hint"], "did you mean `tensorrt`?");
    assert!(report.get("where").is_none() && !report["error"].as_str().unwrap().contains("hint"));
    let report = json(mqq().args(["compare", "a.onnx", "b.onnx", "--data", "c"]), 1);
    assert_eq!(report["where"], "a.onnx");
    assert!(report["error"].as_str().unwrap().contains("No such file"), "{report}");
    let report = json(mqq().args(["inspect", "a.onnx"]), 1);
    assert_eq!(report["where"], "a.onnx");
}

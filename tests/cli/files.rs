//! Files of results: nothing is half-written, read files are never overwritten, links and modes are kept.

use super::*;

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
    fs::write(at("labels.txt"), "file,class_index\nimage.png,1\n").unwrap();
    fs::hard_link(at("q.onnx.data"), at("hard.onnx")).unwrap();
    fs::hard_link(at("base.yaml"), at("report.html")).unwrap();
    let mqq_in_folder = |line: &str| run(mqq().args(line.split(' ')).current_dir(folder.path()));
    let calibrate = "calibrate float.onnx -b tensorrt --effort 0 --preprocess";
    let half = format!("{calibrate} half");
    let (compare, doctor) = ("compare float.onnx ranges.onnx", "doctor float.onnx --preprocess half");
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
        (format!("{compare} -d list.txt --report list.txt"), "list.txt", "evaluation data"),
        (format!("{compare} -d list.txt --report ranges.json"), "ranges.json", "sidecar"),
        (format!("{compare} -d list.txt --labels labels.txt --report labels.txt"), "labels.txt", "labels"),
        (format!("{doctor} -d list.txt --report list.txt"), "list.txt", "calibration data"),
        (format!("{doctor} -d list.txt -b table.yaml --report report.html"), "report.html", "backend's table"),
        ("check ranges.onnx -b table.yaml --sarif base.yaml".to_string(), "base.yaml", "backend's table"),
        ("check ranges.onnx -b tensorrt --sarif ranges.json".to_string(), "ranges.json", "sidecar"),
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

//! Standard output and standard error: closed pipes, full disks, `--quiet`, errors as JSON.

use super::*;

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
        let lines: Vec<&str> = stderr.lines().collect();
        assert!(code == 1 && lines[0].starts_with("error: stdout: "), "{args:?}: {code} {stderr}");
        assert!(lines.len() == 2 && lines[1].starts_with("hint: free space"), "{args:?}: {stderr}");
    }
    let (code, _) = run_into(&["backends", "nope"], full().into(), full().into());
    assert_eq!(code, 2);
}

#[test]
#[cfg(target_os = "linux")]
fn no_result_replaces_the_file_that_stdout_leads_to() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("text");
    for (output, stream) in [("/dev/stdout", "stdout"), (text.to_str().unwrap(), "stdout"), ("/dev/stderr", "stderr")] {
        let args = ["prepare", "fixtures/digits_cnn.onnx", "-b", "tensorrt", "-o", output];
        let into = |name: &str| Stdio::from(fs::File::create(folder.path().join(name)).unwrap());
        let (code, _) = run_into(&args, into("text"), into("errors"));
        let errors = fs::read_to_string(folder.path().join("errors")).unwrap();
        let expected = format!("error: `{output}`: is the file that `/dev/{stream}` leads to, expected another one");
        assert!(code == 2 && errors.starts_with(&expected), "{errors}");
        assert!(fs::read(&text).unwrap().is_empty());
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
    assert!(report["results"][0]["hint"].as_str().unwrap().ends_with("export the model again"));
    // Of the whole command.
    let report = json(mqq().args(["backends", "tensort"]), 2);
    assert_eq!(report["hint"], "did you mean `tensorrt`?");
    assert!(report.get("where").is_none() && !report["error"].as_str().unwrap().contains("hint"));
    let report = json(mqq().args(["compare", "a.onnx", "b.onnx", "--data", "c"]), 1);
    assert_eq!(report["where"], "a.onnx");
    assert_eq!(report["error"], "`a.onnx`: does not exist");
    assert_eq!(report["hint"], "check the path");
    let report = json(mqq().args(["inspect", "a.onnx"]), 1);
    assert_eq!(report["where"], "a.onnx");
}

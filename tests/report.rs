//! Reports: the same sections in all formats, made in the run or later from its sidecar.

use crate::support::command::{mqq, run};
use crate::support::repository;
use mqq::matching::MatchKind;
use mqq::report::{TensorFigures, TensorsReport, tensor_lines};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// The section of a report in JSON.
fn section(report: &str, id: &str) -> serde_json::Value {
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    report["sections"].as_array().unwrap().iter().find(|section| section["id"] == id).unwrap().clone()
}

/// `mqq compare` of the bundled model with the model of [`calibrate`], with a report.
fn compare(folder: &Path, report: &str) -> String {
    let mut command = mqq();
    command.arg("compare").arg(repository("fixtures/digits_cnn.onnx")).arg(folder.join("digits_cnn.tensorrt.onnx"));
    command.arg("--data").arg(repository("calib_data/eval")).args(["--preprocess", "half", "--limit", "8"]);
    run(command.arg("--report").arg(folder.join(report))).done();
    fs::read_to_string(folder.join(report)).unwrap()
}

/// `mqq calibrate` of the bundled model with a report.
fn calibrate(folder: &Path, report: &str) -> String {
    calibrate_with(folder, report, &[])
}

/// The same, with options.
fn calibrate_with(folder: &Path, report: &str, options: &[&str]) -> String {
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tensorrt", "--limit", "24"]);
    command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess", "half"]);
    command.arg("--report").arg(folder.join(report)).arg("--out-dir").arg(folder).args(options);
    run(&mut command).done();
    fs::read_to_string(folder.join(report)).unwrap()
}

#[test]
fn errors_that_add_up_are_told() {
    let row = |sqnr_db: f64, added_sqnr_db: f64| TensorFigures {
        tensor: "r".to_string(),
        quantized_tensor: "r".to_string(),
        matched_by: MatchKind::Name,
        layer: Some("c".to_string()),
        operators: vec!["Conv".to_string()],
        sqnr_db: Some(sqnr_db),
        added_sqnr_db: Some(added_sqnr_db),
        cosine: 1.0,
        max_difference: None,
        saturated_percent: None,
        dead_channels: None,
        n_channels: None,
    };
    let last_line = |rows: Vec<TensorFigures>| {
        let report = TensorsReport {
            n_samples: 8,
            look_first: vec!["r".to_string()],
            advice: None,
            rows,
            unmatched: Vec::new(),
            added_failed: None,
        };
        tensor_lines(&report).pop().unwrap()
    };
    let advice =
        "try: mqq calibrate --effort 2 (each layer alone leaves 31.50 dB or more, all together leave 12.60 dB)";
    assert_eq!(last_line(vec![row(28.5, 31.5), row(12.6, 33.6)]), advice);
    assert!(!last_line(vec![row(28.5, 31.5), row(21.0, 33.6)]).starts_with("try: "));
    assert!(!last_line(vec![row(28.5, 29.5), row(12.6, 33.6)]).starts_with("try: "));
}

const SECTIONS: &[&str] = &[
    "Summary",
    "To try where accuracy falls short",
    "Methods",
    "Error along the network",
    "Nodes",
    "Ranges of activations",
    "Histograms of activations",
    "Scales of weights per channel",
    "Activations",
    "Weights and biases",
];

#[test]
fn a_report_of_the_run_and_one_of_its_sidecar_are_the_same() {
    let folder = TempDir::new().unwrap();
    let in_run = calibrate(folder.path(), "report.html");
    let sidecar = folder.path().join("digits_cnn.tensorrt.json");
    for (format, is_whole) in [("html", true), ("md", true), ("text", true), ("json", true)] {
        let ran = run(mqq().arg("report").arg(&sidecar).args(["--format", format]));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{format}");
        for section in SECTIONS {
            assert_eq!(ran.stdout.contains(section), is_whole, "{format}: {section}");
        }
        // A method and a tensor, not only titles.
        assert!(ran.stdout.contains("equalization") && ran.stdout.contains("input of Conv"), "{format}");
        if format == "html" {
            assert_eq!(ran.stdout.trim_end(), in_run.trim_end());
        }
    }
}

#[test]
fn a_report_goes_to_a_file_by_its_ending_and_as_json_to_stdout() {
    let folder = TempDir::new().unwrap();
    calibrate(folder.path(), "report.html");
    let sidecar = folder.path().join("digits_cnn.tensorrt.json");
    let report = |args: &[&str]| run(mqq().arg("report").arg(&sidecar).args(args));
    let file = folder.path().join("of_sidecar.md");
    let to_file = ["--output", file.to_str().unwrap()];
    let json = report(&["--json"]).stdout;
    serde_json::from_str::<serde_json::Value>(&json).unwrap();
    let ran = report(&[&to_file[..], &["--json"]].concat());
    assert_eq!((ran.code, ran.stdout), (0, json));
    let markdown = std::fs::read_to_string(&file).unwrap();
    assert_eq!(markdown.trim_end(), report(&["--format", "md"]).stdout.trim_end());
    let ran = report(&to_file);
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), markdown);
}

#[test]
fn the_page_needs_no_network_and_is_small() {
    let folder = TempDir::new().unwrap();
    let page = calibrate(folder.path(), "report.html");
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    let is_link =
        |attribute: &str| page.contains(&format!("{attribute}=\"http")) || page.contains(&format!("{attribute}=\"//"));
    assert!(!is_link("src") && !is_link("href"));
    assert_eq!(page.matches("<script").count(), page.matches("</script>").count());
}

#[test]
fn a_report_lists_what_to_try_next_by_the_run() {
    let folder = TempDir::new().unwrap();
    let advice = |options: &[&str]| -> Vec<String> {
        let section = section(&calibrate_with(folder.path(), "report.json", options), "advice");
        section["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_string()).collect()
    };
    let starts_with = |lines: &[String], starts: &[&str]| {
        lines.len() == starts.len() && lines.iter().zip(starts).all(|(line, start)| line.starts_with(start))
    };
    let lines = advice(&[]);
    let worst =
        "--keep-float N, or --exclude NODE: with only one layer quantized, the SQNR of the outputs is lowest for `";
    let starts = ["32 to 300 samples", "--effort 2, then --effort 3", "--target overlap=0.95", worst];
    assert!(starts_with(&lines, &starts) && lines[0].ends_with("this run had 24 samples."), "{lines:?}");
    assert!(lines[3].ends_with(" dB)."), "{lines:?}");
    // Layers that are float already are no advice.
    let lines = advice(&["--keep-float", "1"]);
    let text = fs::read_to_string(folder.path().join("digits_cnn.tensorrt.json")).unwrap();
    let sidecar: serde_json::Value = serde_json::from_str(&text).unwrap();
    let kept = sidecar["mixed_precision"]["layers"][0]["layer"].as_str().unwrap();
    assert!(starts_with(&lines, &[starts[0], starts[1], worst]) && !lines[2].contains(kept), "{lines:?}");
    let lines = advice(&["--effort", "0"]);
    assert!(starts_with(&lines, &[starts[0], "--effort 1: ", starts[2]]), "{lines:?}");
}

#[test]
fn every_tensor_has_its_error_in_the_sidecar() {
    let folder = TempDir::new().unwrap();
    calibrate(folder.path(), "report.md");
    let text = fs::read_to_string(folder.path().join("digits_cnn.tensorrt.json")).unwrap();
    let sidecar: serde_json::Value = serde_json::from_str(&text).unwrap();
    let errors = sidecar["tensor_errors"]["tensors"].as_array().unwrap();
    // The input has none, and each node one: a few dozen dB, less towards the end.
    assert_eq!(errors.len(), 1 + sidecar["graph"]["nodes"].as_array().unwrap().len());
    let db: Vec<f64> = errors.iter().map(|error| error["sqnr_db"].as_f64().unwrap()).collect();
    assert_eq!(db[0], 200.0);
    assert!(db[1..].iter().all(|db| (10.0..80.0).contains(db)), "{db:?}");
    assert!(db[1] > db[db.len() - 1] + 3.0, "{db:?}");
    // A Relu that a convolution fuses adds nothing; the first node has no other error than its own.
    let added: Vec<f64> = errors.iter().map(|error| error["added_sqnr_db"].as_f64().unwrap()).collect();
    assert!(added.iter().zip(&db).skip(2).all(|(added, db)| added > db), "{added:?} {db:?}");
    assert_eq!((added[1], added[2]), (db[1], 200.0));
}

#[test]
fn a_run_and_a_comparison_draw_the_error_along_the_network_alike() {
    let folder = TempDir::new().unwrap();
    for report in [calibrate(folder.path(), "run.json"), compare(folder.path(), "compared.json")] {
        let chart = &section(&report, "errors")["chart"];
        let series = chart["series"].as_array().unwrap();
        let names: Vec<&str> = series.iter().map(|series| series["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["with all errors in front", "alone"]);
        assert_eq!((chart["y"].as_str(), chart["y_top"].as_f64()), (Some("SQNR (dB)"), Some(60.0)));
    }
}

#[test]
fn equal_tensors_have_200_db_in_a_comparison() {
    let folder = TempDir::new().unwrap();
    calibrate(folder.path(), "run.json");
    let tensors = section(&compare(folder.path(), "compared.json"), "tensors");
    assert!(tensors["about"].as_str().unwrap().contains("An SQNR of 200 dB stands for equal values"), "{tensors}");
    let columns = tensors["table"]["columns"].as_array().unwrap();
    let alone = columns.iter().position(|column| column["title"] == "SQNR of the layer alone").unwrap();
    let rows = tensors["table"]["rows"].as_array().unwrap();
    let db: Vec<f64> = rows.iter().map(|row| row[alone].as_f64().unwrap()).collect();
    // A Relu that a convolution fuses adds nothing.
    assert!(db.contains(&200.0) && db.iter().any(|db| *db < 100.0), "{db:?}");
}

#[test]
fn tensors_have_errors_without_methods_too_but_not_at_effort_0() {
    for (options, has_errors) in [(["--methods", "none"], true), (["--effort", "0"], false)] {
        let folder = TempDir::new().unwrap();
        let report: serde_json::Value =
            serde_json::from_str(&calibrate_with(folder.path(), "report.json", &options)).unwrap();
        let sections = report["sections"].as_array().unwrap();
        assert_eq!(sections.iter().any(|section| section["id"] == "errors"), has_errors, "{options:?}");
    }
}

#[test]
fn a_histogram_has_the_range_in_use_and_those_of_all_observers() {
    let folder = TempDir::new().unwrap();
    let section = section(&calibrate(folder.path(), "report.json"), "histograms");
    for tensor in section["histograms"].as_array().unwrap() {
        let sum: f64 = tensor["shares"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{tensor}");
        let ranges = tensor["ranges"].as_array().unwrap();
        let names: Vec<&str> = ranges.iter().map(|range| range["name"].as_str().unwrap()).collect();
        assert!(names[0].starts_with("used ("), "{names:?}");
        assert_eq!(names[1..], ["entropy", "max", "mse", "percentile:99.9", "percentile:99.99"]);
        let width = |k: usize| ranges[k]["ends"][1].as_f64().unwrap() - ranges[k]["ends"][0].as_f64().unwrap();
        assert!((1..6).all(|k| width(k) <= width(2)), "{tensor}: none is wider than `max`");
    }
}

#[test]
fn the_observer_of_the_run_has_its_option() {
    let folder = TempDir::new().unwrap();
    let report = calibrate_with(folder.path(), "report.json", &["--observer", "percentile"]);
    for tensor in section(&report, "histograms")["histograms"].as_array().unwrap() {
        assert_eq!(tensor["ranges"][0]["name"], "used (percentile:99.99)");
    }
    let activations = section(&report, "activations");
    let columns = activations["table"]["columns"].as_array().unwrap();
    let observer = columns.iter().position(|column| column["title"] == "Observer").unwrap();
    let rows = activations["table"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row[observer] == "percentile:99.99"), "{activations}");
}

#[test]
fn the_summary_says_what_its_figures_mean() {
    let folder = TempDir::new().unwrap();
    let report = calibrate(folder.path(), "report.md");
    let row = |name: &str| report.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap();
    let overlap = row("overlap");
    assert!(overlap.contains(" on 12 held-out samples (") && overlap.contains("; higher is better)"), "{overlap}");
    assert!(row("SQNR").contains(" dB on 12 held-out samples (signal over quantization noise"), "{report}");
    assert_eq!(row("Backend"), "| Backend | tensorrt |");
    assert!(report.contains("An SQNR of 200 dB stands for equal values"), "{report}");
    // Changes that the SQNR itself has judged.
    let sidecar = folder.path().join("digits_cnn.tensorrt.json");
    let mut of_run: serde_json::Value = serde_json::from_str(&fs::read_to_string(&sidecar).unwrap()).unwrap();
    of_run["tuning"]["judged"]["metric"] = "sqnr".into();
    fs::write(&sidecar, of_run.to_string()).unwrap();
    let report = run(mqq().arg("report").arg(&sidecar).args(["--format", "md"])).stdout;
    assert_eq!(report.matches("\n| SQNR |").count(), 1, "{report}");
}

#[test]
fn text_from_a_model_is_no_markup() {
    let folder = TempDir::new().unwrap();
    calibrate(folder.path(), "report.json");
    let path = folder.path().join("digits_cnn.tensorrt.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("/stem/stem.0/Conv", "<img src=x onerror=alert(1)></script>|")).unwrap();
    let page = run(mqq().arg("report").arg(&path).args(["--format", "html"])).stdout;
    assert!(!page.contains("<img src=x") && page.contains("&lt;img src=x"));
    assert_eq!(page.matches("<script").count(), page.matches("</script>").count());
    let markdown = run(mqq().arg("report").arg(&path).args(["--format", "md"])).stdout;
    assert!(markdown.contains("\\<img src=x onerror=alert(1)>\\</script>\\|"), "{markdown}");
}

#[test]
fn text_from_a_model_controls_no_terminal_and_forges_no_line() {
    let folder = TempDir::new().unwrap();
    calibrate(folder.path(), "report.json");
    let path = folder.path().join("digits_cnn.tensorrt.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("/stem/stem.0/Conv", "\\u001b[2J\\nerror: forged")).unwrap();
    for format in ["text", "md", "html", "json"] {
        let printed = run(mqq().arg("report").arg(&path).args(["--format", format])).stdout;
        assert!(!printed.contains('\u{1b}'), "{format}");
        assert!(!printed.lines().any(|line| line.trim_start().starts_with("error: forged")), "{format}: {printed}");
    }
}

#[test]
fn a_comparison_has_a_report_with_its_missed_gates() {
    let folder = TempDir::new().unwrap();
    calibrate(folder.path(), "report.md");
    let mut command = mqq();
    command
        .arg("compare")
        .arg(repository("fixtures/digits_cnn.onnx"))
        .arg(folder.path().join("digits_cnn.tensorrt.onnx"));
    command.arg("--data").arg(repository("calib_data/eval")).args(["--preprocess", "half", "--limit", "8"]);
    let report = folder.path().join("compared.md");
    let ran = run(command.args(["--min-sqnr", "90"]).arg("--report").arg(&report));
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let text = fs::read_to_string(&report).unwrap();
    for part in ["## Missed gates", "## Outputs", "SQNR (dB)", "8 samples", "expected 90"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_wrong_format_is_refused_before_anything_runs() {
    let folder = TempDir::new().unwrap();
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tensorrt"]);
    command.arg("--data").arg(repository("calib_data/calib")).arg("--out-dir").arg(folder.path());
    let ran = run(command.args(["--report", "report.pdf"]));
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("report.pdf") && ran.stderr.contains("html"), "{}", ran.stderr);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

//! Ranges read back from files.

use super::{digits, done, files, mqq, run, with_data};
use std::fs;
use tempfile::TempDir;

/// Formats that ranges are read from, by the backend whose plans they hold.
const READ_BACK: [(&str, &[&str]); 2] = [
    ("tensorrt", &["trt-cache", "encodings-0.6.1", "encodings-1.0.0", "encodings-2.0.0", "sidecar"]),
    ("onnxruntime", &["encodings-0.6.1", "encodings-1.0.0", "encodings-2.0.0", "sidecar"]),
];

#[test]
fn ranges_that_were_written_give_the_same_model_when_read() {
    for (backend, formats) in READ_BACK {
        let folder = TempDir::new().unwrap();
        let sidecar = folder.path().join(format!("digits_cnn.{backend}.json"));
        let first = sidecar.with_extension("onnx");
        done(with_data(&mut digits(backend, folder.path())));
        let expected = fs::read(&first).unwrap();
        for format in formats {
            let out = TempDir::new().unwrap();
            let ranges = match *format {
                "sidecar" => sidecar.clone(),
                format => {
                    // Recognized by its content, not by its name.
                    let ranges = out.path().join("ranges.txt");
                    let mut command = mqq();
                    command.arg("export").arg(&sidecar).args(["--format", format, "-o"]);
                    done(command.arg(&ranges));
                    ranges
                }
            };
            done(digits(backend, out.path()).arg("--ranges-from").arg(&ranges));
            let model = out.path().join(format!("digits_cnn.{backend}.onnx"));
            assert!(fs::read(&model).unwrap() == expected, "{backend} {format}");
            let written = fs::read_to_string(model.with_extension("json")).unwrap();
            let written: serde_json::Value = serde_json::from_str(&written).unwrap();
            assert_eq!(written["calibration"]["ranges_from"]["format"], *format);
            assert_eq!(written["calibration"]["n_samples"], 0);
            assert_eq!(written["activation_encodings"][0]["observer"], "imported");
        }
    }
}

#[test]
fn a_range_that_is_missing_is_an_error_or_calibrated() {
    let folder = TempDir::new().unwrap();
    done(with_data(&mut digits("tensorrt", folder.path())));
    let sidecar = folder.path().join("digits_cnn.tensorrt.json");
    let expected = fs::read(sidecar.with_extension("onnx")).unwrap();
    done(mqq().arg("export").arg(&sidecar).args(["--format", "trt-cache"]));
    let cache = fs::read_to_string(sidecar.with_extension("trt.cache")).unwrap();
    let mut lines: Vec<&str> = cache.lines().collect();
    let (name, _) = lines.remove(2).split_once(": ").unwrap();
    let wrong_name = format!("{name}x: 3c010204");
    lines.push(&wrong_name);
    let ranges = folder.path().join("some.cache");
    fs::write(&ranges, lines.join("\n")).unwrap();
    let out = TempDir::new().unwrap();
    let ran = run(digits("tensorrt", out.path()).arg("--ranges-from").arg(&ranges));
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("has no range for 1 of the tensors"), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("did you mean `{name}x`?")), "{}", ran.stderr);
    assert!(files(out.path()).is_empty());
    let other = folder.path().join("other.json");
    let text = fs::read_to_string(&sidecar).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["model"]["file"] = "other.onnx".into();
    for encoding in record["activation_encodings"].as_array_mut().unwrap() {
        encoding["name"] = format!("other_{}", encoding["name"].as_str().unwrap()).into();
    }
    fs::write(&other, record.to_string()).unwrap();
    let ran = run(digits("tensorrt", out.path()).arg("--ranges-from").arg(&other));
    assert!(ran.stderr.contains("`other.json` (sidecar of `other.onnx`) has no range for 11 of"), "{}", ran.stderr);
    assert!(ran.stderr.contains(", and 6 more\nhint: the file is of another model"), "{}", ran.stderr);
    done(with_data(digits("tensorrt", out.path()).arg("--ranges-from").arg(&ranges)));
    assert!(fs::read(out.path().join("digits_cnn.tensorrt.onnx")).unwrap() == expected);
}

#[test]
fn ranges_that_are_wrong_are_errors() {
    let folder = TempDir::new().unwrap();
    let cases = [
        ("hello", "has an unknown format, expected one of: sidecar, trt-cache"),
        ("{}", "has an unknown format"),
        ("[1, 2", "has an unknown format"),
        ("TRT-8601-EntropyCalibration2\nx: 3c01", "line 2: is `x: 3c01`, expected `tensor: ` and 8"),
        ("TRT-8601-EntropyCalibration2\nx: ff800000", "line 2: tensor `x`: scale is -inf"),
        ("TRT-1-E\nx: 3c010204\nx: 3c010205", "line 3: repeats a tensor with another scale"),
        (r#"{"schema_version": "9.0"}"#, "schema_version is 9.0"),
        (r#"{"version": "1.0.0"}"#, "has no list activation_encodings"),
        (r#"{"version": "1.0.0", "activation_encodings": [{}]}"#, "[0] has no name"),
        (
            r#"{"version": "1.0.0", "activation_encodings": [{"name": "x", "bw": 99, "scale": [1], "offset": [0]}]}"#,
            "tensor `x`: has 99 bits",
        ),
        (
            r#"{"version": "1.0.0", "activation_encodings": [{"name": "x", "bw": 8, "scale": [1, 2], "offset": [0, 0]}]}"#,
            "tensor `x`: scale has 2 values",
        ),
        (
            r#"{"version": "2.0.0", "encodings": [{"name": "x", "output_dtype": "int8", "y_scale": -1}]}"#,
            "tensor `x`: scale is -1",
        ),
        (
            r#"{"version": "2.0.0", "encodings": [{"name": "x", "output_dtype": "intx", "y_scale": 1}]}"#,
            "output_dtype is `intx`",
        ),
        (
            r#"{"version": "0.6.1", "activation_encodings": {"x": [{"min": 1, "max": 0}]}}"#,
            "tensor `x`: range is [1, 0]",
        ),
        (r#"{"version": "0.6.1", "activation_encodings": {"x": []}}"#, "has 0 values"),
    ];
    for (text, expected) in cases {
        let path = folder.path().join("ranges");
        fs::write(&path, text).unwrap();
        let ran = run(digits("tensorrt", folder.path()).arg("--ranges-from").arg(&path));
        assert_eq!(ran.code, 1, "{text}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error: `") && ran.stderr.contains(expected), "{}", ran.stderr);
    }
}

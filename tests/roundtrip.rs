//! Loading and saving keeps every message; a file that is not a model is a clear error.

use bytes::Bytes;
use mqq::onnx::{self, proto::*};
use prost::Message;
use std::path::{Path, PathBuf};

/// One of each kind of thing that older schemas of ONNX lack.
fn model_with_everything_new() -> ModelProto {
    // Messages that are kept as bytes.
    let (entry, number) = (Bytes::from_static(b"\x0a\x01k\x12\x01v"), Bytes::from_static(b"\x10\x02"));
    let node = NodeProto {
        op_type: Some("Custom".into()),
        domain: Some("nobody.knows".into()),
        overload: Some("o".into()),
        metadata_props: vec![entry.clone()],
        device_configurations: vec![number.clone()],
        attribute: vec![AttributeProto {
            name: Some("body".into()),
            g: Some(GraphProto { doc_string: Some("inner".into()), ..Default::default() }),
            ints: vec![1, -2],
            ..Default::default()
        }],
        ..Default::default()
    };
    let tensor = TensorProto {
        name: Some("w".into()),
        dims: vec![2],
        data_type: Some(1),
        raw_data: Some(vec![0, 1, 2, 3, 4, 5, 6, 7].into()),
        metadata_props: vec![entry.clone()],
        ..Default::default()
    };
    let value = ValueInfoProto {
        name: Some("x".into()),
        r#type: Some(TypeProto { sequence_type: Some(Bytes::from_static(b"\x0a\0")), ..Default::default() }),
        metadata_props: vec![entry.clone()],
        ..Default::default()
    };
    ModelProto {
        ir_version: Some(11),
        graph: Some(GraphProto {
            node: vec![node],
            initializer: vec![tensor],
            input: vec![value],
            metadata_props: vec![entry],
            ..Default::default()
        }),
        functions: vec![FunctionProto { overload: Some("f".into()), ..Default::default() }],
        configuration: vec![number],
        ..Default::default()
    }
}

#[test]
fn saving_and_loading_keeps_every_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let model = model_with_everything_new();
    onnx::save(&model, &path).unwrap();
    assert_eq!(onnx::load(&path).unwrap(), model);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
}

#[test]
fn what_is_no_model_is_an_error_that_starts_with_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let whole = model_with_everything_new().encode_to_vec();
    let cases: [(&str, &[u8]); 4] = [
        ("empty.onnx", b""),
        ("text.onnx", b"this is not a model, it is a sentence\n"),
        ("random.onnx", &[0x9d, 0x13, 0xff, 0x00, 0x81, 0xfe]),
        ("truncated.onnx", &whole[..whole.len() - 3]),
    ];
    let mut paths: Vec<PathBuf> = vec![folder.path().into(), folder.path().join("missing.onnx")];
    for (name, bytes) in cases {
        paths.push(folder.path().join(name));
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    for path in paths {
        let error = format!("{:#}", onnx::load(&path).unwrap_err());
        assert!(error.starts_with(&format!("`{}`: ", path.display())), "{error}");
    }
    let nowhere = folder.path().join("text.onnx/model.onnx");
    assert!(onnx::save(&model_with_everything_new(), &nowhere).is_err());
}

/// A field that the messages lack would make the second encoding shorter than the file.
#[test]
fn real_models_keep_their_length() {
    let zoo = std::env::var_os("MQQ_ZOO").map_or("../shared/zoo".into(), PathBuf::from);
    let Ok(entries) = std::fs::read_dir(zoo.join("models")) else {
        eprintln!("no models at `{}`: nothing compared", zoo.display());
        return;
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| path.extension().is_some_and(|e| e == "onnx")) {
        let model = onnx::load(&path).unwrap();
        assert_eq!(model.encoded_len() as u64, file_len(&path), "{}", path.display());
        let again = ModelProto::decode(model.encode_to_vec().as_slice()).unwrap();
        assert_eq!(again, model, "{}", path.display());
    }
}

fn file_len(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn external_data_come_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let model = onnx::load(&crate::support::repository("fixtures/digits_cnn.onnx")).unwrap();
    onnx::Staged::model(model.clone(), &path, true).unwrap().commit().unwrap();
    let data = folder.path().join("model.onnx.data");
    assert!(std::fs::metadata(&data).unwrap().len() > 100_000);
    assert!(std::fs::metadata(&path).unwrap().len() < 40_000);
    let again = onnx::load_whole(&path).unwrap();
    assert!(again.has_external_data);
    assert_eq!(again.model, model);

    // A length that does not fit the shape; and a pipe, which must not be waited for.
    let mut short = onnx::load(&path).unwrap();
    let tensors = &mut short.graph.as_mut().unwrap().initializer;
    let tensor = tensors.iter_mut().find(|tensor| onnx::tensor::is_external(tensor)).unwrap();
    tensor.external_data.iter_mut().find(|e| e.key() == "length").unwrap().value = Some("8".into());
    onnx::save(&short, &folder.path().join("short.onnx")).unwrap();
    let error = format!("{:#}", onnx::load_whole(&folder.path().join("short.onnx")).err().unwrap());
    assert!(error.contains("have 8 bytes, expected "), "{error}");
    let pipe = folder.path().join("pipe.onnx");
    if std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|done| done.success()) {
        let error = format!("{:#}", onnx::load(&pipe).unwrap_err());
        assert!(error.contains("is not a regular file"), "{error}");
    }

    std::fs::File::options().write(true).open(&data).unwrap().set_len(5000).unwrap();
    let error = format!("{:#}", onnx::load_whole(&path).err().unwrap());
    assert!(error.contains("expected at most 5000, the size of `model.onnx.data`"), "{error}");
    std::fs::remove_file(&data).unwrap();
    let error = format!("{:#}", onnx::load_whole(&path).err().unwrap());
    assert!(error.contains("tensor `") && error.contains("model.onnx.data"), "{error}");
}

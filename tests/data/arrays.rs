//! Arrays reach the model value for value, whatever they are stored in.

use super::*;
use mqq::onnx::proto::TensorProto;
use mqq::onnx::tensor::from_f32;
use prost::Message;

/// The samples of one array file, as lists of values.
fn samples(name: &str, bytes: &[u8], input: &InputSpec) -> Result<Vec<Vec<f32>>> {
    let folder = folder();
    fs::write(folder.path().join(name), bytes).unwrap();
    let dataset = open(&folder, &[name], std::slice::from_ref(input))?;
    let load = |i| {
        let sample = dataset.load(i)?;
        assert_eq!(sample.len(), 1);
        assert_eq!(sample[0].shape, input.shape);
        Ok(f32s(&sample[0].values).to_vec())
    };
    (0..dataset.len()).map(load).collect()
}

#[test]
fn rank_says_how_many_samples_an_array_holds() {
    let cases: [(&[usize], &[usize], usize); 9] = [
        (&[1, 2, 3], &[1, 2, 3], 1),
        (&[2, 3], &[1, 2, 3], 1),
        (&[4, 2, 3], &[1, 2, 3], 4),
        (&[4, 1, 2, 3], &[1, 2, 3], 4),
        (&[6, 2], &[2, 2], 3),
        (&[3, 2, 2], &[2, 2], 3),
        (&[], &[], 1),
        (&[5], &[], 5),
        (&[], &[1], 1),
    ];
    for (found, expected, n_samples) in cases {
        let values = count(found.iter().product());
        let input = input("x", expected, FLOAT);
        let samples = samples("a.npy", &npy_f32(found, &values), &input).unwrap();
        assert_eq!(samples.len(), n_samples, "{found:?} for {expected:?}");
        assert_eq!(samples.concat(), values, "{found:?} for {expected:?}");
    }
}

#[test]
fn shapes_that_do_not_fit_say_what_was_expected() {
    let image = input("data", &[1, 3, 4, 5], FLOAT);
    let pair = input("x", &[2, 2], FLOAT);
    let cases: [(&[usize], &InputSpec, &str); 5] = [
        (
            &[4, 5],
            &image,
            "`a.npy`: array has shape [4, 5], expected for input `data`: [1, 3, 4, 5], or several samples along the first axis",
        ),
        (&[2, 4, 5, 3], &image, "\nhint: numpy.transpose(array, (0, 3, 1, 2))"),
        (
            &[5, 2],
            &pair,
            "`a.npy`: array has 5 entries along the first axis, input `x` takes 2 at a time: the last batch has 1",
        ),
        (&[0, 2], &pair, "`a.npy`: array has shape [0, 2], expected at least one sample"),
        (&[2, 3], &pair, "array has shape [2, 3], expected for input `x`: [2, 2]"),
    ];
    for (found, input, expected) in cases {
        let folder = folder();
        let values = count(found.iter().product());
        fs::write(folder.path().join("a.npy"), npy_f32(found, &values)).unwrap();
        let found = message(open(&folder, &["a.npy"], std::slice::from_ref(input)), &folder);
        assert!(found.contains(expected), "{found}\nexpected: {expected}");
    }
}

#[test]
fn every_numpy_type_becomes_float32_as_its_value() {
    let cases: [(&str, Vec<u8>, [f32; 2]); 13] = [
        ("|u1", vec![0, 255], [0.0, 255.0]),
        ("|i1", vec![255, 127], [-1.0, 127.0]),
        ("|b1", vec![0, 1], [0.0, 1.0]),
        ("<u2", vec![1, 2, 255, 255], [513.0, 65535.0]),
        (">u2", vec![1, 2, 255, 255], [258.0, 65535.0]),
        ("<i2", [-2i16, 300].map(i16::to_le_bytes).concat(), [-2.0, 300.0]),
        ("<i4", [-70000i32, 5].map(i32::to_le_bytes).concat(), [-70000.0, 5.0]),
        ("<u4", [4_000_000_000u32, 5].map(u32::to_le_bytes).concat(), [4e9, 5.0]),
        ("<i8", [-1i64, 1 << 40].map(i64::to_le_bytes).concat(), [-1.0, 1_099_511_627_776.0]),
        ("<u8", [1u64, 1 << 63].map(u64::to_le_bytes).concat(), [1.0, 9_223_372_036_854_775_808.0]),
        ("<f2", vec![0x00, 0x3e, 0x01, 0x00], [1.5, 5.960_464_5e-8]),
        ("<f8", [0.1f64, -3.0].map(f64::to_le_bytes).concat(), [0.1, -3.0]),
        (">f4", [0.25f32, -3.0].map(f32::to_be_bytes).concat(), [0.25, -3.0]),
    ];
    let input = input("x", &[2], FLOAT);
    for (descr, data, expected) in cases {
        let samples = samples("a.npy", &npy(descr, &[2], false, &data), &input).unwrap();
        assert_eq!(samples, [expected], "{descr}");
    }
}

#[test]
fn integers_take_only_what_they_hold() {
    let load = |descr: &str, data: &[u8], data_type: i32| {
        let folder = folder();
        fs::write(folder.path().join("a.npy"), npy(descr, &[2], false, data)).unwrap();
        let dataset = open(&folder, &["a.npy"], &[input("x", &[2], data_type)]).unwrap();
        let loaded = dataset.load(0).map(|mut sample| sample.remove(0).values);
        loaded.map_err(|error| format!("{error:#}").replace(folder.path().to_str().unwrap(), ""))
    };
    let f32_bytes = |values: [f32; 2]| values.map(f32::to_le_bytes).concat();
    let i64_bytes = |values: [i64; 2]| values.map(i64::to_le_bytes).concat();
    let exact = [i64::MAX, i64::MIN];
    assert_eq!(load("<i8", &i64_bytes(exact), INT64), Ok(Values::I64(exact.to_vec())));
    assert_eq!(load("<i8", &i64_bytes([7, -7]), INT32), Ok(Values::I32(vec![7, -7])));
    assert_eq!(load("<f4", &f32_bytes([2.0, -3.0]), INT32), Ok(Values::I32(vec![2, -3])));
    assert_eq!(load("|u1", &[3, 200], UINT8), Ok(Values::U8(vec![3, 200])));
    assert_eq!(load("|u1", &[3, 100], 3), Ok(Values::I8(vec![3, 100])));
    assert_eq!(load("<i8", &i64_bytes([0, 1]), BOOL), Ok(Values::Bool(vec![false, true])));
    let errors = [
        (
            load("<f4", &f32_bytes([1.0, 0.5]), INT64),
            "value 0.5 at position 1, expected a whole number in the range of int64",
        ),
        (load("<f4", &f32_bytes([f32::NAN, 0.5]), INT64), "value NaN at position 0"),
        (load("<f4", &f32_bytes([1e30, 0.0]), INT64), "expected a whole number in the range of int64"),
        (
            load("<i8", &i64_bytes([256, 0]), UINT8),
            "`/a.npy`: array for input `x`: value 256 at position 0, expected a whole number in the range of uint8",
        ),
        (load("<i8", &i64_bytes([0, 2]), BOOL), "value 2 at position 1, expected 0 or 1 for bool"),
        (
            load("<f8", &[1e300f64, 0.0].map(f64::to_le_bytes).concat(), FLOAT),
            "value 1e300 at position 0, expected a number in the range of float32",
        ),
    ];
    for (found, expected) in errors {
        let found = found.unwrap_err();
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn column_major_arrays_are_read_in_row_major_order() {
    // Axes of 2, 3 and 2: the element at (i, j, k) is 100 i + 10 j + k.
    let (mut rows, mut columns) = (Vec::new(), Vec::new());
    for (i, j, k) in (0..12).map(|n| (n / 6, n / 2 % 3, n % 2)) {
        rows.push((100 * i + 10 * j + k) as f32);
    }
    for (i, j, k) in (0..12).map(|n| (n % 2, n / 2 % 3, n / 6)) {
        columns.push((100 * i + 10 * j + k) as f32);
    }
    let bytes: Vec<u8> = columns.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
    let file = npy("<f4", &[2, 3, 2], true, &bytes);
    let samples = samples("a.npy", &file, &input("x", &[1, 3, 2], FLOAT)).unwrap();
    assert_eq!(samples, [&rows[..6], &rows[6..]]);
}

#[test]
fn broken_files_are_named() {
    let good = npy_f32(&[2, 2], &count(4));
    let cases: [(&str, Vec<u8>, &str); 12] = [
        (
            "a.npy",
            good[..good.len() - 3].to_vec(),
            "holds 13 bytes of data, expected 16 for shape [2, 2]: it is truncated",
        ),
        ("a.npy", b"hello".to_vec(), "is not a NumPy array"),
        ("a.npy", npy("<U3", &[2, 2], false, &[0; 48]), "has the element type `<U3`, expected numbers or booleans"),
        (
            "a.npy",
            npy("=f4", &[1], false, &[0; 4]),
            "has the element type `=f4`, expected numbers or booleans, such as",
        ),
        ("a.npy", npy("<f4'}", &[1], false, &[0; 4]), "is not a NumPy array: its header lacks"),
        ("a.npy", b"\x93NUMPY\x01\0".to_vec(), "is not a NumPy array: ends too early"),
        ("a.npy", npy("<f4", &[1 << 40, 1 << 40], false, &[]), "too large to hold in memory"),
        ("a.npz", good.clone(), "is not an .npz archive"),
        ("a.pb", vec![], "is empty, expected an ONNX tensor"),
        ("a.pb", vec![0xff; 9], "is not an ONNX tensor"),
        (
            "a.pb",
            TensorProto { data_type: Some(8), ..Default::default() }.encode_to_vec(),
            "has the element type string, expected numbers or booleans",
        ),
        (
            "a.pb",
            TensorProto { dims: vec![9], ..from_f32("x", &[1], &[1.0]).unwrap() }.encode_to_vec(),
            "holds 4 bytes, expected 36 for its shape",
        ),
    ];
    for (name, bytes, expected) in cases {
        let folder = folder();
        fs::write(folder.path().join(name), bytes).unwrap();
        let found = message(open(&folder, &[name], &[input("x", &[1, 2], FLOAT)]), &folder);
        assert!(found.starts_with(&format!("`{name}`: ")), "{found}");
        assert!(found.contains(expected), "{found}\nexpected: {expected}");
    }
}

#[test]
fn a_bad_file_among_good_ones_is_an_error_only_when_loaded() {
    let folder = folder();
    fs::write(folder.path().join("a.npy"), npy_f32(&[2], &[1.0, 2.0])).unwrap();
    fs::write(folder.path().join("b.npy"), b"hello").unwrap();
    fs::write(folder.path().join("c.npy"), npy_f32(&[2, 2], &count(4))).unwrap();
    let dataset = open(&folder, &[""], &[input("x", &[1, 2], FLOAT)]).unwrap();
    assert_eq!(dataset.len(), 4);
    assert!(dataset.load(0).is_ok() && dataset.load(3).is_ok());
    assert!(message(dataset.load(1), &folder).starts_with("`b.npy`: is not a NumPy array"));
    assert!(dataset.name(0).ends_with("/a.npy") && dataset.name(1).ends_with("/b.npy"));
    assert!(dataset.name(3).ends_with("/c.npy[1]"), "{}", dataset.name(3));
}

fn two_inputs() -> [InputSpec; 2] {
    [input("image", &[1, 2], FLOAT), input("size", &[1], INT64)]
}

#[test]
fn archives_are_matched_by_name() {
    let folder = folder();
    let sizes = npy("<i8", &[2], false, &[5i64, 6].map(i64::to_le_bytes).concat());
    let one = npy("<i8", &[1], false, &9i64.to_le_bytes());
    let images = || npy_f32(&[2, 2], &count(4));
    let path = |name| folder.path().join(name);
    write_npz_stored(&path("both.npz"), &[("size", sizes), ("image", images()), ("label", images())]);
    write_npz_stored(&path("shared.npz"), &[("size", one), ("image", images())]);
    write_npz_stored(&path("typo.npz"), &[("sizes", images()), ("image", images())]);
    write_npz_stored(&path("other.npz"), &[("arr_0", images())]);
    write_npz_deflated(&path("packed.npz"), "arr_0", &[2, 2], &count(4));

    let sizes = |name: &str| {
        let dataset = open(&folder, &[name], &two_inputs()).unwrap();
        let load = |i| dataset.load(i).unwrap();
        assert_eq!(f32s(&load(1)[0].values), [2.0, 3.0]);
        assert_eq!(dataset.len(), 2);
        [load(0)[1].values.clone(), load(1)[1].values.clone()]
    };
    assert_eq!(sizes("both.npz"), [Values::I64(vec![5]), Values::I64(vec![6])]);
    assert_eq!(sizes("shared.npz"), [Values::I64(vec![9]), Values::I64(vec![9])]);

    let found = message(open(&folder, &["typo.npz"], &two_inputs()), &folder);
    assert_eq!(found, "`typo.npz`: has no array for input `size`, found `image`, `sizes`\nhint: did you mean `sizes`?");
    for name in ["other.npz", "packed.npz"] {
        let dataset = open(&folder, &[name], &[input("x", &[1, 2], FLOAT)]).unwrap();
        assert_eq!(f32s(&dataset.load(1).unwrap()[0].values), [2.0, 3.0], "{name}");
    }
}

#[test]
fn inputs_must_agree_on_the_number_of_samples() {
    let folder = folder();
    let sizes = npy("<i8", &[3], false, &[0; 24]);
    let arrays = [("size", sizes), ("image", npy_f32(&[2, 2], &count(4)))];
    write_npz_stored(&folder.path().join("a.npz"), &arrays);
    assert_eq!(
        message(open(&folder, &["a.npz"], &two_inputs()), &folder),
        "`a.npz`: input `image` has 2 samples, expected 3 as for input `size`, or 1\n\
         hint: docs/guide.md explains how to pass data"
    );
    fs::write(folder.path().join("a.npy"), npy_f32(&[2, 2], &count(4))).unwrap();
    assert_eq!(
        message(open(&folder, &["a.npy"], &two_inputs()), &folder),
        "`a.npy`: holds one array, expected one for each input: `image`, `size`\nhint: use .npz files with one key per input"
    );
}

fn write_pb(path: &Path, tensor: &TensorProto) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, tensor.encode_to_vec()).unwrap();
}

#[test]
fn test_data_sets_of_onnx_are_samples() {
    let folder = folder();
    let size = TensorProto { dims: vec![1], data_type: Some(INT64), int64_data: vec![3], ..Default::default() };
    for i in 0..2 {
        let path = |name: &str| folder.path().join(format!("test_data_set_{i}/{name}"));
        let image = from_f32("image", &[1, 2], &[i as f32, 1.0]).unwrap();
        write_pb(&path("input_0.pb"), &image);
        write_pb(&path("input_1.pb"), &size);
        write_pb(&path("output_0.pb"), &size);
    }
    for (source, n_samples) in [("", 2), ("test_data_set_1", 1), ("test_data_set_*", 2)] {
        let dataset = open(&folder, &[source], &two_inputs()).unwrap();
        assert_eq!(dataset.len(), n_samples, "{source}");
        let sample = dataset.load(n_samples - 1).unwrap();
        assert_eq!(f32s(&sample[0].values), [1.0, 1.0]);
        assert_eq!(sample[1].values, Values::I64(vec![3]));
    }
    let others = [input("image", &[1, 2], FLOAT), input("second", &[1], FLOAT), input("heads", &[1], FLOAT)];
    let found = message(open(&folder, &["test_data_set_0"], &others), &folder);
    assert_eq!(
        found,
        "`test_data_set_0`: has no tensor for input `heads`, found `image`, `second`\n\
         hint: docs/guide.md explains how to pass data"
    );
}

#[test]
fn messages_of_one_input_are_files_of_samples() {
    let folder = folder();
    write_pb(&folder.path().join("input_0.pb"), &from_f32("x", &[1, 2], &[1.0, 2.0]).unwrap());
    write_pb(&folder.path().join("input_1.pb"), &from_f32("", &[2, 2], &count(4)).unwrap());
    write_pb(&folder.path().join("output_0.pb"), &from_f32("y", &[7], &count(7)).unwrap());
    let dataset = open(&folder, &[""], &[input("x", &[1, 2], FLOAT)]).unwrap();
    assert_eq!(dataset.len(), 3);
    assert_eq!(f32s(&dataset.load(2).unwrap()[0].values), [2.0, 3.0]);
}

#[test]
fn typed_fields_of_messages_are_read() {
    let base = TensorProto { dims: vec![2], ..Default::default() };
    let cases = [
        TensorProto { data_type: Some(1), float_data: vec![1.0, 2.0], ..base.clone() },
        TensorProto { data_type: Some(11), double_data: vec![1.0, 2.0], ..base.clone() },
        TensorProto { data_type: Some(7), int64_data: vec![1, 2], ..base.clone() },
        TensorProto { data_type: Some(3), int32_data: vec![1, 2], ..base.clone() },
        TensorProto { data_type: Some(6), int32_data: vec![1, 2], ..base.clone() },
        TensorProto { data_type: Some(12), uint64_data: vec![1, 2], ..base.clone() },
        TensorProto { data_type: Some(10), int32_data: vec![0x3c00, 0x4000], ..base.clone() },
        TensorProto { data_type: Some(16), int32_data: vec![0x3f80, 0x4000], ..base },
    ];
    for case in cases {
        let samples = samples("a.pb", &case.encode_to_vec(), &input("x", &[2], FLOAT)).unwrap();
        assert_eq!(samples, [[1.0, 2.0]], "{case:?}");
    }
}

#[test]
fn inputs_of_other_types_are_refused() {
    let folder = folder();
    fs::write(folder.path().join("a.npy"), npy_f32(&[2], &count(2))).unwrap();
    assert_eq!(
        message(open(&folder, &["a.npy"], &[input("x", &[2], 10)]), &folder),
        "input `x` takes float16, expected float32, uint8, int8, int32, int64 or bool\nhint: convert the model to float32 first"
    );
}

#[test]
fn files_differ_along_open_axes_and_are_visited_by_shape() {
    let folder = folder();
    let open_input = |open: &[Option<&str>]| InputSpec {
        open: open.iter().map(|name| name.map(str::to_owned)).collect(),
        ..input("x", &[1, 4, 2], FLOAT)
    };
    for (name, shape) in
        [("a", &[1, 2, 2][..]), ("b", &[4, 2]), ("c", &[3, 2, 2]), ("d", &[1, 4, 2]), ("e", &[2, 1, 3, 2])]
    {
        let n = shape.iter().product();
        crate::support::write_npy(&folder.path().join(format!("{name}.npy")), shape, &vec![0.5; n]);
    }
    let dataset = open(&folder, &[""], &[open_input(&[None, Some("")])]).unwrap();
    let lengths: Vec<usize> = (0..dataset.len()).map(|i| dataset.load(i).unwrap()[0].shape[1]).collect();
    assert_eq!(lengths, [2, 4, 2, 2, 2, 4, 3, 3]);
    assert_eq!(dataset.by_shape(0).unwrap(), [1, 5, 6, 7, 0, 2, 3, 4]);
    assert_eq!(dataset.by_shape(3).unwrap(), [1, 0, 2, 5, 6, 7, 3, 4]);
    assert_eq!(open(&folder, &["b.npy", "d.npy"], &[open_input(&[None, Some("")])]).unwrap().by_shape(0), None);
    let found = message(open(&folder, &["a.npy"], &[open_input(&[])]), &folder);
    assert_eq!(
        found,
        "`a.npy`: array has shape [1, 2, 2], expected for input `x`: [1, 4, 2], or several samples along the first axis\n\
         hint: docs/guide.md explains how to pass data"
    );
    let found = message(open(&folder, &["a.npy"], &[open_input(&[None, None, Some("")])]), &folder);
    assert_eq!(
        found,
        "`a.npy`: array has shape [1, 2, 2], expected for input `x`: [1, 4, ?], or several samples along the first axis\n\
         hint: docs/guide.md explains how to pass data"
    );
}

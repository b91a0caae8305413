//! Calibration data that the tests make themselves, and the samples that it must give.

mod arrays;
mod images;
mod labels;
mod options;
mod paths;
mod sources;

use anyhow::Result;
use mqq::data::*;
use mqq::diag::explain;
use mqq::onnx::inputs::InputSpec;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const FLOAT: i32 = 1;
const UINT8: i32 = 2;
const INT32: i32 = 6;
const INT64: i32 = 7;
const BOOL: i32 = 9;

fn input(name: &str, shape: &[usize], data_type: i32) -> InputSpec {
    InputSpec { name: name.to_owned(), shape: shape.to_vec(), data_type, open: Vec::new() }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Opens files of `folder` by name; "" is the folder itself.
fn open(folder: &TempDir, names: &[&str], inputs: &[InputSpec]) -> Result<Dataset> {
    open_with(folder, names, inputs, &Preprocessing::default())
}

fn open_with(folder: &TempDir, names: &[&str], inputs: &[InputSpec], preprocessing: &Preprocessing) -> Result<Dataset> {
    let path = |name: &&str| folder.path().join(name).display().to_string();
    Dataset::open(&names.iter().map(path).collect::<Vec<_>>(), inputs, preprocessing, None)
}

/// The whole message of an error, with the folder taken out of the paths.
fn message<T>(result: Result<T>, folder: &TempDir) -> String {
    let Err(error) = result else { panic!("expected an error") };
    explain(&error).replace(&format!("{}/", folder.path().display()), "")
}

fn f32s(values: &Values) -> &[f32] {
    let Values::F32(values) = values else { panic!("expected float32, found {values:?}") };
    values
}

fn write_image(path: impl AsRef<Path>, width: u32, height: u32, pixels: &[[u8; 3]]) {
    let pixels = pixels.concat();
    image::RgbImage::from_raw(width, height, pixels).unwrap().save(path).unwrap();
}

/// A `.npy` file of version 1.
fn npy(descr: &str, shape: &[usize], is_column_major: bool, data: &[u8]) -> Vec<u8> {
    let dims: String = shape.iter().map(|dim| format!("{dim},")).collect();
    let order = if is_column_major { "True" } else { "False" };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({dims}), }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.bytes());
    file.extend(data);
    file
}

pub fn npy_f32(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    npy("<f4", shape, false, &bytes)
}

/// The first `n` numbers.
fn count(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn every_worker_may_load_any_sample() {
    let folder = folder();
    write_npz_deflated(&folder.path().join("a.npz"), "x", &[6, 2], &count(12));
    let inputs = [input("x", &[1, 2], FLOAT)];
    let dataset = open(&folder, &["a.npz"], &inputs).unwrap();
    std::thread::scope(|scope| {
        for i in (0..6).rev() {
            let dataset = &dataset;
            scope.spawn(move || {
                let sample = dataset.load(i).unwrap();
                assert_eq!(f32s(&sample[0].values), [2.0 * i as f32, 2.0 * i as f32 + 1.0]);
            });
        }
    });
}

/// An archive of one compressed array.
fn write_npz_deflated(path: &Path, name: &str, shape: &[u64], values: &[f32]) {
    use npyz::WriterBuilder;
    let file = fs::File::create(path).unwrap();
    let mut archive = npyz::npz::NpzWriter::new(file);
    let array = archive.array(name, Default::default()).unwrap();
    let mut writer = array.default_dtype().shape(shape).begin_nd().unwrap();
    writer.extend(values.iter().copied()).unwrap();
    writer.finish().unwrap();
}

/// An archive of arrays as they are, as NumPy's `savez` writes it.
pub fn write_npz_stored(path: &Path, arrays: &[(&str, Vec<u8>)]) {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in arrays {
        let name = format!("{name}.npy");
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        common.extend(crc32(data).to_le_bytes());
        common.extend([data.len() as u32; 2].map(u32::to_le_bytes).concat());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend((file.len() as u32).to_le_bytes());
        directory.extend(name.bytes());
        file.extend(b"PK\x03\x04");
        file.extend(&common);
        file.extend(name.bytes());
        file.extend(data);
    }
    let start = file.len() as u32;
    file.extend(&directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend([arrays.len() as u16; 2].map(u16::to_le_bytes).concat());
    file.extend((directory.len() as u32).to_le_bytes());
    file.extend(start.to_le_bytes());
    file.extend([0, 0]);
    fs::write(path, file).unwrap();
}

fn crc32(data: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
    !data.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

//! Decoding and preprocessing of one image: a bundled PNG, and a larger one that is drawn here.

use criterion::{Criterion, criterion_group, criterion_main};
use mqq::data::{Dataset, Preprocessing};
use mqq::onnx::inputs::InputSpec;
use std::path::Path;

fn benches(criterion: &mut Criterion) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let photograph = folder.path().join("photograph.png");
    let pixel = |x: u32, y: u32| image::Rgb([(x / 2) as u8, (y / 2) as u8, ((x * y) >> 8) as u8]);
    image::RgbImage::from_fn(500, 375, pixel).save(&photograph).unwrap();
    let cases = [
        ("digit 32x32", root.join("calib_data/calib"), "half", 32),
        ("photograph 500x375 to 224x224", photograph, "imagenet", 224),
    ];
    let mut group = criterion.benchmark_group("decoding and preprocessing");
    for (name, path, preset, size) in cases {
        let input = InputSpec { name: "x".into(), shape: vec![1, 3, size, size], data_type: 1, open: Vec::new() };
        let preprocessing = Preprocessing::named(preset).unwrap();
        let source = path.display().to_string();
        let dataset = Dataset::open(&[source], &[input], &preprocessing, Some(1)).unwrap();
        group.bench_function(name, |bencher| bencher.iter(|| dataset.load(0).unwrap()));
    }
    group.finish();
}

criterion_group!(decoding, benches);
criterion_main!(decoding);

//! Array files of each kind, for inputs of several shapes and types.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::data::{Array, Dataset, Preprocessing};
use mqq::onnx::inputs::InputSpec;
use mqq_fuzz::{holds, with_file};

fuzz_target!(|data: &[u8]| {
    let name = match data {
        [0x93, ..] => "x.npy",
        [b'P', ..] => "x.npz",
        _ => "x.pb",
    };
    holds(|| {
        with_file(name, data, |path| {
            let path = [path.display().to_string()];
            let shapes: [&[usize]; 4] = [&[1, 3, 4, 4], &[2, 3], &[1, 6], &[]];
            for (shape, data_type) in shapes.into_iter().zip([1, 7, 2, 6]) {
                let open = vec![None, (data_type == 2).then(String::new)];
                let mut inputs =
                    vec![InputSpec { name: "x".into(), shape: shape.to_vec(), data_type, open: open.clone() }];
                if data_type == 7 {
                    inputs.push(InputSpec { name: "mask".into(), data_type: 9, ..inputs[0].clone() });
                }
                let Ok(dataset) = Dataset::open(&path, &inputs, &Preprocessing::default(), Some(4)) else { continue };
                for i in 0..dataset.len() {
                    let Ok(sample) = dataset.load(i) else { continue };
                    for (array, input) in sample.iter().zip(&inputs) {
                        assert_eq!(array.shape.len(), input.shape.len());
                        let kept = array.to_kept_array();
                        assert_eq!(Array::from_kept_array(&kept)?.to_kept_array(), kept, "kept and taken back");
                    }
                }
            }
            Ok(())
        })
    })
});

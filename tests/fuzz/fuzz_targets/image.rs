//! Images of each kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::data::{Dataset, Preprocessing};
use mqq_fuzz::{holds, image_input, with_file};

fuzz_target!(|data: &[u8]| holds(|| with_file("image.png", data, |path| {
    let image = [path.display().to_string()];
    for shape in [[1, 3, 6, 8], [1, 1, 5, 5]] {
        let dataset = Dataset::open(&image, &[image_input(shape)], &Preprocessing::default(), None)?;
        _ = dataset.image_fits(0);
        assert_eq!(dataset.load(0)?[0].shape, shape);
    }
    Ok(())
})));

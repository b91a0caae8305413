//! A user's preprocessing, applied to an image.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::data::{Dataset, Preprocessing};
use mqq_fuzz::{holds, image_input, with_files};

const IMAGE: &[u8] = include_bytes!("../../../calib_data/calib/0039.png");

fuzz_target!(|data: &[u8]| holds(|| with_files(&[("recipe.yaml", data), ("image.png", IMAGE)], |folder| {
    let preprocessing = Preprocessing::named(&folder.join("recipe.yaml").display().to_string())?;
    let image = [folder.join("image.png").display().to_string()];
    for shape in [[1, 3, 12, 8], [1, 9, 9, 1], [1, 7, 5, 3]] {
        let Ok(dataset) = Dataset::open(&image, &[image_input(shape)], &preprocessing, None) else { continue };
        drop((dataset.describe(), dataset.image_fits(0)?));
        let sample = dataset.load(0)?;
        assert_eq!(sample[0].shape, shape);
    }
    Ok(())
})));

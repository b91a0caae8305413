//! Lists of files, class labels and boxes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::data::{BoxLabels, Dataset, Labels, Preprocessing};
use mqq_fuzz::{holds, image_input, with_files};

const IMAGE: &[u8] = include_bytes!("../../../calib_data/calib/0039.png");

fuzz_target!(|data: &[u8]| holds(|| {
    let lists = ["list.csv", "list.txt", "boxes.json"];
    let files = [(lists[0], data), (lists[1], data), (lists[2], data), ("a.png", IMAGE), ("b.png", IMAGE)];
    with_files(&files, |folder| {
        let path = |name: &str| folder.join(name).display().to_string();
        let open = |name: &str| {
            let (inputs, plain) = ([image_input([1, 1, 8, 8])], Preprocessing::default());
            Dataset::open(&[path(name)], &inputs, &plain, Some(8))
        };
        for name in &lists[..2] {
            let _ = open(name).map(|dataset| dataset.name(dataset.len() - 1));
        }
        let both = [path("a.png"), path("b.png")];
        let dataset = Dataset::open(&both, &[image_input([1, 1, 8, 8])], &Preprocessing::default(), None)?;
        let _ = Labels::read(&folder.join(lists[0])).and_then(|labels| labels.of_dataset(&dataset));
        let _ = BoxLabels::read(&folder.join(lists[2])).and_then(|boxes| boxes.of_dataset(&dataset));
        Ok(())
    })
}));

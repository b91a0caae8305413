//! Many paths, in order and in a few bytes each.

use super::*;
use mqq::data::Paths;
use proptest::prelude::*;
use std::path::PathBuf;

proptest! {
    #[test]
    fn paths_come_back(paths in prop::collection::vec("[ab/é]{0,300}", 0..200)) {
        let mut kept = Paths::default();
        paths.iter().for_each(|path| kept.push(Path::new(path)));
        prop_assert_eq!(kept.count(), paths.len());
        for (i, path) in paths.iter().enumerate() {
            prop_assert_eq!(kept.get(i), PathBuf::from(path));
        }
    }
}

#[test]
fn names_come_in_order() {
    let folder = folder();
    let names = ["b.png", "a.png", "a", "é", "B"];
    write_image(folder.path().join(names[0]), 1, 1, &[[0; 3]]);
    for name in &names[1..] {
        fs::copy(folder.path().join(names[0]), folder.path().join(name)).unwrap();
    }
    let dataset = open(&folder, &[""], &[input("x", &[1, 3, 1, 1], FLOAT)]).unwrap();
    let found: Vec<String> = (0..dataset.len()).map(|i| dataset.name(i)).collect();
    let path = |name| folder.path().join(name).display().to_string();
    assert_eq!(found, ["B", "a", "a.png", "b.png", "é"].map(path));
}

#[test]
fn thousands_of_names_come_in_order() {
    let folder = folder();
    let mut names: Vec<String> = (0..4000).map(|i: u32| format!("{:08x}.png", i.wrapping_mul(0x9e37_79b9))).collect();
    names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
    names.sort();
    let dataset = open(&folder, &[""], &[input("x", &[1, 3, 1, 1], FLOAT)]).unwrap();
    let found: Vec<String> = (0..dataset.len()).map(|i| dataset.name(i)).collect();
    assert!(found.iter().zip(&names).all(|(found, name)| found.ends_with(name.as_str())));
    assert_eq!(found.len(), names.len());
}

#[test]
fn a_folder_of_images_takes_a_few_bytes_each() {
    let mut kept = Paths::default();
    for i in 0..10_000 {
        kept.push(Path::new(&format!("/data/imagenet/val/ILSVRC2012_val_{i:08}.JPEG")));
    }
    assert!(kept.n_bytes() < 12 * 10_000);
}

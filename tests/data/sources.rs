//! Every kind of source, in a stated order.

use super::*;

const PIXEL: [[u8; 3]; 1] = [[10, 20, 30]];

fn pixel_input() -> [InputSpec; 1] {
    [input("x", &[1, 3, 1, 1], FLOAT)]
}

/// `b.png`, `a.PNG`, `notes.md`, a hidden image, `more/c.png` and `more/d.png`.
fn photos() -> TempDir {
    let folder = folder();
    fs::create_dir(folder.path().join("more")).unwrap();
    for name in ["b.png", "a.PNG", ".hidden.png", "more/c.png", "more/d.png"] {
        write_image(folder.path().join(name), 1, 1, &PIXEL);
    }
    fs::write(folder.path().join("notes.md"), "BM is how bitmaps begin").unwrap();
    folder
}

fn names(folder: &TempDir, sources: &[&str]) -> Vec<String> {
    let dataset = open(folder, sources, &pixel_input()).unwrap();
    let prefix = format!("{}/", folder.path().display());
    (0..dataset.len()).map(|i| dataset.name(i).replace(&prefix, "")).collect()
}

#[test]
fn sources_are_folders_files_patterns_and_lists() {
    let folder = photos();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("list.txt", "# two of them\nmore/d.png\n\n  b.png\n");
    write("list.csv", "class, file\n1,more/c.png\n\"2,5\",\"b.png\"\n");
    write("more.csv", "\u{feff}file,class\r\nd.png,3\r\n");
    let cases: [(&[&str], &[&str]); 9] = [
        (&[""], &["a.PNG", "b.png", "more/c.png", "more/d.png"]),
        (&["b.png"], &["b.png"]),
        (&["*.png"], &["b.png"]),
        (&["*/*.png"], &["more/c.png", "more/d.png"]),
        (&["**/*.{png,PNG}"], &["a.PNG", "b.png", "more/c.png", "more/d.png"]),
        (&["list.txt"], &["more/d.png", "b.png"]),
        (&["list.csv"], &["more/c.png", "b.png"]),
        // The list is named after the folder beside it.
        (&["more.csv"], &["more/d.png"]),
        (&["more", "a.PNG", "more"], &["more/c.png", "more/d.png", "a.PNG", "more/c.png", "more/d.png"]),
    ];
    for (sources, expected) in cases {
        assert_eq!(names(&folder, sources), expected, "{sources:?}");
    }
}

#[test]
fn images_are_known_by_content() {
    let folder = photos();
    let path = |name: &str| folder.path().join(name);
    fs::rename(path("b.png"), path("b.jpg")).unwrap();
    fs::rename(path("a.PNG"), path("a")).unwrap();
    assert_eq!(names(&folder, &[""]), ["a", "b.jpg", "more/c.png", "more/d.png"]);
    let dataset = open(&folder, &[""], &pixel_input()).unwrap();
    assert_eq!(dataset.load(0).unwrap(), dataset.load(1).unwrap());
}

#[test]
fn a_limit_keeps_the_first_samples() {
    let folder = photos();
    let source = [folder.path().display().to_string()];
    let preprocessing = Preprocessing::default();
    let open = |limit| Dataset::open(&source, &pixel_input(), &preprocessing, Some(limit));
    assert_eq!(open(1).unwrap().len(), 1);
    assert_eq!(open(9).unwrap().len(), 4);
    assert!(open(0).is_err());
    fs::write(folder.path().join("0.npy"), npy_f32(&[5, 3, 1, 1], &count(15))).unwrap();
    assert_eq!(open(3).unwrap().len(), 3);
    assert_eq!(open(6).unwrap().len(), 6);
}

#[test]
fn sources_without_data_say_so() {
    let folder = photos();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir_all(folder.path().join("outer/inner")).unwrap();
    fs::create_dir(folder.path().join("odd[1]")).unwrap();
    fs::write(folder.path().join("odd[1]/a.png"), "").unwrap();
    assert!(ensure_found(&[folder.path().join("odd[[]1]/*.png").display().to_string()], BadEntries::Refused).is_ok());
    write("list.txt", "b.png\nzebra.png\n");
    write("empty.txt", "# nothing\n");
    write("dir.txt", "more\n");
    write("bad.csv", "name,class\nb.png,1\n");
    write("labels.txt", "b.png 3\n");
    fs::write(folder.path().join("latin.txt"), b"\xe9.png\n").unwrap();
    fs::write(folder.path().join("latin.csv"), b"file\n\xe9.png\n").unwrap();
    let cases = [
        ("labels.txt", "`labels.txt`: line 1: `b.png 3`: does not exist, expected a path relative to the list"),
        ("latin.txt", "`latin.txt`: line 1: is not UTF-8 text"),
        ("latin.csv", "`latin.csv`: line 2: is not UTF-8 text"),
        ("zoo", "`zoo`: does not exist, expected a folder, a file, a list (.txt, .csv) or a pattern"),
        (
            "outer",
            "`outer`: holds no data, expected images (JPEG, PNG, BMP, WebP, GIF, TIFF, PNM), .npy, .npz or .pb files",
        ),
        ("outer/inner", "`outer/inner`: holds no data, expected images"),
        ("*.tif", "`*.tif`: matches no file"),
        ("odd[1]/*.png", "`odd[1]/*.png`: matches no file\nhint: `odd[1]` exists: in a pattern, `[[]` stands for `[`"),
        ("*.md", "`*.md`: matches 1 file, but none is supported data, expected images"),
        ("[.png", "`[.png`: is not a valid pattern"),
        ("none/*.png", "`none/*.png`: "),
        ("notes.md", "`notes.md`: is not supported data, expected images"),
        ("list.txt", "`list.txt`: line 2: `zebra.png`: does not exist, expected a path relative to the list"),
        ("empty.txt", "`empty.txt`: lists no files, expected one path per line"),
        ("dir.txt", "`dir.txt`: line 1: `more`: is a folder, expected a file"),
        ("bad.csv", "`bad.csv`: the first line is `name,class`, expected column names, `file` among them"),
    ];
    for (source, expected) in cases {
        let path = folder.path().join(source).display().to_string();
        let found = message(ensure_found(&[path], BadEntries::Refused), &folder);
        assert!(found.starts_with(expected), "{found}\nexpected: {expected}");
    }
    // A bad entry among good ones is a bad sample.
    let path = folder.path().join("list.txt").display().to_string();
    ensure_found(&[path], BadEntries::Skipped).unwrap();
    let dataset = open(&folder, &["list.txt"], &pixel_input()).unwrap();
    assert!(dataset.len() == 2 && dataset.load(0).is_ok());
    assert!(message(dataset.load(1), &folder).starts_with("`list.txt`: line 2: `zebra.png`: does not exist"));
}

#[test]
fn images_and_arrays_go_into_samples_in_turns() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for (name, value) in [("a.png", 1), ("d.png", 2), ("e.png", 3), ("f.png", 4)] {
        write_image(path(name), 1, 1, &[[value; 3]]);
    }
    let two = |value: f32| npy_f32(&[2, 3, 1, 1], &[value; 6]);
    fs::write(path("b.npy"), two(5.0)).unwrap();
    fs::write(path("c.npy"), two(6.0)).unwrap();
    fs::write(path("g.npy"), npy_f32(&[4, 3, 1, 1], &[7.0; 12])).unwrap();
    fs::write(path("h.npy"), two(8.0)).unwrap();
    // Two images to the sample, the first of which comes before two arrays and the second behind them.
    let inputs = [input("x", &[2, 3, 1, 1], FLOAT)];
    let dataset = open(&folder, &[""], &inputs).unwrap();
    let sample = |i: usize| {
        let (name, sample) = (dataset.name(i), dataset.load(i).unwrap());
        let values = f32s(&sample[0].values);
        (name.rsplit_once('/').unwrap().1.to_owned(), (values[0], values[5]))
    };
    let found: Vec<_> = (0..dataset.len()).map(sample).collect();
    let expected = [
        ("b.npy", (5.0, 5.0)),
        ("c.npy", (6.0, 6.0)),
        ("a.png", (1.0 / 255.0, 2.0 / 255.0)),
        ("e.png", (3.0 / 255.0, 4.0 / 255.0)),
        ("g.npy[0]", (7.0, 7.0)),
        ("g.npy[1]", (7.0, 7.0)),
        ("h.npy", (8.0, 8.0)),
    ];
    assert_eq!(found, expected.map(|(name, values)| (name.to_owned(), values)));
    fs::write(path("c.npy"), npy_f32(&[4, 3, 1, 1], &count(12))).unwrap();
    let error = message(dataset.load(1), &folder);
    assert_eq!(error, "`c.npy`: has changed since it was opened");
}

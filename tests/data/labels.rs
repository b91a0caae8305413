//! Classes by file, from a list.

use super::*;

const PIXEL: [[u8; 3]; 1] = [[10, 20, 30]];

/// `a/1.png`, `a/2.png` and `b/1.png`.
fn photos() -> TempDir {
    let folder = folder();
    for name in ["a/1.png", "a/2.png", "b/1.png"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_image(path, 1, 1, &PIXEL);
    }
    folder
}

/// The classes of the files of `sources`, one image to a sample, by the list `list` of these lines.
fn classes(folder: &TempDir, list: &str, lines: &str, sources: &[&str]) -> Result<Vec<usize>> {
    let path = folder.path().join(list);
    fs::create_dir_all(path.parent().unwrap())?;
    fs::write(&path, lines)?;
    let dataset = open(folder, sources, &[input("x", &[1, 3, 1, 1], FLOAT)])?;
    Ok(Labels::read(&path)?.of_dataset(&dataset)?.concat())
}

#[test]
fn files_are_known_by_their_paths() {
    let folder = photos();
    let all = ["a", "b"];
    let by_root = format!("file,class_index\n{}/a/1.png,9\n", folder.path().display());
    let cases: [(&str, &str, &[&str], &[usize]); 8] = [
        // Relative to the list, and to the folder of the data.
        ("list.csv", "file,class_index\na/1.png,3\na/2.png,4\nb/1.png,5\n", &all, &[3, 4, 5]),
        ("list.csv", "file,class_index\n1.png,3\n2.png,4\n", &["a"], &[3, 4]),
        ("other/list.csv", "file,class_index\nb/1.png,5\na/1.png,3\n", &["b", "a/1.png"], &[5, 3]),
        ("other/list.csv", "file,class_index\n../a/1.png,3\n./b/1.png,5\n", &["a/1.png", "b"], &[3, 5]),
        ("other/list.csv", &by_root, &["a/1.png"], &[9]),
        // The longest path that fits.
        ("list.csv", "file,class_index\n1.png,3\nb/1.png,5\n", &["a/1.png", "b"], &[3, 5]),
        // Columns in any order, quotes, spaces, comments, a file that comes twice.
        (
            "list.csv",
            "\u{feff}class_index, file ,note\r\n# two\r\n\r\n 5 ,\"b/1.png\",\"a, b\"\r\n3,a/1.png\r\n5,b/1.png,x\r\n",
            &["b", "a/1.png", "b"],
            &[5, 3, 5],
        ),
        ("list.csv", "file,class_index\n1.png,7\n", &["b", "b/1.png"], &[7, 7]),
    ];
    for (list, lines, sources, expected) in cases {
        assert_eq!(classes(&folder, list, lines, sources).unwrap(), expected, "{lines}");
    }
}

#[test]
fn a_file_without_a_class_of_its_own_is_an_error() {
    let folder = photos();
    let all = ["a", "b"];
    let cases: [(&str, &[&str], &str); 8] = [
        (
            "file,class_index\n1.png,3\n2.png,4\n",
            &all,
            "`b/1.png` and `a/1.png` both match line 2 of `list.csv`, `1.png`, expected a row for each\nhint: write longer paths in the column `file`, so that they differ",
        ),
        (
            "file,class_index\na/1.png,3\na/2.png,4\n",
            &all,
            "`b/1.png` has no class in `list.csv`, expected a row whose `file` is this path or its end",
        ),
        ("file,class_index\nc/1.png,3\n", &["a/1.png"], "`a/1.png` has no class in `list.csv`"),
        (
            "file,class_index\n1.png,3\n./1.png,4\n",
            &["b"],
            "`list.csv`: line 3: `./1.png` has the class 4, expected 3 as in line 2",
        ),
        (
            "file,class_index\n1.png,cat\n",
            &["b"],
            "`list.csv`: line 2: `1.png` has the class `cat`, expected a number, 0 or more",
        ),
        ("file,class_index\n1.png\n", &["b"], "`list.csv`: line 2: `1.png` has the class ``"),
        ("file,class_index\n,1\n", &["b"], "`list.csv`: line 2: the column `file` is empty"),
        (
            "file,class\n1.png,1\n",
            &["b"],
            "`list.csv`: the first line is `file,class`, expected column names, `class_index` among them",
        ),
    ];
    for (lines, sources, expected) in cases {
        let found = message(classes(&folder, "list.csv", lines, sources), &folder);
        assert!(found.starts_with(expected), "{found}\nexpected: {expected}");
    }
}

#[test]
fn every_part_of_a_batch_has_its_class() {
    let folder = photos();
    let list = folder.path().join("list.csv");
    let labels = |lines: &str| {
        fs::write(&list, format!("file,class_index\n{lines}")).unwrap();
        Labels::read(&list).unwrap()
    };
    let pair = [input("x", &[2, 3, 1, 1], FLOAT)];
    let dataset = open(&folder, &["b", "a/2.png"], &pair).unwrap();
    let found = labels("a/2.png,4\nb/1.png,5\n").of_dataset(&dataset).unwrap();
    assert_eq!(found, [[5, 4]]);
    fs::write(folder.path().join("x.npy"), npy_f32(&[4, 2], &count(8))).unwrap();
    let of_array = |shape: &[usize]| {
        let dataset = open(&folder, &["x.npy"], &[input("x", shape, FLOAT)]).unwrap();
        let labels = labels("x.npy[0],1\nx.npy[1],2\nx.npy[2],3\nx.npy[3],4\nx.npy,9\n");
        labels.of_dataset(&dataset).unwrap()
    };
    assert_eq!(of_array(&[1, 2]), [[1], [2], [3], [4]]);
    assert_eq!(of_array(&[2, 2]), [[1, 2], [3, 4]]);
    assert_eq!(of_array(&[4, 2]), [[1, 2, 3, 4]]);
}

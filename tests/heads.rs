//! Heads: files, names, and what of outputs they read.

use crate::support::repository;
use mqq::diag::hint_of;
use mqq::heads::{ALIASES, BUILT_IN, Decoding, OutputPart, OutputView, StrideRule, Strides, TaskName, iou, resolve};

#[test]
fn every_head_is_read_and_explained() {
    let document = std::fs::read_to_string(repository("docs/tasks.md")).unwrap();
    let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
    for (name, _) in BUILT_IN.iter().chain(ALIASES) {
        let head = resolve(name).unwrap();
        assert_eq!(head.name, ALIASES.iter().find(|(other, _)| other == name).map_or(*name, |(_, of)| of));
        let names = |row: &&&str| row.split('|').nth(1).unwrap().split(", ").any(|it| it.trim() == format!("`{name}`"));
        assert!(rows.iter().any(|row| names(&row)), "docs/tasks.md: {name}");
    }
    for (task, name) in TaskName::ALL {
        assert!(TaskName::parse(name).unwrap() == *task && task.name() == *name);
        assert!(rows.iter().any(|row| row.starts_with(&format!("| `{name}` | "))), "docs/tasks.md: {name}");
    }
}

#[test]
fn the_examples_of_the_document_are_heads() {
    let document = std::fs::read_to_string(repository("docs/tasks.md")).unwrap();
    let read = |text: &str| {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        std::fs::write(file.path(), text.split("```").next().unwrap()).unwrap();
        let Decoding::Detect(head) = resolve(file.path().to_str().unwrap()).unwrap().decoding else { panic!() };
        (head.bins, head.strides)
    };
    let heads: Vec<_> = document.split("```yaml\n").skip(1).map(read).collect();
    let doubling = (None, Strides::Found(StrideRule::Doubling));
    assert_eq!(heads, [doubling, (Some(16), Strides::Given(vec![8, 16, 32]))]);
}

#[test]
fn an_unknown_name_is_an_error() {
    let error = resolve("yolo8").unwrap_err();
    assert!(format!("{error:#}").starts_with("head `yolo8` is unknown, expected one of: yolox, "));
    assert_eq!(hint_of(&error), "did you mean `yolov8`?");
    assert!(format!("{:#}", resolve("./none.yaml").unwrap_err()).starts_with("`./none.yaml`: "));
}

fn view<'a>(shape: &'a [usize], values: &'a [f32], batch: (usize, usize)) -> OutputView<'a> {
    OutputView::of_image("y", shape, values, batch)
}

fn rows(part: &str, output: OutputView) -> Vec<Vec<f32>> {
    let part: OutputPart = serde_yaml::from_str(part).unwrap();
    let rows = part.rows(&[output]).unwrap();
    (0..rows.n_rows()).map(|row| rows.row(row).to_vec()).collect()
}

#[test]
fn an_axis_counts_columns_and_the_others_rows() {
    let values: Vec<f32> = (0..12).map(|x| x as f32).collect();
    let output = |shape| view(shape, &values, (1, 0));
    assert_eq!(rows("columns: [1, 3]", output(&[1, 3, 4])), [[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]]);
    assert_eq!(rows("{axis: 1, columns: [1]}", output(&[1, 3, 4]))[3], [7.0, 11.0]);
    assert_eq!(rows("axis: 1", output(&[1, 2, 2, 3]))[4], [4.0, 10.0]);
    assert_eq!(rows("axis: -1", output(&[1, 2, 2, 3]))[1], [3.0, 4.0, 5.0]);
    // Without a batch, and a value for each row.
    assert_eq!(rows("{}", output(&[3, 4]))[2], [8.0, 9.0, 10.0, 11.0]);
    assert_eq!(rows("{}", output(&[1, 12]))[5], [5.0]);
}

/// Maps of 3 x 3 cells and of one cell, with two rows of two columns for each cell.
#[test]
fn rows_of_a_cell_follow_each_other_in_any_order_of_axes() {
    let at = |cell: usize, row: usize, column: usize| (100 * cell + 10 * row + column) as f32;
    // Values of a map by position, where the axes have these lengths and meanings.
    let map = |axes: &[(usize, char)], first_cell: usize| -> Vec<f32> {
        let n: usize = axes.iter().map(|(n, _)| n).product();
        let value = |i: usize| {
            let (mut rest, mut cell, mut across, mut row, mut column) = (i, 0, 1, 0, 0);
            for &(n, axis) in axes.iter().rev() {
                let k = rest % n;
                rest /= n;
                match axis {
                    'r' => row = k,
                    'c' => column = k,
                    'b' => (row, column) = (k / 2, k % 2),
                    _ => {
                        cell += k * across;
                        across *= n;
                    }
                }
            }
            at(first_cell + cell, row, column)
        };
        (0..n).map(value).collect()
    };
    let expected: Vec<Vec<f32>> = (0..20).map(|i| vec![at(i / 2, i % 2, 0), at(i / 2, i % 2, 1)]).collect();
    for order in ["byx", "yxb", "ryxc", "rcyx", "yxrc"] {
        let axes = |side: usize| -> Vec<(usize, char)> {
            let n = |axis: char| match axis {
                'b' => 4,
                'r' | 'c' => 2,
                _ => side,
            };
            order.chars().map(|axis| (n(axis), axis)).collect()
        };
        let shape =
            |side: usize| -> Vec<usize> { std::iter::once(1).chain(axes(side).into_iter().map(|(n, _)| n)).collect() };
        let (large, small) = (map(&axes(3), 0), map(&axes(1), 9));
        let (large_shape, small_shape) = (shape(3), shape(1));
        let outputs = [view(&small_shape, &small, (1, 0)), view(&large_shape, &large, (1, 0))];
        let part: OutputPart = serde_yaml::from_str("per_cell: 2").unwrap();
        let rows = part.rows(&outputs).unwrap();
        let found: Vec<Vec<f32>> = (0..rows.n_rows()).map(|row| rows.row(row).to_vec()).collect();
        assert_eq!(found, expected, "{order}");
        let second: OutputPart = serde_yaml::from_str("{per_cell: 2, columns: [1, 2]}").unwrap();
        assert_eq!(second.rows(&outputs).unwrap().values, (0..20).map(|i| at(i / 2, i % 2, 1)).collect::<Vec<_>>());
    }
    let one: OutputPart = serde_yaml::from_str("{per_cell: 2, output: 0, axis: 1}").unwrap();
    assert_eq!(one.rows(&[view(&[1, 4, 1, 1], &[0.0, 1.0, 2.0, 3.0], (1, 0))]).unwrap().row(1), [2.0, 3.0]);
    let error = |part: &str, outputs: &[OutputView]| {
        format!("{:#}", serde_yaml::from_str::<OutputPart>(part).unwrap().rows(outputs).unwrap_err())
    };
    let (a, b) = (view(&[1, 5, 2, 2], &[0.0; 20], (1, 0)), view(&[1, 5, 1, 1], &[0.0; 5], (1, 0)));
    assert_eq!(error("per_cell: 2", &[a, b]), "output `y` [1, 5, 2, 2]: has 5 columns, expected a multiple of 2");
    assert_eq!(error("per_cell: 2", &[a]), "found `y` [1, 5, 2, 2], expected a map for each of several levels");
    assert!(error("per_cell: 2", &[a, a]).contains("expected maps of several sizes"));
    assert!(serde_yaml::from_str::<OutputPart>("per_cell: 0").is_err());
}

#[test]
fn each_image_of_a_batch_has_its_own_values() {
    let values: Vec<f32> = (0..12).map(|x| x as f32).collect();
    assert_eq!(rows("{}", view(&[2, 3, 2], &values, (2, 1)))[0], [6.0, 7.0]);
    assert_eq!(rows("{}", view(&[2, 6], &values, (2, 1)))[5], [11.0]);
    // As many rows for all images: no batch.
    assert_eq!(rows("{}", view(&[3, 4], &values, (2, 1))).len(), 3);
}

#[test]
fn outputs_are_found_by_name_position_and_shape() {
    let (a, b) = ([1.0, 2.0], [3.0; 4]);
    let outputs =
        [OutputView::of_image("a", &[1, 1, 2], &a, (1, 0)), OutputView::of_image("b", &[1, 1, 4], &b, (1, 0))];
    let of = |part: &str| serde_yaml::from_str::<OutputPart>(part).unwrap().rows(&outputs).map(|rows| rows.n_columns);
    for (part, n) in [("output: a", 2), ("output: 1", 4), ("shape: [~, ~, 2]", 2), ("shape: [1, 1, 4]", 4)] {
        assert_eq!(of(part).unwrap(), n, "{part}");
    }
    let error = |part: &str| format!("{:#}", of(part).unwrap_err());
    assert_eq!(error("output: c"), "found `a` [1, 1, 2], `b` [1, 1, 4]: expected an output `c`");
    assert_eq!(error("{}"), "found `a` [1, 1, 2], `b` [1, 1, 4], expected one output, or the head's key `output`");
    assert_eq!(
        error("shape: [~, ~, ~]"),
        "found `a` [1, 1, 2], `b` [1, 1, 4], expected one output of shape [any, any, any]"
    );
    assert_eq!(error("{output: a, shape: [~, ~, 4]}"), "output `a` has shape [1, 1, 2], expected [any, any, 4]");
    assert_eq!(error("{output: a, axis: 3}"), "output `a` [1, 1, 2]: has no axis 3, expected one of its axes");
}

#[test]
fn an_output_of_one_value_is_meant_where_nothing_else_could_be() {
    let outputs = [view(&[1, 1], &[0.5], (1, 0)), view(&[1, 6], &[1.0; 6], (1, 0))];
    let n_rows = |part: &str, outputs: &[OutputView]| {
        serde_yaml::from_str::<OutputPart>(part).unwrap().rows(outputs).map(|rows| rows.n_rows()).ok()
    };
    for part in ["{}", "shape: [~, ~]"] {
        assert_eq!(n_rows(part, &outputs), Some(6), "{part}");
        assert_eq!(n_rows(part, &outputs[..1]), Some(1), "{part}");
        assert_eq!(n_rows(part, &[outputs[0]; 2]), None, "{part}");
    }
    assert_eq!(n_rows("shape: [~, 1]", &outputs), Some(1));
}

#[test]
fn boxes_share_what_lies_in_both() {
    assert_eq!(iou(&[0.0, 0.0, 2.0, 2.0], &[0.0, 0.0, 2.0, 2.0]), 1.0);
    assert_eq!(iou(&[0.0, 0.0, 2.0, 2.0], &[1.0, 0.0, 3.0, 2.0]), 2.0 / 6.0);
    assert_eq!(iou(&[0.0, 0.0, 2.0, 2.0], &[2.0, 2.0, 3.0, 3.0]), 0.0);
    // Sides in the wrong order cover nothing.
    assert_eq!(iou(&[2.0, 2.0, 0.0, 0.0], &[0.0, 0.0, 2.0, 2.0]), 0.0);
}

#[test]
fn maps_without_values_are_no_points() {
    let Decoding::Keypoints(head) = resolve("heatmap").unwrap().decoding else { panic!() };
    for shape in [[1, 17, 0, 0], [1, 17, 4, 0], [1, 17, 0, 4]] {
        let error = head.points(&[view(&shape, &[], (1, 0))], None).unwrap_err();
        assert!(format!("{error:#}").contains("expected at least 1 of each"), "{error:#}");
    }
    assert_eq!(head.points(&[view(&[1, 1, 1, 2], &[0.0, 1.0], (1, 0))], None).unwrap().1[0].at, [1.0, 0.0]);
}

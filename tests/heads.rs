//! Heads of detectors: rows to boxes, by hand.

use mqq::heads::{BUILT_IN, Head, NamedOutput};
use mqq::metrics::task::Detection;

fn output<'a>(name: &'a str, shape: &'a [usize], values: &'a [f32]) -> NamedOutput<'a> {
    NamedOutput { name, shape, values }
}

fn found(head: &str, outputs: &[NamedOutput], image: Option<[usize; 2]>) -> Vec<Detection> {
    let images = Head::named(head).unwrap().detections(outputs, 1, image).unwrap().unwrap();
    images.into_iter().next().unwrap()
}

fn assert_boxes(found: &[Detection], expected: &[(usize, f64, [f64; 4])]) {
    let near = |a: f64, b: f64| (a - b).abs() < 1e-4;
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (one, (class, score, corners)) in found.iter().zip(expected) {
        let same = one.corners.iter().zip(corners).all(|(a, b)| near(*a, *b));
        assert!(
            one.class == *class && near(one.score, *score) && same,
            "{one:?}, expected {class} {score} {corners:?}"
        );
    }
}

fn error(head: &Head, outputs: &[NamedOutput], n_images: usize, image: Option<[usize; 2]>) -> String {
    format!("{:#}", head.detections(outputs, n_images, image).unwrap_err())
}

fn logit(p: f32) -> f32 {
    (p / (1.0 - p)).ln()
}

#[test]
fn every_built_in_head_is_read() {
    for (name, _) in BUILT_IN {
        let head = Head::named(name).unwrap();
        assert!(head.name == *name && !head.description.is_empty());
        let document = std::fs::read_to_string(crate::support::repository("docs/heads.md")).unwrap();
        assert!(document.contains(&format!("`{name}`")), "docs/heads.md has no `{name}`");
    }
}

#[test]
fn yolox_is_decoded_cell_by_cell() {
    // 32 x 32: 16 cells of 8 pixels, 4 of 16, 1 of 32; two classes.
    let mut values = vec![0.0; 21 * 7];
    let row = |values: &mut [f32], i: usize, row: [f32; 7]| values[i * 7..][..7].copy_from_slice(&row);
    // Cell (1, 2) of the first stride; the size of two cells and one.
    row(&mut values, 9, [0.5, 0.25, 2f32.ln(), 0.0, 0.8, 0.1, 0.9]);
    row(&mut values, 20, [0.5, 0.5, 0.0, 0.0, 1.0, 0.5, 0.2]);
    let outputs = [output("output", &[1, 21, 7], &values)];
    let boxes = found("yolox", &outputs, Some([32, 32]));
    assert_boxes(&boxes, &[(1, 0.72, [4.0, 14.0, 20.0, 22.0]), (0, 0.5, [0.0, 0.0, 32.0, 32.0])]);
    let head = Head::named("yolox").unwrap();
    let text = error(&head, &outputs, 1, Some([64, 64]));
    assert!(text.contains("`grid`: 21 rows, expected 84") && text.contains("64 x 64"), "{text}");
    assert!(error(&head, &outputs, 1, None).contains("expected an image's"));
    // Values of a cell that is no object count: what is not a number is never measured.
    values[3] = f32::NAN;
    let outputs = [output("output", &[1, 21, 7], &values)];
    assert!(head.detections(&outputs, 1, Some([32, 32])).unwrap().is_none());
}

#[test]
fn rows_are_decoded_as_they_are() {
    let rows = [10.0, 10.0, 4.0, 2.0, 0.5, 0.9, 0.1, 10.0, 10.0, 4.0, 2.0, 0.1, 0.9, 0.1];
    let expected = [(0, 0.45, [8.0, 9.0, 12.0, 11.0])];
    for head in ["yolox-decoded", "yolov5"] {
        assert_boxes(&found(head, &[output("y", &[1, 2, 7], &rows)], None), &expected);
    }
    // [1, 4 + classes, rows]: the second candidate is covered by the first.
    let columns = [10.0, 10.0, 10.0, 10.1, 4.0, 4.0, 2.0, 2.0, 0.2, 0.3, 0.6, 0.5];
    assert_boxes(&found("yolov8", &[output("y", &[1, 6, 2], &columns)], None), &[(1, 0.6, [8.0, 9.0, 12.0, 11.0])]);
    let rows = [1.0, 2.0, 3.0, 4.0, 0.9, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    for shape in [&[1, 2, 6][..], &[2, 6]] {
        assert_boxes(&found("yolo-nms", &[output("y", shape, &rows)], None), &[(7, 0.9, [1.0, 2.0, 3.0, 4.0])]);
    }
}

#[test]
fn anchors_of_yolov5_are_cells_of_three_maps() {
    // 32 x 32, one class: maps of 4 x 4, 2 x 2 and 1 x 1 for three anchors each.
    let sizes = [3 * 16 * 6, 3 * 4 * 6, 3 * 6];
    let mut maps = sizes.map(|n| vec![-20.0f32; n]);
    // Anchor 2 (33 x 23) at cell (3, 1) of the first stride: x, y and size at the middle of their ranges.
    maps[0][(2 * 16 + 4 + 3) * 6..][..6].copy_from_slice(&[0.0, 0.0, 0.0, 0.0, logit(0.8), logit(0.9)]);
    let shapes = [[1, 3, 4, 4, 6], [1, 3, 2, 2, 6], [1, 3, 1, 1, 6]];
    let outputs: Vec<NamedOutput> =
        maps.iter().zip(&shapes).zip(["a", "b", "c"]).map(|((map, shape), name)| output(name, shape, map)).collect();
    // Centre (2 · .5 - .5 + 3) · 8 = 28 and 12; size (2 · .5)² of the anchor.
    let expected = [(0, 0.72, [28.0 - 16.5, 12.0 - 11.5, 28.0 + 16.5, 12.0 + 11.5])];
    assert_boxes(&found("yolov5-raw", &outputs, Some([32, 32])), &expected);
}

#[test]
fn distances_are_means_of_distributions() {
    // One cell per stride of a 8 x 8 image: 4 strides, rounded up; eight bins per side behind one class.
    let mut rows = vec![0.0f32; 4 * 33];
    rows[0] = 0.9;
    for (side, bin) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        rows[1 + side * 8 + bin] = 50.0;
    }
    // Cell (0, 0) of 8 pixels: the point is its corner.
    let boxes = found("ltrb-dfl", &[output("y", &[1, 4, 33], &rows)], Some([8, 8]));
    assert_boxes(&boxes, &[(0, 0.9, [-8.0, -16.0, 24.0, 32.0])]);
    // YOLOv8's: channels first, the point is the middle; of equal bins the mean is 7.5.
    let distances = vec![0.0f32; 64 * 3];
    let scores = [logit(0.9), -20.0, -20.0];
    let outputs = [output("boxes", &[1, 64, 3], &distances), output("scores", &[1, 1, 3], &scores)];
    let boxes = found("yolov8-dfl", &outputs, Some([8, 8]));
    assert_boxes(&boxes, &[(0, 0.9, [4.0 - 60.0, 4.0 - 60.0, 4.0 + 60.0, 4.0 + 60.0])]);
}

#[test]
fn ssd_takes_its_outputs_by_their_columns() {
    let scores = [0.2, 0.1, 0.7, 0.9, 0.05, 0.05];
    let boxes = [0.1, 0.2, 0.3, 0.4, 0.0, 0.0, 1.0, 1.0];
    let priors = [0.5, 0.5, 0.2, 0.4, 0.5, 0.5, 1.0, 1.0];
    let outputs = [output("scores", &[1, 2, 3], &scores), output("boxes", &[1, 2, 4], &boxes)];
    // The background is first: class 1 of two.
    let score = f64::from(0.7f32);
    assert_boxes(&found("ssd", &outputs, None), &[(1, score, [0.1, 0.2, 0.3, 0.4])]);
    let offsets = [1.0, -1.0, 0.0, 5.0 * 2f32.ln(), 0.0, 0.0, 0.0, 0.0];
    let outputs = [
        output("scores", &[1, 2, 3], &scores),
        output("offsets", &[1, 2, 4], &offsets),
        output("priors", &[1, 2, 4], &priors),
    ];
    // Centre .5 + .1 · .2 and .5 - .1 · .4; size .2 and .4 · exp(.2 · 5 ln 2).
    assert_boxes(&found("ssd-priors", &outputs, None), &[(1, score, [0.42, 0.06, 0.62, 0.86])]);
    let head = Head::named("ssd-priors").unwrap();
    let text = error(&head, &outputs[..2], 1, None);
    assert!(text.starts_with("head `ssd-priors`: `priors`: 1 more output with 4 columns"), "{text}");
    // Corners of priors and offsets of corners.
    let yaml = "boxes: {columns: {output: offsets}, form: ltrb}\npriors: {columns: {output: priors}, form: ltrb}\n\
        scores: {background: first}\nscore_threshold: 0.4\n";
    let head = Head::from_yaml(yaml, "mine.yaml").unwrap();
    let corners = [0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 1.0, 1.0];
    let outputs = [outputs[0], output("offsets", &[1, 2, 4], &[0.5; 8]), output("priors", &[1, 2, 4], &corners)];
    let boxes = head.detections(&outputs, 1, None).unwrap().unwrap();
    assert_boxes(&boxes[0], &[(1, score, [0.25, 0.5, 0.75, 1.5])]);
}

#[test]
fn logits_become_scores() {
    let boxes = [0.5, 0.5, 0.2, 0.4, 0.5, 0.5, 0.2, 0.4];
    let logits = [0.0, logit(0.9), -20.0, -20.0];
    let outputs = [output("logits", &[1, 2, 2], &logits), output("boxes", &[1, 2, 4], &boxes)];
    assert_boxes(&found("rt-detr", &outputs, None), &[(1, 0.9, [0.4, 0.3, 0.6, 0.7])]);
    // Softmax over three, the last of them none: shares of .6, .1 and .3, then .1, .2 and .7.
    let logits = [0.6f32, 0.1, 0.3, 0.1, 0.2, 0.7].map(f32::ln);
    let outputs = [output("logits", &[1, 2, 3], &logits), output("boxes", &[1, 2, 4], &boxes)];
    assert_boxes(&found("detr", &outputs, None), &[(0, 0.6, [0.4, 0.3, 0.6, 0.7])]);
}

#[test]
fn each_image_of_a_batch_has_its_boxes() {
    let boxes = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 3.0, 3.0, 0.0, 0.0, 4.0, 4.0];
    let (scores, labels) = ([0.9, 0.1, 0.5, 0.6], [3.0, 0.0, 1.0, 2.0]);
    let outputs =
        [output("labels", &[2, 2], &labels), output("boxes", &[2, 2, 4], &boxes), output("scores", &[2, 2], &scores)];
    let head = Head::named("boxes-scores-labels").unwrap();
    let images = head.detections(&outputs, 2, None).unwrap().unwrap();
    assert_boxes(&images[0], &[(3, 0.9, [0.0, 0.0, 1.0, 1.0])]);
    assert_boxes(&images[1], &[(2, 0.6, [0.0, 0.0, 4.0, 4.0]), (1, 0.5, [0.0, 0.0, 3.0, 3.0])]);
    let text = error(&head, &outputs, 3, None);
    assert!(text.contains("found no axis of 3 images, expected it first"), "{text}");
}

#[test]
fn outputs_that_do_not_fit_are_errors() {
    let head = Head::named("boxes-scores-labels").unwrap();
    let boxes = output("boxes", &[1, 2, 4], &[0.0; 8]);
    let text = error(&head, &[boxes, output("score", &[1, 2], &[0.0; 2])], 1, None);
    assert!(text.contains("`labels` is unknown"), "{text}");
    let outputs = [boxes, output("scores", &[1, 3], &[0.0; 3]), output("labels", &[1, 2], &[0.0; 2])];
    assert!(error(&head, &outputs, 1, None).contains("`scores` has 3 rows, expected 2 as `boxes`"));
    let outputs = [output("y", &[1, 2, 3], &[0.0; 6])];
    let text = error(&Head::named("yolov5").unwrap(), &outputs, 1, None);
    assert!(text.contains("`boxes`: output `y` of shape [1, 2, 3]: columns 0 to 4, found 3 columns"), "{text}");
    // No candidates are no boxes.
    assert!(found("yolo-nms", &[output("y", &[0, 6], &[])], None).is_empty());
}

/// The example of the document is a head.
#[test]
fn the_documents_example_is_read() {
    let document = std::fs::read_to_string(crate::support::repository("docs/heads.md")).unwrap();
    let yaml = document.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let (rows, scores) = ([0.0, 0.0, 1.0, 1.0], [0.1, 0.9]);
    let outputs = [
        output("classes_softmax", &[1, 1, 2], &scores),
        output("bboxes_concat", &[1, 1, 4], &[0.0; 4]),
        output("anchors_concat", &[1, 1, 4], &rows),
    ];
    let head = Head::from_yaml(yaml, "mine.yaml").unwrap();
    assert_boxes(&head.detections(&outputs, 1, None).unwrap().unwrap()[0], &[(0, 0.9, [0.0, 0.0, 1.0, 1.0])]);
}

#[test]
fn a_wrong_file_says_where() {
    let good = "boxes: {form: ltrb}\nscores: {}\nscore_threshold: 0.4\n";
    assert!(Head::from_yaml(good, "mine.yaml").is_ok());
    for (yaml, words) in [
        (good.replace("ltrb", "ltbr"), "`mine.yaml`:1: `boxes.form`: unknown variant `ltbr`"),
        (good.replace("scores:", "scorse:"), "unknown field `scorse`"),
        (good.replace("0.4", "40"), "`score_threshold` is 40, expected 0 to 1"),
        (good.replace("0.4", ".nan"), "expected 0 to 1"),
        (good.replace("ltrb", "ltrb-distances"), "expected `grid`"),
        (good.replace("ltrb", "ltrb, bins: 8"), "`boxes.bins`"),
        (good.replace("ltrb", "ltrb, columns: {output: {rows: 3}}"), "expected an output's position"),
        (format!("{good}grid: {{strides: [8]}}\n"), "expected with another `boxes.form`"),
        (format!("{}grid: {{strides: [0]}}\n", good.replace("ltrb", "cxcywh")), "`grid.strides`"),
        (format!("{}grid: {{strides: [8], anchors: []}}\n", good.replace("ltrb", "cxcywh")), "`grid.anchors`"),
        (String::new(), "mine.yaml"),
    ] {
        let text = format!("{:#}", Head::from_yaml(&yaml, "mine.yaml").unwrap_err());
        assert!(text.starts_with("`mine.yaml`") && text.contains(words), "{yaml}\n{text}");
    }
    let unknown = Head::named("yolx").unwrap_err();
    assert!(format!("{unknown:#}").contains("head `yolx` is unknown, expected one of: "));
    assert_eq!(mqq::diag::hint_of(&unknown), "did you mean `yolox`?");
}

//! Where the channels of an output are, and which outputs are class scores.

use super::{Compared, INF, about, compared, scores};
use crate::support::{Attr, GraphBuilder};
use mqq::metrics::{ChannelAxes, EvaluatedOutput, FloatOutput, n_classes};

#[test]
fn class_scores_are_one_vector_per_part_of_the_batch() {
    let cases: [(&[usize], usize, Option<usize>); 13] = [
        (&[1, 10], 1, Some(10)),
        (&[4, 10], 4, Some(10)),
        (&[1, 10], 4, Some(10)),
        (&[4, 10, 1, 1], 4, Some(10)),
        (&[1, 2], 1, Some(2)),
        (&[2, 5, 1, 1], 3, None),
        (&[100, 4], 1, None),
        (&[1, 1], 1, None),
        (&[10], 1, None),
        (&[1, 100, 4], 1, None),
        (&[1, 10, 1], 1, None),
        (&[1, 2, 8, 8], 1, None),
        (&[], 1, None),
    ];
    for (shape, batch, expected) in cases {
        assert_eq!(n_classes(shape, batch), expected, "{shape:?}");
    }
}

/// Whether an output of one row is recognized as class scores.
fn is_recognized(samples: &[&[f32]]) -> bool {
    let shape = [1, samples[0].len()];
    let samples: Vec<_> = samples.iter().map(|row| (*row, *row)).collect();
    compared("y", &shape, &samples).float().n_classes().is_some()
}

#[test]
fn logits_are_confident_and_of_both_signs() {
    assert!(is_recognized(&[&[-4.0, 9.0, 1.0]]) && !is_recognized(&[&[0.0, 9.0, 1.0]]));
    // One value below 0 is enough, in any of the samples.
    assert!(is_recognized(&[&[0.0, 9.0, 1.0], &[5.0, -0.5, 1.0]]));
    // An embedding.
    assert!(!is_recognized(&[&[0.1, -0.1, 0.2, 0.0, -0.2, 0.1, 0.0, 0.1, -0.1, 0.0]]));
    // Of two classes 0.625 are asked for; two values that differ by 0.52 have 0.627, by 0.5 0.622.
    assert!(is_recognized(&[&[0.26, -0.26]]) && !is_recognized(&[&[0.25, -0.25]]));
    // It is the mean that counts: 0.5 and 1.0, or twice 0.5 and 0.82.
    assert!(is_recognized(&[&[-1.0, -1.0], &[9.0, -9.0]]));
    assert!(!is_recognized(&[&[-1.0, -1.0], &[-1.0, -1.0], &[0.75, -0.75]]));
    assert!(is_recognized(&[&[-INF, 9.0, 1.0]]));
    // Logits of many classes behind a Relu; pooled features.
    let with_largest = |largest: f32, n: usize| -> Vec<f32> {
        let others = (1..n).map(|i| (i % 5) as f32 * 0.2);
        std::iter::once(largest).chain(others).collect()
    };
    assert!(is_recognized(&[&with_largest(9.0, 1000)]) && !is_recognized(&[&with_largest(9.0, 100)]));
    assert!(!is_recognized(&[&with_largest(5.0, 1000)]));
}

/// Joint angles: as large and of both signs as logits, but independent of each other, so that their mean varies.
#[test]
fn regressed_values_are_no_logits() {
    let rows: Vec<Vec<f32>> = (0..16_i32).map(|i| vec![(i * 7 % 16 - 8) as f32, (i * 5 % 16 - 8) as f32]).collect();
    let regressed: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    assert!(!is_recognized(&regressed));
    // Of a few rows the mean's variance is unknown.
    assert!(is_recognized(&regressed[..7]));
    let logits: Vec<Vec<f32>> = rows.iter().map(|row| vec![row[0], 0.5 - row[0]]).collect();
    assert!(is_recognized(&logits.iter().map(Vec::as_slice).collect::<Vec<_>>()));
}

#[test]
fn probabilities_are_shares_of_1() {
    assert!(is_recognized(&[&[0.3, 0.3, 0.4], &[0.335, 0.335, 0.335]]));
    assert!(!is_recognized(&[&[0.3, 0.3, 0.4], &[0.3, 0.3, 0.38]]));
    // Logarithms of probabilities, whose mean varies.
    let logs: Vec<Vec<f32>> = (1..16_u8).map(|i| f32::from(i) / 16.0).map(|p| vec![p.ln(), (1.0 - p).ln()]).collect();
    assert!(is_recognized(&logs.iter().map(Vec::as_slice).collect::<Vec<_>>()));
    // Scores of several labels each.
    assert!(!is_recognized(&[&[0.9, 0.8, 0.1]]) && !is_recognized(&[&[-0.1, 0.5, 0.6]]));
}

#[test]
fn class_scores_are_floats_of_their_shape() {
    let unsure: [(&[f32], &[f32]); 1] = [(&[0.1, 0.2, 0.3, 0.0], &[0.0; 4])];
    assert_eq!(compared("y", &[1, 4], &unsure).float().n_classes(), None);
    let of = |shape: &'static [usize]| scores(shape, &unsure);
    assert_eq!(of(&[1, 4]).float().n_classes(), Some(4));
    assert_eq!(of(&[1, 4, 1, 1]).float().n_classes(), Some(4));
    assert_eq!((of(&[2, 2]).float().n_classes(), of(&[1, 2, 2]).float().n_classes()), (None, None));
    assert_eq!(Compared { batch: 2, ..of(&[2, 2]) }.float().n_classes(), Some(2));
    let about = EvaluatedOutput { is_float: false, is_scores: Some(true), ..about("y") };
    assert_eq!(Compared { about, ..of(&[1, 4]) }.float().n_classes(), None);
    let varying = scores(&[1, 4], &[unsure[0], (&[0.1, 0.2], &[0.0; 2])]);
    assert!(!varying.float().is_fixed() && of(&[1, 4]).float().is_fixed());
    assert_eq!(varying.float().n_classes(), None);
}

/// Values of the shape, by position.
fn values(shape: [usize; 3], value: impl Fn([usize; 3]) -> f32) -> Vec<f32> {
    let [a, b, c] = shape;
    let at = |i: usize| value([i / (b * c), i / c % b, i % c]);
    (0..a * b * c).map(at).collect()
}

fn channel_axis(shape: &[usize], samples: &[&[f32]]) -> Option<usize> {
    let (about, samples, shapes) = (about("y"), samples.to_vec(), Vec::new());
    FloatOutput { about: &about, batch: 1, shape, samples, shapes }.channel_axis()
}

#[test]
fn the_channel_axis_is_the_one_along_which_neighbours_differ_most() {
    let channel = |c: usize, y: usize, x: usize| [0.0, 10.0, -5.0][c] + 0.1 * y as f32 + 0.1 * x as f32;
    let first = values([3, 4, 4], |[c, y, x]| channel(c, y, x));
    let last = values([4, 4, 3], |[y, x, c]| channel(c, y, x));
    let middle = values([4, 3, 4], |[y, c, x]| channel(c, y, x));
    assert_eq!(channel_axis(&[1, 3, 4, 4], &[&first, &first]), Some(1));
    assert_eq!(channel_axis(&[1, 4, 4, 3], &[&last, &last]), Some(3));
    assert_eq!(channel_axis(&[1, 4, 3, 4], &[&middle]), Some(2));
    let mut masked = last.clone();
    masked[7] = -INF;
    assert_eq!(channel_axis(&[1, 4, 4, 3], &[&masked]), Some(3));
}

#[test]
fn a_vector_is_as_many_channels() {
    // However smooth it is.
    let ramp: Vec<f32> = (0..100u8).map(f32::from).collect();
    assert_eq!((channel_axis(&[1, 100], &[&ramp]), channel_axis(&[100], &[&ramp])), (Some(1), Some(0)));
    assert_eq!(channel_axis(&[1, 1], &[&[1.0], &[2.0]]), None);
    assert_eq!((channel_axis(&[1], &[&[1.0], &[2.0]]), channel_axis(&[], &[&[1.0], &[2.0]])), (None, None));
}

#[test]
fn many_rows_are_no_channels() {
    let rough = |row: usize| (row * 617 % 997) as f32;
    let scores = |n_rows: usize| values([1, n_rows, 1], |[_, row, _]| rough(row));
    // An embedding, and a signal.
    assert_eq!(channel_axis(&[1, 320, 1], &[&scores(320)]), Some(1));
    let wave = |n_rows: usize| values([1, n_rows, 1], |[_, row, _]| (0.4 * row as f32).sin());
    assert_eq!(channel_axis(&[1, 320, 1], &[&wave(320)]), None);
    assert_eq!(channel_axis(&[1, 60, 1], &[&wave(60)]), Some(1));
    assert_eq!((channel_axis(&[1, 1, 320], &[&wave(320)]), channel_axis(&[1, 1, 60], &[&wave(60)])), (None, Some(2)));
    // Logits of two classes, and two positions of many channels.
    let logits = |n_rows: usize| values([1, n_rows, 2], |[_, row, class]| rough(row) + 400.0 * class as f32);
    assert_eq!(channel_axis(&[1, 400, 2], &[&logits(400)]), Some(2));
    assert_eq!(channel_axis(&[1, 150, 2], &[&logits(150)]), Some(1));
    let signal = values([1, 400, 2], |[_, channel, time]| rough(channel) + 100.0 * time as f32);
    assert_eq!(channel_axis(&[1, 400, 2], &[&signal]), Some(1));
    // One token of many values, and a map of many channels.
    assert_eq!(channel_axis(&[1, 1, 320], &[&scores(320)]), Some(2));
    assert_eq!(channel_axis(&[1, 320, 1, 1], &[&scores(320)]), Some(1));
}

#[test]
fn the_batch_counts_no_channels() {
    assert_eq!(channel_axis(&[2, 3], &[&[0.0, 0.1, 0.2, 9.0, 9.1, 9.2]]), Some(1));
    assert_eq!(channel_axis(&[2, 1, 1], &[&[0.0, 9.0]]), None);
}

#[test]
fn a_smooth_map_without_structure_along_an_axis_is_one_channel() {
    let turn = std::f32::consts::TAU / 16.0;
    let wave = values([1, 16, 16], |[_, y, x]| (turn * (x + y) as f32).cos());
    assert_eq!(channel_axis(&[1, 1, 16, 16], &[&wave]), None);
    // The ground is nearer than the sky, in all columns.
    let depth: Vec<f32> = (0..256u16).map(|i| f32::from(i / 16) + 0.1 * f32::from(i % 16)).collect();
    for shape in [[1, 1, 16, 16], [1, 16, 16, 1]] {
        assert_eq!(channel_axis(&shape, &[&depth]), None);
    }
    // The means of the rows say nearly all of it.
    let rows = values([1, 16, 16], |[_, y, x]| y as f32 + 0.01 * x as f32);
    assert_eq!(channel_axis(&[1, 16, 16], &[&rows]), Some(1));
    // A depth map without an axis of channels is larger.
    let depth: Vec<f32> = (0..1024u16).map(|i| f32::from(i / 32) + 0.1 * f32::from(i % 32)).collect();
    assert_eq!(channel_axis(&[1, 32, 32], &[&depth]), None);
    // Not smooth.
    let turn = std::f32::consts::TAU / 8.0;
    let steep = values([1, 16, 16], |[_, y, x]| (turn * (x + y) as f32).cos());
    assert!(channel_axis(&[1, 1, 16, 16], &[&steep]).is_some());
}

#[test]
fn of_axes_that_are_alike_the_first_counts_channels() {
    assert_eq!(channel_axis(&[1, 2, 2], &[&[0.0, 1.0, 1.0, 0.0]]), Some(1));
}

#[test]
fn sixteen_samples_tell_the_axis() {
    let (first, last): ([f32; 4], [f32; 4]) = ([0.0, 0.0, 5.0, 5.0], [0.0, 50.0, 0.0, 50.0]);
    let mut samples = vec![&first[..]; 15];
    samples.extend([&last[..]; 9]);
    assert_eq!(channel_axis(&[1, 2, 2], &samples), Some(2));
    samples.insert(0, &first);
    assert_eq!(channel_axis(&[1, 2, 2], &samples), Some(1));
}

#[test]
fn numbers_of_classes_are_evaluated_by_the_scores() {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 3, 4, 4]);
    g.op("Relu", &["x"], "scores");
    g.op_with("ArgMax", &["scores"], "classes", &[("axis", Attr::Int(1)), ("keepdims", Attr::Int(0))]);
    g.op_with("Cast", &["classes"], "map", &[("to", Attr::Int(6))]);
    g.op("Abs", &["map"], "other");
    let model = g.output("map").output("other").build();
    let outputs = EvaluatedOutput::with_scores(model.graph.as_ref().unwrap(), &ChannelAxes::new());
    let of = |i: usize| (outputs[i].name.as_str(), outputs[i].tensor.as_str(), outputs[i].centered_axis);
    assert_eq!([of(0), of(1)], [("map", "scores", Some(1)), ("other", "other", None)]);
    assert!(outputs[0].is_float);
}

//! Figures of tasks, by hand.

use mqq::metrics::Merge;
use mqq::metrics::task::{
    Blank, Detection, MEASURES, OutputPair, TaskFigures, TaskGate, TaskKind, TaskOptions, TaskResult, TaskSums,
    overlap, suppressed,
};

const NAN: f32 = f32::NAN;

fn assert_near(found: Option<f64>, expected: f64) {
    assert!(found.is_some_and(|found| (found - expected).abs() < 1e-6), "{found:?}, expected {expected}");
}

fn detection(class: usize, score: f64, corners: [f64; 4]) -> Detection {
    Detection { class, score, corners }
}

/// A box of 10 x 10.
fn square(class: usize, score: f64, left: f64) -> Detection {
    detection(class, score, [left, 0.0, left + 10.0, 10.0])
}

macro_rules! figures {
    ($result:expr, $task:ident) => {
        match $result.figures {
            Some(TaskFigures::$task(figures)) => figures,
            other => panic!("{other:?}"),
        }
    };
}

fn boxes(float: &[Detection], quantized: &[Detection]) -> TaskResult {
    TaskSums::of_detections(Some(&[float.to_vec()]), Some(&[quantized.to_vec()])).result(None)
}

fn sums(kind: TaskKind, shape: &[usize], values: [&[f32]; 2], options: &TaskOptions) -> Option<TaskSums> {
    let [float, quantized] = values;
    let pair = OutputPair { shape, n_parts: 1, is_float: true, float, quantized };
    TaskSums::of_output(kind, &pair, options, None)
}

fn result(kind: TaskKind, shape: &[usize], float: &[f32], quantized: &[f32]) -> TaskResult {
    sums(kind, shape, [float, quantized], &TaskOptions::default()).unwrap().result(Some("y"))
}

/// Whether `result` meets a bound.
fn meets(option: &str, bound: f64, result: &TaskResult) -> bool {
    let measure = MEASURES.iter().find(|measure| measure.option == option).unwrap();
    TaskGate { measure, bound }.judge(result).met
}

#[test]
fn boxes_overlap_by_their_shared_area() {
    let unit = [0.0, 0.0, 10.0, 10.0];
    assert_near(Some(overlap(&unit, &[2.0, 0.0, 12.0, 10.0])), 80.0 / 120.0);
    assert_near(Some(overlap(&unit, &[5.0, 5.0, 15.0, 15.0])), 25.0 / 175.0);
    assert_near(Some(overlap(&unit, &unit)), 1.0);
    for other in [[10.0, 0.0, 20.0, 10.0], [3.0, 3.0, 3.0, 3.0], [5.0, 5.0, 2.0, 2.0], [f64::NAN; 4]] {
        assert_eq!(overlap(&unit, &other), 0.0, "{other:?}");
    }
}

#[test]
fn a_box_that_a_better_one_of_its_class_covers_is_dropped() {
    let candidates = vec![square(0, 0.5, 1.0), square(0, 0.9, 0.0), square(1, 0.4, 1.0), square(0, 0.3, 30.0)];
    let kept = suppressed(candidates.clone(), Some(0.45));
    assert_eq!(kept, [square(0, 0.9, 0.0), square(1, 0.4, 1.0), square(0, 0.3, 30.0)]);
    assert_eq!(suppressed(candidates.clone(), None).len(), 4);
    // By 9 of 11 they overlap: the bound itself drops none.
    assert_eq!(suppressed(candidates, Some(90.0 / 110.0)).len(), 4);
}

#[test]
fn boxes_are_the_same_by_class_and_overlap() {
    let float = [square(0, 0.95, 0.0), square(1, 0.85, 20.0)];
    let same = figures!(boxes(&float, &float), Detect);
    assert_eq!((same.f1, same.mean_iou, same.score_distance, same.n_matched), (Some(1.0), Some(1.0), Some(0.0), 2));
    // One is shifted by 2, the other as it is.
    let shifted = figures!(boxes(&float, &[square(0, 0.95, 2.0), float[1]]), Detect);
    assert_near(shifted.mean_iou, (80.0 / 120.0 + 1.0) / 2.0);
    assert_eq!(shifted.f1, Some(1.0));
    // Shifted by 4 they overlap by 3/7: one of the other class, one lost.
    let far = figures!(boxes(&float, &[square(0, 0.95, 4.0), float[1]]), Detect);
    assert_eq!((far.f1, far.mean_iou), (Some(0.5), Some(1.0)));
    let other_class = figures!(boxes(&float, &[square(1, 0.95, 0.0), float[1]]), Detect);
    assert_eq!((other_class.f1, other_class.n_quantized), (Some(0.5), 2));
    let lost = figures!(boxes(&float, &float[..1]), Detect);
    assert_near(lost.f1, 2.0 / 3.0);
    assert_near(lost.score_distance, 0.5);
    let none = figures!(boxes(&float, &[]), Detect);
    assert_eq!((none.f1, none.mean_iou, none.score_distance), (Some(0.0), None, Some(1.0)));
    // Each box is found once; the better of two takes the nearest.
    let twice = figures!(boxes(&float[..1], &[square(0, 0.4, 0.0), square(0, 0.9, 1.0)]), Detect);
    assert_near(twice.f1, 2.0 / 3.0);
    assert_near(twice.mean_iou, 90.0 / 110.0);
    let two = [square(0, 0.9, 0.0), square(0, 0.8, 4.0)];
    let nearest = figures!(boxes(&two, &[square(0, 0.9, 3.0), square(0, 0.8, 0.0)]), Detect);
    assert_near(nearest.mean_iou, (90.0 / 110.0 + 1.0) / 2.0);
}

#[test]
fn without_boxes_in_float_nothing_is_measured() {
    for quantized in [vec![], vec![square(0, 0.9, 0.0)]] {
        let result = boxes(&[], &quantized);
        assert!(!meets("--min-f1", 0.0, &result) && !meets("--min-iou", 0.0, &result));
        assert_eq!(figures!(result, Detect).f1, None);
    }
    let one = [vec![square(0, 0.9, 0.0)]];
    for (float, quantized) in [(Some(&one[..]), None), (None, Some(&one[..])), (None, None)] {
        let mut all = TaskSums::of_detections(Some(&one), Some(&one));
        all.merge(TaskSums::of_detections(float, quantized));
        let result = all.result(None);
        assert_eq!((result.n_samples, result.n_not_finite), (2, 1));
        assert!(!meets("--min-f1", 0.0, &result));
        assert_eq!(figures!(result, Detect).f1, Some(1.0));
    }
    assert!(TaskSums::of_detections(None, None).result(None).figures.is_none());
}

#[test]
fn histograms_of_scores_differ_by_their_shares() {
    let scored = |scores: &[f64]| scores.iter().map(|score| square(0, *score, 0.0)).collect::<Vec<_>>();
    let distance = |a: &[f64], b: &[f64]| figures!(boxes(&scored(a), &scored(b)), Detect).score_distance;
    // Shares of a half and a half against three quarters and a quarter.
    assert_near(distance(&[0.31, 0.95], &[0.38, 0.35, 0.3, 1.0]), 0.25);
    assert_near(distance(&[0.95], &[0.45]), 1.0);
}

#[test]
fn classes_agree_by_the_largest_and_the_first_five() {
    let float = [0.0, 9.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let sixth = [9.0, 4.0, 7.0, 6.0, 5.0, 8.0, 1.0];
    let fifth = [9.0, 4.0, 7.0, 6.0, 0.0, 8.0, 1.0];
    let figures_of = |row: &[f32]| figures!(result(TaskKind::Classify, &[1, 7], &float, row), Classify);
    assert_eq!(figures_of(&float).agreement_percent, Some(100.0));
    assert_eq!(
        (figures_of(&fifth).agreement_percent, figures_of(&fifth).top5_agreement_percent),
        (Some(0.0), Some(100.0))
    );
    assert_eq!(figures_of(&sixth).top5_agreement_percent, Some(0.0));
    let pair = OutputPair { shape: &[1, 7], n_parts: 1, is_float: true, float: &float, quantized: &sixth };
    let of = |pair: &OutputPair, labels: &[usize]| {
        TaskSums::of_output(TaskKind::Classify, pair, &TaskOptions::default(), Some(labels)).unwrap().result(Some("y"))
    };
    let labelled = of(&pair, &[1]);
    assert!(meets("--max-top1-drop", 100.0, &labelled) && !meets("--max-top1-drop", 99.0, &labelled));
    let figures = figures!(labelled, Classify);
    assert_eq!((figures.top1_percent, figures.top5_percent), (Some([100.0, 0.0]), Some([100.0, 0.0])));
    // Without labels no drop is known; of five classes or fewer the first five are all.
    let few = result(TaskKind::Classify, &[1, 2], &[0.0, 1.0], &[0.0, 1.0]);
    assert!(!meets("--max-top1-drop", 100.0, &few) && meets("--min-agreement", 100.0, &few));
    assert_eq!(figures!(few, Classify).top5_agreement_percent, None);
    let nan = result(TaskKind::Classify, &[1, 2], &[0.0, 1.0], &[NAN, 1.0]);
    assert!(nan.n_not_finite == 1 && !meets("--min-agreement", 0.0, &nan));
    assert!(sums(TaskKind::Classify, &[1, 2, 2], [&[0.0; 4], &[0.0; 4]], &TaskOptions::default()).is_none());
}

#[test]
fn areas_are_compared_class_by_class() {
    // Three channels, 2 x 2: classes 0 1 2 2, then 0 1 1 2.
    let float = [9.0, 0.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0];
    let other = [9.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0, 9.0];
    let figures = figures!(result(TaskKind::Segment, &[1, 3, 2, 2], &float, &other), Segment);
    assert_near(figures.miou, (1.0 + 0.5 + 0.5) / 3.0);
    assert_eq!((figures.agreement_percent, figures.n_classes), (Some(75.0), 3));
    assert_eq!(figures.worst.unwrap().class, 1);
    // The same with the channels last, by their axis and by the option.
    let last = |values: &[f32]| (0..12).map(|i| values[i % 3 * 4 + i / 3]).collect::<Vec<f32>>();
    let options = TaskOptions { channel_axis: Some(3), ..TaskOptions::default() };
    for options in [options, TaskOptions::default()] {
        let of = sums(TaskKind::Segment, &[1, 2, 2, 3], [&last(&float), &last(&other)], &options).unwrap();
        assert_near(figures!(of.result(None), Segment).miou, 2.0 / 3.0);
    }
    // Indices of classes.
    let (a, b) = ([0.0, 1.0, 2.0, 2.0], [0.0, 1.0, 1.0, 2.0]);
    let pair = OutputPair { shape: &[1, 2, 2], n_parts: 1, is_float: false, float: &a, quantized: &b };
    let of = TaskSums::of_output(TaskKind::Segment, &pair, &TaskOptions::default(), None).unwrap();
    assert_near(figures!(of.result(None), Segment).miou, 2.0 / 3.0);
}

#[test]
fn a_map_of_one_channel_is_what_is_above_the_threshold() {
    let (float, other) = ([0.9, 0.6, 0.2, 0.5], [0.9, 0.4, 0.6, 0.5]);
    for shape in [&[1, 1, 2, 2][..], &[1, 2, 2]] {
        let figures = figures!(result(TaskKind::Segment, shape, &float, &other), Segment);
        assert_near(figures.miou, 1.0 / 3.0);
    }
    let low = TaskOptions { threshold: 0.3, ..TaskOptions::default() };
    let of = sums(TaskKind::Segment, &[1, 1, 2, 2], [&float, &other], &low).unwrap();
    assert_near(figures!(of.result(None), Segment).miou, 0.75);
    let nothing = result(TaskKind::Segment, &[1, 1, 2, 2], &[0.0; 4], &[0.0; 4]);
    assert!(!meets("--min-miou", 0.0, &nothing));
    assert!(sums(TaskKind::Segment, &[1, 4], [&float, &other], &low).is_none());
}

fn embeddings(float: &[[f32; 2]], quantized: &[[f32; 2]]) -> TaskResult {
    let mut all = TaskSums::default();
    for (a, b) in float.iter().zip(quantized) {
        all.merge(sums(TaskKind::Embed, &[1, 2], [a, b], &TaskOptions::default()).unwrap());
    }
    all.result(Some("y"))
}

#[test]
fn embeddings_keep_direction_and_neighbours() {
    let float = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]];
    let same = embeddings(&float, &float.map(|[x, y]| [3.0 * x, 3.0 * y]));
    assert!(meets("--min-cosine", 0.999_999, &same) && meets("--min-neighbours", 1.0, &same));
    // The second turns to the last two: the neighbours of the first two are others.
    let turned = embeddings(&float, &[float[0], [0.1, 1.0], float[2], [0.2, 1.0]]);
    let figures = figures!(turned, Embed);
    assert!(figures.neighbours.unwrap() < 1.0);
    let cosine = |a: [f32; 2], b: [f32; 2]| {
        let dot = |a: [f32; 2], b: [f32; 2]| f64::from(a[0]) * f64::from(b[0]) + f64::from(a[1]) * f64::from(b[1]);
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    let lowest = cosine(float[1], [0.1, 1.0]);
    assert_near(figures.min_cosine, lowest);
    assert_near(figures.mean_cosine, (2.0 + lowest + cosine(float[3], [0.2, 1.0])) / 4.0);
    // One vector, or two, say nothing of neighbours; a vector that has become none is lost.
    for n in 1..3 {
        let few = embeddings(&float[..n], &float[..n]);
        assert!(!meets("--min-neighbours", 0.0, &few) && meets("--min-cosine", 1.0, &few));
    }
    assert_near(figures!(embeddings(&float[..1], &[[0.0, 0.0]]), Embed).mean_cosine, 0.0);
    let nan = embeddings(&float, &[float[0], float[1], [NAN, 1.0], float[3]]);
    assert!(nan.n_not_finite == 1 && !meets("--min-cosine", -1.0, &nan) && !meets("--min-neighbours", 0.0, &nan));
    // Of two that are as near either is the neighbour.
    let equal = [[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]];
    assert!(meets("--min-neighbours", 1.0, &embeddings(&equal, &[equal[0], [0.1, 1.0], [0.2, 1.9]])));
}

#[test]
fn a_batch_of_embeddings_is_as_many_vectors() {
    let (float, other) = ([1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]);
    let pair = OutputPair { shape: &[2, 2], n_parts: 2, is_float: true, float: &float, quantized: &other };
    let of = TaskSums::of_output(TaskKind::Embed, &pair, &TaskOptions::default(), None).unwrap();
    let figures = figures!(of.result(None), Embed);
    assert_eq!((figures.n_vectors, figures.mean_cosine), (2, Some(0.5)));
}

#[test]
fn numbers_are_measured_channel_by_channel() {
    // Columns: 1 2 3 against 2 4 6, and large ones against themselves off by one of them.
    let (float, other) = ([[1.0, 1000.0], [2.0, 3000.0], [3.0, 2000.0]], [[2.0, 1000.0], [4.0, 3000.0], [6.0, 2100.0]]);
    let mut all = TaskSums::default();
    for (a, b) in float.iter().zip(&other) {
        all.merge(sums(TaskKind::Regress, &[1, 2], [a, b], &TaskOptions::default()).unwrap());
    }
    let figures = figures!(all.result(None), Regress);
    let first = (14.0f64 / 2.0).sqrt();
    let second = (1e4f64 / 2e6).sqrt();
    assert_near(figures.centred_error, (first + second) / 2.0);
    let worst = figures.worst.unwrap();
    assert_eq!(worst.channel, 0);
    assert_near(Some(worst.centred_error), first);
    assert_near(Some(worst.correlation), 1.0);
    // By hand: products 1.05e6 about the means, squares 2e6 and 2.0067e6.
    let (a, b): (Vec<f64>, Vec<f64>) = (vec![-1000.0, 1000.0, 0.0], vec![-3100.0 / 3.0, 2900.0 / 3.0, 200.0 / 3.0]);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert_near(figures.correlation, (1.0 + dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()) / 2.0);
}

#[test]
fn what_does_not_vary_in_float_is_not_measured() {
    let constant = result(TaskKind::Regress, &[1, 1, 2, 2], &[3.0; 4], &[3.0, 3.0, 3.0, 4.0]);
    assert!(!meets("--min-correlation", -1.0, &constant) && !meets("--max-centred-error", 1e9, &constant));
    // One sample of one number per channel.
    let one = result(TaskKind::Regress, &[1, 3], &[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]);
    assert!(!meets("--min-correlation", -1.0, &one));
    assert_eq!(figures!(one, Regress).n_constant, 3);
    // A map that has become constant has no correlation.
    let flat = result(TaskKind::Regress, &[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0], &[2.5; 4]);
    assert!(meets("--min-correlation", 0.0, &flat) && !meets("--min-correlation", 0.1, &flat));
    assert_near(figures!(flat, Regress).centred_error, 1.0);
    let nan = result(TaskKind::Regress, &[1, 1, 2, 2], &[1.0, 2.0, 3.0, NAN], &[1.0, 2.0, 3.0, 4.0]);
    assert!(nan.n_not_finite == 1 && !meets("--min-correlation", -1.0, &nan) && nan.figures.is_none());
}

/// Class scores of these classes, step by step.
fn steps(classes: &[usize]) -> Vec<f32> {
    classes.iter().flat_map(|class| (0..4).map(move |k| f32::from(u8::from(k == *class)))).collect()
}

fn text(float: &[usize], quantized: &[usize], blank: Blank) -> TaskResult {
    let options = TaskOptions { blank, ..TaskOptions::default() };
    sums(TaskKind::Ctc, &[1, float.len(), 4], [&steps(float), &steps(quantized)], &options).unwrap().result(None)
}

#[test]
fn texts_are_collapsed_before_they_are_compared() {
    // 1 1 2 3 without repeats and blanks: 1 2 3 against 1 3; then the blank keeps two of a letter apart.
    let of = |float: &[usize], quantized: &[usize]| figures!(text(float, quantized, Blank::Index(0)), Ctc);
    let lost = of(&[1, 1, 0, 2, 2, 3], &[1, 0, 0, 0, 0, 3]);
    assert_near(lost.edit_distance, 1.0 / 3.0);
    assert_eq!((lost.n_letters, lost.same_percent), (3, Some(0.0)));
    assert_near(of(&[1, 0, 1], &[1, 1, 1]).edit_distance, 0.5);
    assert_eq!(of(&[1, 1, 2], &[1, 2, 2]).same_percent, Some(100.0));
    assert_near(of(&[1, 0, 0], &[3, 2, 1]).edit_distance, 2.0);
    // 3 is the last of four classes.
    assert_near(figures!(text(&[0, 3, 1], &[0, 0, 2], Blank::Last), Ctc).edit_distance, 0.5);
    let empty = text(&[0, 0], &[0, 1], Blank::Index(0));
    assert!(!meets("--max-edit-distance", 1e9, &empty));
}

#[test]
fn a_batch_of_texts_can_be_the_second_axis() {
    // Two texts of three steps: 1 2 3 and 3 2 1, the second with another first letter.
    let (float, other) = (steps(&[1, 3, 2, 2, 3, 1]), steps(&[1, 1, 2, 2, 3, 1]));
    let pair = OutputPair { shape: &[3, 2, 4], n_parts: 2, is_float: true, float: &float, quantized: &other };
    let of = TaskSums::of_output(TaskKind::Ctc, &pair, &TaskOptions::default(), None).unwrap();
    let figures = figures!(of.result(None), Ctc);
    assert_eq!((figures.n_texts, figures.n_letters, figures.same_percent), (2, 6, Some(50.0)));
    assert_near(figures.edit_distance, 1.0 / 6.0);
    let beyond = TaskOptions { blank: Blank::Index(4), ..TaskOptions::default() };
    assert!(TaskSums::of_output(TaskKind::Ctc, &pair, &beyond, None).is_none());
}

#[test]
fn every_task_has_a_bound() {
    for (kind, name, _) in TaskKind::ALL {
        assert!(MEASURES.iter().any(|measure| measure.task == kind), "{name}");
        assert_eq!((TaskKind::named(name), kind.name()), (Some(kind), name));
    }
}

//! Weights for kernels that add two products in 16 bits: which are multiplied side by side, and how large they may be together.

use crate::support::{Attr, GraphBuilder};
use mqq::plan::Pairs;

/// The pairs of the weight at an input of a node with these attributes.
fn pairs(op: &str, input_idx: usize, shape: &[usize], attributes: &[(&str, Attr)]) -> Option<Pairs> {
    let mut g = GraphBuilder::new(21);
    g.op_with(op, &["a", "b"], "y", attributes);
    Pairs::of(&g.build().graph.unwrap().node[0], input_idx, shape, Some(128))
}

fn conv(shape: &[usize]) -> Option<Pairs> {
    pairs("Conv", 1, shape, &[])
}

fn neighbours(pairs: Pairs, n: usize) -> Vec<Vec<usize>> {
    (0..n).map(|k| pairs.neighbours(k).collect()).collect()
}

#[test]
fn neighbours_are_channels_of_one_position() {
    // Two channels, three positions: ONNX order is c0p0 c0p1 c0p2 c1p0 c1p1 c1p2.
    let pairs = conv(&[8, 2, 1, 3]).unwrap();
    assert_eq!(pairs.neighbours(0).collect::<Vec<_>>(), [3]);
    assert_eq!(pairs.neighbours(4).collect::<Vec<_>>(), [1]);
    // Three channels: c0 of the second position follows c2 of the first.
    let odd = conv(&[8, 3, 1, 2]).unwrap();
    assert_eq!(odd.neighbours(1).collect::<Vec<_>>(), [4, 3]);
}

#[test]
fn depthwise_kernels_have_one_output_channel_per_group() {
    let grouped = |shape: &[usize], n| pairs("Conv", 1, shape, &[("group", Attr::Int(n))]);
    assert_eq!(grouped(&[8, 1, 3, 3], 8), None);
    for several in [conv(&[8, 1, 1, 3]), conv(&[1, 1, 1, 3]), grouped(&[16, 1, 1, 3], 8)] {
        assert_eq!(neighbours(several.unwrap(), 3), [vec![1], vec![0, 2], vec![1]]);
    }
}

#[test]
fn bounds_keep_the_sum_of_a_pair_below_the_limit() {
    let pairs = conv(&[1, 2, 1, 1]).unwrap();
    assert_eq!(pairs.load(&[100, 60]), 1.25);
    assert_eq!(pairs.load(&[100, -100]), 100.0 / 128.0);
    assert_eq!(pairs.bounds(|_| 100, 1), (-128, 28));
    assert_eq!(pairs.bounds(|_| -127, 0), (-1, 128));
}

/// In the order of the kernels, where all channels of a position come first, an even number of channels is taken two by two;
/// with an odd one pairs may begin anywhere.
#[test]
fn neighbours_follow_each_other_in_the_order_of_the_kernels() {
    for (channels, positions) in [(2, 3), (4, 1), (4, 4), (3, 2), (5, 3), (2, 1)] {
        let n = channels * positions;
        let order = |k: usize| k % positions * channels + k / positions;
        let by_order = |at: usize| (0..n).find(|&k| order(k) == at);
        let expected = |k: usize| -> Vec<usize> {
            let at = order(k);
            let beside = match (channels % 2, at % 2) {
                (0, 0) => vec![Some(at + 1)],
                (0, _) => vec![Some(at - 1)],
                _ => vec![at.checked_sub(1), Some(at + 1)],
            };
            beside.into_iter().flatten().filter_map(by_order).collect()
        };
        let found = neighbours(pairs("Conv", 1, &[8, channels, positions, 1], &[]).unwrap(), n);
        assert_eq!(found, (0..n).map(expected).collect::<Vec<_>>(), "{channels} {positions}");
    }
}

#[test]
fn the_load_is_that_of_the_heaviest_neighbours() {
    for (channels, positions) in [(2, 3), (4, 1), (3, 2), (5, 1), (1, 1)] {
        let n = channels * positions;
        let pairs = match positions {
            1 => pairs("MatMul", 1, &[channels, 8], &[]).unwrap(),
            _ => conv(&[8, channels, positions, 1]).unwrap(),
        };
        for seed in 0..50 {
            let q: Vec<i32> = (0..n as i32).map(|k| (k * 71 + seed * 37 + k * k * seed) % 255 - 127).collect();
            let sum = |k: usize, other: usize| {
                let of_sign = |sign: i32| (sign * q[k]).max(0) + (sign * q[other]).max(0);
                of_sign(1).max(of_sign(-1))
            };
            let sums = (0..n).flat_map(|k| pairs.neighbours(k).map(move |other| (k, other)));
            let heaviest = sums.map(|(k, other)| sum(k, other)).max().unwrap_or(0);
            assert_eq!(pairs.load(&q), f64::from(heaviest) / 128.0, "{channels} {positions} {q:?}");
        }
    }
}

#[test]
fn products_are_added_along_the_reduction_axis() {
    let transposed = [("transB", Attr::Int(1))];
    let of_three = vec![vec![1], vec![0, 2], vec![1]];
    assert_eq!(neighbours(pairs("MatMul", 1, &[3, 5], &[]).unwrap(), 3), of_three);
    assert_eq!(neighbours(pairs("MatMul", 0, &[5, 3], &[]).unwrap(), 3), of_three);
    assert_eq!(neighbours(pairs("Gemm", 1, &[3, 4], &[]).unwrap(), 3), of_three);
    assert_eq!(neighbours(pairs("Gemm", 1, &[4, 3], &transposed).unwrap(), 3), of_three);
    assert_eq!(pairs("MatMul", 1, &[2, 3, 4], &[]), None);
    assert_eq!(pairs("ConvTranspose", 1, &[4, 4, 1, 1], &[]), None);
    // Without a limit.
    let mut g = GraphBuilder::new(21);
    g.op("Conv", &["a", "b"], "y");
    assert_eq!(Pairs::of(&g.build().graph.unwrap().node[0], 1, &[4, 4, 1, 1], None), None);
}

#[test]
fn bounds_are_what_neighbours_of_one_sign_leave() {
    let three = pairs("MatMul", 1, &[3, 1], &[]).unwrap();
    for (a, b) in [(0, 0), (100, 30), (-100, 30), (-100, -128), (128, -128), (127, 127), (-1, 1)] {
        let q = [a, 0, b];
        let fits = |v: &i32| {
            let beside = |b: i32| v.max(&0) + b.max(0) <= 128 && v.min(&0) + b.min(0) >= -128;
            *v == 0 || beside(a) && beside(b)
        };
        let inside: Vec<i32> = (-200..=200).filter(fits).collect();
        assert_eq!(three.bounds(|k| q[k], 1), (inside[0], inside[inside.len() - 1]), "{a} {b}");
    }
    assert_eq!(three.bounds(|_| 200, 1), (-128, 0));
    assert_eq!(three.bounds(|_| -200, 1), (0, 128));
}

#[test]
fn the_load_is_that_of_the_heaviest_pair() {
    let three = pairs("MatMul", 1, &[3, 1], &[]).unwrap();
    for (q, sum) in [
        ([64, 64, 0], 128),
        ([0, 64, 65], 129),
        ([-100, -60, 120], 160),
        ([100, -100, 100], 100),
        ([-7, 3, -5], 7),
        ([100, 0, 100], 100),
        ([0, 0, 0], 0),
    ] {
        assert_eq!(three.load(&q), f64::from(sum) / 128.0, "{q:?}");
    }
    assert_eq!(three.load(&[]), 0.0);
}

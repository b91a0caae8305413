//! Weights for kernels that add two products in 16 bits.

use mqq::onnx::proto::NodeProto;
use mqq::plan::Pairs;

fn conv(shape: &[usize]) -> Option<Pairs> {
    let node = NodeProto { op_type: Some("Conv".into()), ..Default::default() };
    Pairs::of(&node, 1, shape, Some(128))
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
    assert_eq!(conv(&[8, 1, 3, 3]), None);
}

#[test]
fn bounds_keep_the_sum_of_a_pair_below_the_limit() {
    let pairs = conv(&[1, 2, 1, 1]).unwrap();
    assert_eq!(pairs.load(&[100, 60]), 1.25);
    assert_eq!(pairs.load(&[100, -100]), 100.0 / 128.0);
    assert_eq!(pairs.bounds(|_| 100, 1), (-128, 28));
    assert_eq!(pairs.bounds(|_| -127, 0), (-1, 128));
}

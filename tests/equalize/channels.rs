//! Channels of tensors and of weights.

use crate::support::{Attr, attribute};
use mqq::equalize::{ChannelStatistics, Channels, FlowDirection, channels_beyond};
use mqq::onnx::proto::NodeProto;
use mqq::onnx::weight_channels::WeightChannels;
use mqq::quant::ChannelScaling;

#[test]
fn what_few_values_show_is_not_all_there_is() {
    let mut statistic = ChannelStatistics::new(Channels { axis: 0, run: 1, first: 0, n: 4 });
    statistic.observe(&[4, 1], &[0.0, 0.1, -3.0, 8.0]);
    assert_eq!(statistic.minimum_range(0.0), 3.0 * 32.0 / 33.0);
    (0..31).for_each(|_| statistic.observe(&[4, 1], &[0.0; 4]));
    assert_eq!(statistic.minimum_range(0.0), 1.5);
    assert_eq!((statistic.minimum_range(0.25), statistic.minimum_range(0.75)), (1.5, 2.25));
    let nothing = ChannelStatistics::new(Channels { axis: 0, run: 1, first: 0, n: 2 });
    assert_eq!(nothing.minimum_range(0.25), 0.0);
}

#[test]
fn channels_are_seen_apart() {
    let runs = Channels { axis: 1, run: 2, first: 7, n: 2 };
    let mut statistic = ChannelStatistics::new(runs);
    statistic.observe(&[1, 4], &[1.0, -3.0, 2.0, 0.5]);
    let mut other = ChannelStatistics::new(runs);
    other.observe(&[2, 4], &[0.0, 1.0, 8.0, 0.0, 2.0, f32::NAN, 0.0, 0.0]);
    statistic.merge(&other);
    assert_eq!(statistic.min, [-3.0, 0.0]);
    assert_eq!(statistic.max, [2.0, 8.0]);
    assert!((statistic.mean_square(1) - (4.0 + 0.25 + 64.0) / 6.0).abs() < 1e-9);
}

fn node(op_type: &str, attributes: &[(&str, i64)]) -> NodeProto {
    let attribute = attributes.iter().map(|&(name, i)| attribute(name, &Attr::Int(i))).collect();
    NodeProto { op_type: Some(op_type.into()), attribute, ..Default::default() }
}

#[test]
fn values_of_a_weight_know_their_channels() {
    let grouped = WeightChannels::of(&node("Conv", &[("group", 2)]), &[4, 3, 1, 2]).unwrap();
    assert_eq!((grouped.n_in, grouped.n_out, grouped.area), (6, 4, 2));
    assert_eq!(grouped.ends(0), (0, 0));
    assert_eq!(grouped.ends(5), (0, 2));
    // The third row is the first of the second group, which reads channels 3 to 5.
    assert_eq!(grouped.ends(12), (2, 3));
    let transposed = WeightChannels::of(&node("ConvTranspose", &[("group", 2)]), &[4, 3, 2]).unwrap();
    assert_eq!((transposed.n_in, transposed.n_out), (4, 6));
    assert_eq!(transposed.ends(2 * 3 * 2), (3, 2));
    assert_eq!(WeightChannels::of(&node("Gemm", &[]), &[3, 5]).unwrap().ends(7), (2, 1));
    let flipped = WeightChannels::of(&node("Gemm", &[("transB", 1)]), &[5, 3]).unwrap();
    assert_eq!((flipped.n_in, flipped.ends(7)), (3, (2, 1)));
    assert_eq!(WeightChannels::of(&node("MatMul", &[]), &[2, 3, 4]), None);
    assert_eq!(WeightChannels::of(&node("Conv", &[("group", 3)]), &[4, 1, 1]), None);
}

const PLANES: Channels = Channels { axis: 1, run: 1, first: 0, n: 6 };

#[test]
fn a_flattened_plane_is_a_run() {
    let (planes, flat) = ([1, 6, 2, 5], [1, 60]);
    let runs = Channels { run: 10, ..PLANES };
    let flatten = node("Flatten", &[]);
    assert_eq!(channels_beyond(&flatten, &[], PLANES, &planes, &flat, FlowDirection::Forward), Some(runs));
    assert_eq!(channels_beyond(&flatten, &[], runs, &flat, &planes, FlowDirection::Backward), Some(PLANES));
    // Half a plane per row: the channels still follow each other; across rows they do not.
    let halves = channels_beyond(&flatten, &[], PLANES, &planes, &[1, 12, 5], FlowDirection::Forward);
    assert_eq!(halves, Some(Channels { run: 2, ..PLANES }));
    assert_eq!(channels_beyond(&flatten, &[], PLANES, &planes, &[1, 4, 15], FlowDirection::Forward), None);
}

#[test]
fn what_mixes_channels_or_measures_them_passes_nothing() {
    for op_type in ["Sigmoid", "Softmax", "DepthToSpace", "LRN", "Tanh"] {
        let shape = [1, 6, 2, 5];
        assert_eq!(channels_beyond(&node(op_type, &[]), &[], PLANES, &shape, &shape, FlowDirection::Forward), None);
    }
    let last = Channels { axis: 3, run: 1, first: 0, n: 5 };
    let pool = node("MaxPool", &[]);
    assert_eq!(channels_beyond(&pool, &[], last, &[1, 6, 2, 5], &[1, 6, 2, 5], FlowDirection::Forward), None);
}

#[test]
fn a_tensor_is_divided_by_the_factors_of_its_channels() {
    let channels = Channels { axis: 1, run: 2, first: 1, n: 2 };
    let expected = ChannelScaling::new(1, 2, vec![0.5, 4.0]);
    assert_eq!(channels.scaling(&[8.0, 2.0, 0.25]), expected);
}

#[test]
fn a_transpose_moves_the_axis() {
    let transpose = node("Transpose", &[]);
    let moved = channels_beyond(&transpose, &[], PLANES, &[1, 6, 2], &[2, 6, 1], FlowDirection::Forward);
    assert_eq!(moved, Some(PLANES));
    let last = Channels { axis: 2, run: 1, first: 0, n: 4 };
    let moved = channels_beyond(&transpose, &[], last, &[1, 6, 4], &[4, 6, 1], FlowDirection::Forward);
    assert_eq!(moved, Some(Channels { axis: 0, ..last }));
}

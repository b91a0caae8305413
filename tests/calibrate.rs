//! The order of samples by their contents, and statistics that are replaced.

use mqq::calibrate::{CalibrationStatistics, Order};
use mqq::statistics::TensorStatistics;
use std::collections::BTreeMap;

fn order(hashes: &[u64], skipped: &[usize], batch_size: usize) -> Order {
    Order::new(hashes.to_vec(), skipped.to_vec(), Some(batch_size), true)
}

#[test]
fn batches_follow_from_contents_each_once() {
    let batches = |order: &Order| [1, 3, 5, 7, 9].map(|hash| order.batch_of(hash));
    let plain = order(&[7, 1, 5, 3, 9], &[], 2);
    assert_eq!(plain.by_content, [1, 3, 2, 0, 4]);
    assert_eq!(batches(&plain), [0, 0, 1, 1, 2]);
    let repeated = order(&[9, 1, 1, 9, 3, 5, 1, 7, 1, 7], &[], 2);
    assert_eq!(repeated.by_content, [1, 2, 6, 8, 4, 5, 7, 9, 0, 3]);
    assert_eq!(batches(&repeated), batches(&plain));
    let without = order(&[7, 1, 0, 5, 3, 2, 9], &[5, 2], 2);
    assert_eq!(without.by_content, [1, 4, 3, 0, 6]);
    assert_eq!(batches(&without), batches(&plain));
    assert_eq!(batches(&order(&[7, 1, 5, 3, 9], &[], 5)), [0; 5]);
}

#[test]
fn replaced_statistics_are_restored() {
    let set = |all: &mut CalibrationStatistics, tensor: &str, largest: f32| {
        let mut statistics = TensorStatistics::default();
        statistics.observe(&[0.0, largest]);
        all.set_statistics(BTreeMap::from([(tensor.to_string(), statistics)]));
    };
    let mut all = CalibrationStatistics::default();
    for (tensor, largest) in [("x", 1.0), ("y", 2.0), ("x", 3.0), ("x", 4.0)] {
        set(&mut all, tensor, largest);
    }
    let range = |all: &CalibrationStatistics, tensor: &str| all.get(tensor).unwrap().min_max();
    assert_eq!([range(&all, "x"), range(&all, "y")], [Some((0.0, 4.0)), Some((0.0, 2.0))]);
    all.restore();
    assert_eq!([range(&all, "x"), range(&all, "y")], [Some((0.0, 1.0)), Some((0.0, 2.0))]);
}

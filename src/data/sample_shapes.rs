//! The shapes of samples, where they differ.

use crate::onnx::inputs::InputShapes;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The shape of each sample: some bytes for each run of samples with the same shape.
#[derive(Default)]
pub struct SampleShapes {
    /// Each shape with its index.
    known: BTreeMap<InputShapes, usize>,
    /// The first sample of each run, and the index of its shape.
    runs: Vec<(usize, usize)>,
    /// The place of each shape from the largest to the smallest, by index; empty before the end of the list.
    ranks: Vec<usize>,
}

impl SampleShapes {
    /// Adds the shapes of the samples from `first` on.
    pub fn add(&mut self, first: usize, shapes: InputShapes) {
        let next = self.known.len();
        let shape_idx = *self.known.entry(shapes).or_insert(next);
        if self.runs.last().is_none_or(|(_, last)| *last != shape_idx) {
            self.runs.push((first, shape_idx));
        }
    }

    /// Ends the list of the samples.
    pub fn finish(&mut self) {
        let size = |shapes: &InputShapes| shapes.iter().map(|shape| shape.iter().product::<usize>()).sum::<usize>();
        let mut by_size: Vec<(&InputShapes, usize)> = self.known.iter().map(|(shapes, &idx)| (shapes, idx)).collect();
        by_size.sort_by_key(|(shapes, _)| (Reverse(size(shapes)), *shapes));
        self.ranks = vec![0; by_size.len()];
        by_size.iter().enumerate().for_each(|(rank, (_, idx))| self.ranks[*idx] = rank);
    }

    /// Whether samples have more than one shape.
    pub fn differ(&self) -> bool {
        self.known.len() > 1
    }

    /// The place of a sample's shape, from the largest to the smallest.
    pub fn rank(&self, sample: usize) -> usize {
        let run = self.runs.partition_point(|(first, _)| *first <= sample);
        run.checked_sub(1).and_then(|run| self.ranks.get(self.runs[run].1)).copied().unwrap_or(0)
    }
}

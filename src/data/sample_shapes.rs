//! The shapes of samples, if samples have several.

use crate::onnx::inputs::{InputShapes, ShapeRange};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The shape of each sample. Memory is some bytes for each run of samples with the same shape.
#[derive(Default)]
pub struct SampleShapes {
    /// Index of each shape.
    known: BTreeMap<InputShapes, usize>,
    /// First sample of each run, and the index of its shape.
    runs: Vec<(usize, usize)>,
    /// Rank of each shape from the largest to the smallest, by index; empty until [`SampleShapes::finish`].
    ranks: Vec<usize>,
}

impl SampleShapes {
    /// Adds a run of samples that have these shapes, from sample `first` on.
    pub fn add(&mut self, first: usize, shapes: InputShapes) {
        let next = self.known.len();
        let shape_idx = *self.known.entry(shapes).or_insert(next);
        if self.runs.last().is_none_or(|(_, last)| *last != shape_idx) {
            self.runs.push((first, shape_idx));
        }
    }

    /// Ranks the shapes after the last sample was added.
    pub fn finish(&mut self) {
        let size = |shapes: &InputShapes| shapes.iter().map(|shape| shape.iter().product::<usize>()).sum::<usize>();
        let mut by_size: Vec<(&InputShapes, usize)> = self.known.iter().map(|(shapes, &idx)| (shapes, idx)).collect();
        by_size.sort_by_key(|(shapes, _)| (Reverse(size(shapes)), *shapes));
        self.ranks = vec![0; by_size.len()];
        by_size.iter().enumerate().for_each(|(rank, (_, idx))| self.ranks[*idx] = rank);
    }

    /// Returns the range of shapes of each input, ordered by the number of elements; `None` if all samples have one
    /// shape.
    pub fn of_inputs(&self) -> Option<Vec<ShapeRange>> {
        let n_inputs = self.known.keys().next().filter(|_| self.differ())?.len();
        let of_input = |input: usize| {
            let shapes: BTreeSet<(usize, &Vec<usize>)> =
                self.known.keys().map(|shapes| (shapes[input].iter().product(), &shapes[input])).collect();
            let shape =
                |entry: Option<&(usize, &Vec<usize>)>| entry.map(|(_, shape)| shape.to_vec()).unwrap_or_default();
            ShapeRange { n_shapes: shapes.len(), smallest: shape(shapes.first()), largest: shape(shapes.last()) }
        };
        Some((0..n_inputs).map(of_input).collect())
    }

    /// Whether samples have more than one shape.
    pub fn differ(&self) -> bool {
        self.known.len() > 1
    }

    /// Returns the rank of a sample's shape, from the largest to the smallest.
    pub fn rank(&self, sample: usize) -> usize {
        let run = self.runs.partition_point(|(first, _)| *first <= sample);
        run.checked_sub(1).and_then(|run| self.ranks.get(self.runs[run].1)).copied().unwrap_or(0)
    }
}

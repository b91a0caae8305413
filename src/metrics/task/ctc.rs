//! Texts that a network spells by connectionist temporal classification (Graves et al., 2006): how many letters differ.

use super::super::classes::argmax;
use super::{AlongAxis, OutputPair, TaskOptions, percent, share};
use serde::Serialize;
use serde_with::skip_serializing_none;

/// The class that stands for no letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blank {
    /// By its index.
    Index(usize),
    /// The last class.
    Last,
}

/// Counts of letters.
#[derive(Debug, Clone, Default)]
pub(super) struct TextSums {
    n_texts: usize,
    n_same: usize,
    /// Letters of the float network.
    n_letters: usize,
    /// Letters to insert, delete or change.
    n_edits: usize,
}

/// Figures of texts.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct TextFigures {
    /// Letters to insert, delete or change until the texts are the float network's, by the letters of these, all texts
    /// together; 0 for none, above 1 where more are. Absent where the float network spells no letter.
    pub edit_distance: Option<f64>,
    /// Texts that are the same, in percent.
    pub same_percent: Option<f64>,
    /// Texts.
    pub n_texts: usize,
    /// Letters of the float network.
    pub n_letters: usize,
}

impl TextSums {
    /// Of `[batch, steps, classes]` or `[steps, batch, classes]`, or with the classes along another axis; the blank is one
    /// of them.
    pub fn of(pair: &OutputPair, options: &TaskOptions) -> Option<TextSums> {
        if !pair.is_float || pair.shape.len() != 3 {
            return None;
        }
        let class_axis = options.channel_axis.unwrap_or(2);
        let classes = AlongAxis::of(pair.shape, class_axis)?;
        let others: Vec<usize> = (0..3).filter(|axis| *axis != class_axis).collect();
        let batch_first = pair.shape[others[0]] == pair.n_parts;
        let blank = match options.blank {
            Blank::Index(index) => index,
            Blank::Last => classes.n - 1,
        };
        if !batch_first && pair.shape[others[1]] != pair.n_parts || classes.n < 2 || blank >= classes.n {
            return None;
        }
        let n_steps = classes.outer * classes.inner / pair.n_parts;
        let step = |part: usize, i: usize| if batch_first { part * n_steps + i } else { i * pair.n_parts + part };
        let mut line = Vec::new();
        let mut text = |values: &[f32], part: usize| {
            let mut letters = (0..n_steps).map(|i| {
                classes.read(values, step(part, i), &mut line);
                argmax(&line)
            });
            collapsed(&mut letters, blank)
        };
        let mut sums = TextSums::default();
        for part in 0..pair.n_parts {
            let (a, b) = (text(pair.float, part), text(pair.quantized, part));
            sums.n_texts += 1;
            sums.n_same += usize::from(a == b);
            sums.n_letters += a.len();
            sums.n_edits += strsim::generic_levenshtein(&a, &b);
        }
        Some(sums)
    }

    pub fn merge(&mut self, other: &TextSums) {
        self.n_texts += other.n_texts;
        self.n_same += other.n_same;
        self.n_letters += other.n_letters;
        self.n_edits += other.n_edits;
    }

    pub fn figures(&self) -> TextFigures {
        TextFigures {
            edit_distance: share(self.n_edits, self.n_letters),
            same_percent: percent(self.n_same, self.n_texts),
            n_texts: self.n_texts,
            n_letters: self.n_letters,
        }
    }
}

/// The letters of the steps: of equal ones behind each other one, then without blanks.
fn collapsed(steps: &mut dyn Iterator<Item = Option<usize>>, blank: usize) -> Vec<usize> {
    let mut all: Vec<Option<usize>> = steps.collect();
    all.dedup();
    all.into_iter().flatten().filter(|class| *class != blank).collect()
}

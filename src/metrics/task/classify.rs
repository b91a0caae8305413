//! Classes: whether the quantized network's is the float one's, or the label.

use super::super::classes::{argmax, n_classes};
use super::{OutputPair, percent};
use serde::Serialize;
use serde_with::skip_serializing_none;

const FIVE: usize = 5;

/// Counts of rows of class scores.
#[derive(Debug, Clone, Default)]
pub(super) struct ClassSums {
    n_rows: usize,
    n_agree: usize,
    /// Rows of more than five classes, and those where float's class is among the first five.
    five: [usize; 2],
    n_labelled: usize,
    /// Whose first is the label, float and quantized.
    right: [usize; 2],
    n_labelled_five: usize,
    /// Whose first five have the label, float and quantized.
    right_five: [usize; 2],
}

/// Figures of class scores.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct ClassFigures {
    /// Rows whose largest value is that of the float network, in percent.
    pub agreement_percent: Option<f64>,
    /// Rows where the float network's class is among the quantized one's first five, in percent; absent where there are
    /// five classes or fewer.
    pub top5_agreement_percent: Option<f64>,
    /// Rows whose largest value is the label, float and quantized, in percent.
    pub top1_percent: Option<[f64; 2]>,
    /// Rows whose first five have the label, float and quantized, in percent.
    pub top5_percent: Option<[f64; 2]>,
    /// What the share of right rows loses, in percentage points.
    pub top1_drop: Option<f64>,
    /// Rows of class scores.
    pub n_rows: usize,
}

/// How many classes come before this one.
fn rank(row: &[f32], class: usize) -> Option<usize> {
    let value = *row.get(class)?;
    let before = |(i, other): (usize, &f32)| *other > value || *other == value && i < class;
    Some(row.iter().enumerate().filter(|&pair| before(pair)).count())
}

impl ClassSums {
    pub fn of(pair: &OutputPair, labels: Option<&[usize]>) -> Option<ClassSums> {
        let n = n_classes(pair.shape, pair.n_parts).filter(|_| pair.is_float)?;
        // Scores for the batch as a whole are none for its parts.
        let labels = labels.filter(|labels| labels.len() == pair.shape[0]).unwrap_or_default();
        let mut sums = ClassSums::default();
        let in_five = |row: &[f32], class: usize| usize::from(rank(row, class).is_some_and(|rank| rank < FIVE));
        for (i, (a, b)) in pair.float.chunks(n).zip(pair.quantized.chunks(n)).enumerate() {
            let [float, quantized] = [argmax(a), argmax(b)];
            sums.n_rows += 1;
            sums.n_agree += usize::from(float.is_some() && float == quantized);
            if n > FIVE {
                sums.five[0] += 1;
                sums.five[1] += float.map_or(0, |class| in_five(b, class));
            }
            let Some(&label) = labels.get(i) else { continue };
            sums.n_labelled += 1;
            sums.right[0] += usize::from(float == Some(label));
            sums.right[1] += usize::from(quantized == Some(label));
            if n > FIVE {
                sums.n_labelled_five += 1;
                sums.right_five[0] += in_five(a, label);
                sums.right_five[1] += in_five(b, label);
            }
        }
        Some(sums)
    }

    pub fn merge(&mut self, other: &ClassSums) {
        let add = |all: &mut [usize; 2], one: [usize; 2]| all.iter_mut().zip(one).for_each(|(all, one)| *all += one);
        self.n_rows += other.n_rows;
        self.n_agree += other.n_agree;
        self.n_labelled += other.n_labelled;
        self.n_labelled_five += other.n_labelled_five;
        add(&mut self.five, other.five);
        add(&mut self.right, other.right);
        add(&mut self.right_five, other.right_five);
    }

    pub fn figures(&self) -> ClassFigures {
        let both = |right: [usize; 2], all: usize| Some([percent(right[0], all)?, percent(right[1], all)?]);
        let top1_percent = both(self.right, self.n_labelled);
        ClassFigures {
            agreement_percent: percent(self.n_agree, self.n_rows),
            top5_agreement_percent: percent(self.five[1], self.five[0]),
            top1_percent,
            top5_percent: both(self.right_five, self.n_labelled_five),
            top1_drop: top1_percent.map(|[float, quantized]| float - quantized),
            n_rows: self.n_rows,
        }
    }
}

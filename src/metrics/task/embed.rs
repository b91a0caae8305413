//! Embeddings: whether the quantized network's have the direction and the neighbours of the float one's.

use super::{OutputPair, share};
use rayon::prelude::*;
use serde::Serialize;
use serde_with::skip_serializing_none;

/// The vectors of all samples.
#[derive(Debug, Clone, Default)]
pub(super) struct Embeddings {
    float: Vec<Vec<f32>>,
    quantized: Vec<Vec<f32>>,
}

/// Figures of embeddings.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct EmbeddingFigures {
    /// Mean cosine of a vector and the float network's, -1 to 1. Of two vectors without length 1, of one of them 0.
    pub mean_cosine: Option<f64>,
    /// The lowest.
    pub min_cosine: Option<f64>,
    /// Vectors whose nearest among the others, by cosine, is that of the float network, 0 to 1. Absent where there are
    /// fewer than three: of two each is the other's.
    pub neighbours: Option<f64>,
    /// Vectors compared.
    pub n_vectors: usize,
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Of vectors with these squared lengths.
fn cosine(a: (&[f32], f64), b: (&[f32], f64)) -> f64 {
    let lengths = (a.1 * b.1).sqrt();
    match (lengths > 0.0, a.0 == b.0) {
        (_, true) => 1.0,
        (true, false) => (dot(a.0, b.0) / lengths).clamp(-1.0, 1.0),
        (false, false) => 0.0,
    }
}

/// Each vector with its squared length.
fn measured(vectors: &[Vec<f32>]) -> Vec<(&[f32], f64)> {
    vectors.iter().map(|vector| (&vector[..], dot(vector, vector))).collect()
}

/// The nearest of the other vectors, the first of equal ones, and its cosine.
fn nearest(vectors: &[(&[f32], f64)], i: usize) -> Option<(usize, f64)> {
    let others = (0..vectors.len()).filter(|j| *j != i).map(|j| (j, cosine(vectors[i], vectors[j])));
    others.reduce(|best, other| if other.1 > best.1 { other } else { best })
}

impl Embeddings {
    pub fn of(pair: &OutputPair) -> Option<Embeddings> {
        if !pair.is_float || pair.float.is_empty() {
            return None;
        }
        let (float, quantized) = pair.parts().map(|(a, b)| (a.to_vec(), b.to_vec())).unzip();
        Some(Embeddings { float, quantized })
    }

    pub fn merge(&mut self, other: Embeddings) {
        self.float.extend(other.float);
        self.quantized.extend(other.quantized);
    }

    pub fn figures(&self) -> EmbeddingFigures {
        let n = self.float.len();
        let [float, quantized] = [measured(&self.float), measured(&self.quantized)];
        let same: Vec<f64> = float.iter().zip(&quantized).map(|(a, b)| cosine(*a, *b)).collect();
        // Of neighbours that are as near in float any counts.
        let is_kept = |i: &usize| {
            let both = nearest(&float, *i).zip(nearest(&quantized, *i));
            both.is_some_and(|((_, best), (j, _))| cosine(float[*i], float[j]) >= best)
        };
        EmbeddingFigures {
            mean_cosine: (n > 0).then(|| same.iter().sum::<f64>() / n as f64),
            min_cosine: same.iter().copied().reduce(f64::min),
            neighbours: share((0..n).into_par_iter().filter(is_kept).count(), n).filter(|_| n > 2),
            n_vectors: n,
        }
    }
}

//! The metric of embeddings: nearest neighbors of each sample.

use super::metric::{Figure, FigureScale, Measure, Metric, SamplePair};
use super::task_outputs::TaskOutputs;
use crate::heads::{EmbedHead, TaskName};

/// Share of each sample's 10 nearest neighbors by cosine that the quantized network keeps. It takes the first 1024
/// samples, and needs 12 or more. The sums hold the embeddings of both networks, and grow with the number of samples.
pub const NEIGHBOURS: Metric = Metric {
    name: "neighbours",
    title: "neighbours kept",
    scale: FigureScale::SHARE,
    about: "share of each sample's 10 nearest neighbours by cosine that stay",
    task: Some(TaskName::Embed),
    prepare: |outputs, head| Box::new(Neighbours(TaskOutputs::new(outputs, head))),
};

/// Number of nearest neighbors of a sample.
const N_NEAREST: usize = 10;
/// Maximum samples.
const MAX_SAMPLES: usize = 1024;

#[derive(Debug)]
struct Neighbours(Option<TaskOutputs<EmbedHead>>);

impl Measure for Neighbours {
    /// Returns the length of an embedding, followed by the embeddings of both networks, image by image.
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let Some(outputs) = &self.0 else { return Vec::new() };
        let mut sums = Vec::new();
        for images in outputs.images(sample) {
            for views in &images {
                let Ok(embedding) = outputs.head.embedding(views) else { return vec![f64::NAN] };
                if sums.is_empty() {
                    sums.push(embedding.len() as f64);
                }
                sums.extend(embedding.iter().map(|&x| f64::from(x)));
            }
        }
        sums
    }

    fn merge(&self, total: &mut Vec<f64>, sample: &[f64]) {
        match (total.first(), sample.split_first()) {
            (Some(n), Some((of_sample, values))) if n == of_sample => {
                if total.len() < 2 * *n as usize * MAX_SAMPLES {
                    total.extend(values);
                }
            }
            (None, _) => total.extend(sample),
            // Embeddings of different lengths are not comparable.
            _ => *total = vec![f64::NAN],
        }
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        vec![kept(sums).map(Figure::of)]
    }
}

fn kept(sums: &[f64]) -> Option<f64> {
    let (&n, values) = sums.split_first()?;
    if !n.is_finite() || n < 1.0 {
        return None;
    }
    let embeddings: Vec<&[f64]> = values.chunks_exact(n as usize).take(2 * MAX_SAMPLES).collect();
    let n_samples = embeddings.len() / 2;
    if n_samples < N_NEAREST + 2 {
        return None;
    }
    let of =
        |network: usize| nearest(&embeddings.iter().skip(network).step_by(2).map(|one| unit(one)).collect::<Vec<_>>());
    let (float, quantized) = (of(0), of(1));
    let n_kept = |(a, b): (&Vec<usize>, &Vec<usize>)| a.iter().filter(|sample| b.contains(sample)).count();
    let n_kept: usize = float.iter().zip(&quantized).map(n_kept).sum();
    Some(n_kept as f64 / (n_samples * N_NEAREST) as f64)
}

/// Returns the vector divided by its length.
fn unit(values: &[f64]) -> Vec<f64> {
    let length = values.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-30);
    values.iter().map(|x| x / length).collect()
}

/// Returns, for each vector, the positions of the others with the largest cosine, the first of equal ones.
fn nearest(vectors: &[Vec<f64>]) -> Vec<Vec<usize>> {
    let of_sample = |i: usize| {
        let cosine = |j: usize| vectors[i].iter().zip(&vectors[j]).map(|(a, b)| a * b).sum::<f64>();
        let mut others: Vec<(usize, f64)> = (0..vectors.len()).filter(|&j| j != i).map(|j| (j, cosine(j))).collect();
        others.sort_by(|a, b| b.1.total_cmp(&a.1));
        others.into_iter().take(N_NEAREST).map(|(j, _)| j).collect()
    };
    (0..vectors.len()).map(of_sample).collect()
}

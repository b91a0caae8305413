//! The standard deviation of a figure that is no mean of figures of samples.

/// Returns the standard deviation of a figure over samples, from the figures that each leave out one of them.
pub fn jackknife(figures: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let n = figures.len() as f64;
    let mean = figures.clone().sum::<f64>() / n;
    let spread: f64 = figures.map(|figure| (figure - mean).powi(2)).sum();
    (spread * (n - 1.0) / n).sqrt()
}

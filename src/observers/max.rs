use super::Observer;

/// The whole observed range. Nothing clips; one outlier sets the scale.
pub const MAX: Observer = Observer { name: "max", aliases: &["minmax"], reads_histogram: false, ..Observer::PLAIN };

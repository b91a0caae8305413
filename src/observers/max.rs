use super::Observer;

/// The whole observed range. It clips nothing; one outlier sets the scale.
pub const MAX: Observer = Observer { name: "max", aliases: &["minmax"], reads_histogram: false, ..Observer::PLAIN };

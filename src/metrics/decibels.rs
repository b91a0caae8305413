//! Ratios of signal to error in dB.

/// Limit of figures in dB. Without error it is the best figure; with the other sign it is the worst, for values that
/// are NaN or infinite where float has a number.
pub const MAX_DB: f64 = 200.0;

/// The SQNR of sums of squares, in dB: [`MAX_DB`] without error, -[`MAX_DB`] where the error is NaN or infinite.
pub fn sqnr_db(signal: f64, error: f64) -> f64 {
    relative_error_db(if error > 0.0 { error / signal } else { error })
}

/// The SQNR for an error relative to its signal, both sums of squares, in dB: at most [`MAX_DB`], and -[`MAX_DB`] where
/// the error is NaN or infinite.
pub fn relative_error_db(error: f64) -> f64 {
    let db = (-10.0 * error.log10()).clamp(-MAX_DB, MAX_DB);
    if db.is_nan() { -MAX_DB } else { db }
}

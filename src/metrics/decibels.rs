//! Ratios of signal to error in dB.

/// Limit of figures in dB: the best figure, for outputs without error. Its negative is the worst figure, for outputs
/// that are NaN or infinite where the float network has a number.
pub const MAX_DB: f64 = 200.0;

/// Returns the SQNR in dB from sums of squares: [`MAX_DB`] without error, -[`MAX_DB`] if the error is NaN or infinite.
pub fn sqnr_db(signal: f64, error: f64) -> f64 {
    relative_error_db(if error > 0.0 { error / signal } else { error })
}

/// Returns the SQNR in dB from the error's sum of squares divided by the signal's: at most [`MAX_DB`], and -[`MAX_DB`]
/// if the quotient is NaN or infinite.
pub fn relative_error_db(error: f64) -> f64 {
    let db = (-10.0 * error.log10()).clamp(-MAX_DB, MAX_DB);
    if db.is_nan() { -MAX_DB } else { db }
}

//! Ratios of signal and error in dB.

/// Figures in dB end here: no error at all, or with the other sign the worst there is, a value that is NaN or infinite
/// where float has a number.
pub const MAX_DB: f64 = 200.0;

/// The SQNR of an error relative to its signal, both sums of squares, in dB: [`MAX_DB`] at most, and -[`MAX_DB`] where
/// the error is NaN or infinite.
pub fn relative_error_db(error: f64) -> f64 {
    let db = (-10.0 * error.log10()).clamp(-MAX_DB, MAX_DB);
    if db.is_nan() { -MAX_DB } else { db }
}

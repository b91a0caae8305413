//! What `mqq compare` says of one output.

use crate::metrics::{NonFinite, OutputFigures};

/// A line about one output.
pub fn comparison(figures: &OutputFigures) -> String {
    let mut parts = Vec::new();
    let mut count = |non_finite: &Option<NonFinite>, what: &str| {
        if let Some(NonFinite { n_values, first_sample }) = non_finite {
            parts.push(format!("{n_values} values are NaN or infinite {what}, first for `{first_sample}`"));
        }
    };
    count(&figures.non_finite, "where float has numbers");
    count(&figures.float_non_finite, "in the float model");
    if let Some(n) = figures.n_other_shape {
        parts.push(format!("another shape than in float for {n} samples"));
    }
    parts.push(match figures.sqnr_db {
        _ if !parts.is_empty() => "SQNR not measured".to_string(),
        Some(db) => format!("SQNR {db:.2} dB"),
        None => "equal".to_string(),
    });
    parts.extend(figures.agreement_percent.map(|percent| format!("agreement {percent:.1} %")));
    parts.push(format!("largest difference {:.4}", figures.max_difference));
    parts.push(format!("{} samples", figures.n_samples));
    let top1 = figures
        .top1_percent
        .map(|[float, quantized]| format!("; top-1 float {float:.2} %, quantized {quantized:.2} %"));
    format!("{}: {}{}", figures.output, parts.join(", "), top1.unwrap_or_default())
}

//! The chart of the error along a network, which documents of a run and of a comparison share.

use super::form::{Body, Chart, Point, Series};

/// SQNR, in dB, above which points are drawn at the top of the chart: such an error costs nothing.
const TOP_DB: f64 = 60.0;

/// Returns the chart of the SQNR in dB of nodes or tensors, with all errors in front of them and alone. Returns `None`
/// without points.
pub fn error_chart(x: &str, in_front: Vec<Point>, alone: Vec<Point>) -> Option<Body> {
    let series =
        [Series { name: "with all errors in front", points: in_front }, Series { name: "alone", points: alone }];
    let series: Vec<Series> = series.into_iter().filter(|series| !series.points.is_empty()).collect();
    (!series.is_empty()).then(|| Body::Chart(Chart { y_top: Some(TOP_DB), ..Chart::of_lines(x, "SQNR (dB)", series) }))
}

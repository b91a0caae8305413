use super::bin_centers::BinCenters;
use crate::quant::QuantParams;
use crate::statistics::TensorStatistics;

/// Returns the parameters of a symmetric grid with the best scale: the given one, or one halved up to `n_halvings`
/// times. The best scale has the least squared error over the histogram; ties take the larger scale.
///
/// Source: MQBench, `TqtFakeQuantize`/`MinMaxFloorObserver` for Vitis, and Vitis AI's `MinMSE` (exponents +0 to +4).
pub fn pot_search(statistic: &TensorStatistics, params: QuantParams, n_halvings: u8) -> QuantParams {
    let bins = BinCenters::of(&statistic.histogram);
    let mut best = params;
    let mut best_error = bins.squared_error(&params, f64::INFINITY);
    let mut candidate = params;
    for _ in 0..n_halvings {
        candidate.scale *= 0.5;
        if !candidate.scale.is_normal() {
            break;
        }
        let error = bins.squared_error(&candidate, best_error);
        if error < best_error {
            (best, best_error) = (candidate, error);
        }
    }
    best
}

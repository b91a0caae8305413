use super::Observer;
use super::entropy::ENTROPY;
use super::max::MAX;
use super::mse::MSE;
use super::percentile::PERCENTILE;

/// The choice of an observer per tensor: the one whose range leaves the least error at the outputs of the layers that
/// read the tensor. Tuning measures that error on the quantized network. Before tuning, and for a tensor that no layer
/// reads, the observer is `mse`.
///
/// Source: selection by the error of the layer's output instead of the tensor's own, as in PTQ4ViT's search for
/// clipping values (Yuan et al. 2022, arXiv 2111.12293).
pub const AUTO: Observer = Observer {
    name: "auto",
    choices: &[MSE, MAX, PERCENTILE, Observer { option: 99.9, ..PERCENTILE }, ENTROPY],
    ..MSE
};

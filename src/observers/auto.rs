use super::Observer;
use super::entropy::ENTROPY;
use super::max::MAX;
use super::mse::MSE;
use super::percentile::PERCENTILE;

/// For each tensor the observer whose range leaves the least error at the outputs of the layers that read it, which
/// tuning measures on the quantized network; `mse` before that, and where no layer reads the tensor.
///
/// Source: selection by the error of the layer's output instead of the tensor's own, as in the search for
/// clipping values of PTQ4ViT (Yuan et al. 2022, arXiv 2111.12293).
pub const AUTO: Observer = Observer {
    name: "auto",
    choices: &[MSE, MAX, PERCENTILE, Observer { option: 99.9, ..PERCENTILE }, ENTROPY],
    ..MSE
};

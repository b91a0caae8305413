use super::Observer;
use super::entropy::ENTROPY;
use super::max::MAX;
use super::mse::MSE;
use super::percentile::PERCENTILE;

/// Per tensor, the observer whose range leaves the least error at the outputs of the layers that read it. Tuning
/// measures that on the quantized network; before tuning, and where no layer reads the tensor, it is `mse`.
///
/// Source: selection by the error of the layer's output instead of the tensor's own, as in PTQ4ViT's search for
/// clipping values (Yuan et al. 2022, arXiv 2111.12293).
pub const AUTO: Observer = Observer {
    name: "auto",
    choices: &[MSE, MAX, PERCENTILE, Observer { option: 99.9, ..PERCENTILE }, ENTROPY],
    ..MSE
};

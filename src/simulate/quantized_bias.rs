//! A bias that is stored as integers with quantization parameters of its own.

use super::channels::OutChannels;
use crate::onnx::graph::Edge;
use crate::quant::QuantParams;

/// A bias with quantization parameters of its own.
pub struct QuantizedBias {
    /// Which input of which node it is.
    pub edge: Edge,
    /// The output channels that it shifts.
    pub channels: OutChannels,
    /// Its parameters.
    pub params: QuantParams,
    /// The bias that the model has; 0 where it has none.
    pub stored: Vec<f32>,
    /// What it should be.
    pub wanted: Vec<f32>,
}

impl QuantizedBias {
    /// What it is fake-quantized.
    pub fn values(&self) -> Vec<f32> {
        self.wanted.iter().map(|&b| self.params.fake_quantize(b)).collect()
    }

    /// The values next to the one of channel `o` that integers stand for, the nearest first; one where it saturates.
    pub fn around(&self, o: usize) -> Vec<f32> {
        let wanted = self.wanted[o];
        let q = self.params.quantize(wanted);
        let nearest = self.params.dequantize(q);
        let other = if nearest > wanted { q - 1 } else { q + 1 };
        match (self.params.q_min..=self.params.q_max).contains(&other) {
            true => vec![nearest, self.params.dequantize(other)],
            false => vec![nearest],
        }
    }
}

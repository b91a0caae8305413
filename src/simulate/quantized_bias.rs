//! Biases stored as integers with their own quantization parameters.

use super::channels::OutChannels;
use crate::onnx::graph::Edge;
use crate::quant::QuantParams;

/// A bias with its own quantization parameters.
pub struct QuantizedBias {
    /// The node and input index.
    pub edge: Edge,
    /// The output channels that it shifts.
    pub channels: OutChannels,
    /// Its parameters.
    pub params: QuantParams,
    /// The model's bias; 0 where it has none.
    pub stored: Vec<f32>,
    /// The wanted bias in float.
    pub wanted: Vec<f32>,
}

impl QuantizedBias {
    /// Returns the fake-quantized wanted bias.
    pub fn values(&self) -> Vec<f32> {
        self.wanted.iter().map(|&b| self.params.fake_quantize(b)).collect()
    }

    /// Returns the dequantized values next to the wanted bias of channel `o`, nearest first. At the end of the grid
    /// there is only one.
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

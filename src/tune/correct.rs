//! Biases corrected while a walk passes by.

use super::bias::correction;
use super::grid::out_channels;
use super::methods::Method;
use super::walk::Walk;
use crate::engine::Value;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::is_scaled;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor;
use anyhow::Result;
use rayon::prelude::*;

/// How far a mean error must stand out before it is corrected, in variances. With 1, squeezenet1_1 loses
/// 0.7 dB to corrections that a few samples asked for.
pub const DOUBT: f64 = 4.0;

/// Where a node takes its bias from.
pub(super) struct BiasSlot {
    /// Position among the node's inputs.
    pub input_idx: usize,
    /// One per output channel; empty where there is none yet.
    values: Vec<f32>,
}

/// Whether a bias can shift the output channels of the node: a layer, or an Add that gives a constant to a
/// MatMul.
pub fn takes_bias(node: &NodeProto, index: &GraphIndex) -> bool {
    match node.op_type() {
        "Conv" | "ConvTranspose" | "Gemm" => !is_scaled(node),
        "Add" => {
            let of_product =
                |name: &String| index.producer(name).is_some_and(|node| node.op_type() == "MatMul");
            let constant = |name: &String| index.initializer(name).is_some();
            node.input.iter().any(constant) && node.input.iter().any(of_product)
        }
        _ => false,
    }
}

impl Walk<'_> {
    /// The node's bias: the third input of a layer, or the constant that an Add gives to a MatMul. `None`
    /// where it cannot have one or it is not plain.
    pub(super) fn bias_of(&self, node_idx: usize, node: &NodeProto) -> Option<BiasSlot> {
        let plain = |name: &str| -> Option<Vec<f32>> {
            let stored = self.index.initializer(name)?;
            let n = stored.dims.iter().product::<i64>();
            let last = stored.dims.last().is_none_or(|last| *last == n);
            let values = tensor::f32_values(stored).ok().filter(|_| last)?;
            values.iter().all(|value| value.is_finite()).then_some(values)
        };
        match node.op_type() {
            "Conv" | "ConvTranspose" | "Gemm" if !is_scaled(node) => {
                let values = match node.input.get(2).filter(|name| !name.is_empty()) {
                    None => Vec::new(),
                    Some(name) => plain(name)?,
                };
                Some(BiasSlot { input_idx: 2, values })
            }
            "Add" => {
                let input_idx = (0..2).find(|&i| {
                    let name = node.input.get(i);
                    name.is_some_and(|name| self.index.initializer(name).is_some())
                })?;
                let product = self.index.producer(node.input.get(1 - input_idx)?)?;
                let behind = product.op_type() == "MatMul";
                let free = !self.is_planned(node_idx, input_idx);
                let values = plain(&node.input[input_idx]).filter(|_| behind && free)?;
                Some(BiasSlot { input_idx, values })
            }
            _ => None,
        }
    }

    /// Gives the first of the `outputs` of the quantized network the means that `y` has in the float one, by
    /// another bias.
    pub(super) fn correct(
        &mut self,
        node_idx: usize,
        node: &NodeProto,
        (y, outputs): (&[Vec<Value>], &mut [Vec<Value>]),
        doubt: f64,
    ) -> Result<()> {
        let slot = self.bias_of(node_idx, node).filter(|_| self.methods.contains(Method::Bias));
        let first = |outputs: &[Vec<Value>]| -> Vec<Value> {
            outputs.iter().filter_map(|outputs| outputs.first().cloned()).collect()
        };
        let found = slot.and_then(|slot| {
            let (y, quantized) = (first(y), first(outputs));
            let n = self.n_tune.min(y.len());
            let channels = out_channels(node, y.first()?)?;
            let fits = slot.values.is_empty() || slot.values.len() == channels.n_out;
            let by = correction(&channels, &y[..n], &quantized[..n], doubt);
            let by: Vec<f32> = by.iter().map(|&v| v as f32).collect();
            let useful = by.iter().all(|by| by.is_finite()) && by.iter().any(|by| *by != 0.0);
            (fits && useful).then_some((slot, channels, by, quantized))
        });
        let Some((slot, channels, by, quantized)) = found else { return Ok(()) };
        let shifted: Result<Vec<Value>> =
            quantized.par_iter().map(|value| channels.shift(value, &by)).collect();
        for (outputs, shifted) in outputs.iter_mut().zip(shifted?) {
            outputs[0] = shifted;
        }
        let bias = slot.values.iter().copied().chain(std::iter::repeat(0.0));
        let bias = bias.zip(&by).map(|(b, by)| b + by).collect();
        self.biases.insert((node_idx, slot.input_idx), bias);
        Ok(())
    }
}

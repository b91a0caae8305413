//! Bias correction for each layer's own quantization error, with inputs of the float network.
//!
//! The shift of output channel o is the mean of W x - Ŵ Q(x): x is the layer's input in the float network, Q(x) its
//! fake-quantized value, W and Ŵ the float and the quantized weight. Errors of earlier layers do not count: on
//! detectors and transformers a bias that absorbs them does harm.

use super::bias::{BIAS, BiasCorrector};
use crate::engine::Value;
use crate::onnx::node::node_name;
use crate::onnx::tensor;
use crate::simulate::{Candidate, HookChanges, LayerHook, Network, NoHook, NodeAt, TokenMask};
use crate::tune::method::{Action, LayerContext, Method};
use crate::tune::weights::{LayerProduct, input_means};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// The method that corrects biases by the mean error of each layer alone.
pub const LOCAL_BIAS: Method = Method {
    name: "local-bias",
    title: "local bias correction",
    about: "biases, to cancel the mean error of each layer alone, on inputs from the float network (NNCF's fast bias correction)",
    is_tried: |case| case.effort.level() > 0,
    waits: false,
    action: Action::Layer(hook),
};

/// Creates the hook; an empty one where correction by the float network's outputs replaces it.
fn hook<'a>(context: &'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>> {
    if context.has(BIAS.name) {
        return Ok(Box::new(NoHook));
    }
    let corrector = BiasCorrector::new(context, LOCAL_BIAS.name)?;
    let tokens = context.samples.tokens().unwrap_or_default();
    Ok(Box::new(LocalBias { corrector, tokens, of_products: BTreeMap::new() }))
}

struct LocalBias<'a> {
    corrector: BiasCorrector<'a>,
    /// Tokens of every sample, where the network has a mask.
    tokens: Vec<TokenMask>,
    /// Mean errors of products without a bias of their own, by output; the Add after the product takes them.
    of_products: BTreeMap<String, Vec<f64>>,
}

impl LayerHook for LocalBias<'_> {
    fn changes(&self) -> HookChanges {
        self.corrector.changes()
    }

    fn reads_inputs(&self) -> bool {
        true
    }

    fn outputs(
        &mut self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        outputs: Vec<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>> {
        let error =
            || mean_error(net, at, candidate, &self.tokens).with_context(|| format!("node `{}`", node_name(at.node)));
        let mut by = match net.index.added_to_product(at.node) {
            Some(slot) => self.of_products.remove(&at.node.input[1 - slot]),
            None => error()?,
        };
        if at.node.op_type() == "MatMul"
            && let (Some(output), Some(by)) = (at.node.output.first(), by.take())
        {
            self.of_products.insert(output.clone(), by);
        }
        let by = by.unwrap_or_default();
        self.corrector.correct(net, at, candidate, outputs, |_, _, _| by)
    }
}

/// Returns the mean over samples and positions of the float output minus the quantized one, per output channel. Both
/// outputs are computed from the input in the float network. `None` for a node that is not a layer with a quantized
/// weight.
fn mean_error(net: &Network, at: &NodeAt, candidate: &Candidate, tokens: &[TokenMask]) -> Result<Option<Vec<f64>>> {
    let Some(planned) = candidate.view().weight_at((at.node_idx, 1)).map(|idx| &candidate.plan.weights[idx]) else {
        return Ok(None);
    };
    let (Some(input), Some(x)) = (at.node.input.first(), at.float_inputs().next()) else { return Ok(None) };
    let y: Vec<Value> = at.float_outputs().cloned().collect();
    let layer = x.first().and_then(|x| LayerProduct::of(at.node, &planned.shape, x));
    let initializer = net.index.initializer(&planned.quantizer.tensor);
    let (Some(layer), Some(initializer), [name]) = (layer, initializer, at.runtime) else { return Ok(None) };
    if *name != input || y.is_empty() {
        return Ok(None);
    }
    let fake_quantizer = candidate.view().params_at(input, (at.node_idx, 0)).map(|params| params.fake_quantizer());
    let quantized = |x: f32| fake_quantizer.as_ref().map_or(x, |fake_quantize| fake_quantize(x));
    let means = input_means(&layer, &x[..y.len()], &y, tokens, quantized);
    let (float, quantized) = (tensor::f32_values(initializer)?, planned.dequantized());
    let per_group = layer.n_out / layer.groups;
    let of_channel = |o: usize| -> f64 {
        let first = o / per_group * layer.n_in;
        let of_weight = |k: usize| {
            let i = layer.at(o, k);
            let [mean, of_quantized] = means[first + k];
            f64::from(float[i]) * mean - f64::from(quantized[i]) * of_quantized
        };
        (0..layer.n_in).map(of_weight).sum()
    };
    Ok(Some((0..layer.n_out).map(of_channel).collect()))
}

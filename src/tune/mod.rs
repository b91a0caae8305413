//! Better weights and biases for the parameters that were decided.
//!
//! In: a prepared model, its plan, some calibration samples. Out: a plan with other integers and scales of
//! weights, and new biases in the model. It does not place or remove quantization, nor choose the ranges
//! of activations. A change must pay on samples that were held back, or it is undone.

mod bias;
mod grid;
mod judge;
mod layer;
mod rounding;
mod step;
mod walk;

use crate::decide::{QuantPlan, decide_biases};
use crate::engine::Value;
use crate::onnx::graph::GraphIndex;
use crate::onnx::names::Names;
use crate::onnx::proto::ModelProto;
use crate::onnx::tensor;
use crate::place::{BiasSite, Sites, node_name};
use crate::range::RangeFinder;
use crate::scheme::{BiasRow, Scheme};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;
use walk::{Methods, Walk, Walked};

/// How much work goes into better weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(u8);

impl Effort {
    /// Levels, with what each does.
    pub const LEVELS: &[(&str, &str)] = &[
        ("0", "plain observers"),
        ("1", "bias correction on 24 samples"),
        ("2", "equalization; bias correction on 64 samples"),
        ("3", "equalization; learned rounding and bias correction on 64 samples"),
    ];

    /// The level of a digit.
    pub fn of(level: &str) -> Option<Effort> {
        Effort::LEVELS.iter().position(|(name, _)| *name == level).map(|level| Effort(level as u8))
    }

    /// Samples that are looked at, those held back included.
    pub fn n_samples(self) -> usize {
        match self.0 {
            0 => 0,
            1 => 32,
            _ => 96,
        }
    }

    /// Bytes that the tensors of all samples may take at a time, about; fewer samples are looked at where
    /// they would take more.
    pub fn max_bytes(self) -> usize {
        if self.0 <= 1 { 1 << 30 } else { 2 << 30 }
    }

    /// Whether channels are equalized.
    pub fn equalizes(self) -> bool {
        self.0 >= 2
    }

    /// Samples to learn from, of `n`; the others are held back.
    pub fn n_tune(self, n: usize) -> usize {
        if self.0 <= 1 { n - n / 4 } else { n - n / 3 }
    }

    /// What to try, the best first.
    fn methods(self) -> Vec<Methods> {
        let bias = Methods { correct_bias: true, learn_rounding: false };
        match self.0 {
            0 => Vec::new(),
            1 | 2 => vec![bias],
            _ => vec![Methods { learn_rounding: true, ..bias }, bias],
        }
    }
}

/// What tuning did.
#[derive(Debug, Clone, Serialize)]
pub struct Tuned {
    /// Samples that were learned from.
    pub n_samples: usize,
    /// Samples that were held back.
    pub n_held_back: usize,
    /// Mean SQNR of the outputs over the samples held back, before and after, in dB.
    pub sqnr_db: [f64; 2],
    /// How much less noise the samples held back have, as the mean over them, in dB: what decides.
    pub gain_db: f64,
    /// Biases corrected, where the change was kept.
    #[serde(skip)]
    pub biases: Vec<NewBias>,
    /// Biases corrected.
    pub n_biases: usize,
    /// Weights whose rounding was learned.
    pub n_rounded: usize,
    /// Whether the change was kept.
    pub kept: bool,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

/// A bias that replaces that of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBias {
    /// Position of the node.
    pub node_idx: usize,
    /// Name of the initializer.
    pub name: String,
    /// One per output channel.
    pub values: Vec<f32>,
}

/// Fewest samples to learn from and to judge by.
pub const MIN_SAMPLES: usize = 8;

/// Tunes `plan` and the biases of `model`; `finder` is that of the weights. `samples` holds the values of the
/// inputs `inputs` for each sample; some of them are held back.
///
/// # Errors
/// If a node cannot be run by itself; the message names it, and nothing was changed.
pub fn tune(
    model: &mut ModelProto,
    plan: &mut QuantPlan,
    sites: &mut Sites,
    (scheme, finder): (&Scheme, &dyn RangeFinder),
    (inputs, samples): (&[String], &[Vec<Value>]),
    effort: Effort,
) -> Result<Option<Tuned>> {
    if effort.methods().is_empty() || samples.len() < MIN_SAMPLES || plan.weights.is_empty() {
        return Ok(None);
    }
    let start = Instant::now();
    let n_tune = effort.n_tune(samples.len());
    let held_back = &samples[n_tune..];
    let plain = Walk::new(model, plan, Methods::default(), 0)?.run(inputs, held_back)?;
    let mut best: Option<(f64, QuantPlan, Walked)> = None;
    for methods in effort.methods() {
        let mut tuned = plan.clone();
        let walked = Walk::new(model, &mut tuned, methods, n_tune)?.run(inputs, samples)?;
        let gain = judge::gain_db(&plain.held_back, &walked.held_back);
        if best.as_ref().is_none_or(|(best, ..)| gain > *best) {
            best = Some((gain, tuned, walked));
        }
        // The next best method is only asked where this one does harm.
        if gain > 0.0 {
            break;
        }
    }
    let Some((gain_db, tuned, Walked { held_back: after, biases, n_rounded, .. })) = best else {
        return Ok(None);
    };
    let kept = gain_db > 0.0;
    let mut report = Tuned {
        n_samples: n_tune,
        n_held_back: held_back.len(),
        sqnr_db: [judge::sqnr_db(&plain.held_back), judge::sqnr_db(&after)],
        gain_db,
        n_biases: biases.len(),
        biases: Vec::new(),
        n_rounded,
        kept,
        seconds: 0.0,
    };
    if kept {
        *plan = tuned;
        report.biases = new_biases(model, biases)?;
        replace_biases(model, &report.biases)?;
        add_sites(model, sites, plan, scheme, &report.biases)?;
        let graph = model.graph.as_ref().context("model has no graph")?;
        decide_biases(graph, sites, scheme, finder, plan, false)?;
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(Some(report))
}

/// The outputs of the network that `plan` makes of the float `model`, per output and sample, without writing
/// it: values are laid on their grids on the way, in float32, whatever the bits. Biases stay float.
///
/// # Errors
/// If a node cannot be run by itself; the message names it.
pub fn simulate(
    model: &ModelProto,
    plan: &QuantPlan,
    inputs: &[String],
    samples: &[Vec<Value>],
) -> Result<Vec<Vec<Value>>> {
    let mut plan = plan.clone();
    Ok(Walk::new(model, &mut plan, Methods::default(), 0)?.run(inputs, samples)?.quantized)
}

/// Two plans on the same samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Mean SQNR of the outputs, in dB.
    pub sqnr_db: [f64; 2],
    /// How much less noise the second has, as the mean over the samples, in dB.
    pub gain_db: f64,
}

/// Compares two plans, each for a float model of its own, on samples that neither was chosen by. Biases stay
/// float.
///
/// # Errors
/// As [`simulate`].
pub fn compare_plans(
    plans: [(&ModelProto, &QuantPlan); 2],
    inputs: &[String],
    samples: &[Vec<Value>],
) -> Result<Comparison> {
    let noise = |(model, plan): (&ModelProto, &QuantPlan)| -> Result<_> {
        let mut plan = plan.clone();
        Ok(Walk::new(model, &mut plan, Methods::default(), 0)?.run(inputs, samples)?.held_back)
    };
    let (before, after) = (noise(plans[0])?, noise(plans[1])?);
    Ok(Comparison {
        sqnr_db: [judge::sqnr_db(&before), judge::sqnr_db(&after)],
        gain_db: judge::gain_db(&before, &after),
    })
}

/// Names for the new biases.
fn new_biases(model: &ModelProto, biases: BTreeMap<usize, Vec<f32>>) -> Result<Vec<NewBias>> {
    let graph = model.graph.as_ref().context("model has no graph")?;
    let mut names = Names::of(graph);
    let named = biases.into_iter().map(|(node_idx, values)| {
        let node = &graph.node[node_idx];
        let base = match node.input.get(2).filter(|name| !name.is_empty()) {
            Some(name) => name.clone(),
            None => format!("{}_bias", node_name(node)),
        };
        NewBias { node_idx, name: names.fresh(&format!("{base}_corrected")), values }
    });
    Ok(named.collect())
}

/// Gives nodes biases of their own; those that nothing reads any more go.
///
/// # Errors
/// If the model has no such node.
pub fn replace_biases(model: &mut ModelProto, biases: &[NewBias]) -> Result<()> {
    let graph = model.graph.as_mut().context("model has no graph")?;
    let mut replaced = Vec::new();
    for bias in biases {
        let node = graph.node.get_mut(bias.node_idx);
        let node = node.with_context(|| format!("the graph has no node {}", bias.node_idx))?;
        replaced.extend(node.input.get(2).cloned());
        node.input.resize(node.input.len().max(3), String::new());
        node.input[2].clone_from(&bias.name);
        let stored = tensor::from_f32(&bias.name, &[bias.values.len()], &bias.values)?;
        graph.initializer.push(stored);
    }
    let index = GraphIndex::new(graph);
    replaced.retain(|name| index.consumers(name).is_empty() && !index.is_output(name));
    graph.initializer.retain(|tensor| !replaced.iter().any(|name| name == tensor.name()));
    Ok(())
}

/// The new biases as sites, where the table stores biases as integers.
fn add_sites(
    model: &ModelProto,
    sites: &mut Sites,
    plan: &QuantPlan,
    scheme: &Scheme,
    biases: &[NewBias],
) -> Result<()> {
    let graph = model.graph.as_ref().context("model has no graph")?;
    for NewBias { node_idx, name, .. } in biases {
        let (tensor, edge) = (name.clone(), (*node_idx, 2));
        if let Some(site) = sites.biases.iter_mut().find(|site| site.edge == edge) {
            site.tensor = tensor;
            continue;
        }
        let node = &graph.node[*node_idx];
        let qtype = match scheme.ops.get(node.op_type()).map(|row| &row.bias) {
            Some(BiasRow::Int32) => None,
            Some(BiasRow::Type(qtype)) => Some(qtype.clone()),
            Some(BiasRow::Float) | None => continue,
        };
        let weight = plan.weights.iter().position(|w| w.site.edges.contains(&(*node_idx, 1)));
        let quantized = sites.activations.iter().any(|site| site.edges.contains(&(*node_idx, 0)));
        if let (Some(weight), true) = (weight, quantized) {
            let input = node.input[0].clone();
            sites.biases.push(BiasSite { tensor, qtype, input, weight, edge });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

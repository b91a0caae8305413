//! The float network and quantized ones side by side, node by node, over all samples at once.
//!
//! Each node runs on every sample before the next one does, so that a layer can be changed when its
//! quantized input is known and its output is not. The float network runs once for all the quantized ones, or not at
//! all where another walk kept what is asked of it.
//! A tensor is freed after its last use: memory holds the tensors that are alive, of every network, for all
//! samples.

use super::bias::Sum;
use super::bias_grid::BiasGrids;
use super::judge::{Judged, judged};
use super::network::{Network, runtime_inputs};
use super::ranges::Ahead;
use super::reference::Reference;
use super::step::Step;
use super::variant::{Twin, Variant, run};
use crate::engine::Value;
use crate::metrics::QuantizationError;
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::plan::QuantPlan;
use crate::simulate::Samples;
use anyhow::{Result, ensure};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::time::Instant;

/// A tensor of the float network, a value per sample, by its name.
pub(super) type Lanes = BTreeMap<String, Vec<Value>>;

/// A node that the walk has come to.
pub(super) struct At<'w> {
    /// Its position.
    pub node_idx: usize,
    pub node: &'w NodeProto,
    /// Its inputs that are no constants, without repetition.
    pub runtime: &'w [&'w str],
    /// The node in the float network; none for a layer where that network is not run.
    pub step: Option<&'w Step>,
    /// What it makes there, per sample; nothing where the float network is known from another walk.
    pub float: &'w [Vec<Value>],
    /// Sums of the channels of its first output there, once they are asked for.
    pub sums: OnceCell<Vec<Vec<Sum>>>,
    /// Samples of the walk.
    pub n_samples: usize,
}

impl At<'_> {
    /// The first output in the float network, for the samples that are learned from.
    pub fn first_outputs(&self, n_tune: usize) -> impl Iterator<Item = &Value> {
        self.float.iter().take(n_tune).filter_map(|outputs| outputs.first())
    }
}

/// A walk in progress.
pub struct Walk<'a> {
    net: Network<'a>,
    judged: Vec<Judged>,
    float: Lanes,
    /// What is known of the float network, which is not run then.
    known: Option<&'a Reference>,
    /// What is kept of it.
    kept: Option<Reference>,
    /// Grids that are decided by the float network alone.
    ahead: Option<Ahead<'a>>,
    variants: Vec<Variant>,
    uses_left: BTreeMap<&'a str, usize>,
}

impl<'a> Walk<'a> {
    /// `model` is the prepared float model that the plans of the `variants` are for; each of these learns
    /// from the first `n_tune` samples, and is judged by the others.
    ///
    /// # Errors
    /// If the model has no graph, or a plan has codes that are no integers times a scale.
    pub fn new(model: &'a ModelProto, variants: Vec<Variant>, n_tune: usize) -> Result<Walk<'a>> {
        let none = QuantPlan::default();
        let plan = variants.first().map_or(&none, |variant| &variant.plan);
        let net = Network::new(model, plan, n_tune)?;
        ensure!(variants.iter().all(Variant::is_affine), "its codes are not affine");
        Ok(Walk::over(net, variants))
    }

    /// The float network alone, to decide grids `ahead` by `n` samples.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn ahead(
        model: &'a ModelProto,
        plan: &QuantPlan,
        ahead: Ahead<'a>,
        n: usize,
    ) -> Result<Walk<'a>> {
        let net = Network::new(model, plan, n)?;
        Ok(Walk { ahead: Some(ahead), ..Walk::over(net, Vec::new()) })
    }

    fn over(net: Network<'a>, variants: Vec<Variant>) -> Walk<'a> {
        let graph = net.graph;
        let mut uses_left: BTreeMap<&str, usize> = BTreeMap::new();
        let inputs = graph.node.iter().flat_map(|node| &node.input).map(String::as_str);
        let outputs = graph.output.iter().map(|value| value.name());
        inputs.chain(outputs).for_each(|name| *uses_left.entry(name).or_default() += 1);
        let judged = graph.output.iter().map(|output| judged(&net.index, output.name())).collect();
        let (float, known, kept, ahead) = Default::default();
        Walk { net, judged, float, known, kept, ahead, variants, uses_left }
    }

    /// Judges by all samples, those that were learned from too.
    #[must_use]
    pub fn judged_by_all(mut self) -> Walk<'a> {
        self.net.judges = 0;
        self
    }

    /// Lays new biases on their grids.
    #[must_use]
    pub fn with_bias_grids(mut self, grids: &'a BiasGrids<'a>) -> Walk<'a> {
        self.net.bias_grids = Some(grids);
        self
    }

    /// Does not run the float network, as far as bias correction and judging go: `reference` is what another walk over
    /// the same samples kept of it.
    #[must_use]
    pub fn knowing(mut self, reference: Option<&'a Reference>) -> Walk<'a> {
        self.known = reference;
        self
    }

    /// Walks through the graph and gives the variants back, with what they found.
    ///
    /// # Errors
    /// If a node cannot be run by itself: control flow, or shapes that depend on values.
    pub fn run(mut self, samples: Samples) -> Result<Vec<Variant>> {
        self.walk(samples)?;
        Ok(self.variants)
    }

    /// As [`Walk::run`], with what other walks over these samples can use.
    ///
    /// # Errors
    /// As [`Walk::run`].
    pub fn run_and_keep(mut self, samples: Samples) -> Result<(Vec<Variant>, Reference)> {
        self.kept = Some(Reference::default());
        self.walk(samples)?;
        Ok((self.variants, self.kept.unwrap_or_default()))
    }

    /// As [`Walk::run`], for grids that are decided ahead.
    ///
    /// # Errors
    /// As [`Walk::run`].
    pub fn look_ahead(mut self, samples: Samples) -> Result<Option<Ahead<'a>>> {
        self.walk(samples)?;
        Ok(self.ahead)
    }

    fn walk(&mut self, samples: Samples) -> Result<()> {
        for (position, name) in samples.names.iter().enumerate() {
            let values: Vec<Value> = samples.values.iter().map(|s| s[position].clone()).collect();
            let of = |variant: &Variant| values[variant.first..].to_vec();
            let made: Vec<Vec<Value>> = self.variants.iter().map(of).collect();
            let twins: Vec<Twin> = (0..self.variants.len())
                .map(|k| {
                    let first = self.variants[k].first;
                    self.variants[..k].iter().position(|earlier| earlier.first == first)
                })
                .collect();
            let float = if self.known.is_some() { Vec::new() } else { values };
            self.store(name, float, made, &twins)?;
        }
        for (node_idx, node) in self.net.graph.node.iter().enumerate() {
            self.node(node_idx, node, samples.len())?;
            for name in &node.input {
                self.used(name);
            }
        }
        for variant in &mut self.variants {
            self.net.graph.output.iter().for_each(|output| variant.finish(output.name()));
        }
        Ok(())
    }

    /// A tensor's value for some sample, for its shape and type.
    fn example(&self, name: &str) -> Option<&Value> {
        let float = self.float.get(name)?.first();
        float.or_else(|| self.variants.first()?.example(name))
    }

    fn used(&mut self, name: &str) {
        if let Some(left) = self.uses_left.get_mut(name) {
            *left -= 1;
            if *left == 0 {
                self.float.remove(name);
                self.variants.iter_mut().for_each(|variant| variant.free(name));
            }
        }
    }

    /// Keeps a tensor of the float network and of every variant; `twins` says which earlier variant a
    /// variant's values are from.
    fn store(
        &mut self,
        name: &str,
        float: Vec<Value>,
        made: Vec<Vec<Value>>,
        twins: &[Twin],
    ) -> Result<()> {
        if self.uses_left.get(name).is_none_or(|left| *left == 0) {
            return Ok(());
        }
        let same = float.windows(2).all(|pair| pair[0].shape() == pair[1].shape());
        ensure!(same, "tensor `{name}`: its shape depends on the sample");
        if let Some(ahead) = &mut self.ahead {
            ahead.meet(&self.net, name, &float)?;
        }
        for (k, (values, twin)) in made.into_iter().zip(twins).enumerate() {
            let (earlier, rest) = self.variants.split_at_mut(k);
            let start = Instant::now();
            let twin = twin.map(|twin| &earlier[twin]);
            rest[0].store(&self.net, name, (&float, values), twin)?;
            let judged = self.judged.iter().enumerate().filter(|(_, judged)| judged.tensor == name);
            for (output_idx, judged) in judged {
                let float = self.known.map_or(&float[..], |known| known.judged(name));
                rest[0].judge(&self.net, output_idx, judged, float);
            }
            rest[0].seconds += start.elapsed().as_secs_f64();
        }
        if let Some(kept) = &mut self.kept
            && self.judged.iter().any(|judged| judged.tensor == name)
        {
            kept.keep_judged(name, &float);
        }
        self.float.insert(name.to_string(), float);
        Ok(())
    }

    fn node(&mut self, node_idx: usize, node: &'a NodeProto, n_samples: usize) -> Result<()> {
        let exists = |name: &str| self.float.contains_key(name);
        let runtime = runtime_inputs(node, &self.net.constants, exists)?;
        let first: Vec<(&str, &Value)> =
            runtime.iter().filter_map(|name| Some((*name, self.example(name)?))).collect();
        let step = || self.net.step(node, &first, &[]);
        // Shapes are fixed: what follows from them alone is a constant of the nodes behind.
        if runtime.is_empty() || matches!(node.op_type(), "Shape" | "Size") {
            let step = step()?;
            let outputs =
                step.run(1, |_| first.iter().map(|(_, value)| (*value).clone()).collect())?;
            let names = node.output.iter().filter(|name| !name.is_empty());
            for (name, value) in names.zip(outputs.iter().flatten()) {
                self.net.constants.insert(name.clone(), value.to_proto(name)?);
            }
            return Ok(());
        }
        let is_layer = self.net.weights_of(node_idx, node).is_some();
        let step = (self.known.is_none() || !is_layer).then(step).transpose()?;
        let lanes: Vec<&[Value]> = runtime.iter().map(|name| &self.float[*name][..]).collect();
        let float = match (&step, self.known) {
            (Some(step), None) => run(step, &lanes, n_samples)?,
            _ => Vec::new(),
        };
        let sums = self.known.and_then(|known| known.sums(node_idx, self.net.n_tune));
        let sums = sums.map_or_else(OnceCell::new, OnceCell::from);
        let (runtime, step) = (&runtime[..], step.as_ref());
        let at = At { node_idx, node, runtime, step, float: &float, sums, n_samples };
        let mut made: Vec<Vec<Vec<Value>>> = Vec::with_capacity(self.variants.len());
        let mut twins: Vec<Twin> = Vec::with_capacity(self.variants.len());
        for k in 0..self.variants.len() {
            let (earlier, rest) = self.variants.split_at_mut(k);
            let variant = &mut rest[0];
            let start = Instant::now();
            let twin = earlier.iter().position(|other| variant.is_twin(other, &self.net, &at));
            made.push(match twin {
                Some(twin) => {
                    variant.take_biases(&earlier[twin], node_idx);
                    made[twin].clone()
                }
                None => variant.node(&self.net, &at, &self.float)?,
            });
            twins.push(twin);
            variant.seconds += start.elapsed().as_secs_f64();
        }
        if let (Some(kept), Some(sums)) = (&mut self.kept, at.sums.into_inner()) {
            kept.keep_sums(node_idx, sums);
        }
        let names: Vec<&String> = node.output.iter().filter(|name| !name.is_empty()).collect();
        let float = by_output(float, names.len());
        let made = made.into_iter().map(|made| by_output(made, names.len()));
        let mut made: Vec<std::vec::IntoIter<Vec<Value>>> = made.map(Vec::into_iter).collect();
        for (name, float) in names.into_iter().zip(float) {
            let made = made.iter_mut().map(|made| made.next().unwrap_or_default()).collect();
            self.store(name, float, made, &twins)?;
        }
        Ok(())
    }
}

/// The values per output and sample, which are given per sample and output.
fn by_output(values: Vec<Vec<Value>>, n_outputs: usize) -> Vec<Vec<Value>> {
    let mut outputs: Vec<Vec<Value>> = Vec::new();
    outputs.resize_with(n_outputs, || Vec::with_capacity(values.len()));
    for sample in values {
        outputs.iter_mut().zip(sample).for_each(|(output, value)| output.push(value));
    }
    outputs
}

/// What the quantized network of one plan makes, and how far it is from the float one; nothing is learned.
///
/// # Errors
/// As [`Walk::run`].
pub(super) fn plain(
    model: &ModelProto,
    plan: &QuantPlan,
    samples: Samples,
) -> Result<(Vec<QuantizationError>, Vec<Vec<Value>>)> {
    let variant = Variant::new(plan.clone(), super::Methods::default(), 0);
    let variants = Walk::new(model, vec![variant], 0)?.run(samples)?;
    let variant = variants.into_iter().next().map(|variant| (variant.errors, variant.outputs));
    Ok(variant.unwrap_or_default())
}

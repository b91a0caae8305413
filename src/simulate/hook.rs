//! Hooks, which learn from a forward pass and change its candidates.

use super::candidate::Candidate;
use super::network::Network;
use super::node::NodeAt;
use crate::engine::Value;
use anyhow::Result;

/// A tensor that a pass has reached, before it is fake-quantized.
pub struct TensorAt<'w> {
    /// Its name.
    pub name: &'w str,
    /// Values in the float network, per sample; empty where that network is known from another pass.
    pub float: &'w [Value],
    /// Values in the candidate, from the candidate's first sample on.
    pub quantized: &'w [Value],
    /// Number of samples, from the first on, that hooks learn from.
    pub n_tune: usize,
}

/// The parts of a candidate that a hook changes. Candidates with equal changes share a node's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookChanges {
    /// Whether weights of layers change.
    pub weights: bool,
    /// Name of the change of biases; equal names have equal changes.
    pub biases: Option<&'static str>,
    /// Whether other parts change: then the candidate shares no result with others.
    pub others: bool,
}

/// Changes a candidate during a pass. Nodes run in order, each on all samples at once.
pub trait LayerHook {
    /// Returns the parts of the candidate that the hook changes.
    fn changes(&self) -> HookChanges {
        HookChanges::default()
    }

    /// Whether the hook reads the inputs of layers, in the float network or the candidate. Inputs are then kept until
    /// the hooks of the layer have run.
    fn reads_inputs(&self) -> bool {
        false
    }

    /// Whether every node of the candidate reads the values of the float network, so that the error of a tensor comes
    /// from its producer alone. The pass must run the float network.
    fn runs_on_float_inputs(&self) -> bool {
        false
    }

    /// Called before the pass begins.
    ///
    /// # Errors
    /// If the hook fails.
    fn begin(&mut self, _candidate: &mut Candidate) -> Result<()> {
        Ok(())
    }

    /// Called at each tensor. The hook may change the tensor's range by [`Candidate::set_range`].
    ///
    /// # Errors
    /// If the hook fails.
    fn tensor(&mut self, _net: &Network, _at: &TensorAt, _candidate: &mut Candidate) -> Result<()> {
        Ok(())
    }

    /// Called before each layer runs. The hook may change the layer's weight in the candidate's plan.
    ///
    /// # Errors
    /// If the hook fails.
    fn weight(&mut self, _net: &Network, _at: &NodeAt, _candidate: &mut Candidate) -> Result<()> {
        Ok(())
    }

    /// Called after each node with its outputs, per sample and output. Returns the outputs, shifted if the hook adds a
    /// new bias to the candidate.
    ///
    /// # Errors
    /// If the hook fails.
    fn outputs(
        &mut self,
        _net: &Network,
        _at: &NodeAt,
        _candidate: &mut Candidate,
        outputs: Vec<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>> {
        Ok(outputs)
    }
}

/// A hook that changes nothing.
pub struct NoHook;

impl LayerHook for NoHook {}

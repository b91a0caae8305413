//! What may learn and change on the way of a forward pass.

use super::candidate::Candidate;
use super::network::Network;
use super::node::NodeAt;
use crate::engine::Value;
use anyhow::Result;

/// A tensor that a pass has come to, before it is fake-quantized.
pub struct TensorAt<'w> {
    /// Its name.
    pub name: &'w str,
    /// Its values in the float network, per sample; none where that network is known from another pass.
    pub float: &'w [Value],
    /// Its values in the candidate, from the candidate's first sample on.
    pub quantized: &'w [Value],
    /// The first so many samples are learned from.
    pub n_tune: usize,
}

/// What a hook changes. Candidates share the result of a node where that makes no difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Touched {
    /// Whether weights of layers change.
    pub weights: bool,
    /// By what biases change, where they do; equal names stand for equal changes.
    pub biases: Option<&'static str>,
    /// Whether anything else does: such a candidate shares nothing with others.
    pub others: bool,
}

/// Changes a candidate on its way. Nodes come in their order, each on all samples at once.
pub trait LayerHook {
    /// What it changes.
    fn touched(&self) -> Touched {
        Touched::default()
    }

    /// The pass is about to begin.
    ///
    /// # Errors
    /// If the hook fails.
    fn begin(&mut self, _candidate: &mut Candidate) -> Result<()> {
        Ok(())
    }

    /// A tensor has come: its range may change, by [`Candidate::set_range`].
    ///
    /// # Errors
    /// If the hook fails.
    fn tensor(&mut self, _net: &Network, _at: &TensorAt, _candidate: &mut Candidate) -> Result<()> {
        Ok(())
    }

    /// A layer is about to run: its weight in the candidate's plan may change.
    ///
    /// # Errors
    /// If the hook fails.
    fn weight(&mut self, _net: &Network, _at: &NodeAt, _candidate: &mut Candidate) -> Result<()> {
        Ok(())
    }

    /// A node has run: gives its outputs, per sample and output, with another bias where it adds one to the
    /// candidate's.
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

/// Changes nothing.
pub struct NoHook;

impl LayerHook for NoHook {}

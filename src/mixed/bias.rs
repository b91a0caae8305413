//! Simulates the bias correction of tuning: each output channel gets its mean in the float network.

use crate::simulate::{ChannelSum, OutputAt, OutputHook, SampleValues, correction};
use crate::tune::methods::bias::{BiasSlot, shift};
use anyhow::Result;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Corrections of the layers' outputs, learned on the samples of the sensitivity analysis.
#[derive(Debug, Default)]
pub struct BiasCorrection {
    /// Sums of the output channels in the float network, by node and sample.
    float: BTreeMap<usize, Vec<Vec<ChannelSum>>>,
    /// Learned corrections per output channel, by the cache key of the layer's output.
    known: HashMap<u64, Vec<f32>>,
    mode: BiasMode,
}

/// The action at the output of a layer.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub enum BiasMode {
    /// No action: biases stay as they are.
    #[default]
    Off,
    /// Keeps the float network's means; the float network runs.
    Float,
    /// Learns corrections towards the float network's means; a quantized network runs on the same samples.
    Learn,
    /// Applies the learned corrections; a quantized network runs on other samples.
    Apply,
}

impl BiasCorrection {
    /// Starts with the float network; with `BiasMode::Off` unless biases are `corrected`.
    pub fn new(corrected: bool) -> BiasCorrection {
        let mode = if corrected { BiasMode::Float } else { BiasMode::Off };
        BiasCorrection { mode, ..BiasCorrection::default() }
    }

    /// Sets the action from now on, where biases are corrected.
    pub fn set(&mut self, mode: BiasMode) {
        if self.mode != BiasMode::Off {
            self.mode = mode;
        }
    }
}

impl OutputHook for BiasCorrection {
    fn retain(&mut self, outputs: &BTreeSet<u64>) {
        self.known.retain(|key, _| outputs.contains(key));
    }

    /// Applies the current action to the output of a node whose bias can be corrected.
    fn output(&mut self, at: &OutputAt, values: &mut SampleValues) -> Result<()> {
        let OutputAt { net, node_idx, node, key } = *at;
        let y = values.first().filter(|_| self.mode != BiasMode::Off);
        let Some(slot) = y.and_then(|y| BiasSlot::of(net, node, y, |_| false)) else { return Ok(()) };
        let sums = |values: &SampleValues| slot.sums(&values.iter().collect::<Vec<_>>());
        match self.mode {
            BiasMode::Off | BiasMode::Apply => {}
            BiasMode::Float => {
                self.float.insert(node_idx, sums(values));
                return Ok(());
            }
            BiasMode::Learn => {
                let Some(float) = self.float.get(&node_idx) else { return Ok(()) };
                let by = correction(float, &sums(values));
                self.known.insert(key, by.iter().map(|&by| by as f32).collect());
            }
        }
        let finite = |by: &&Vec<f32>| by.len() == slot.channels.n_out && by.iter().all(|by| by.is_finite());
        match self.known.get(&key).filter(finite) {
            Some(by) if by.iter().any(|by| *by != 0.0) => shift(&slot.channels, values.par_iter_mut(), by),
            _ => Ok(()),
        }
    }
}

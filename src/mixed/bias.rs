//! Biases as tuning will correct them: the mean of each output channel as in the float network.

use crate::simulate::{ChannelSum, OutputAt, OutputHook, SampleValues, correction};
use crate::tune::methods::bias::{BiasSlot, shift};
use anyhow::Result;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Corrections of the layers' outputs, learned on the samples of the sensitivity analysis.
#[derive(Debug, Default)]
pub struct BiasCorrection {
    /// Per layer, the sums of the output channels in the float network, sample by sample.
    float: BTreeMap<usize, Vec<Vec<ChannelSum>>>,
    /// What was learned, by the name of the layer's output.
    known: HashMap<u64, Vec<f32>>,
    mode: BiasMode,
}

/// What happens at a layer.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub enum BiasMode {
    /// Nothing: biases stay as they are.
    #[default]
    Off,
    /// The float network runs: its means are kept.
    Float,
    /// A quantized one runs on the same samples: its means are brought to these.
    Learn,
    /// One runs on other samples: what was learned is applied.
    Apply,
}

impl BiasCorrection {
    /// Beginning with the float network, or of no biases unless they are `corrected`.
    pub fn new(corrected: bool) -> BiasCorrection {
        let mode = if corrected { BiasMode::Float } else { BiasMode::Off };
        BiasCorrection { mode, ..BiasCorrection::default() }
    }

    /// What happens from now on, where biases are corrected.
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

    /// Shifts the outputs of nodes whose biases can be corrected.
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

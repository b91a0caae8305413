//! Biases as tuning will correct them: the mean of each output channel as in the float network.

use crate::simulate::{ChannelSum, OutChannels, OutputAt, OutputHook, SampleValues, correction, takes_bias};
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
        let y = values.first().filter(|_| takes_bias(node, &net.index));
        let Some(channels) = y.and_then(|y| OutChannels::of(node, y)) else { return Ok(()) };
        let bounds = net.bounds_behind(node);
        let sums = |values: &SampleValues| -> Vec<Vec<ChannelSum>> {
            values.par_iter().map(|value| channels.sums(value, bounds)).collect()
        };
        match self.mode {
            BiasMode::Off => {}
            BiasMode::Float => drop(self.float.insert(node_idx, sums(values))),
            BiasMode::Learn => {
                let Some(float) = self.float.get(&node_idx) else { return Ok(()) };
                let by = correction(float, &sums(values));
                let by: Vec<f32> = by.iter().map(|&by| by as f32).collect();
                shift(&channels, values, &by)?;
                self.known.insert(key, by);
            }
            BiasMode::Apply => {
                if let Some(by) = self.known.get(&key) {
                    shift(&channels, values, by)?;
                }
            }
        }
        Ok(())
    }
}

fn shift(channels: &OutChannels, values: &mut SampleValues, by: &[f32]) -> Result<()> {
    let finite = by.len() == channels.n_out && by.iter().all(|by| by.is_finite());
    if finite && by.iter().any(|by| *by != 0.0) {
        values.par_iter_mut().try_for_each(|value| channels.shift(value, by))?;
    }
    Ok(())
}

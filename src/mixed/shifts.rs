//! Biases as tuning will correct them: the mean of each output channel as in the float network.

use super::network::Lane;
use crate::onnx::proto::NodeProto;
use crate::tune::{OutChannels, Passed, Sum, correction, out_channels};
use anyhow::Result;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Corrections of the layers' outputs, learned on the samples that layers are ranked by.
#[derive(Debug, Default)]
pub struct Shifts {
    /// Per layer, the sums of the output channels in the float network, sample by sample.
    float: BTreeMap<usize, Vec<Vec<Sum>>>,
    /// What was learned, by the name of the layer's output.
    known: HashMap<u64, Vec<f32>>,
    mode: Mode,
}

/// What happens at a layer.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub enum Mode {
    /// The float network runs: its means are kept.
    #[default]
    Float,
    /// A quantized one runs on the same samples: its means are brought to these.
    Learn,
    /// One runs on other samples: what was learned is applied.
    Apply,
}

impl Shifts {
    /// What happens from now on.
    pub fn set(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Forgets what was learned of other outputs.
    pub fn retain(&mut self, outputs: &BTreeSet<u64>) {
        self.known.retain(|key, _| outputs.contains(key));
    }

    /// Looks at the first output, named `key`, of a node whose bias can be corrected, and shifts it; `passed`
    /// is what the function behind lets through.
    pub fn apply(
        &mut self,
        (node_idx, node, passed): (usize, &NodeProto, Passed),
        key: u64,
        lane: &mut Lane,
    ) -> Result<()> {
        let channels = lane.first().and_then(|value| out_channels(node, value));
        let Some(channels) = channels else { return Ok(()) };
        let sums = |lane: &Lane| -> Vec<Vec<Sum>> {
            lane.par_iter().map(|value| channels.sums(value, passed)).collect()
        };
        match self.mode {
            Mode::Float => drop(self.float.insert(node_idx, sums(lane))),
            Mode::Learn => {
                let Some(float) = self.float.get(&node_idx) else { return Ok(()) };
                let by = correction(float, &sums(lane));
                let by: Vec<f32> = by.iter().map(|&by| by as f32).collect();
                shift(&channels, lane, &by)?;
                self.known.insert(key, by);
            }
            Mode::Apply => {
                if let Some(by) = self.known.get(&key) {
                    shift(&channels, lane, by)?;
                }
            }
        }
        Ok(())
    }
}

fn shift(channels: &OutChannels, lane: &mut Lane, by: &[f32]) -> Result<()> {
    let finite = by.len() == channels.n_out && by.iter().all(|by| by.is_finite());
    if finite && by.iter().any(|by| *by != 0.0) {
        lane.par_iter_mut().try_for_each(|value| channels.shift(value, by))?;
    }
    Ok(())
}

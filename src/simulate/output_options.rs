//! The user's options for the evaluation of outputs.

use crate::engine::Value;
use crate::heads::{HeadRequest, OutputView, TaskHead};
use crate::metrics::{ChannelAxes, EvaluatedOutput};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum samples from which a head is recognized.
const MAX_RECOGNIZED: usize = 4;

static NO_AXES: ChannelAxes = BTreeMap::new();
static NO_HEAD: HeadRequest = HeadRequest { task: None, head: None };

/// The error that the user's task or head does not fit the network; its cause has the reason.
#[derive(Debug)]
pub struct HeadMismatch;

impl fmt::Display for HeadMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task or head (--task, --head, or the metric of --target) does not fit the network")
    }
}

/// The user's options for the evaluation of outputs.
#[derive(Debug, Clone, Copy)]
pub struct OutputOptions<'a> {
    /// Channel axes, by output.
    pub axes: &'a ChannelAxes,
    /// The task and the head.
    pub head: &'a HeadRequest,
    /// Height and width of the input's images.
    pub input: Option<[usize; 2]>,
}

impl Default for OutputOptions<'_> {
    fn default() -> Self {
        OutputOptions { axes: &NO_AXES, head: &NO_HEAD, input: None }
    }
}

impl OutputOptions<'_> {
    /// Returns the network's head: the user's, or the only one that fits the values `float`, per output and sample.
    /// Returns `None` where the user gives no head and not exactly one fits. With `is_partial`, the outputs are not all
    /// of the network's, so that a user's head that does not fit gives `None`, too.
    ///
    /// # Errors
    /// [`HeadMismatch`] if the user's head does not fit, or no head of the user's task fits.
    pub fn head(
        &self,
        outputs: &[EvaluatedOutput],
        float: &[Vec<Value>],
        batch: usize,
        is_partial: bool,
    ) -> Result<Option<TaskHead>> {
        // Constant outputs have no values.
        let has_values = |output_idx: &usize| !float[*output_idx].is_empty();
        let varying: Vec<usize> = (0..outputs.len().min(float.len())).filter(has_values).collect();
        let n = varying.iter().map(|&output_idx| float[output_idx].len()).min().unwrap_or(0).min(MAX_RECOGNIZED);
        let values_of = |sample: usize| -> Result<Vec<(usize, Vec<f32>)>> {
            varying.iter().map(|&output_idx| Ok((output_idx, float[output_idx][sample].to_f32s()?))).collect()
        };
        let samples = (0..n).map(values_of).collect::<Result<Vec<_>>>()?;
        let mut images: Vec<Vec<OutputView>> = Vec::with_capacity(n);
        for (sample, of_outputs) in samples.iter().enumerate() {
            let mut views = Vec::with_capacity(of_outputs.len());
            for (output_idx, values) in of_outputs {
                let (name, shape) = (&outputs[*output_idx].name, float[*output_idx][sample].shape());
                views.push(OutputView::of_image(name, shape, values, (batch, 0)));
            }
            images.push(views);
        }
        match self.head.resolve(&images, self.input) {
            // The user's head is for the outputs of the whole network.
            Err(_) if is_partial => Ok(None),
            head => head.context(HeadMismatch),
        }
    }
}

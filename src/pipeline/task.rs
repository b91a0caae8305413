//! What a sample's outputs say of a task.

use super::ran::{ComparedOutput, Ran};
use crate::data::{Array, Values};
use crate::diag::none_of;
use crate::engine::Engine;
use crate::heads::{Head, NamedOutput};
use crate::metrics::task::{OutputPair, TaskKind, TaskOptions, TaskResult, TaskSums};
use anyhow::{Result, bail, ensure};

/// What is measured beside the errors of the outputs.
pub struct TaskRequest {
    /// What the model is for.
    pub kind: TaskKind,
    /// What a detector's outputs mean; [`TaskKind::Detect`] needs it.
    pub head: Option<Head>,
    /// The outputs to measure; none for all that the task can be measured on.
    pub outputs: Vec<String>,
    /// How outputs are read.
    pub options: TaskOptions,
}

impl TaskRequest {
    /// If an output that is asked for is none.
    pub(super) fn ensure_outputs(&self, outputs: &[ComparedOutput]) -> Result<()> {
        for name in &self.outputs {
            let names = outputs.iter().map(|output| output.name.as_str());
            let is_known = names.clone().any(|known| known == name);
            ensure!(is_known, none_of(format_args!("--task-output: output `{name}` is unknown"), name, names));
        }
        Ok(())
    }

    /// Of one sample, output by output; boxes stand with the first. Outputs that the task is not measured on have sums of
    /// no sample.
    pub(super) fn measure(
        &self,
        ran: &Ran,
        outputs: &[ComparedOutput],
        image: Option<[usize; 2]>,
    ) -> Result<Vec<TaskSums>> {
        let mut sums = vec![TaskSums::default(); outputs.len()];
        if let Some(head) = &self.head {
            let decoded = |arrays: &[_]| head.detections(&named(outputs, arrays)?, ran.batch, image);
            let [float, quantized] = [decoded(&ran.float)?, decoded(&ran.quantized)?];
            ensure!(!outputs.is_empty(), "the model has no output, expected a detector's");
            sums[0] = TaskSums::of_detections(float.as_deref(), quantized.as_deref());
            return Ok(sums);
        }
        let pairs = named(outputs, &ran.float)?.into_iter().zip(named(outputs, &ran.quantized)?);
        let mut found = Vec::new();
        for (i, (float, quantized)) in pairs.enumerate() {
            let is_wanted = self.outputs.iter().any(|name| name == float.name);
            if !self.outputs.is_empty() && !is_wanted {
                continue;
            }
            let pair = OutputPair {
                shape: float.shape,
                n_parts: ran.batch,
                is_float: outputs[i].is_float,
                float: float.values,
                quantized: quantized.values,
            };
            match TaskSums::of_output(self.kind, &pair, &self.options, ran.labels) {
                Some(of_output) => sums[i] = of_output,
                None => found.push(format!("`{}` {:?}", float.name, float.shape)),
            }
            let is_measured = sums[i].n_samples() > 0;
            ensure!(is_measured || !is_wanted, "output {}, expected {}", found.join(", "), self.kind.outputs());
        }
        let any = sums.iter().any(|of_output| of_output.n_samples() > 0);
        let kind = self.kind;
        ensure!(any, "no output for task {}, found {}, expected {}", kind.name(), found.join(", "), kind.outputs());
        Ok(sums)
    }

    /// The figures of all `n_samples`.
    pub(super) fn results(
        &self,
        totals: &[TaskSums],
        outputs: &[ComparedOutput],
        n_samples: usize,
    ) -> Result<Vec<TaskResult>> {
        let mut results = Vec::new();
        for (total, output) in totals.iter().zip(outputs).filter(|(total, _)| total.n_samples() > 0) {
            let (name, n) = (&output.name, total.n_samples());
            ensure!(
                n == n_samples,
                "output `{name}` has the shape of task {} for {n} samples, expected for all {n_samples}",
                self.kind.name()
            );
            results.push(total.result(self.head.is_none().then_some(name)));
        }
        Ok(results)
    }
}

fn named<'a>(outputs: &'a [ComparedOutput], arrays: &'a [Array]) -> Result<Vec<NamedOutput<'a>>> {
    let named = |(output, array): (&'a ComparedOutput, &'a Array)| match &array.values {
        Values::F32(values) => Ok(NamedOutput { name: &output.name, shape: &array.shape, values }),
        _ => bail!("internal error: output `{}` is not float32", output.name),
    };
    outputs.iter().zip(arrays).map(named).collect()
}

/// Height and width of the first input of four axes; with the channels last where that axis is as short as theirs.
pub(super) fn image_size(engine: &Engine) -> Option<[usize; 2]> {
    let size = |shape: &[usize]| match *shape {
        [_, height, width, 1 | 3 | 4] if height > 4 => Some([height, width]),
        [_, _, height, width] => Some([height, width]),
        _ => None,
    };
    engine.inputs().iter().find_map(|input| size(&input.shape))
}

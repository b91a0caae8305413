//! The samples that tuning looks at, and what happens where it cannot run.

use super::Request;
use super::statistics::{Gathered, Run};
use crate::decide::QuantPlan;
use crate::emit::{BiasFacts, StepFacts, TuningFacts};
use crate::engine::Value;
use crate::onnx::facts::Facts;
use crate::onnx::proto::ModelProto;
use crate::place::Sites;
use crate::range::RangeFinder;
use crate::tune::{Methods, NewBias, Step, Tuned, tune as tune_plan};
use anyhow::Result;
use rayon::prelude::*;

/// Copies of the largest tensor that are alive at a time, about: input and output of a layer, in the
/// float network, the quantized one, and on the grid.
const N_COPIES: usize = 5;

/// Tunes the plan as far as `request` asks for. A graph that cannot be walked node by node keeps its plan,
/// with a warning. Without data nothing is tuned.
pub fn tune(
    model: &mut ModelProto,
    plan: &mut QuantPlan,
    sites: &mut Sites,
    facts: &Facts,
    request: &Request,
    gathered: &Gathered,
) -> Result<Option<Tuned>> {
    let Some(Run { dataset, inputs: specs, by_content: samples }) = &gathered.run else {
        return Ok(None);
    };
    let limit = request.effort.max_bytes() / (4 * N_COPIES * facts.largest().max(1));
    let n = request.effort.n_samples(facts.largest()).min(limit).min(samples.len());
    if n == 0 || request.methods == Methods::default() {
        return Ok(None);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(request.threads).build()?;
    pool.install(|| {
        let load = |&sample: &usize| -> Result<Vec<Value>> {
            let arrays = dataset.load(sample)?;
            arrays.iter().zip(specs).map(|(a, input)| Value::of_array(a, input)).collect()
        };
        let values: Vec<Vec<Value>> = samples[..n].par_iter().map(load).collect::<Result<_>>()?;
        let inputs: Vec<String> = specs.iter().map(|input| input.name.clone()).collect();
        let data = (inputs.as_slice(), values.as_slice(), request.effort.n_tune(n));
        let table = (&request.scheme, &*request.weight_finder.0 as &dyn RangeFinder);
        let outcome = tune_plan(model, plan, sites, table, data, request.methods);
        Ok(outcome.unwrap_or_else(|error| {
            plan.warnings.push(format!("not tuned: {error:#}"));
            None
        }))
    })
}

/// What the sidecar says of it.
pub fn facts(tuned: &Tuned) -> TuningFacts {
    let bias = |bias: &NewBias| BiasFacts {
        node: bias.node_idx,
        name: bias.name.clone(),
        values: bias.values.clone(),
    };
    let step = |step: &Step| StepFacts {
        method: step.method.name().to_string(),
        gain_db: step.gain_db,
        kept: step.kept,
    };
    TuningFacts {
        n_samples: tuned.n_samples,
        n_held_back: tuned.n_held_back,
        sqnr_db: tuned.sqnr_db,
        gain_db: tuned.gain_db,
        steps: tuned.steps.iter().map(step).collect(),
        n_weights: tuned.n_weights,
        n_rounded: tuned.n_rounded,
        n_ranges: tuned.n_ranges,
        biases: tuned.biases.iter().map(bias).collect(),
    }
}

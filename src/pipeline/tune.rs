//! The samples that tuning looks at, and what happens where it cannot run.

use super::Request;
use super::statistics::{Gathered, Run};
use crate::decide::QuantPlan;
use crate::emit::{BiasFacts, TuningFacts};
use crate::engine::Value;
use crate::onnx::facts::Facts;
use crate::onnx::proto::ModelProto;
use crate::place::Sites;
use crate::range::RangeFinder;
use crate::tune::{NewBias, Tuned, tune as tune_plan};
use anyhow::Result;
use rayon::prelude::*;
use std::ops::Range;

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
    let Some(run) = &gathered.run else { return Ok(None) };
    let n = n_samples(run, facts, request);
    if n == 0 {
        return Ok(None);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(request.threads).build()?;
    pool.install(|| {
        let (inputs, values) = load(run, 0..n)?;
        let data = (inputs.as_slice(), values.as_slice());
        let table = (&request.scheme, &*request.weight_finder.0 as &dyn RangeFinder);
        let outcome = tune_plan(model, plan, sites, table, data, request.effort);
        Ok(outcome.unwrap_or_else(|error| {
            plan.warnings.push(format!("not tuned: {error:#}"));
            None
        }))
    })
}

/// How many samples are looked at, those held back included; they are the first of `run.by_content`.
pub(super) fn n_samples(run: &Run, facts: &Facts, request: &Request) -> usize {
    let limit = request.effort.max_bytes() / (4 * N_COPIES * facts.largest().max(1));
    request.effort.n_samples().min(limit).min(run.by_content.len())
}

/// Names of the inputs, and their values for each of the samples at `range` of `run.by_content`.
pub(super) fn load(run: &Run, range: Range<usize>) -> Result<(Vec<String>, Vec<Vec<Value>>)> {
    let load = |&sample: &usize| -> Result<Vec<Value>> {
        let arrays = run.dataset.load(sample)?;
        arrays.iter().zip(&run.inputs).map(|(a, input)| Value::of_array(a, input)).collect()
    };
    let values = run.by_content[range].par_iter().map(load).collect::<Result<_>>()?;
    Ok((run.inputs.iter().map(|input| input.name.clone()).collect(), values))
}

/// What the sidecar says of it.
pub fn facts(tuned: &Tuned) -> TuningFacts {
    let bias = |bias: &NewBias| BiasFacts {
        node: bias.node_idx,
        name: bias.name.clone(),
        values: bias.values.clone(),
    };
    TuningFacts {
        n_samples: tuned.n_samples,
        n_held_back: tuned.n_held_back,
        sqnr_db: tuned.sqnr_db,
        gain_db: tuned.gain_db,
        kept: tuned.kept,
        n_rounded: if tuned.kept { tuned.n_rounded } else { 0 },
        biases: tuned.biases.iter().map(bias).collect(),
    }
}

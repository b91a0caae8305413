//! Two models over the same data.

use super::samples::each_sample;
use crate::data::{Array, Dataset, Preprocessing, Sample, Values};
use crate::engine::{Engine, Parsed, Session, Shapes};
use crate::onnx;
use crate::verify::{Comparison, Figures};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

/// Sums over the samples, added in their order whatever order they come in.
#[derive(Default)]
struct InOrder {
    /// The sample whose turn it is.
    next: usize,
    /// Samples that came before their turn.
    early: BTreeMap<usize, Vec<Comparison>>,
    totals: Vec<Comparison>,
}

impl InOrder {
    fn add(&mut self, sample_idx: usize, outputs: Vec<Comparison>) {
        self.early.insert(sample_idx, outputs);
        while let Some(outputs) = self.early.remove(&self.next) {
            self.totals.iter_mut().zip(&outputs).for_each(|(total, one)| total.absorb(one));
            self.next += 1;
        }
    }
}

/// Runs both models and compares their outputs by position. `labels` gives the class by file name.
///
/// # Errors
/// If a model or a sample cannot be run, or the models have different outputs.
#[allow(clippy::too_many_arguments)]
pub fn compare(
    models: [&Path; 2],
    data: &[String],
    preprocessing: &Preprocessing,
    shapes: &Shapes,
    labels: Option<&BTreeMap<String, usize>>,
    limit: Option<usize>,
    threads: usize,
    progress: &dyn Fn(usize) -> Box<dyn Fn() + Sync>,
) -> Result<Vec<Figures>> {
    let build = |path: &Path| -> Result<(Engine, Vec<String>)> {
        let model = onnx::load_whole(path)?.model;
        let graph = model.graph.as_ref().context("model has no graph")?;
        let outputs = graph.output.iter().map(|value| value.name().to_string()).collect();
        let engine = Parsed::new(&model, shapes).and_then(|parsed| parsed.build(&[]));
        Ok((engine.with_context(|| format!("`{}`", path.display()))?, outputs))
    };
    let (float, outputs) = build(models[0])?;
    let (quantized, other_outputs) = build(models[1])?;
    ensure!(
        outputs.len() == other_outputs.len(),
        "`{}` has {} outputs, expected {} as the float model",
        models[1].display(),
        other_outputs.len(),
        outputs.len()
    );
    let dataset = Dataset::open(data, float.inputs(), preprocessing, limit)?;
    let tick = progress(dataset.len());
    let label_of = |name: &str| -> Result<Option<usize>> {
        let Some(labels) = labels else { return Ok(None) };
        let file = name.rsplit('/').next().unwrap_or(name);
        let label = labels.get(file);
        Ok(Some(*label.with_context(|| format!("`{file}` has no label, expected one"))?))
    };
    let totals = vec![Comparison::default(); outputs.len()];
    let sums = Mutex::new(InOrder { totals, ..InOrder::default() });
    let start = || Ok(((), [float.session()?, quantized.session()?]));
    let job = |_: &mut (),
               [float, quantized]: &mut [Session; 2],
               sample_idx: usize,
               loaded: Result<Sample>| {
        let (sample, name) = (loaded?, dataset.name(sample_idx));
        let label = label_of(&name)?;
        let run = |session: &mut Session| {
            session.run(&sample, &mut |_, _, _| Ok(())).with_context(|| format!("`{name}`"))
        };
        let (float, quantized) = (run(float)?, run(quantized)?);
        let compared = float.iter().zip(&quantized).map(|(a, b)| one(a, b, label));
        let compared = compared.collect();
        sums.lock().map_err(|error| anyhow!("{error}"))?.add(sample_idx, compared);
        Ok(())
    };
    each_sample(&dataset, threads, &*tick, start, job)?;
    let sums = sums.into_inner().map_err(|error| anyhow!("{error}"))?;
    Ok(sums.totals.iter().zip(&outputs).map(|(total, output)| total.figures(output)).collect())
}

/// One output for one sample.
fn one(float: &Array, quantized: &Array, label: Option<usize>) -> Comparison {
    let mut comparison = Comparison::default();
    if let (Values::F32(a), Values::F32(b)) = (&float.values, &quantized.values) {
        comparison.add(a, b, label);
    }
    comparison
}

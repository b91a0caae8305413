//! Two models over the same data.

use crate::data::{Array, Dataset, Preprocessing, Values};
use crate::engine::{Engine, Parsed, Shapes};
use crate::onnx;
use crate::onnx::proto::GraphProto;
use crate::onnx::tensor::DataType;
use crate::verify::{Comparison, Figures};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Outputs of both models for one sample.
type Pair = [Vec<Array>; 2];

const ENGINE_HINT: &str =
    "\nhint: the engine has no integers of 4 or 16 bits; compare such a model in ONNX Runtime";

/// Whether constants are integers of 4 or 16 bits.
fn has_unusual_integers(graph: &GraphProto) -> bool {
    let unusual = [DataType::Int16, DataType::Uint16, DataType::Int4, DataType::Uint4];
    graph.initializer.iter().any(|tensor| unusual.iter().any(|&t| tensor.data_type() == t as i32))
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
        let engine = engine.map_err(|error| match has_unusual_integers(graph) {
            true => anyhow!("{error:#}{ENGINE_HINT}"),
            false => error,
        });
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
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<Pair>)>> = Mutex::new(Vec::new());
    let work = || {
        let sessions = float.session().and_then(|a| Ok((a, quantized.session()?)));
        let mut sessions = match sessions {
            Ok(sessions) => sessions,
            Err(error) => {
                if let Ok(mut results) = results.lock() {
                    results.push((0, Err(error)));
                }
                return;
            }
        };
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= dataset.len() {
                break;
            }
            let pair = dataset.load(i).and_then(|sample| {
                let float = sessions.0.run(&sample, &mut |_, _, _| Ok(()))?;
                Ok([float, sessions.1.run(&sample, &mut |_, _, _| Ok(()))?])
            });
            tick();
            if let Ok(mut results) = results.lock() {
                results.push((i, pair.with_context(|| format!("`{}`", dataset.name(i)))));
            }
        }
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    pool.broadcast(|_| work());
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(i, _)| *i);
    let mut comparisons = vec![Comparison::default(); outputs.len()];
    for (i, pair) in results {
        let [float, quantized] = pair?;
        let name = dataset.name(i);
        let file = name.rsplit('/').next().unwrap_or(&name);
        let label = match labels {
            None => None,
            Some(labels) => Some(
                *labels
                    .get(file)
                    .with_context(|| format!("`{file}` has no label, expected one"))?,
            ),
        };
        for (comparison, (a, b)) in comparisons.iter_mut().zip(float.iter().zip(&quantized)) {
            let (Values::F32(a), Values::F32(b)) = (&a.values, &b.values) else { continue };
            comparison.add(a, b, label);
        }
    }
    Ok(comparisons.iter().zip(&outputs).map(|(c, output)| c.figures(output)).collect())
}

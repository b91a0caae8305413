//! Formats of other tools from a sidecar.

use super::{equalize, sha256_of};
use crate::diag::WithHint;
use crate::export::uses;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, Loaded, tensor};
use crate::plan::{OnGrids, QuantPlan};
use crate::prepare::{Change, Demands, PreparedGraph};
use crate::sidecar::{BiasRecord, Encoding, Sidecar, unpack};
use crate::tune::{NewBias, Tuned, replace_biases};
use anyhow::{Context, Result, anyhow, ensure};
use std::path::Path;

/// The float model that `sidecar` was made for, prepared as it was then.
///
/// # Errors
/// If it is another model, or this version of the program prepares it in another way.
pub fn prepared_for(sidecar: &Sidecar, path: &Path) -> Result<ModelProto> {
    let load = || -> Result<ModelProto> {
        let found = sha256_of(path)?;
        ensure!(
            found == sidecar.model.sha256,
            "is not the float model of the sidecar, which was `{}`: SHA-256 is {found}, expected {}",
            sidecar.model.file,
            sidecar.model.sha256
        );
        let Loaded { model, .. } = onnx::load_whole(path)?;
        let shapes = sidecar.calibration.inputs.iter();
        let shapes = shapes.map(|input| (input.name.clone(), input.shape.clone())).collect();
        let PreparedGraph { mut model, changes, .. } =
            PreparedGraph::new(model, &demands_of(sidecar), &shapes)?;
        let before = sidecar.model.prepared.iter().map(|change| Change::parse(change));
        ensure!(
            changes.into_iter().map(Some).eq(before),
            anyhow!("was prepared in another way by the version that wrote the sidecar")
                .hint("calibrate again with this version of mqq")
        );
        if let Some(equalization) = &sidecar.equalization {
            equalize::again(&mut model, equalization, &sidecar.calibration.inputs)?;
        }
        if let Some(tuning) = &sidecar.tuning {
            let rounded = sidecar.param_encodings.iter().filter(|e| e.rounding.is_some());
            ensure!(
                tuning.n_rounded == rounded.count(),
                anyhow!(
                    "the sidecar does not hold the {} weights whose rounding was learned: it is of an earlier version",
                    tuning.n_rounded
                )
                .hint("calibrate again with this version of mqq")
            );
            let bias = |bias: &BiasRecord| NewBias {
                node_idx: bias.node,
                input_idx: bias.input,
                name: bias.name.clone(),
                values: bias.values.clone(),
            };
            let biases: Vec<NewBias> = tuning.biases.iter().map(bias).collect();
            replace_biases(&mut model, &biases)?;
        }
        for encoding in &sidecar.param_encodings {
            let name = || format!("initializer `{}`", encoding.name);
            round_again(&mut model, encoding).with_context(name)?;
        }
        Ok(model)
    };
    load().with_context(|| format!("`{}`", path.display()))
}

/// What the target of a sidecar wanted of the float model.
fn demands_of(sidecar: &Sidecar) -> Demands {
    let is_set = |key: &str| sidecar.scheme.resolved.get(key) == Some(&true.into());
    Demands {
        min_opset: sidecar.model.opset[1],
        static_shapes: is_set("static_shapes"),
        multiply_and_add: is_set("multiply_and_add"),
    }
}

/// Lays a weight whose rounding was learned on its grid, as [`tuned_float`] did.
fn round_again(model: &mut ModelProto, encoding: &Encoding) -> Result<()> {
    let Some(text) = &encoding.rounding else { return Ok(()) };
    let graph = model.graph.as_mut().context("model has no graph")?;
    let (name, n_uses) = (&encoding.name, uses(graph, encoding)?.len());
    if !GraphIndex::new(graph).has_only(name, n_uses) {
        return Ok(());
    }
    let stored = graph.initializer.iter_mut().find(|tensor| tensor.name() == name);
    let stored = stored.context("does not exist")?;
    let (shape, values) = (tensor::shape(stored)?, tensor::f32_values(stored)?);
    let differences = unpack(text, values.len()).context("its `rounding`")?;
    let (axis, block, params) = (encoding.axis, encoding.block_size, encoding.params());
    let grids = OnGrids { shape: &shape, axis, block, params: &params };
    *stored = tensor::from_f32(name, &shape, &grids.moved(&values, &differences)?)?;
    Ok(())
}

/// The float model as `plan` quantizes it: with the biases that tuning gave it, and with weights that lie
/// on their grids where their rounding was learned, so that rounding them again gives the plan's integers.
pub(super) fn tuned_float(
    model: &ModelProto,
    plan: &QuantPlan,
    tuned: Option<&Tuned>,
) -> Result<ModelProto> {
    let mut float = model.clone();
    if tuned.is_none_or(|tuned| tuned.n_rounded == 0) {
        return Ok(float);
    }
    let graph = float.graph.as_mut().context("model has no graph")?;
    for weight in plan.weights.iter().filter(|weight| weight.learned) {
        let index = GraphIndex::new(graph);
        let name = &weight.quantizer.tensor;
        // Its other readers take it as it is.
        if !index.has_only(name, weight.quantizer.edges.len()) {
            continue;
        }
        let rounded = tensor::from_f32(name, &weight.shape, &weight.dequantized())?;
        let stored = graph.initializer.iter_mut().filter(|tensor| tensor.name() == name);
        stored.for_each(|tensor| *tensor = rounded.clone());
    }
    Ok(float)
}

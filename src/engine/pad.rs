//! Pad with negative pads, which crop, and with the mode `wrap`.
//!
//! The engine's own operator reads a negative pad as a huge one and lacks `wrap` (tract 0.23.9). RWKV shifts tokens by
//! pads of 1 and -1; networks for panoramas use `wrap`.
//!
//! Source: ONNX `Pad`; ONNX Runtime, `core/providers/cpu/tensor/pad.cc` (crops first, then pads what is left).

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::ops::array::{Pad, PadMode, Slice, TypedConcat};
use tract_onnx::tract_hir::internal::*;

/// Replaces the engine's operator.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert("Pad", parse);
}

fn parse(ctx: &ParsingContext, node: &NodeProto) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let value = node.get_attr_opt::<f32>("value")?.unwrap_or(0.0);
    let mode = match node.get_attr_opt::<&str>("mode")?.unwrap_or("constant") {
        "constant" => Mode::Plain(PadMode::Constant(Arc::new(value.into()))),
        "reflect" => Mode::Plain(PadMode::Reflect),
        "edge" => Mode::Plain(PadMode::Edge),
        "wrap" => Mode::Wrap,
        mode => bail!("`mode` is `{mode}`, expected `constant`, `reflect`, `edge` or `wrap`"),
    };
    let pads = match ctx.onnx_operator_set_version {
        ..=10 => Some(node.get_attr_vec::<i64>("pads")?),
        _ => None,
    };
    // Positions among the given inputs: the value and the axes are optional.
    let given = |position: usize| node.input.get(position).is_some_and(|name| !name.is_empty());
    let value = given(2).then_some(2);
    let axes = given(3).then_some(2 + usize::from(given(2)));
    Ok((expand(PadOp { mode, pads, value, axes }), vec![]))
}

#[derive(Debug, Clone)]
enum Mode {
    Plain(PadMode),
    Wrap,
}

/// Inputs: the tensor; from opset 11 on the pads, int64 `[2 * n_axes]`, first the pads in front of each axis;
/// optionally a value and the axes.
#[derive(Debug, Clone)]
struct PadOp {
    mode: Mode,
    /// The pads, where they are an attribute of the node.
    pads: Option<Vec<i64>>,
    value: Option<usize>,
    axes: Option<usize>,
}

impl PadOp {
    fn n_inputs(&self) -> usize {
        let optional = [self.pads.is_none(), self.value.is_some(), self.axes.is_some()];
        1 + optional.into_iter().filter(|is_there| *is_there).count()
    }
}

impl Expansion for PadOp {
    fn name(&self) -> StaticName {
        "Pad".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, self.n_inputs())?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].rank, &outputs[0].rank)?;
        let padded = move |s: &mut Solver<'r>, n_axes: i64, pads: &[TDim], axes: Option<&Tensor>| {
            for (axis, [before, after]) in by_axis(n_axes as usize, pads, axes)?.into_iter().enumerate() {
                s.equals(&outputs[0].shape[axis], inputs[0].shape[axis].bex() + before + after)?;
            }
            Ok(())
        };
        match (&self.pads, self.axes) {
            (Some(pads), _) => s.given(&inputs[0].rank, move |s, n_axes| {
                let pads: Vec<TDim> = pads.iter().map(ToDim::to_dim).collect();
                padded(s, n_axes, &pads, None)
            }),
            (None, None) => s.given_2(&inputs[0].rank, &inputs[1].value, move |s, n_axes, pads| {
                padded(s, n_axes, &dims(&pads)?, None)
            }),
            (None, Some(axes)) => {
                s.given_3(&inputs[0].rank, &inputs[1].value, &inputs[axes].value, move |s, n_axes, pads, axes| {
                    padded(s, n_axes, &dims(&pads)?, Some(&axes))
                })
            }
        }
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let constant = |position: usize, name: &str| {
            let value = target.outlet_fact(inputs[position])?.konst.clone();
            value.with_context(|| format!("{name} are computed from the data, expected constants"))
        };
        let pads: Vec<TDim> = match &self.pads {
            Some(pads) => pads.iter().map(ToDim::to_dim).collect(),
            None => dims(&*constant(1, "the pads")?)?,
        };
        let axes = self.axes.map(|axes| constant(axes, "the axes")).transpose()?;
        let mode = match (&self.mode, self.value) {
            (Mode::Plain(PadMode::Constant(_)), Some(value)) => {
                let value = constant(value, "the values")?.into_tensor().into_shape(&[])?;
                Some(PadMode::Constant(value.into_arc_tensor()))
            }
            (Mode::Plain(mode), _) => Some(mode.clone()),
            (Mode::Wrap, _) => None,
        };
        let n_axes = target.outlet_fact(inputs[0])?.rank();
        let mut left = vec![(0, 0); n_axes];
        let mut outlet = inputs[0];
        for (axis, pads) in by_axis(n_axes, &pads, axes.as_deref())?.into_iter().enumerate() {
            let [before, after] = [pads[0].to_i64()?, pads[1].to_i64()?];
            let length = target.outlet_fact(outlet)?.shape[axis].clone();
            let (start, end) = ((-before).max(0), length.clone() - (-after).max(0));
            if before.min(after) < 0 {
                let left = length.clone() + before.min(0) + after.min(0);
                ensure!(
                    left.to_i64().is_ok_and(|left| left >= 0),
                    "the pads of axis {axis} are {before} and {after}, expected to leave some of its length {length}"
                );
                outlet = target.wire_node(format!("{prefix}.crop.{axis}"), Slice::new(axis, start, end), &[outlet])?[0];
            }
            left[axis] = (before.max(0) as usize, after.max(0) as usize);
            if mode.is_none() {
                outlet =
                    wrapped(&format!("{prefix}.wrap.{axis}"), target, outlet, axis, std::mem::take(&mut left[axis]))?;
            }
        }
        let pad = Pad { pads: left, mode: mode.unwrap_or_default() };
        target.wire_node(prefix, pad, &[outlet])
    }
}

/// Adds `before` values from the end of an axis in front of the axis, and `after` values from its start behind it.
fn wrapped(
    prefix: &str,
    target: &mut TypedModel,
    outlet: OutletId,
    axis: usize,
    (before, after): (usize, usize),
) -> TractResult<OutletId> {
    let length = target.outlet_fact(outlet)?.shape[axis].to_usize()?;
    ensure!(
        before.max(after) <= length,
        "pads of axis {axis} are {before} and {after}, expected at most the axis length {length}"
    );
    let mut part = |name: &str, start: usize, end: usize| -> TractResult<Option<OutletId>> {
        let slice = Slice::new(axis, start, end);
        (start < end).then(|| Ok(target.wire_node(format!("{prefix}.{name}"), slice, &[outlet])?[0])).transpose()
    };
    let (front, back) = (part("end", length - before, length)?, part("start", 0, after)?);
    let parts: Vec<OutletId> = front.into_iter().chain([outlet]).chain(back).collect();
    Ok(target.wire_node(prefix, TypedConcat { axis }, &parts)?[0])
}

fn dims(pads: &Tensor) -> TractResult<Vec<TDim>> {
    Ok(pads.cast_to::<TDim>()?.try_as_plain_ram()?.as_slice::<TDim>()?.to_vec())
}

/// Returns the pads in front of each axis and behind it.
fn by_axis(n_axes: usize, pads: &[TDim], axes: Option<&Tensor>) -> TractResult<Vec<[TDim; 2]>> {
    let axes: Vec<i64> = match axes {
        Some(axes) => axes.cast_to::<i64>()?.try_as_plain_ram()?.as_slice::<i64>()?.to_vec(),
        None => (0..n_axes as i64).collect(),
    };
    ensure!(pads.len() == 2 * axes.len(), "{} pads, expected {} for {} axes", pads.len(), 2 * axes.len(), axes.len());
    let mut all = vec![[0.to_dim(), 0.to_dim()]; n_axes];
    for (&axis, (before, after)) in axes.iter().zip(pads.iter().zip(&pads[axes.len()..])) {
        let position = if axis < 0 { axis + n_axes as i64 } else { axis };
        let place = usize::try_from(position).ok().and_then(|position| all.get_mut(position));
        let place =
            place.with_context(|| format!("axis is {axis}, expected an axis of a tensor with {n_axes} axes"))?;
        *place = [before.clone(), after.clone()];
    }
    Ok(all)
}

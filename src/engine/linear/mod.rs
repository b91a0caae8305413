//! QuantizeLinear and DequantizeLinear in mqq's own arithmetic, as ONNX defines them.
//!
//! The engine's own operators multiply by the reciprocal of a scale, which rounds differently at ties. They lack 4-bit
//! and 16-bit integers and blocks, and the engine turns them into integer kernels that other runtimes do not have. Here
//! a Q/DQ pair is only its arithmetic, and operators between two pairs compute in float.
//!
//! Source: ONNX `QuantizeLinear` and `DequantizeLinear`, opset 10 to 25.

mod narrow;
mod node_params;

pub use narrow::widened;

use crate::diag::count;
use crate::quant::ScaleLayout;
use node_params::NodeParams;
use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::ndarray::ArrayD;
use tract_onnx::tract_core::{as_op, op_as_typed_op, op_out_of_plan};
use tract_onnx::tract_hir::internal::*;

/// Replaces the engine's operators.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert("QuantizeLinear", |_: &ParsingContext, node| Ok((parse(Direction::Quantize, node)?, vec![])));
    ops.insert("DequantizeLinear", |_: &ParsingContext, node| Ok((parse(Direction::Dequantize, node)?, vec![])));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Direction {
    Quantize,
    Dequantize,
}

/// QuantizeLinear or DequantizeLinear. Inputs: the tensor, scales, and optional zero points.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct QdqOp {
    direction: Direction,
    /// Axis of the scales; negative counts from the last.
    axis: i64,
    /// Values along the axis that share a scale; 0 for a whole channel.
    block_size: usize,
    has_zero_points: bool,
    /// Type of the result, where the node sets it.
    output: Option<DatumType>,
    /// Smallest and largest integer, where the integers have fewer bits than their type.
    bounds: Option<[i32; 2]>,
}

fn parse(direction: Direction, node: &NodeProto) -> TractResult<Box<dyn InferenceOp>> {
    let output: i64 = node.get_attr_opt("output_dtype")?.unwrap_or(0);
    let output = if output == 0 { None } else { node.get_attr_opt::<DatumType>("output_dtype")? };
    let lowest: Option<i64> = node.get_attr_opt(narrow::Q_MIN)?;
    let highest: Option<i64> = node.get_attr_opt(narrow::Q_MAX)?;
    Ok(expand(QdqOp {
        direction,
        axis: node.get_attr_opt("axis")?.unwrap_or(1),
        block_size: node.get_attr_opt("block_size")?.unwrap_or(0),
        has_zero_points: node.input.get(2).is_some_and(|name| !name.is_empty()),
        output,
        bounds: lowest.zip(highest).map(|(lowest, highest)| [lowest as i32, highest as i32]),
    }))
}

impl QdqOp {
    fn result_type(&self, scale: DatumType, zero_point: Option<DatumType>) -> DatumType {
        match self.direction {
            Direction::Quantize => zero_point.or(self.output).unwrap_or(DatumType::U8),
            Direction::Dequantize => self.output.unwrap_or(scale),
        }
    }

    fn compute(&self, inputs: &[&Tensor]) -> TractResult<Tensor> {
        let (Some(x), Some(scales)) = (inputs.first(), inputs.get(1)) else {
            bail!("{}, expected 2 or 3", count(inputs.len(), "input"))
        };
        let zero_points = inputs.get(2);
        let result = self.result_type(scales.datum_type(), zero_points.map(|z| z.datum_type()));
        let layout = ScaleLayout::of_node(x.shape(), scales.shape(), self.axis, self.block_size)?;
        let scales = scales.cast_to::<f32>()?;
        let zero_points = zero_points.map(|z| z.cast_to::<i32>()).transpose()?;
        let bounds = self.bounds.or(node_params::bounds(result)).unwrap_or([i32::MIN, i32::MAX]);
        let node_params = NodeParams::new(
            scales.try_as_plain_ram()?.as_slice()?,
            zero_points.as_ref().map(|z| z.try_as_plain_ram()?.as_slice()).transpose()?,
            bounds,
        )?;
        match self.direction {
            Direction::Quantize => quantize(x, &node_params, &layout, result),
            Direction::Dequantize => Ok(dequantize(x, &node_params, &layout)?.cast_to_dt(result)?.into_owned()),
        }
    }
}

fn quantize(x: &Tensor, node_params: &NodeParams, layout: &ScaleLayout, to: DatumType) -> TractResult<Tensor> {
    let cast = x.cast_to::<f32>()?;
    let values: &[f32] = cast.try_as_plain_ram()?.as_slice()?;
    match to {
        DatumType::U8 => tensor(x.shape(), node_params.quantize(layout, values, |q| q as u8)),
        DatumType::I8 => tensor(x.shape(), node_params.quantize(layout, values, |q| q as i8)),
        DatumType::U16 => tensor(x.shape(), node_params.quantize(layout, values, |q| q as u16)),
        DatumType::I16 => tensor(x.shape(), node_params.quantize(layout, values, |q| q as i16)),
        _ => bail!("QuantizeLinear produces {to:?}, expected integers of 16 bits or fewer"),
    }
}

fn dequantize(q: &Tensor, node_params: &NodeParams, layout: &ScaleLayout) -> TractResult<Tensor> {
    let (shape, plain) = (q.shape(), q.try_as_plain_ram()?);
    match q.datum_type() {
        DatumType::U8 => tensor(shape, node_params.dequantize(layout, plain.as_slice::<u8>()?, i32::from)),
        DatumType::I8 => tensor(shape, node_params.dequantize(layout, plain.as_slice::<i8>()?, i32::from)),
        DatumType::U16 => tensor(shape, node_params.dequantize(layout, plain.as_slice::<u16>()?, i32::from)),
        DatumType::I16 => tensor(shape, node_params.dequantize(layout, plain.as_slice::<i16>()?, i32::from)),
        DatumType::I32 => tensor(shape, node_params.dequantize(layout, plain.as_slice::<i32>()?, |q| q)),
        other => bail!("the input of DequantizeLinear is {other:?}, expected integers of 32 bits or fewer"),
    }
}

fn tensor<T: Datum>(shape: &[usize], values: Vec<T>) -> TractResult<Tensor> {
    Ok(ArrayD::from_shape_vec(shape, values)?.into_tensor())
}

impl Expansion for QdqOp {
    fn name(&self) -> StaticName {
        format!("{:?}Linear", self.direction).into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> TractResult<()> {
        check_input_arity(inputs, 2 + usize::from(self.has_zero_points))?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].shape, &outputs[0].shape)?;
        match (self.direction, self.has_zero_points) {
            (Direction::Quantize, true) => s.equals(&outputs[0].datum_type, &inputs[2].datum_type),
            (Direction::Quantize, false) => s.equals(&outputs[0].datum_type, self.result_type(DatumType::F32, None)),
            (Direction::Dequantize, _) => match self.output {
                Some(output) => s.equals(&outputs[0].datum_type, output),
                None => s.equals(&outputs[0].datum_type, &inputs[1].datum_type),
            },
        }
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let constant = |outlet: &OutletId| target.outlet_fact(*outlet).ok()?.konst.clone();
        // A weight becomes a constant, which later operators need.
        if let Some(constants) = inputs.iter().map(constant).collect::<Option<Vec<_>>>() {
            let inputs: Vec<&Tensor> = constants.iter().map(|tensor| tensor.as_ref()).collect();
            return Ok(tvec!(target.add_const(prefix, self.compute(&inputs)?)?));
        }
        target.wire_node(prefix, self.clone(), inputs)
    }
}

impl Op for QdqOp {
    fn name(&self) -> StaticName {
        Expansion::name(self)
    }

    op_as_typed_op!();
}

impl EvalOp for QdqOp {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let inputs: Vec<&Tensor> = inputs.iter().map(|value| &**value).collect();
        Ok(tvec!(self.compute(&inputs)?.into_tvalue()))
    }
}

impl TypedOp for QdqOp {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let (Some(x), Some(scales)) = (inputs.first(), inputs.get(1)) else {
            bail!("{}, expected 2 or 3", count(inputs.len(), "input"))
        };
        let zero_point = inputs.get(2).map(|fact| fact.datum_type);
        Ok(tvec!(self.result_type(scales.datum_type, zero_point).fact(x.shape.clone())))
    }

    as_op!();
}

//! A ConvTranspose whose output's size is given.
//!
//! The engine's own operator takes the size, but leaves out the padding that follows from it (tract 0.23.9).
//!
//! Source: ONNX Runtime, `core/providers/cpu/nn/conv_transpose_attributes.h`.

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::tract_core::ops::cnn::deconv::adjustments;
use tract_onnx::tract_core::ops::cnn::{Deconv, KernelFormat, PaddingSpec, PoolSpec};
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::nn::DataFormat;

/// Name of the operator, which [`super::dialect`] gives to a ConvTranspose with `output_shape`. Attributes as there.
pub const SIZED_CONV_TRANSPOSE: &str = "mqq.SizedConvTranspose";

/// Adds the operator.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert(SIZED_CONV_TRANSPOSE, |_: &ParsingContext, node| {
        let op = SizedConvTranspose {
            size: node.get_attr_tvec("output_shape")?,
            strides: node.get_attr_opt_tvec("strides")?,
            dilations: node.get_attr_opt_tvec("dilations")?,
            output_padding: node.get_attr_opt_tvec("output_padding")?,
            group: node.get_attr_opt("group")?.unwrap_or(1),
            is_same_upper: node.get_attr_opt::<&str>("auto_pad")? == Some("SAME_UPPER"),
        };
        Ok((expand(op), vec![]))
    });
}

/// Inputs: tensor `[N, C, ...]`, weight `[C, M / group, ...]` and, optionally, bias `[M]`. Output: `[N, M, size...]`.
#[derive(Debug, Clone)]
struct SizedConvTranspose {
    size: TVec<usize>,
    strides: Option<TVec<usize>>,
    dilations: Option<TVec<usize>>,
    output_padding: Option<TVec<usize>>,
    group: usize,
    is_same_upper: bool,
}

impl SizedConvTranspose {
    /// Returns the pads before and after each axis for these lengths of input and kernel.
    fn pads(&self, lengths: &[usize], kernel: &[usize]) -> PaddingSpec {
        let of = |list: &Option<TVec<usize>>, axis: usize, default| {
            list.as_ref().and_then(|list| list.get(axis)).copied().unwrap_or(default)
        };
        let pads = lengths.iter().zip(kernel).zip(&self.size).enumerate().map(|(axis, ((length, kernel), size))| {
            let strided = length.saturating_sub(1).saturating_mul(of(&self.strides, axis, 1));
            let reach = kernel.saturating_sub(1).saturating_mul(of(&self.dilations, axis, 1)).saturating_add(1);
            let whole = strided.saturating_add(reach).saturating_add(of(&self.output_padding, axis, 0));
            let sum = whole.saturating_sub(*size);
            let (less, more) = (sum / 2, sum - sum / 2);
            if self.is_same_upper { (less, more) } else { (more, less) }
        });
        let (before, after) = pads.unzip();
        PaddingSpec::Explicit(before, after)
    }
}

impl Expansion for SizedConvTranspose {
    fn name(&self) -> StaticName {
        "SizedConvTranspose".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        ensure!((2..=3).contains(&inputs.len()), "has {} inputs, expected 2 or 3", inputs.len());
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].datum_type, &inputs[1].datum_type)?;
        for rank in [&inputs[0].rank, &inputs[1].rank, &outputs[0].rank] {
            s.equals(rank, self.size.len() as i64 + 2)?;
        }
        s.equals(&outputs[0].shape[0], &inputs[0].shape[0])?;
        s.equals(&inputs[0].shape[1], &inputs[1].shape[0])?;
        s.equals(&outputs[0].shape[1], self.group as i64 * inputs[1].shape[1].bex())?;
        for (axis, size) in self.size.iter().enumerate() {
            s.equals(&outputs[0].shape[axis + 2], size.to_dim())?;
        }
        if let Some(bias) = inputs.get(2) {
            s.equals(&bias.datum_type, &inputs[0].datum_type)?;
            s.equals(&bias.rank, 1)?;
            s.equals(&bias.shape[0], &outputs[0].shape[1])?;
        }
        Ok(())
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let fact = target.outlet_fact(inputs[0])?;
        let (datum_type, shape) = (fact.datum_type, fact.shape.as_concrete().context("expects a constant shape")?);
        let lengths: TVec<usize> = shape[2..].into();
        // [C, M / group, ...] -> [M, C / group, ...]
        let name = |part: &str| format!("{prefix}.{part}");
        let split = AxisOp::wire_split_axis(target, name("kernel_split"), inputs[1], 0, self.group)?;
        let moved = target.wire_node(name("kernel_moved"), AxisOp::Move(1, 2), &split)?;
        let kernel = AxisOp::wire_collapse_axis(target, name("kernel_merged"), moved[0], 0)?[0];
        let shape = target.outlet_fact(kernel)?.shape.as_concrete().context("expects a kernel of constant shape")?;
        let pool = PoolSpec::new(
            DataFormat::NCHW,
            shape[2..].into(),
            self.pads(&lengths, &shape[2..]),
            self.dilations.clone(),
            self.strides.clone(),
            KernelFormat::OIHW.input_channels(shape, self.group).into_owned(),
            KernelFormat::OIHW.output_channels(shape, self.group).into_owned(),
        );
        let bias = match inputs.get(2) {
            Some(bias) => *bias,
            None => target.add_const(name("bias"), Tensor::zero_scalar_dt(datum_type)?)?,
        };
        let adjustments = adjustments(&pool, &lengths, &self.size)?;
        target.wire_node(
            prefix,
            Deconv::new(pool, KernelFormat::OIHW, adjustments, self.group),
            &[inputs[0], kernel, bias],
        )
    }
}

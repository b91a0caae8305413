//! BatchNormalization with a check of the number of axes.
//!
//! For an input with one axis, the engine's own operator reads past the end of the shape (tract 0.23.9,
//! `DataShape::c_dim`), and the process ends with a signal.
//!
//! Source: ONNX `BatchNormalization`.

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::tract_core::ndarray::ArrayView1;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::math::{add, mul};

/// Replaces the engine's operator.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert("BatchNormalization", |_: &ParsingContext, node| {
        ensure!(node.get_attr_opt::<i64>("spatial")?.unwrap_or(1) != 0, "attribute `spatial` is 0, expected 1");
        Ok((expand(BatchNormOp { epsilon: node.get_attr_opt("epsilon")?.unwrap_or(1e-5) }), vec![]))
    });
}

/// Inputs: the tensor `[N, C, ...]`, then scale, bias, mean and variance, `[C]` each, constant.
#[derive(Debug, Clone)]
struct BatchNormOp {
    epsilon: f32,
}

impl Expansion for BatchNormOp {
    fn name(&self) -> StaticName {
        "BatchNorm".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 5)?;
        check_output_arity(outputs, 1)?;
        s.equals(&outputs[0].shape, &inputs[0].shape)?;
        s.equals(&outputs[0].datum_type, &inputs[0].datum_type)?;
        for parameter in &inputs[1..] {
            s.equals(&parameter.datum_type, &inputs[0].datum_type)?;
            s.equals(&parameter.rank, 1)?;
            s.equals(&parameter.shape[0], &inputs[1].shape[0])?;
        }
        s.given(&inputs[0].rank, move |s, n_axes| {
            ensure!(n_axes >= 2, "the input has the rank {n_axes}, expected 2 or more");
            s.equals(&inputs[1].shape[0], &inputs[0].shape[1])
        })
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let [x, parameters @ ..] = inputs else { bail!("0 inputs, expected 5") };
        let (data_type, n_axes) = {
            let fact = target.outlet_fact(*x)?;
            (fact.datum_type, fact.rank())
        };
        let constant = |outlet: &OutletId| -> TractResult<Tensor> {
            let constant = target.outlet_fact(*outlet)?.konst.clone().context("a parameter is not constant")?;
            Ok(constant.cast_to::<f32>()?.into_owned())
        };
        let parameters = parameters.iter().map(constant).collect::<TractResult<Vec<Tensor>>>()?;
        let vector = |i: usize| -> TractResult<ArrayView1<f32>> {
            let parameter = parameters.get(i).context("a parameter is missing")?;
            Ok(parameter.to_plain_array_view::<f32>()?.into_dimensionality()?)
        };
        let [scale, bias, mean, variance] = [vector(0)?, vector(1)?, vector(2)?, vector(3)?];
        let deviation = variance.mapv(|variance| (variance + self.epsilon).sqrt());
        let slope = &scale / &deviation;
        let intercept = &bias - &((&mean * &scale) / &deviation);
        let mut shape = tvec!(1; n_axes);
        shape[1] = slope.len();
        let mut stored = |name: &str, values: Tensor| -> TractResult<OutletId> {
            let mut values = values.cast_to_dt(data_type)?.into_owned();
            values.set_shape(&shape)?;
            target.add_const(format!("{prefix}.{name}"), values)
        };
        let (slope, intercept) = (stored("slope", slope.into_tensor())?, stored("inter", intercept.into_tensor())?);
        let scaled = target.wire_node(format!("{prefix}.mul"), mul(), &[slope, *x])?;
        target.wire_node(prefix, add(), &[intercept, scaled[0]])
    }
}

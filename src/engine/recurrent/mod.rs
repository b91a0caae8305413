//! RNN, GRU and LSTM, each as one operator over the whole sequence.
//!
//! The engine's own operators (tract 0.23.9) run a graph for each step and read the direction `reverse` as `forward`.
//! They lack `clip`, sequences of several lengths and activation functions other than the default ones.
//!
//! Source: ONNX `RNN`, `GRU`, `LSTM`.

mod activation;
mod cells;
mod rows;

use activation::{CellActivation, CellFunctions};
use cells::{CellDirection, RecurrentCell};
use rows::add_products;
use std::borrow::Cow;
use tract_onnx::model::{OnnxOpRegister, ParsingContext, optional_inputs, optional_outputs};
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::{as_op, op_as_typed_op, op_out_of_plan};
use tract_onnx::tract_hir::internal::*;

/// Replaces the engine's operators.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert("RNN", |_: &ParsingContext, node| parse(node, RecurrentCell::Rnn));
    ops.insert("GRU", |_: &ParsingContext, node| parse(node, RecurrentCell::Gru { linear_before_reset: false }));
    ops.insert("LSTM", |_: &ParsingContext, node| parse(node, RecurrentCell::Lstm { couples_forget: false }));
}

/// Inputs: the sequences `[steps, batch, inputs]`; the weights of the inputs `[directions, gates * hidden, inputs]` and
/// of the state `[directions, gates * hidden, hidden]`; the optional inputs at `optional_inputs`. Outputs: the
/// states of all steps `[steps, directions, batch, hidden]`, the last states `[directions, batch, hidden]`, and the
/// last cell states of the same shape.
#[derive(Debug, Clone, PartialEq)]
struct RecurrentOp {
    cell: RecurrentCell,
    /// For each direction: whether it is backward, and its activation functions.
    directions: Vec<(bool, Vec<CellActivation>)>,
    clip: f32,
    /// Whether the batch is the first axis of every input and output.
    batch_first: bool,
    /// Positions of the bias, sequence lengths, first state, first cell state and peepholes in the inputs.
    optional_inputs: [Option<usize>; 5],
    /// Positions of the outputs.
    outputs: [Option<usize>; 3],
}

impl Eq for RecurrentOp {}

fn parse(node: &NodeProto, cell: RecurrentCell) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let is_set = |name: &str| TractResult::Ok(node.get_attr_opt::<i64>(name)?.unwrap_or(0) != 0);
    let cell = match cell {
        RecurrentCell::Rnn => RecurrentCell::Rnn,
        RecurrentCell::Gru { .. } => RecurrentCell::Gru { linear_before_reset: is_set("linear_before_reset")? },
        RecurrentCell::Lstm { .. } => RecurrentCell::Lstm { couples_forget: is_set("input_forget")? },
    };
    let backward: &[bool] = match node.get_attr_opt::<&str>("direction")?.unwrap_or("forward") {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => bail!("`direction` is `{other}`, expected `forward`, `reverse` or `bidirectional`"),
    };
    let n = cell.functions().len();
    let mut activations = activation::parse(node, backward.len(), cell.functions())?.into_iter();
    let directions = backward.iter().map(|&backward| (backward, activations.by_ref().take(n).collect())).collect();
    let (mut inputs, mut outputs) = (optional_inputs(node).skip(3), optional_outputs(node));
    let op = RecurrentOp {
        cell,
        directions,
        clip: node.get_attr_opt("clip")?.unwrap_or(f32::INFINITY),
        batch_first: is_set("layout")?,
        optional_inputs: std::array::from_fn(|_| inputs.next().flatten()),
        outputs: std::array::from_fn(|_| outputs.next().flatten()),
    };
    Ok((expand(op), vec![]))
}

impl RecurrentOp {
    /// Converts sizes from the order of ONNX's default layout to the node's: of all states, and of the last states.
    fn laid_out<T: Clone>(&self, [steps, directions, batch, hidden]: [T; 4]) -> [TVec<T>; 2] {
        match self.batch_first {
            true => {
                let last = tvec!(batch.clone(), directions.clone(), hidden.clone());
                [tvec!(batch, steps, directions, hidden), last]
            }
            false => {
                let last = tvec!(directions.clone(), batch.clone(), hidden.clone());
                [tvec!(steps, directions, batch, hidden), last]
            }
        }
    }

    fn n_outputs(&self) -> usize {
        self.outputs.iter().flatten().count()
    }
}

impl Expansion for RecurrentOp {
    fn name(&self) -> StaticName {
        self.cell.name().into()
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(self.n_outputs())
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        let [x, weights, of_state, ..] = inputs else { bail!("{} inputs, expected 3 or more", inputs.len()) };
        check_output_arity(outputs, self.n_outputs())?;
        let (n_directions, n_gates) = (self.directions.len() as i64, self.cell.n_gates() as i64);
        let [steps, batch] = if self.batch_first { [1, 0] } else { [0, 1] };
        for matrix in [x, weights, of_state] {
            s.equals(&matrix.rank, 3)?;
            s.equals(&matrix.datum_type, &x.datum_type)?;
        }
        let hidden = &of_state.shape[2];
        for matrix in [weights, of_state] {
            s.equals(&matrix.shape[0], n_directions.to_dim())?;
            s.equals(&matrix.shape[1], n_gates * hidden.bex())?;
        }
        s.equals(&weights.shape[2], &x.shape[2])?;
        let optional_fact = |i: usize| self.optional_inputs[i].and_then(|position| inputs.get(position));
        for (i, n) in [(0, 2 * n_gates), (4, 3)] {
            if let Some(vectors) = optional_fact(i) {
                s.equals(&vectors.rank, 2)?;
                s.equals(&vectors.shape[0], n_directions.to_dim())?;
                s.equals(&vectors.shape[1], n * hidden.bex())?;
            }
        }
        if let Some(lengths) = optional_fact(1) {
            s.equals(&lengths.rank, 1)?;
            s.equals(&lengths.shape[0], &x.shape[batch])?;
        }
        let [of_steps, of_last] = self.laid_out(["steps", "directions", "batch", "hidden"]);
        let last = self.outputs[1..].iter().flatten().map(|&i| (&outputs[i], &of_last));
        let first = [2, 3].into_iter().filter_map(optional_fact).map(|state| (state, &of_last));
        let all = self.outputs[0].iter().map(|&i| (&outputs[i], &of_steps));
        for (tensor, axes) in all.chain(last).chain(first) {
            s.equals(&tensor.datum_type, &x.datum_type)?;
            s.equals(&tensor.rank, axes.len() as i64)?;
            for (axis, of_axis) in axes.iter().enumerate() {
                match *of_axis {
                    "steps" => s.equals(&tensor.shape[axis], &x.shape[steps])?,
                    "batch" => s.equals(&tensor.shape[axis], &x.shape[batch])?,
                    "hidden" => s.equals(&tensor.shape[axis], hidden)?,
                    _ => s.equals(&tensor.shape[axis], n_directions.to_dim())?,
                }
            }
        }
        Ok(())
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        target.wire_node(prefix, self.clone(), inputs)
    }
}

impl Op for RecurrentOp {
    fn name(&self) -> StaticName {
        format!("mqq.{}", self.cell.name()).into()
    }

    op_as_typed_op!();
}

impl EvalOp for RecurrentOp {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let data_type = inputs[0].datum_type();
        let inputs: Vec<Cow<Tensor>> = inputs.iter().map(|input| input.cast_to::<f32>()).collect::<TractResult<_>>()?;
        let values = |position: usize| inputs[position].try_as_plain_ram()?.as_slice::<f32>();
        let optional_input = |i: usize| self.optional_inputs[i].map(values).transpose();
        let &[first, second, n_inputs] = inputs[0].shape() else { bail!("{} axes, expected 3", inputs[0].rank()) };
        let [n_steps, batch] = if self.batch_first { [second, first] } else { [first, second] };
        let (n_directions, hidden) = (self.directions.len(), inputs[2].shape()[2]);
        let rows = self.cell.n_gates() * hidden;
        let functions = CellFunctions::new()?;
        let lengths: Vec<usize> = match optional_input(1)? {
            Some(lengths) => lengths.iter().map(|&n| (n.max(0.0) as usize).min(n_steps)).collect(),
            None => vec![n_steps; batch],
        };
        let [all_shape, last_shape] = self.laid_out([n_steps, n_directions, batch, hidden]);
        ensure!(hidden > 0, "the size of the state is 0, expected 1 or more");
        let mut all = vec![0.0; all_shape.iter().product()];
        let mut last = [(); 2].map(|()| vec![0.0; last_shape.iter().product()]);
        let [x, weights, of_state] = [values(0)?, values(1)?, values(2)?];
        let (bias, peepholes) = (optional_input(0)?, optional_input(4)?);
        for (d, (backward, activations)) in self.directions.iter().enumerate() {
            let part = |of: &'_ [f32], n: usize| of[d * n..(d + 1) * n].to_vec();
            let direction = CellDirection {
                of_state: &of_state[d * rows * hidden..(d + 1) * rows * hidden],
                bias: bias.map_or_else(|| vec![0.0; 2 * rows], |bias| part(bias, 2 * rows)),
                peepholes: peepholes.map(|peepholes| part(peepholes, 3 * hidden)),
                activations,
                functions: &functions,
                clip: self.clip,
                hidden,
            };
            let mut gates = self.cell.bias(&direction).repeat(n_steps * batch);
            add_products(&weights[d * rows * n_inputs..(d + 1) * rows * n_inputs], x, n_inputs, &mut gates);
            for (b, &length) in lengths.iter().enumerate() {
                // Offsets of the sample's values in the last states, and in the gates and the states of step `t`.
                let of_last = if self.batch_first { b * n_directions + d } else { d * batch + b } * hidden;
                let of_gates = |t: usize| if self.batch_first { b * n_steps + t } else { t * batch + b } * rows;
                let of_step = |t: usize| match self.batch_first {
                    true => ((b * n_steps + t) * n_directions + d) * hidden,
                    false => ((t * n_directions + d) * batch + b) * hidden,
                };
                let first = |i: usize| -> TractResult<Vec<f32>> {
                    Ok(optional_input(i)?
                        .map_or_else(|| vec![0.0; hidden], |first| first[of_last..][..hidden].to_vec()))
                };
                let (mut state, mut cell_state) = (first(2)?, first(3)?);
                for step in 0..length {
                    let t = if *backward { length - 1 - step } else { step };
                    self.cell.step(&direction, &gates[of_gates(t)..][..rows], &mut state, &mut cell_state)?;
                    all[of_step(t)..][..hidden].copy_from_slice(&state);
                }
                for (last, values) in last.iter_mut().zip([&state, &cell_state]) {
                    last[of_last..][..hidden].copy_from_slice(values);
                }
            }
        }
        let outputs = std::iter::once((&all, &all_shape)).chain(last.iter().map(|last| (last, &last_shape)));
        let given = outputs.zip(self.outputs).filter(|(_, position)| position.is_some());
        let output = |((values, shape), _): ((&Vec<f32>, &TVec<usize>), _)| {
            let tensor = Tensor::from_shape(shape, values)?;
            Ok(tensor.cast_to_dt(data_type)?.into_owned().into_tvalue())
        };
        given.map(output).collect()
    }
}

impl TypedOp for RecurrentOp {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let (x, of_state) = (inputs[0], inputs[2]);
        let [steps, batch] = if self.batch_first { [1, 0] } else { [0, 1] }.map(|axis| x.shape[axis].clone());
        let [all, last] = self.laid_out([steps, self.directions.len().to_dim(), batch, of_state.shape[2].clone()]);
        let shapes = [all, last.clone(), last].into_iter().zip(self.outputs);
        Ok(shapes.filter(|(_, position)| position.is_some()).map(|(shape, _)| x.datum_type.fact(shape)).collect())
    }

    as_op!();
}

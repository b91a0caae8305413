//! One step of each recurrent operator.

use super::activation::{CellActivation, CellFunctions};
use super::rows::add_products;
use tract_onnx::prelude::TractResult;

/// A recurrent operator, with the attributes that the other operators lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrentCell {
    Rnn,
    Gru {
        /// The reset gate scales the product of the state, not the state.
        linear_before_reset: bool,
    },
    Lstm {
        /// The forget gate is 1 minus the input gate.
        couples_forget: bool,
    },
}

/// The constants of one direction.
pub struct CellDirection<'a> {
    /// Weights of the state, `[gates * hidden, hidden]`.
    pub of_state: &'a [f32],
    /// Bias of the products of the inputs, then of the products of the state: `[2 * gates * hidden]`.
    pub bias: Vec<f32>,
    /// Weights of the cell state in an LSTM's input, output and forget gate, `[3 * hidden]`.
    pub peepholes: Option<Vec<f32>>,
    pub activations: &'a [CellActivation],
    pub functions: &'a CellFunctions,
    pub clip: f32,
    pub hidden: usize,
}

impl CellDirection<'_> {
    fn apply(&self, function: usize, values: &mut [f32]) -> TractResult<()> {
        self.activations[function].apply(self.functions, self.clip, values)
    }
}

impl RecurrentCell {
    pub fn name(self) -> &'static str {
        match self {
            RecurrentCell::Rnn => "RNN",
            RecurrentCell::Gru { .. } => "GRU",
            RecurrentCell::Lstm { .. } => "LSTM",
        }
    }

    pub fn n_gates(self) -> usize {
        match self {
            RecurrentCell::Rnn => 1,
            RecurrentCell::Gru { .. } => 3,
            RecurrentCell::Lstm { .. } => 4,
        }
    }

    /// Returns the default activation functions of a direction.
    pub fn functions(self) -> &'static [&'static str] {
        match self {
            RecurrentCell::Rnn => &["Tanh"],
            RecurrentCell::Gru { .. } => &["Sigmoid", "Tanh"],
            RecurrentCell::Lstm { .. } => &["Sigmoid", "Tanh", "Tanh"],
        }
    }

    /// Returns the bias that is the same in each step, `[gates * hidden]`. It lacks the bias of the state's product in
    /// the last gate of a GRU, which the reset gate may scale.
    pub fn bias(self, direction: &CellDirection) -> Vec<f32> {
        let (of_inputs, of_state) = direction.bias.split_at(direction.bias.len() / 2);
        let is_apart = |row: usize| matches!(self, RecurrentCell::Gru { .. }) && row >= 2 * direction.hidden;
        let bias = of_inputs.iter().zip(of_state).enumerate();
        bias.map(|(row, (of_inputs, of_state))| if is_apart(row) { *of_inputs } else { of_inputs + of_state }).collect()
    }

    /// Runs one step of a sample. `gates` are the products of the inputs plus the bias, `[gates * hidden]`. The state
    /// `hidden` and the cell state `cell`, `[hidden]` each, are updated.
    pub fn step(
        self,
        direction: &CellDirection,
        gates: &[f32],
        hidden: &mut [f32],
        cell: &mut [f32],
    ) -> TractResult<()> {
        match self {
            RecurrentCell::Rnn => {
                let mut gates = gates.to_vec();
                add_products(direction.of_state, hidden, direction.hidden, &mut gates);
                direction.apply(0, &mut gates)?;
                hidden.copy_from_slice(&gates);
                Ok(())
            }
            RecurrentCell::Gru { linear_before_reset } => gru(direction, linear_before_reset, gates, hidden),
            RecurrentCell::Lstm { couples_forget } => lstm(direction, couples_forget, gates, hidden, cell),
        }
    }
}

/// Runs a GRU's step: `z = f(..)`, `r = f(..)`, `new = g(..)`, `hidden = (1 - z) * new + z * hidden`.
fn gru(direction: &CellDirection, linear_before_reset: bool, gates: &[f32], hidden: &mut [f32]) -> TractResult<()> {
    let n = direction.hidden;
    let (of_gates, of_new) = direction.of_state.split_at(2 * n * n);
    let mut gates = gates.to_vec();
    let (update_reset, new) = gates.split_at_mut(2 * n);
    add_products(of_gates, hidden, n, update_reset);
    direction.apply(0, update_reset)?;
    let (update, reset) = update_reset.split_at(n);
    let mut product = direction.bias[5 * n..].to_vec();
    if linear_before_reset {
        add_products(of_new, hidden, n, &mut product);
        product.iter_mut().zip(reset).for_each(|(product, reset)| *product *= reset);
    } else {
        let state: Vec<f32> = hidden.iter().zip(reset).map(|(hidden, reset)| hidden * reset).collect();
        add_products(of_new, &state, n, &mut product);
    }
    new.iter_mut().zip(&product).for_each(|(new, product)| *new += product);
    direction.apply(1, new)?;
    for ((hidden, new), update) in hidden.iter_mut().zip(new).zip(update) {
        *hidden = (1.0 - update) * *new + update * *hidden;
    }
    Ok(())
}

/// Runs an LSTM's step: `i = f(..)`, `f = f(..)`, `new = g(..)`, `cell = f * cell + i * new`, `o = f(..)`, `hidden = o
/// * h(cell)`.
fn lstm(
    direction: &CellDirection,
    couples_forget: bool,
    gates: &[f32],
    hidden: &mut [f32],
    cell: &mut [f32],
) -> TractResult<()> {
    let n = direction.hidden;
    let mut gates = gates.to_vec();
    add_products(direction.of_state, hidden, n, &mut gates);
    let (input, rest) = gates.split_at_mut(n);
    let (output, rest) = rest.split_at_mut(n);
    let (forget, new) = rest.split_at_mut(n);
    let peep = |gate: &mut [f32], cell: &[f32], position: usize| {
        if let Some(peepholes) = &direction.peepholes {
            let weights = &peepholes[position * n..];
            gate.iter_mut().zip(cell).zip(weights).for_each(|((gate, cell), weight)| *gate += weight * cell);
        }
    };
    peep(input, cell, 0);
    direction.apply(0, input)?;
    if couples_forget {
        forget.iter_mut().zip(&*input).for_each(|(forget, input)| *forget = 1.0 - input);
    } else {
        peep(forget, cell, 2);
        direction.apply(0, forget)?;
    }
    direction.apply(1, new)?;
    for (((cell, new), input), forget) in cell.iter_mut().zip(new).zip(input).zip(forget) {
        *cell = *forget * *cell + *input * *new;
    }
    peep(output, cell, 1);
    direction.apply(0, output)?;
    hidden.copy_from_slice(cell);
    direction.activations[2].apply(direction.functions, f32::INFINITY, hidden)?;
    hidden.iter_mut().zip(output).for_each(|(hidden, output)| *hidden *= *output);
    Ok(())
}

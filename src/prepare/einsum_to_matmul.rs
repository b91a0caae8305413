//! Turns Einsum nodes of two tensors into MatMul, which backends run on integers.
//!
//! Letters of the output are of three kinds: in both operands (B), only in the first (M), or only in the second (N).
//! The letters that are summed over (K) are in both operands. Transposes give the operands the forms `[B, M, K]` and
//! `[B, K, N]`, and turn their product into the output. If M has several letters, all but the last stand before B, and
//! the second operand is broadcast along them. Several letters of K or N are joined by a Reshape, which needs the shape
//! of the second operand, so that this operand must be constant. A node stays if its equation has an ellipsis, a letter
//! twice in an operand, a sum over a single operand, or no sum.
//!
//! An Einsum of three tensors, one of which only scales the product of the two others along axes of the output, becomes a
//! MatMul and a Mul. Linear attention divides by its normalizer so.

use super::Change;
use crate::onnx::graph::drop_unused;
use crate::onnx::names::Names;
use crate::onnx::node::{self, Equation};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::onnx::tensor::{self, DataType};
use anyhow::Result;
use std::collections::BTreeMap;

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    if !graph.node.iter().any(|node| node.op_type() == "Einsum") {
        return Ok(Vec::new());
    }
    let constants: BTreeMap<String, Vec<usize>> = graph
        .initializer
        .iter()
        .filter(|stored| stored.data_type() == DataType::Float as i32)
        .filter_map(|stored| Some((stored.name().to_string(), tensor::shape(stored).ok()?)))
        .collect();
    let mut new = NewNodes { names: Names::of(graph), nodes: Vec::new(), n_turned: 0 };
    let mut shapes = Vec::new();
    for node in std::mem::take(&mut graph.node) {
        let scaled = Scaled::of(&node, &constants, &mut new.names);
        let einsum = scaled.as_ref().map_or(&node, |scaled| &scaled.product);
        match Product::of(einsum, &constants) {
            Some(product) => new.turn(einsum, &product, graph, &mut shapes)?,
            None => new.nodes.push(node.clone()),
        }
        if let Some(scaled) = &scaled {
            new.scale(&node, scaled, graph, &mut shapes)?;
        }
    }
    graph.node = new.nodes;
    drop_unused(graph, shapes);
    Ok(Change::counted([(new.n_turned, Change::TurnedEinsums)]))
}

/// An Einsum of two tensors as a product, by the letters of its equation.
struct Product<'n> {
    /// Names of the operands, the constant one second.
    operands: [&'n str; 2],
    /// Letters of the operands.
    letters: [Vec<char>; 2],
    output: Vec<char>,
    batch: Vec<char>,
    rows: Vec<char>,
    summed: Vec<char>,
    columns: Vec<char>,
    /// The shape of the second operand, if it is constant.
    shape: Option<&'n Vec<usize>>,
}

impl<'n> Product<'n> {
    /// Returns the product of an Einsum that can become a MatMul; `None` for other nodes.
    fn of(node: &'n NodeProto, constants: &'n BTreeMap<String, Vec<usize>>) -> Option<Product<'n>> {
        let ([first, second], [_]) = (&node.input[..], &node.output[..]) else { return None };
        if !node::is_standard(node) {
            return None;
        }
        let Equation { inputs, output } = Equation::of(node)?;
        let [a, b] = <[Vec<char>; 2]>::try_from(inputs).ok()?;
        let is_swapped = constants.contains_key(first) && !constants.contains_key(second);
        let (operands, letters) = match is_swapped {
            true => ([second.as_str(), first.as_str()], [b, a]),
            false => ([first.as_str(), second.as_str()], [a, b]),
        };
        let in_order = |of: &[char], has: [bool; 2]| -> Vec<char> {
            let is_in = |letter: &char| letters.each_ref().map(|letters| letters.contains(letter)) == has;
            of.iter().copied().filter(is_in).collect()
        };
        let batch = in_order(&output, [true, true]);
        let (rows, columns) = (in_order(&output, [true, false]), in_order(&output, [false, true]));
        let summed: Vec<char> =
            in_order(&letters[1], [true, true]).into_iter().filter(|letter| !output.contains(letter)).collect();
        let shape = constants.get(operands[1]).filter(|shape| shape.len() == letters[1].len());
        let n_of = [batch.len() + rows.len() + summed.len(), batch.len() + summed.len() + columns.len()];
        let is_product = n_of == letters.each_ref().map(Vec::len)
            && output.len() == batch.len() + rows.len() + columns.len()
            && !rows.is_empty()
            && !summed.is_empty()
            && !columns.is_empty();
        let is_shaped = shape.is_some() || (summed.len() == 1 && columns.len() == 1);
        let product = Product { operands, letters, output, batch, rows, summed, columns, shape };
        (is_product && is_shaped).then_some(product)
    }

    /// Returns the sizes of those `letters` that the second operand has; empty if its shape is unknown.
    fn sizes(&self, letters: &[char]) -> Vec<i64> {
        let size = |letter: &char| {
            let axis = self.letters[1].iter().position(|other| other == letter)?;
            self.shape?.get(axis).map(|size| *size as i64)
        };
        letters.iter().filter_map(size).collect()
    }
}

/// An Einsum of three tensors as an Einsum of two of them, and the third, which scales its output.
struct Scaled {
    product: NodeProto,
    factor: String,
    /// Letters of the factor, all of them in `output`.
    letters: Vec<char>,
    output: Vec<char>,
}

impl Scaled {
    /// Returns the parts of an Einsum whose product can become a MatMul; `None` for other nodes.
    fn of(node: &NodeProto, constants: &BTreeMap<String, Vec<usize>>, names: &mut Names) -> Option<Scaled> {
        let Equation { inputs, output } = Equation::of(node).filter(|_| node.input.len() == 3)?;
        let made = node.output.first()?;
        let without = |position: usize| {
            let (mut product, mut others) = (node.clone(), inputs.clone());
            let letters = others.remove(position);
            let factor = product.input.remove(position);
            let text = |letters: &[char]| letters.iter().collect::<String>();
            let [a, b] = [0, 1].map(|i| text(&others[i]));
            node::set_text(&mut product, "equation", &format!("{a},{b}->{}", text(&output)));
            let is_factor = letters.iter().all(|letter| output.contains(letter));
            let is_product = is_factor && Product::of(&product, constants).is_some();
            is_product.then(|| Scaled { product, factor, letters, output: output.clone() })
        };
        let mut scaled = (0..3).find_map(without)?;
        scaled.product.output = vec![names.fresh(&format!("{made}_unscaled"))];
        Some(scaled)
    }
}

struct NewNodes {
    names: Names,
    nodes: Vec<NodeProto>,
    n_turned: usize,
}

impl NewNodes {
    /// Adds the nodes that replace `einsum`. Adds their constants to the graph, and the names of the constants to
    /// `shapes`.
    fn turn(
        &mut self,
        einsum: &NodeProto,
        product: &Product,
        graph: &mut GraphProto,
        shapes: &mut Vec<String>,
    ) -> Result<()> {
        let Product { operands: [a, b], letters, output, batch, rows, summed, columns, .. } = product;
        let leading = vec![0; batch.len() + rows.len()];
        let (outer, row) = rows.split_at(rows.len().saturating_sub(1));
        let a = self.transposed(a, &letters[0], &[outer, batch, row, summed].concat());
        let a = self.reshaped(a, (summed.len() > 1).then(|| [&leading[..], &[-1]].concat()), graph, shapes)?;
        let b = self.transposed(b, &letters[1], &[&batch[..], summed, columns].concat());
        let joined = [summed, columns].map(|letters| product.sizes(letters).iter().product::<i64>());
        let is_joined = summed.len() > 1 || columns.len() > 1;
        let b = self.reshaped(b, is_joined.then(|| [&product.sizes(batch)[..], &joined].concat()), graph, shapes)?;
        let made = einsum.output[0].as_str();
        let of_product = [outer, batch, row, columns].concat();
        let is_last = columns.len() == 1 && of_product == *output;
        let result = if is_last { made.to_string() } else { self.names.fresh(&format!("{made}_product")) };
        self.nodes.push(node::make("MatMul", einsum.name(), &[&a, &b], &result));
        self.n_turned += 1;
        if is_last {
            return Ok(());
        }
        let split = (columns.len() > 1).then(|| [&leading[..], &product.sizes(columns)].concat());
        let result = self.reshaped(result, split, graph, shapes)?;
        let result = self.transposed(&result, &of_product, output);
        // The last of the new nodes produces the output of the Einsum.
        let last = self.nodes.iter_mut().rfind(|node| node.output.first() == Some(&result));
        last.into_iter().for_each(|last| last.output[0] = made.to_string());
        Ok(())
    }

    /// Adds the Mul that scales the product of an Einsum of three tensors.
    fn scale(
        &mut self,
        einsum: &NodeProto,
        scaled: &Scaled,
        graph: &mut GraphProto,
        shapes: &mut Vec<String>,
    ) -> Result<()> {
        let Scaled { product, factor, letters, output } = scaled;
        let in_order: Vec<char> = output.iter().copied().filter(|letter| letters.contains(letter)).collect();
        let mut factor = self.transposed(factor, letters, &in_order);
        let missing = (0_i64..).zip(output).filter(|(_, letter)| !letters.contains(letter));
        let axes: Vec<i64> = missing.map(|(axis, _)| axis).collect();
        if !axes.is_empty() {
            let (name, stored) =
                (self.names.fresh(&format!("{factor}_expanded")), self.names.fresh(&format!("{factor}_axes")));
            graph.initializer.push(tensor::from_i64(&stored, &[axes.len()], &axes)?);
            shapes.push(stored.clone());
            self.nodes.push(node::make("Unsqueeze", &name, &[&factor, &stored], &name));
            factor = name;
        }
        let name = self.names.fresh(&format!("{}_scale", einsum.name()));
        self.nodes.push(node::make("Mul", &name, &[&product.output[0], &factor], &einsum.output[0]));
        Ok(())
    }

    /// Returns the name of the tensor with its axes in another order. Adds a Transpose if the order changes.
    fn transposed(&mut self, tensor: &str, from: &[char], to: &[char]) -> String {
        let axis = |letter: &char| from.iter().position(|other| other == letter).unwrap_or_default() as i64;
        let order: Vec<i64> = to.iter().map(axis).collect();
        if order.iter().copied().eq(0..order.len() as i64) {
            return tensor.to_string();
        }
        let output = self.names.fresh(&format!("{tensor}_transposed"));
        let mut transpose =
            node::make("Transpose", &self.names.fresh(&format!("{tensor}_transpose")), &[tensor], &output);
        node::set_ints(&mut transpose, "perm", order);
        self.nodes.push(transpose);
        output
    }

    /// Returns the name of the tensor in another shape, if one is given, and adds the Reshape. A 0 keeps a dimension.
    fn reshaped(
        &mut self,
        tensor: String,
        shape: Option<Vec<i64>>,
        graph: &mut GraphProto,
        shapes: &mut Vec<String>,
    ) -> Result<String> {
        let Some(shape) = shape else { return Ok(tensor) };
        let (output, stored) =
            (self.names.fresh(&format!("{tensor}_reshaped")), self.names.fresh(&format!("{tensor}_shape")));
        graph.initializer.push(tensor::from_i64(&stored, &[shape.len()], &shape)?);
        shapes.push(stored.clone());
        let name = self.names.fresh(&format!("{tensor}_reshape"));
        self.nodes.push(node::make("Reshape", &name, &[&tensor, &stored], &output));
        Ok(output)
    }
}

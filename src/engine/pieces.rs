//! Optimizes a large graph in pieces.
//!
//! The engine's optimizer compares each node that it makes with all others, so that its time grows with the square of
//! the number of nodes. It moves nothing across an output of the graph. Where all tensors are outputs, pieces of the
//! graph can be optimized one by one and joined again. Graphs with large weights are optimized in pieces, too: the
//! optimizer packs weights, and only the weights of one piece are in memory twice.

use super::guard::guarded;
use super::kernels::{self, OpKernel};
use anyhow::{Context, Result, ensure};
use std::collections::{HashMap, HashSet};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::dummy::Dummy;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_core::ops::source::TypedSource;

/// Number of nodes after which a piece ends where only outputs of the graph pass to the next piece.
const PIECE: usize = 128;
/// Bytes of constants after which a piece ends likewise.
const PIECE_BYTES: usize = 64 << 20;

/// Whether a graph is large enough to be optimized in pieces.
pub(super) fn is_large(model: &TypedModel) -> bool {
    let n_bytes: usize = (0..model.nodes.len()).map(|id| constant_bytes(model, id)).sum();
    n_bytes > 2 * PIECE_BYTES || model.nodes.iter().filter(|node| !node.op_is::<Const>()).count() > 2 * PIECE
}

/// Returns the bytes of a constant; 0 for other nodes.
fn constant_bytes(model: &TypedModel, id: usize) -> usize {
    let tensor = model.node(id).op_as::<Const>().map(Const::val);
    tensor.map_or(0, |tensor| tensor.len() * tensor.datum_type().size_of())
}

/// Returns the optimized graph, with the same inputs and outputs. All tensors that pass from one ONNX node to another
/// must be outputs of `model`. Fails if the engine refuses a piece: the graph may still be optimized as a whole.
pub(super) fn optimized(mut model: TypedModel, kernels: &[OpKernel]) -> Result<TypedModel> {
    guarded(|| {
        let mut joined = Joined {
            whole: TypedModel { symbols: model.symbols.clone(), ..TypedModel::default() },
            places: HashMap::new(),
            names: HashSet::new(),
        };
        for &input in model.input_outlets()? {
            let name = joined.fresh(&model.node(input.node).name);
            let place = joined.whole.add_source(name, model.outlet_fact(input)?.clone())?;
            joined.places.insert(input, place);
        }
        let pieces = pieces(&model)?;
        let mut last_piece: HashMap<usize, usize> = HashMap::new();
        for (at, piece) in pieces.iter().enumerate() {
            let read = piece.iter().flat_map(|&id| &model.node(id).inputs).map(|input| input.node);
            last_piece.extend(read.filter(|&id| model.node(id).op_is::<Const>()).map(|id| (id, at)));
        }
        for (at, piece) in pieces.iter().enumerate() {
            joined.add(&model, piece, kernels)?;
            for (&id, _) in last_piece.iter().filter(|(_, last)| **last == at) {
                let node = model.node_mut(id);
                node.op = Dummy.into();
                node.outputs[0].fact.konst = None;
            }
        }
        let outputs = model.outputs.iter().map(|outlet| joined.place(*outlet));
        let outputs: Vec<OutletId> = outputs.collect::<Result<_>>()?;
        joined.whole.select_output_outlets(&outputs)?;
        Ok(joined.whole)
    })
}

/// Returns the nodes in pieces, in an order of execution, without inputs and constants. Only outputs of the graph pass
/// from one piece to another.
fn pieces(model: &TypedModel) -> Result<Vec<Vec<usize>>> {
    let kept: HashSet<OutletId> = model.outputs.iter().copied().collect();
    let order = model.eval_order()?.into_iter().filter(|&id| {
        let node = model.node(id);
        !node.op_is::<Const>() && !node.op_is::<TypedSource>()
    });
    let order: Vec<usize> = order.collect();
    let positions: HashMap<usize, usize> = order.iter().enumerate().map(|(position, &id)| (id, position)).collect();
    // The position of the last reader of a node's tensors that are no outputs of the graph.
    let last_reader = |id: usize| {
        let inner = (0..model.node(id).outputs.len()).filter(|&slot| !kept.contains(&OutletId::new(id, slot)));
        let readers = inner.flat_map(|slot| model.node(id).outputs[slot].successors.iter());
        readers.filter_map(|reader| positions.get(&reader.node)).max().copied()
    };
    let (mut pieces, mut piece, mut n_bytes, mut last) = (Vec::new(), Vec::new(), 0, 0);
    for (position, &id) in order.iter().enumerate() {
        piece.push(id);
        n_bytes += model.node(id).inputs.iter().map(|input| constant_bytes(model, input.node)).sum::<usize>();
        last = last.max(last_reader(id).unwrap_or(0));
        if (piece.len() >= PIECE || n_bytes >= PIECE_BYTES) && last <= position {
            pieces.push(std::mem::take(&mut piece));
            n_bytes = 0;
        }
    }
    pieces.push(piece);
    Ok(pieces)
}

/// The pieces that are optimized so far, as one graph.
struct Joined {
    whole: TypedModel,
    /// The place of each tensor of the model in `whole`.
    places: HashMap<OutletId, OutletId>,
    names: HashSet<String>,
}

impl Joined {
    /// Returns `name`, with a number appended where it is taken.
    fn fresh(&mut self, name: &str) -> String {
        let others = (1..).map(|n| format!("{name}#{n}"));
        let free = std::iter::once(name.to_string()).chain(others).find(|name| !self.names.contains(name));
        let free = free.unwrap_or_default();
        self.names.insert(free.clone());
        free
    }

    fn place(&self, outlet: OutletId) -> Result<OutletId> {
        self.places.get(&outlet).copied().context("the engine lost a tensor of the graph")
    }

    /// Optimizes a piece and adds it.
    fn add(&mut self, model: &TypedModel, piece: &[usize], kernels: &[OpKernel]) -> Result<()> {
        let mut part = TypedModel { symbols: model.symbols.clone(), ..TypedModel::default() };
        let mut local: HashMap<OutletId, OutletId> = HashMap::new();
        let mut read: Vec<OutletId> = Vec::new();
        let mut made: HashSet<OutletId> = HashSet::new();
        for &id in piece {
            let node = model.node(id);
            for &input in &node.inputs {
                if local.contains_key(&input) {
                    continue;
                }
                let outer = model.node(input.node);
                let constant = match outer.op_as::<Const>() {
                    Some(_) => Some((outer.op.clone(), model.outlet_fact(input)?.clone())),
                    None => {
                        let place = self.place(input)?;
                        let found = self.whole.node(place.node);
                        let fact = self.whole.outlet_fact(place)?.clone();
                        found.op_is::<Const>().then(|| (found.op.clone(), fact))
                    }
                };
                let name = if input.slot == 0 { outer.name.clone() } else { format!("{}:{}", outer.name, input.slot) };
                let inner = match constant {
                    Some((op, fact)) => OutletId::new(part.add_node(name, op, tvec!(fact))?, 0),
                    None => {
                        read.push(input);
                        part.add_source(name, self.whole.outlet_fact(self.place(input)?)?.clone())?
                    }
                };
                local.insert(input, inner);
            }
            let inputs: Vec<OutletId> = node.inputs.iter().map(|input| local[input]).collect();
            let outlets = part.wire_node(node.name.clone(), node.op.clone(), &inputs)?;
            for (slot, outlet) in outlets.into_iter().enumerate() {
                local.insert(OutletId::new(id, slot), outlet);
                made.insert(OutletId::new(id, slot));
            }
        }
        let mut seen = HashSet::new();
        let outputs: Vec<OutletId> =
            model.outputs.iter().copied().filter(|outlet| made.contains(outlet) && seen.insert(*outlet)).collect();
        part.select_output_outlets(&outputs.iter().map(|outlet| local[outlet]).collect::<Vec<_>>())?;
        self.join(kernels::optimized(part, kernels)?, &read, &outputs)
    }

    /// Adds an optimized piece. Its inputs are the tensors `read` of the model, its outputs the tensors `outputs`.
    fn join(&mut self, part: TypedModel, read: &[OutletId], outputs: &[OutletId]) -> Result<()> {
        ensure!(part.inputs.len() == read.len() && part.outputs.len() == outputs.len(), "the engine lost a tensor");
        let mut local: HashMap<OutletId, OutletId> = HashMap::new();
        for (&inner, &outer) in part.inputs.iter().zip(read) {
            local.insert(inner, self.place(outer)?);
        }
        for id in part.eval_order()? {
            let node = part.node(id);
            if node.op_is::<TypedSource>() {
                continue;
            }
            let name = self.fresh(&node.name);
            let facts = node.outputs.iter().map(|output| output.fact.clone()).collect();
            let added = self.whole.add_node(name, node.op.clone(), facts)?;
            for (slot, input) in node.inputs.iter().enumerate() {
                let place = local.get(input).copied().context("the engine lost a tensor of the graph")?;
                self.whole.add_edge(place, InletId::new(added, slot))?;
            }
            local.extend((0..node.outputs.len()).map(|slot| (OutletId::new(id, slot), OutletId::new(added, slot))));
        }
        for (&inner, &outer) in part.outputs.iter().zip(outputs) {
            let place = local.get(&inner).copied().context("the engine lost an output of the graph")?;
            self.places.insert(outer, place);
        }
        Ok(())
    }
}

//! Products that take integers themselves, in place of a MatMul or a Gemm by a constant matrix.
//!
//! In: a weight and the uses of it. Out: what is stored of it, and the nodes that take a product's place; the last of them
//! makes its output. Uses that are no such product are left to the caller.
//!
//! Sources: ONNX Runtime, `docs/ContribOperators.md` (`com.microsoft.MatMulNBits`); ONNX, `DynamicQuantizeLinear` and
//! `MatMulInteger`, in the order that ONNX Runtime's `matmul_integer_to_float.cc` and `dynamic_quantize_matmul_fusion.cc` fuse.

use super::{Writer, integers};
use crate::onnx::graph::Edge;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::tensor::{self, DataType};
use crate::plan::PlannedWeight;
use crate::scheme::{NbitsOptions, WeightStorage};
use anyhow::Result;

/// The domain of ONNX Runtime's own operators.
pub(super) const CONTRIB: &str = "com.microsoft";

/// What is stored for a product, by the names of the initializers.
#[derive(Clone)]
pub(super) enum StoredProduct {
    /// `MatMulNBits`: the inputs behind the first, and the attributes.
    Nbits { inputs: Vec<String>, attributes: Vec<(&'static str, i64)> },
    /// `MatMulInteger`: the integers, their scale, and their zero point where it is not 0.
    Dynamic { weight: String, scale: String, zero_point: Option<String> },
}

/// A weight as the matrix `[k, n]` that it is multiplied as.
#[derive(Clone, Copy, PartialEq)]
struct WeightMatrix {
    k: usize,
    n: usize,
    /// Whether it is stored as `[n, k]`.
    transposed: bool,
}

impl WeightMatrix {
    /// The weight of `shape` at an input of `node`; `None` where that is no plain product with it on the right.
    fn of(node: &NodeProto, input_idx: usize, shape: &[usize]) -> Option<WeightMatrix> {
        let &[a, b] = shape else { return None };
        let transposed = match (node.op_type(), input_idx) {
            ("MatMul", 1) => false,
            ("Gemm", 1) if node::int(node, "transA", 0) == 0 && !node::is_scaled(node) => {
                node::int(node, "transB", 0) != 0
            }
            _ => return None,
        };
        let (k, n) = if transposed { (b, a) } else { (a, b) };
        Some(WeightMatrix { k, n, transposed })
    }

    /// Where the tensor holds row `k` of column `n`.
    fn at(&self, k: usize, n: usize) -> usize {
        if self.transposed { n * self.k + k } else { k * self.n + n }
    }
}

impl Writer {
    /// Stores `planned` for the products that read it; gives the uses that are none.
    pub(super) fn products(
        &mut self,
        graph: &GraphProto,
        planned: &PlannedWeight,
        storage: WeightStorage,
    ) -> Result<Vec<Edge>> {
        let mut stored: Vec<(WeightMatrix, StoredProduct)> = Vec::new();
        let mut others = Vec::new();
        for &(node_idx, input_idx) in &planned.quantizer.edges {
            let Some(matrix) = WeightMatrix::of(&graph.node[node_idx], input_idx, &planned.shape) else {
                others.push((node_idx, input_idx));
                continue;
            };
            // One weight may be read both ways round.
            let known = stored.iter().position(|(other, _)| *other == matrix);
            let known = match (known, storage) {
                (Some(known), _) => known,
                (None, WeightStorage::Nbits { nbits }) => {
                    stored.push((matrix, self.blocks(planned, matrix, nbits)?));
                    stored.len() - 1
                }
                (None, _) => {
                    stored.push((matrix, self.columns(planned, matrix)?));
                    stored.len() - 1
                }
            };
            self.products.insert(node_idx, stored[known].1.clone());
        }
        Ok(others)
    }

    /// Codes from 0 up in blocks along `k`, one row per column: `[n, blocks, bytes]`.
    fn blocks(
        &mut self,
        planned: &PlannedWeight,
        matrix: WeightMatrix,
        options: NbitsOptions,
    ) -> Result<StoredProduct> {
        let (tensor, WeightMatrix { k, n, .. }) = (&planned.quantizer.tensor, matrix);
        let block = planned.quantizer.block.unwrap_or(k).max(1);
        let (bits, n_blocks) = (planned.qtype.bits, k.div_ceil(block));
        let middle = 1i32 << (bits - 1);
        let offset = if planned.qtype.signed { middle } else { 0 };
        let scale_of = planned.scale_of_value();
        let params_of = |column: usize, at: usize| planned.params[scale_of(matrix.at(at * block, column))];
        let (mut codes, mut scales, mut zero_points) = (Vec::new(), Vec::new(), Vec::new());
        for column in 0..n {
            let mut zeros = Vec::with_capacity(n_blocks);
            for at in 0..n_blocks {
                let params = params_of(column, at);
                let zero = params.zero_point + offset;
                let stored = (at * block..k.min((at + 1) * block)).map(|row| {
                    let q = planned.integers[matrix.at(row, column)];
                    q + offset
                });
                // What fills up the last block stands for 0.
                let filled: Vec<i32> = stored.chain(std::iter::repeat(zero)).take(block).collect();
                codes.extend(packed(&filled, bits));
                scales.push(params.scale);
                zeros.push(zero);
            }
            zero_points.push(zeros);
        }
        let name = self.names.fresh(&format!("{tensor}_blocks"));
        let bytes = block * usize::from(bits) / 8;
        self.initializers.push(tensor::from_integers(&name, DataType::Uint8, &[n, n_blocks, bytes], &codes)?);
        let scale = self.names.fresh(&format!("{tensor}_scale"));
        self.initializers.push(tensor::from_f32(&scale, &[n, n_blocks], &scales)?);
        let mut inputs = vec![name, scale];
        // Without zero points that is the middle of the codes.
        if zero_points.iter().flatten().any(|&zero| zero != middle) {
            let name = self.names.fresh(&format!("{tensor}_zero_point"));
            let rows: Vec<i32> = zero_points.iter().flat_map(|row| packed(row, bits)).collect();
            self.initializers.push(tensor::from_integers(&name, DataType::Uint8, &[n, rows.len() / n], &rows)?);
            inputs.push(name);
        }
        let mut attributes =
            vec![("K", k as i64), ("N", n as i64), ("bits", i64::from(bits)), ("block_size", block as i64)];
        // Other runtimes than ONNX Runtime's CPU provider may not know it.
        let accuracy_level = options.accuracy_level;
        attributes.extend((accuracy_level > 0).then_some(("accuracy_level", i64::from(accuracy_level))));
        Ok(StoredProduct::Nbits { inputs, attributes })
    }

    /// The integers as `[k, n]`.
    fn columns(&mut self, planned: &PlannedWeight, matrix: WeightMatrix) -> Result<StoredProduct> {
        let (tensor, WeightMatrix { k, n, .. }) = (&planned.quantizer.tensor, matrix);
        let rows = (0..k).flat_map(|row| (0..n).map(move |column| matrix.at(row, column)));
        let values: Vec<i32> = rows.map(|at| planned.integers[at]).collect();
        let weight = self.names.fresh(&format!("{tensor}_QuantizeLinear"));
        self.initializers.push(integers(&weight, &[k, n], &values, &planned.qtype)?);
        let (scale, zero_point) = self.parameters(tensor, &planned.params, &planned.scale_shape(), &planned.qtype)?;
        Ok(StoredProduct::Dynamic { weight, scale, zero_point: Some(zero_point) })
    }

    /// The nodes in place of `node`, whose inputs and outputs have their final names.
    pub(super) fn nodes_of(&mut self, product: StoredProduct, node: &NodeProto) -> Vec<NodeProto> {
        let name = |i: usize| node.input.get(i).cloned().unwrap_or_default();
        let (x, bias, output) = (name(0), name(2), node.output[0].clone());
        let mut nodes = Vec::new();
        let sum = if bias.is_empty() { output.clone() } else { self.names.fresh(&format!("{output}_product")) };
        match product {
            StoredProduct::Nbits { inputs, attributes } => {
                let inputs: Vec<&str> = std::iter::once(&x).chain(&inputs).map(String::as_str).collect();
                let mut product = node::make("MatMulNBits", node.name(), &inputs, &sum);
                product.domain = Some(CONTRIB.into());
                attributes.iter().for_each(|&(name, value)| node::set_int(&mut product, name, value));
                nodes.push(product);
            }
            StoredProduct::Dynamic { weight, scale, zero_point } => {
                let [quantized, x_scale, x_zero_point] = self.dynamic_input(&x, &mut nodes);
                let mut fresh = |what: &str| self.names.fresh(&format!("{output}_{what}"));
                let (accumulated, float, scales) = (fresh("MatMulInteger"), fresh("Cast"), fresh("scale"));
                let zero_point = zero_point.unwrap_or_default();
                let mut inputs = vec![&quantized[..], &weight, &x_zero_point, &zero_point];
                inputs.truncate(if zero_point.is_empty() { 3 } else { 4 });
                nodes.push(node::make("MatMulInteger", node.name(), &inputs, &accumulated));
                let mut cast = node::make("Cast", &float, &[&accumulated], &float);
                node::set_int(&mut cast, "to", DataType::Float as i64);
                nodes.push(cast);
                nodes.push(node::make("Mul", &scales, &[&x_scale, &scale], &scales));
                nodes.push(node::make("Mul", &fresh("Mul"), &[&float, &scales], &sum));
            }
        }
        if !bias.is_empty() {
            let name = self.names.fresh(&format!("{output}_Add"));
            nodes.push(node::make("Add", &name, &[&sum, &bias], &output));
        }
        nodes
    }

    /// Integers, scale and zero point of `x` in each run: one DynamicQuantizeLinear for all its readers.
    fn dynamic_input(&mut self, x: &str, nodes: &mut Vec<NodeProto>) -> [String; 3] {
        if let Some(names) = self.dynamic_inputs.get(x) {
            return names.clone();
        }
        let names =
            ["DynamicQuantizeLinear", "scale", "zero_point"].map(|what| self.names.fresh(&format!("{x}_{what}")));
        let mut quantize = node::make("DynamicQuantizeLinear", &names[0], &[x], &names[0]);
        quantize.output.extend_from_slice(&names[1..]);
        nodes.push(quantize);
        self.dynamic_inputs.insert(x.to_string(), names.clone());
        names
    }
}

/// Codes of 4 bits two to a byte, the first in the low half; of 8 bits as they are.
fn packed(codes: &[i32], bits: u8) -> Vec<i32> {
    match bits {
        4 => codes.chunks(2).map(|pair| pair.iter().rev().fold(0, |byte, code| byte << 4 | code & 0xf)).collect(),
        _ => codes.to_vec(),
    }
}

//! Integer products that replace a MatMul or a Gemm with a constant matrix: MatMulNBits, and MatMulInteger after a
//! DynamicQuantizeLinear.
//!
//! In: a weight and its uses. Out: the initializers of the integer product, and the nodes that replace the MatMul or
//! Gemm. The last node produces the output of the replaced node. Other uses of the weight are left to the caller.
//!
//! Sources: ONNX Runtime, `docs/ContribOperators.md` (`com.microsoft.MatMulNBits`); ONNX, `DynamicQuantizeLinear` and
//! `MatMulInteger`, in the order that ONNX Runtime's `matmul_integer_to_float.cc` and
//! `dynamic_quantize_matmul_fusion.cc` fuse.

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

/// Names of a weight's initializers for an integer product.
#[derive(Clone)]
pub(super) enum StoredProduct {
    /// `MatMulNBits`: the inputs after the first, and the attributes.
    Nbits { inputs: Vec<String>, attributes: Vec<(&'static str, i64)> },
    /// `MatMulInteger`: the integers, their scale and their zero point.
    Dynamic { weight: String, scale: String, zero_point: String },
}

/// A weight as the matrix `[k, n]` that a layer multiplies by.
#[derive(Clone, Copy, PartialEq)]
struct WeightMatrix {
    k: usize,
    n: usize,
    /// Whether the tensor is stored as `[n, k]`.
    transposed: bool,
}

impl WeightMatrix {
    /// Returns the weight at an input of `node` as a matrix; `None` where no integer product can replace the node.
    fn of(node: &NodeProto, input_idx: usize, planned: &PlannedWeight, storage: WeightStorage) -> Option<WeightMatrix> {
        let transposed = match (node.op_type(), input_idx) {
            ("MatMul", 1) => false,
            ("Gemm", 1) if node::int(node, "transA", 0) == 0 && !node::is_scaled(node) => {
                node::int(node, "transB", 0) != 0
            }
            _ => return None,
        };
        let &[ref batch @ .., a, b] = &planned.shape[..] else { return None };
        let (k, n) = if transposed { (b, a) } else { (a, b) };
        let (axis, n_scales) = (planned.quantizer.axis, planned.params.len());
        let fits = match storage {
            WeightStorage::Nbits { .. } => batch.is_empty() && axis == Some(usize::from(transposed)),
            // ONNX Runtime's kernel fails on per-channel scales of a stack of matrices (onnxruntime issue 25489).
            WeightStorage::Dynamic => n_scales == 1 || batch.is_empty() && axis == Some(usize::from(!transposed)),
            WeightStorage::Integer | WeightStorage::Float => false,
        };
        (fits && n_scales > 0 && k > 0 && n > 0).then_some(WeightMatrix { k, n, transposed })
    }

    /// Returns the index of row `k`, column `n` in the stored tensor.
    fn at(&self, k: usize, n: usize) -> usize {
        if self.transposed { n * self.k + k } else { k * self.n + n }
    }
}

impl Writer {
    /// Adds the initializers of integer products with the weight `planned`. Returns the uses that no product replaces.
    pub(super) fn products(
        &mut self,
        graph: &GraphProto,
        planned: &PlannedWeight,
        storage: WeightStorage,
    ) -> Result<Vec<Edge>> {
        let mut stored: Vec<(WeightMatrix, StoredProduct)> = Vec::new();
        let mut others = Vec::new();
        for &(node_idx, input_idx) in &planned.quantizer.edges {
            let Some(matrix) = WeightMatrix::of(&graph.node[node_idx], input_idx, planned, storage) else {
                others.push((node_idx, input_idx));
                continue;
            };
            // A MatMul and a Gemm may read one weight with different orientations.
            let product = match (stored.iter().find(|(other, _)| *other == matrix), storage) {
                (Some((_, product)), _) => product.clone(),
                (None, WeightStorage::Nbits { nbits }) => self.blocks(planned, matrix, nbits)?,
                (None, _) => self.columns(planned, matrix)?,
            };
            stored.push((matrix, product.clone()));
            self.products.insert(node_idx, product);
        }
        Ok(others)
    }

    /// Adds the initializers of a MatMulNBits: codes from 0 on, `[n, blocks, bytes]`; scales, `[n, blocks]`; zero
    /// points, `[n, bytes]`, unless all are the middle code.
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
        let (mut codes, mut scales, mut zero_points) = (Vec::new(), Vec::new(), Vec::new());
        for column in 0..n {
            let mut of_column = Vec::with_capacity(n_blocks);
            for first in (0..k).step_by(block) {
                let params = planned.params[scale_of(matrix.at(first, column))];
                let zero = params.zero_point + offset;
                let rows = first..k.min(first + block);
                let stored = rows.map(|row| planned.integers.at(matrix.at(row, column)) + offset);
                // The last block is padded with the code of 0.
                let filled: Vec<i32> = stored.chain(std::iter::repeat(zero)).take(block).collect();
                codes.extend(packed(&filled, bits));
                scales.push(params.scale);
                of_column.push(zero);
            }
            zero_points.push(of_column);
        }
        let mut fresh = |what: &str| self.names.fresh(&format!("{tensor}_{what}"));
        let (blocks, scale) = (fresh("blocks"), fresh("scale"));
        let bytes = block * usize::from(bits) / 8;
        self.initializers.push(tensor::from_integers(&blocks, DataType::Uint8, &[n, n_blocks, bytes], &codes)?);
        self.initializers.push(tensor::from_f32(&scale, &[n, n_blocks], &scales)?);
        let mut inputs = vec![blocks, scale];
        // Without zero points the middle code stands for 0.
        if zero_points.iter().flatten().any(|&zero| zero != middle) {
            let name = self.names.fresh(&format!("{tensor}_zero_point"));
            let rows: Vec<i32> = zero_points.iter().flat_map(|row| packed(row, bits)).collect();
            self.initializers.push(tensor::from_integers(&name, DataType::Uint8, &[n, rows.len() / n], &rows)?);
            inputs.push(name);
        }
        let mut attributes =
            vec![("K", k as i64), ("N", n as i64), ("bits", i64::from(bits)), ("block_size", block as i64)];
        // Some execution providers do not know the attribute.
        let level = i64::from(options.accuracy_level);
        attributes.extend((level > 0).then_some(("accuracy_level", level)));
        Ok(StoredProduct::Nbits { inputs, attributes })
    }

    /// Adds the initializers of a MatMulInteger: the integers `[…, k, n]`, their scale and their zero point.
    fn columns(&mut self, planned: &PlannedWeight, matrix: WeightMatrix) -> Result<StoredProduct> {
        let (tensor, WeightMatrix { k, n, transposed }) = (&planned.quantizer.tensor, matrix);
        let weight = self.names.fresh(&format!("{tensor}_QuantizeLinear"));
        let stored = match transposed {
            false => integers(&weight, &planned.shape, &planned.integers.iter().collect::<Vec<i32>>(), &planned.qtype)?,
            true => {
                let at = (0..k).flat_map(|row| (0..n).map(move |column| matrix.at(row, column)));
                let values: Vec<i32> = at.map(|at| planned.integers.at(at)).collect();
                integers(&weight, &[k, n], &values, &planned.qtype)?
            }
        };
        self.initializers.push(stored);
        let (scale, zero_point) = self.parameters(tensor, &planned.params, &planned.scale_shape(), &planned.qtype)?;
        Ok(StoredProduct::Dynamic { weight, scale, zero_point })
    }

    /// Returns the nodes that replace `node`, whose inputs and outputs have their final names.
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
                let inputs = [&quantized[..], &weight, &x_zero_point, &zero_point];
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

    /// Returns the names of the integers, scale and zero point of `x`. All products of `x` share one
    /// DynamicQuantizeLinear, which the first call adds to `nodes`.
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

/// Packs 4-bit codes two to a byte, the first in the low half. Returns 8-bit codes unchanged.
fn packed(codes: &[i32], bits: u8) -> Vec<i32> {
    match bits {
        4 => codes.chunks(2).map(|pair| pair.iter().rev().fold(0, |byte, code| byte << 4 | code & 0xf)).collect(),
        _ => codes.to_vec(),
    }
}

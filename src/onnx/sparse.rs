//! Makes sparse tensors dense, as later stages read dense tensors only.

use super::data_type::{element_bytes, type_name};
use super::proto::{GraphProto, ModelProto, SparseTensorProto, TensorProto};
use super::tensor;
use super::valid::check_sparse;
use anyhow::{Context, Result, anyhow, ensure};
use prost::Message;

/// Maximum size of a sparse tensor once it is dense, in bytes.
const MAX_BYTES: usize = 1 << 30;

/// Replaces sparse initializers and sparse values of Constant nodes by dense ones. Fails if an index is outside of the
/// shape, or a dense tensor is too large; the message names the tensor or the node.
pub fn fill_in(model: &mut ModelProto) -> Result<()> {
    model.graph.as_mut().map_or(Ok(()), of_graph)
}

fn of_graph(graph: &mut GraphProto) -> Result<()> {
    for sparse in std::mem::take(&mut graph.sparse_initializer) {
        let name = sparse.values.as_ref().map_or("", |values| values.name());
        let tensor = full(&sparse).with_context(|| format!("sparse tensor `{name}`"))?;
        graph.initializer.push(tensor);
    }
    for node in &mut graph.node {
        let is_constant = node.op_type() == "Constant";
        for attribute in &mut node.attribute {
            if let (true, "sparse_value", Some(bytes)) = (is_constant, attribute.name(), &attribute.sparse_tensor) {
                let sparse = SparseTensorProto::decode(bytes.clone()).ok().context("is not a sparse tensor");
                let tensor = sparse.and_then(|sparse| full(&sparse));
                const TENSOR: i32 = 4;
                attribute.t = Some(tensor.with_context(|| {
                    format!("sparse tensor of node `{}`", node.name.as_deref().unwrap_or_default())
                })?);
                (attribute.name, attribute.r#type, attribute.sparse_tensor) =
                    (Some("value".to_string()), Some(TENSOR), None);
            }
            attribute.g.iter_mut().chain(&mut attribute.graphs).try_for_each(of_graph)?;
        }
    }
    Ok(())
}

fn full(sparse: &SparseTensorProto) -> Result<TensorProto> {
    check_sparse(sparse)?;
    let values = sparse.values.as_ref().context("has no values")?;
    let dims: Vec<usize> = sparse.dims.iter().map(|&dim| dim as usize).collect();
    let n_places: usize = dims.iter().product();
    let size = element_bytes(values.data_type());
    let size = size.with_context(|| {
        format!("has the element type {}, expected a numeric type of whole bytes", type_name(values.data_type()))
    })?;
    let n_bytes = n_places.checked_mul(size).filter(|&n| n <= MAX_BYTES);
    let n_bytes = n_bytes.with_context(|| {
        format!("has the shape {dims:?}, expected one that takes at most {MAX_BYTES} bytes when dense")
    })?;
    let (found, mut raw) = (tensor::raw_bytes(values)?, vec![0u8; n_bytes]);
    let indices = sparse.indices.as_ref().map_or(Ok(Vec::new()), tensor::i64_values)?;
    let n_values = found.len() / size;
    let rank = if indices.len() == n_values { 1 } else { dims.len() };
    ensure!(
        indices.len() == n_values * rank,
        anyhow!(
            "has {} indices for {n_values} values, expected one index, or one per axis, for each value",
            indices.len()
        )
    );
    for (index, value) in indices.chunks(rank.max(1)).zip(found.chunks(size)) {
        let place = match index {
            [place] if rank == 1 => *place as usize,
            _ => index.iter().zip(&dims).fold(0, |place, (&i, &dim)| place * dim + i as usize),
        };
        raw.get_mut(place * size..(place + 1) * size).context("an index is outside the shape")?.copy_from_slice(value);
    }
    Ok(TensorProto {
        name: values.name.clone(),
        data_type: values.data_type,
        dims: sparse.dims.clone(),
        raw_data: Some(raw.into()),
        ..TensorProto::default()
    })
}

//! Shapes of open inputs, from the first array of the data.

use super::npy::{Archive, Stored};
use super::pb;
use super::sources::{self, Found, test_input_idx};
use crate::onnx::inputs::{OpenInput, Shapes};
use crate::onnx::tensor;
use anyhow::Result;
use std::path::Path;

/// Adds a shape for each of the `open` inputs of a model with `n_inputs` inputs: that of the first array in `sources` that
/// can be read and fits. [`Dataset::open`](super::Dataset::open) reports files that cannot be read.
pub fn add_shapes(sources: &[String], open: &[OpenInput], n_inputs: usize, shapes: &mut Shapes) {
    for source in sources {
        let mut visit = |found| {
            let Found::Arrays(path) = found else { return };
            for input in open.iter().filter(|input| !shapes.contains_key(&input.name)).collect::<Vec<_>>() {
                let shape = array_shape(&path, input, n_inputs).ok().flatten();
                let fitted = shape.and_then(|shape| fit(&shape, &input.dims));
                shapes.extend(fitted.map(|shape| (input.name.clone(), shape)));
            }
        };
        _ = sources::expand(source, n_inputs, &mut visit);
    }
}

/// The shape of an input's array in a file, or in a folder of `.pb` files.
fn array_shape(path: &Path, input: &OpenInput, n_inputs: usize) -> Result<Option<Vec<usize>>> {
    if path.is_dir() {
        for file in sources::pb_files(path)? {
            let (message, _) = pb::read(&file)?;
            let is_named = message.name() == input.name;
            if is_named || message.name().is_empty() && test_input_idx(&file) == Some(input.position) {
                return tensor::shape(&message).map(Some);
            }
        }
        return Ok(None);
    }
    match sources::extension(path).as_str() {
        "npz" => {
            let mut archive = Archive::open(path)?;
            let name = archive.name_for(&input.name, n_inputs == 1).map(str::to_string);
            name.map(|name| Ok(archive.member(&name)?.header.shape)).transpose()
        }
        "pb" => tensor::shape(&pb::read(path)?.0).map(Some),
        _ => Ok(Some(Stored::open(path)?.header.shape)),
    }
}

/// The shape of one sample of an array: without an axis of samples, with a batch axis of 1 where the model leaves it open.
fn fit(array: &[usize], dims: &[Option<usize>]) -> Option<Vec<usize>> {
    let sample: Vec<usize> = match array.len() {
        n if n == dims.len() => [&[dims.first().copied().flatten().unwrap_or(1)], array.get(1..)?].concat(),
        n if n == dims.len() + 1 => array[1..].to_vec(),
        n if n + 1 == dims.len() => [&[1], array].concat(),
        _ => return None,
    };
    let fits = sample.iter().zip(dims).all(|(n, dim)| dim.is_none_or(|dim| dim == *n));
    fits.then_some(sample)
}

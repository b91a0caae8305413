//! Inputs of a model, with fixed shapes.

use super::proto::{Dimension, GraphProto, ModelProto, TensorShapeProto, ValueInfoProto};
use crate::diag::{WithHint, none_of};
use anyhow::{Context, Error, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Shapes by input name, for inputs with open dimensions.
pub type Shapes = BTreeMap<String, Vec<usize>>;

/// Shapes of one sample, one per input, in the order of the inputs.
pub type InputShapes = Vec<Vec<usize>>;

/// The range of an input's shapes over the samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShapeRange {
    /// Number of different shapes.
    pub n_shapes: usize,
    /// The shape with the fewest elements.
    pub smallest: Vec<usize>,
    /// The shape with the most elements.
    pub largest: Vec<usize>,
}

/// An input of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSpec {
    /// ONNX name.
    pub name: String,
    /// Dimensions, outermost first, all fixed. If samples differ in shape, they are the dimensions of the largest
    /// sample.
    pub shape: Vec<usize>,
    /// Element type, as its number in `TensorProto.DataType`.
    pub data_type: i32,
    /// One entry per axis. An axis along which samples may differ has the name of its dimension, or an empty name. A
    /// fixed axis and the batch axis have `None`, or no entry.
    pub open: Vec<Option<String>>,
}

impl InputSpec {
    /// Whether samples may differ along `axis`.
    pub fn is_open(&self, axis: usize) -> bool {
        matches!(self.open.get(axis), Some(Some(_)))
    }

    /// Whether samples may have different shapes.
    pub fn has_open(&self) -> bool {
        self.open.iter().any(Option::is_some)
    }

    /// Whether a sample may have this shape.
    pub fn accepts(&self, shape: &[usize]) -> bool {
        let fits = |(axis, (&found, &expected)): (usize, (&usize, &usize))| {
            found == expected || found > 0 && self.is_open(axis)
        };
        shape.len() == self.shape.len() && shape.iter().zip(&self.shape).enumerate().all(fits)
    }

    /// Returns the shape that a sample must have as text, such as `[1, ?, 64]`. A `?` is an open axis.
    pub fn expected(&self) -> String {
        let dim = |(axis, &n): (usize, &usize)| if self.is_open(axis) { None } else { Some(n) };
        show_dims(&self.shape.iter().enumerate().map(dim).collect::<Vec<_>>())
    }
}

/// The error that an input has no fixed shape. `--shape` or samples can give one.
#[derive(Debug)]
pub struct OpenShape(String);

impl fmt::Display for OpenShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenShape {}

/// Fixes all axes of the inputs that `given` has a shape for, and every axis of another input with the same dimension
/// name.
pub fn close_given(inputs: &mut [InputSpec], given: &Shapes) {
    let is_given = |input: &&InputSpec| given.contains_key(&input.name);
    let named = inputs.iter().filter(is_given).flat_map(|input| input.open.iter().flatten());
    let fixed: BTreeSet<String> = named.filter(|name| !name.is_empty()).cloned().collect();
    for input in inputs {
        let all = given.contains_key(&input.name);
        let open = input.open.iter_mut();
        open.filter(|open| all || open.as_ref().is_some_and(|name| fixed.contains(name))).for_each(|open| *open = None);
    }
}

/// Returns the inputs of `model` with fixed shapes, from `shapes` or else from the model. In a shape from the model, a
/// named dimension gets the number that `shapes` gives to its name, and an open first dimension is 1. Initializers that
/// are also inputs are left out.
///
/// # Errors
/// If an input has no shape or another open dimension (an [`OpenShape`]), a dimension is 0, `shapes` contradicts the
/// model or names no input of it, or an input is not a tensor.
pub fn resolve_inputs(model: &ModelProto, shapes: &Shapes) -> Result<Vec<InputSpec>> {
    let graph = model.graph()?;
    for name in shapes.keys() {
        let mut known = inputs_of(graph).map(ValueInfoProto::name);
        let is_known = known.any(|input| input == name);
        let known = inputs_of(graph).map(ValueInfoProto::name);
        ensure!(is_known, none_of(format_args!("--shape: the model has no input `{name}`"), name, known));
    }
    let bound = bound_symbols(graph, shapes);
    let mut inputs = Vec::new();
    for value in inputs_of(graph) {
        let name = value.name();
        let tensor = value.tensor_type().with_context(|| format!("input `{name}` is not a tensor"))?;
        let given = shapes.get(name);
        let none_bound = BTreeMap::new();
        let declared = declared_dims(value, if given.is_some() { &none_bound } else { &bound });
        let shape = match (given, declared) {
            (Some(given), Some(declared)) => {
                let fits = given.len() == declared.len()
                    && given.iter().zip(&declared).all(|(g, d)| d.is_none_or(|d| d == *g));
                let declared = show_dims(&declared);
                ensure!(
                    fits,
                    anyhow!("input `{name}`: --shape gives {given:?}, expected {declared}")
                        .hint("--shape gives numbers to open dimensions, and cannot change fixed ones")
                );
                given.clone()
            }
            (Some(given), None) => given.clone(),
            (None, None) => {
                return Err(Error::new(OpenShape(format!("input `{name}` has no shape")))
                    .hint(format!("give one, for instance --shape {name}=1x3x224x224")));
            }
            (None, Some(declared)) => {
                let concrete: Option<Vec<usize>> =
                    declared.iter().enumerate().map(|(axis, dim)| dim.or((axis == 0).then_some(1))).collect();
                concrete.ok_or_else(|| {
                    let found = show_dims(&declared);
                    let text = format!("input `{name}` has the shape {found}, expected fixed dimensions");
                    let open = open_inputs(graph, shapes).0.into_iter();
                    let examples: Vec<String> = open.map(|open| open.example()).collect();
                    Error::new(OpenShape(text)).hint(format!("fix them, for instance {}", examples.join(" ")))
                })?
            }
        };
        if let Some(axis) = shape.iter().position(|&n| n == 0) {
            let text = format!("input `{name}` has the shape {shape:?}: axis {axis} has no values, expected 1 or more");
            return Err(Error::msg(text).hint("export the dimension as open (-1 or a name), or with its size"));
        }
        inputs.push(InputSpec { name: name.into(), shape, data_type: tensor.elem_type(), open: open_axes(value) });
    }
    Ok(inputs)
}

/// An input with an open dimension, which [`resolve_inputs`] accepts only if a shape is given.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenInput {
    /// ONNX name.
    pub name: String,
    /// Position among the inputs of the model.
    pub position: usize,
    /// Dimensions, outermost first; `None` for an open one.
    pub dims: Vec<Option<usize>>,
}

impl OpenInput {
    /// Returns the option that gives the input a shape, such as `--shape x=1x3x224x224`.
    fn example(&self) -> String {
        let length = if self.dims.len() == 4 { 224 } else { 128 };
        let dim = |(axis, dim): (usize, &Option<usize>)| dim.unwrap_or(if axis == 0 { 1 } else { length });
        let dims: Vec<String> = self.dims.iter().enumerate().map(|it| dim(it).to_string()).collect();
        format!("--shape {}={}", self.name, dims.join("x"))
    }
}

/// Returns the inputs of `graph` that need a shape and have none in `shapes`, and the number of all inputs.
pub fn open_inputs(graph: &GraphProto, shapes: &Shapes) -> (Vec<OpenInput>, usize) {
    let bound = bound_symbols(graph, shapes);
    let open = |(position, value): (usize, &ValueInfoProto)| {
        let dims = declared_dims(value, &bound).filter(|_| !shapes.contains_key(value.name()))?;
        let is_open = dims.iter().skip(1).any(Option::is_none);
        is_open.then(|| OpenInput { name: value.name().to_string(), position, dims })
    };
    (inputs_of(graph).enumerate().filter_map(open).collect(), inputs_of(graph).count())
}

/// Returns the inputs of `graph` that are not initializers.
pub fn inputs_of(graph: &GraphProto) -> impl Iterator<Item = &ValueInfoProto> {
    let is_constant = |value: &&ValueInfoProto| graph.initializer.iter().any(|tensor| tensor.name == value.name);
    graph.input.iter().filter(move |value| !is_constant(value))
}

/// Returns the open axes of an input in the form of [`InputSpec::open`]. The first axis, the batch axis, never counts
/// as open.
fn open_axes(value: &ValueInfoProto) -> Vec<Option<String>> {
    let shape = value.tensor_type().and_then(|tensor| tensor.shape.as_ref());
    let open = |(axis, dim): (usize, &Dimension)| (axis > 0 && is_open(dim)).then(|| dim.dim_param().to_string());
    shape.map(|shape| shape.dim.iter().enumerate().map(open).collect()).unwrap_or_default()
}

/// Whether a dimension has no number, or a negative one.
pub fn is_open(dim: &Dimension) -> bool {
    dim.dim_value.is_none_or(|n| n < 0)
}

/// Returns a shape as text, such as `[N, 3, ?]`. An open dimension is its name, or `?`.
pub fn shape_text(shape: &TensorShapeProto) -> String {
    let dim = |dim: &Dimension| match dim.dim_value {
        Some(n) if n >= 0 => n.to_string(),
        _ if dim.dim_param().is_empty() => "?".to_string(),
        _ => dim.dim_param().to_string(),
    };
    format!("[{}]", shape.dim.iter().map(dim).collect::<Vec<_>>().join(", "))
}

/// Whether an input has two or more dimensions and the first is open.
pub fn has_open_batch(value: &ValueInfoProto) -> bool {
    let shape = value.tensor_type().and_then(|tensor| tensor.shape.as_ref());
    shape.is_some_and(|shape| shape.dim.len() > 1 && is_open(&shape.dim[0]))
}

/// Whether an input of two dimensions or more has a batch of 1.
pub fn has_batch_of_one(value: &ValueInfoProto) -> bool {
    declared_dims(value, &BTreeMap::new()).is_some_and(|dims| dims.len() > 1 && dims[0] == Some(1))
}

/// Returns the declared dimensions of an input, with the numbers in `bound` for named dimensions; `None` if the input
/// has no shape.
fn declared_dims(value: &ValueInfoProto, bound: &BTreeMap<&str, usize>) -> Option<Vec<Option<usize>>> {
    let number = |dim: &Dimension| dim.dim_value.filter(|&n| n >= 0).map(|n| n as usize);
    let symbol = |dim: &Dimension| bound.get(dim.dim_param()).copied();
    let shape = value.tensor_type()?.shape.as_ref()?;
    Some(shape.dim.iter().map(|dim| number(dim).or_else(|| symbol(dim))).collect())
}

/// Returns the numbers of the named dimensions of inputs that `shapes` has a shape for.
fn bound_symbols<'a>(graph: &'a GraphProto, shapes: &Shapes) -> BTreeMap<&'a str, usize> {
    let mut bound = BTreeMap::new();
    for value in &graph.input {
        let declared = value.tensor_type().and_then(|tensor| tensor.shape.as_ref());
        let (Some(given), Some(declared)) = (shapes.get(value.name()), declared) else { continue };
        let named = declared.dim.iter().zip(given).filter(|(dim, _)| !dim.dim_param().is_empty());
        bound.extend(named.map(|(dim, &n)| (dim.dim_param(), n)));
    }
    bound
}

fn show_dims(dims: &[Option<usize>]) -> String {
    let dims: Vec<String> = dims.iter().map(|dim| dim.map_or("?".into(), |dim| dim.to_string())).collect();
    format!("[{}]", dims.join(", "))
}

//! Requirements of ONNX's checker on a model that can be checked without shapes.
//!
//! Sources: `onnx/checker.cc` and `OpSchema::Verify`; `operators.txt` has the signatures.

use super::data_type;
use super::node::{attribute, node_name, plain_domain, shown_domain};
use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto};
use super::tensor;
use super::value_info::ValueInfos;
use crate::diag::{WithHint, count, did_you_mean};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// The signature of an operator, as of one version of the operator set.
struct Operator<'a> {
    since: i64,
    inputs: [usize; 2],
    outputs: [usize; 2],
    is_deprecated: bool,
    /// Name and type of each attribute, and whether it is required.
    attributes: Vec<(&'a str, i32, bool)>,
}

/// The last version of the operator set that `operators.txt` knows.
pub const LAST_OPSET: i64 = 28;

/// The signatures of each operator of the default domain, oldest first.
static OPERATORS: LazyLock<BTreeMap<&str, Vec<Operator>>> = LazyLock::new(|| {
    let mut operators: BTreeMap<&str, Vec<Operator>> = BTreeMap::new();
    for line in include_str!("operators.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(usize::MAX);
        let (since, inputs, outputs) = (number() as i64, [number(), number()], [number(), number()]);
        let (mut is_deprecated, mut attributes) = (false, Vec::new());
        for word in words {
            match word.split_once(':') {
                Some((name, kind)) => {
                    let number = kind.trim_end_matches('!').parse().unwrap_or(0);
                    attributes.push((name, number, kind.ends_with('!')));
                }
                None => is_deprecated = true,
            }
        }
        operators.entry(name).or_default().push(Operator { since, inputs, outputs, is_deprecated, attributes });
    }
    operators
});

/// Names of attribute types by their number.
const TYPES: [&str; 15] = [
    "undefined", "float", "int", "string", "tensor", "graph", "floats", "ints", "strings", "tensors", "graphs",
    "sparse tensor", "sparse tensors", "type", "types",
];

fn type_name(number: i32) -> &'static str {
    usize::try_from(number).ok().and_then(|number| TYPES.get(number)).copied().unwrap_or("undefined")
}

/// Refuses a model that ONNX's checker refuses for its operator sets, attributes, numbers of inputs and outputs, or
/// sizes of tensors.
///
/// # Errors
/// If a requirement is not met; the message names the node and the attribute, or the tensor.
pub fn check_valid(model: &ModelProto) -> Result<()> {
    let mut opsets: BTreeMap<&str, i64> = BTreeMap::new();
    for set in &model.opset_import {
        let domain = plain_domain(set.domain());
        ensure!(
            !domain.is_empty() || set.version() <= LAST_OPSET,
            anyhow!(
                "operator set is {}, expected at most {LAST_OPSET}, the last one that this version knows",
                set.version()
            )
            .hint("export the model with an older one, or convert it with onnx.version_converter in Python")
        );
        if let Some(other) = opsets.insert(domain, set.version()) {
            let (domain, version) = (shown_domain(domain), set.version());
            return Err(anyhow!(
                "imports operator set `{domain}` twice, versions {other} and {version}, expected once"
            ));
        }
    }
    let functions = model.functions.iter().map(|function| (plain_domain(function.domain()), function.name()));
    let context = Checker { opsets, functions: functions.collect() };
    let graph = model.graph()?;
    context.graph(graph)?;
    check_types(graph)
}

/// Refuses a computed tensor that is declared with another element type than that of its node.
fn check_types(graph: &GraphProto) -> Result<()> {
    let computed = ValueInfos::computed(graph);
    let mut nodes: BTreeMap<&str, &NodeProto> = BTreeMap::new();
    for node in &graph.node {
        // Before operator set 10, the mask of a Dropout had the type of its input.
        let n_outputs = if node.op_type() == "Dropout" { 1 } else { node.output.len() };
        nodes.extend(node.output.iter().take(n_outputs).map(|output| (output.as_str(), node)));
    }
    for value in graph.value_info.iter().chain(&graph.output) {
        let declared = value.tensor_type().map_or(0, |tensor| tensor.elem_type());
        let found = nodes.get(value.name()).zip(computed.data_type(value.name()));
        if let Some((node, found)) = found.filter(|&(_, found)| declared != 0 && found != declared) {
            let (node, op_type) = (node_name(node), node.op_type());
            return Err(anyhow!(
                "tensor `{}`: is declared as {}, but node `{node}` ({op_type}) gives {}, expected the same type",
                value.name(),
                data_type::type_name(declared),
                data_type::type_name(found)
            ));
        }
    }
    Ok(())
}

struct Checker<'a> {
    opsets: BTreeMap<&'a str, i64>,
    functions: BTreeSet<(&'a str, &'a str)>,
}

impl Checker<'_> {
    fn graph(&self, graph: &GraphProto) -> Result<()> {
        let dims: BTreeMap<&str, &[i64]> = graph.initializer.iter().map(|it| (it.name(), &it.dims[..])).collect();
        let mut names: BTreeSet<&str> = BTreeSet::new();
        for tensor in &graph.initializer {
            let name = tensor.name();
            ensure!(names.insert(name), "initializer `{name}` is given twice, expected one tensor of each name");
            tensor::ensure_whole(tensor).with_context(|| format!("tensor `{}`", tensor.name()))?;
        }
        for tensor in &graph.sparse_initializer {
            let name = tensor.values.as_ref().map_or("", |values| values.name());
            ensure!(names.insert(name), "initializer `{name}` is given twice, expected one tensor of each name");
            check_sparse(tensor).with_context(|| format!("sparse tensor `{name}`"))?;
        }
        for node in &graph.node {
            let checked = self.node(node).and_then(|()| check_lists(node, &dims));
            checked.with_context(|| format!("node `{}` ({})", node_name(node), node.op_type()))?;
            for attribute in &node.attribute {
                attribute.g.iter().chain(&attribute.graphs).try_for_each(|graph| self.graph(graph))?;
            }
        }
        Ok(())
    }

    fn node(&self, node: &NodeProto) -> Result<()> {
        let (domain, op_type) = (plain_domain(node.domain()), node.op_type());
        ensure!(!op_type.is_empty(), "has no operator");
        let mut names = BTreeSet::new();
        for attribute in &node.attribute {
            let name = attribute.name();
            ensure!(!name.is_empty(), "has an attribute without a name");
            ensure!(names.insert(name), "attribute `{name}` is given twice, expected once");
            value(attribute).with_context(|| format!("attribute `{name}`"))?;
        }
        let opset = self.opsets.get(domain).copied();
        let is_function = self.functions.contains(&(domain, op_type));
        let opset = opset.with_context(|| {
            format!("the model does not import operator set `{}`, which the node needs", shown_domain(domain))
        })?;
        if !domain.is_empty() || is_function {
            return Ok(());
        }
        // The engine reports operators that ONNX does not know.
        let versions = OPERATORS.get(op_type).map(Vec::as_slice).unwrap_or_default();
        let Some(first) = versions.first().map(|operator| operator.since) else { return Ok(()) };
        let operator = versions.iter().rev().find(|operator| operator.since <= opset).ok_or_else(|| {
            anyhow!("operator set is {opset}, expected {first} or later, which has this operator")
                .hint(format!("export the model again with operator set {first} (PyTorch: `opset_version={first}`)"))
        })?;
        ensure!(!operator.is_deprecated, "the operator is deprecated in operator set {opset}");
        in_range(node.input.len(), operator.inputs, "input")?;
        // Empty names at the end stand for inputs that are left out.
        let n_given = node.input.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1);
        in_range(n_given, [operator.inputs[0], usize::MAX], "input")?;
        in_range(node.output.len(), operator.outputs, "output")?;
        // These alone have optional inputs in front of others.
        if !matches!(op_type, "Loop" | "Scan") {
            let left_out = node.input.iter().take(operator.inputs[0]).position(String::is_empty);
            ensure!(left_out.is_none(), "input {} is left out, expected a tensor", left_out.unwrap_or(0));
        }
        let unnamed = node.output.iter().take(operator.outputs[0]).position(String::is_empty);
        ensure!(unnamed.is_none(), "output {} has no name, expected one", unnamed.unwrap_or(0));
        let known = || operator.attributes.iter().map(|(name, ..)| *name);
        for attribute in &node.attribute {
            let name = attribute.name();
            if name.len() >= 4 && name.starts_with("__") && name.ends_with("__") {
                continue;
            }
            let Some((_, kind, _)) = operator.attributes.iter().find(|(known, ..)| *known == name) else {
                let names = known().collect::<Vec<_>>().join(", ");
                let expected = if names.is_empty() { "none".to_string() } else { format!("one of: {names}") };
                let text = format!("attribute `{name}` is unknown in operator set {opset}, expected {expected}");
                return Err(anyhow!(text).hint(did_you_mean(name, known())));
            };
            let found = attribute.r#type();
            ensure!(
                found == *kind,
                "attribute `{name}` is of type {}, expected {}",
                type_name(found),
                type_name(*kind)
            );
        }
        for (name, _, is_required) in &operator.attributes {
            ensure!(!is_required || names.contains(name), "attribute `{name}` is missing");
        }
        if let Some(n) = attribute(node, "num_outputs").map(AttributeProto::i) {
            let n_outputs = node.output.len();
            ensure!(n == n_outputs as i64, "num_outputs is {n}, expected {n_outputs}, the number of outputs");
        }
        Ok(())
    }
}

/// Refuses lists of numbers that do not fit each other or a constant weight: `perm`, the sizes of windows, and the size of
/// a recurrent state. `dims` has the shapes of the initializers.
fn check_lists(node: &NodeProto, dims: &BTreeMap<&str, &[i64]>) -> Result<()> {
    if !plain_domain(node.domain()).is_empty() {
        return Ok(());
    }
    // An empty list stands for the default.
    let ints = |name: &str| attribute(node, name).map(|attribute| &attribute.ints[..]).filter(|ints| !ints.is_empty());
    let of_input = |i: usize| dims.get(node.input.get(i)?.as_str()).copied();
    match node.op_type() {
        "Transpose" => {
            let perm = ints("perm").unwrap_or_default();
            let mut sorted = perm.to_vec();
            sorted.sort_unstable();
            ensure!(sorted.into_iter().eq(0..perm.len() as i64), "perm is {perm:?}, expected each axis once");
        }
        "RNN" | "GRU" | "LSTM" => {
            let given = attribute(node, "hidden_size").map(AttributeProto::i);
            if let Some((given, &[.., size])) = given.zip(of_input(2)) {
                ensure!(given == size, "hidden_size is {given}, expected {size}, the last size of R");
            }
        }
        "Conv" | "ConvTranspose" | "ConvInteger" | "MaxPool" | "AveragePool" | "LpPool" | "MaxUnpool" => {
            let of_weight =
                if node.op_type().starts_with("Conv") { of_input(1).and_then(|dims| dims.get(2..)) } else { None };
            let n_axes = of_weight.or(ints("kernel_shape")).map(<[i64]>::len);
            for (name, per_axis) in
                [("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 1), ("pads", 2)]
            {
                if let Some((found, n_axes)) = ints(name).zip(n_axes) {
                    let expected = per_axis * n_axes;
                    ensure!(found.len() == expected, "{name} has {}, expected {expected}", count(found.len(), "value"));
                }
            }
            if let Some((found, expected)) = ints("kernel_shape").zip(of_weight) {
                ensure!(found == expected, "kernel_shape is {found:?}, expected {expected:?}, the sizes of the weight");
            }
            // A window of padding alone has no maximum; ONNX Runtime refuses it for every pooling.
            if let ("MaxPool" | "AveragePool" | "LpPool", Some(kernel), Some(pads)) =
                (node.op_type(), ints("kernel_shape"), ints("pads"))
            {
                let is_less = pads.iter().zip(kernel.iter().cycle()).all(|(pad, size)| (0..*size).contains(pad));
                ensure!(is_less, "pads are {pads:?}, expected from 0 to below kernel_shape, which is {kernel:?}");
            }
        }
        _ => {}
    }
    Ok(())
}

fn in_range(found: usize, [least, most]: [usize; 2], what: &str) -> Result<()> {
    let expected = match most {
        usize::MAX => format!("{least} or more"),
        _ if least == most => least.to_string(),
        _ => format!("{least} to {most}"),
    };
    ensure!((least..=most).contains(&found), "has {}, expected {expected}", count(found, what));
    Ok(())
}

/// Checks that an attribute has at most one value, of the declared type.
fn value(attribute: &AttributeProto) -> Result<()> {
    let given = [
        (1, attribute.f.is_some()),
        (2, attribute.i.is_some()),
        (3, attribute.s.is_some()),
        (4, attribute.t.is_some()),
        (5, attribute.g.is_some()),
        (11, attribute.sparse_tensor.is_some()),
        (13, attribute.tp.is_some()),
        (6, !attribute.floats.is_empty()),
        (7, !attribute.ints.is_empty()),
        (8, !attribute.strings.is_empty()),
        (9, !attribute.tensors.is_empty()),
        (10, !attribute.graphs.is_empty()),
        (12, !attribute.sparse_tensors.is_empty()),
        (14, !attribute.type_protos.is_empty()),
    ];
    let given: Vec<i32> = given.iter().filter(|(_, is_given)| *is_given).map(|(kind, _)| *kind).collect();
    let names = || given.iter().map(|kind| type_name(*kind)).collect::<Vec<_>>().join(" and ");
    ensure!(given.len() < 2, "has values of the types {}, expected one value", names());
    let declared = attribute.r#type();
    ensure!(
        given.iter().all(|kind| *kind == declared),
        "has a value of type {}, expected the declared type {}",
        names(),
        type_name(declared)
    );
    for tensor in attribute.t.iter().chain(&attribute.tensors) {
        tensor::ensure_whole(tensor).with_context(|| format!("tensor `{}`", tensor.name()))?;
    }
    Ok(())
}

/// Checks that the indices of a sparse tensor are inside its shape.
pub(super) fn check_sparse(tensor: &SparseTensorProto) -> Result<()> {
    let values = tensor.values.as_ref().context("has no values")?;
    let n_values: usize = tensor::shape(values)?.iter().product();
    tensor::ensure_whole(values)?;
    let dims: Option<Vec<usize>> = tensor.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let dims = dims.with_context(|| format!("shape is {:?}, expected no negative number", tensor.dims))?;
    let n_places = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    let n_places = n_places.with_context(|| format!("shape is {dims:?}, too large to hold in memory"))?;
    let Some(indices) = tensor.indices.as_ref().filter(|_| n_values > 0) else { return Ok(()) };
    let places = tensor::i64_values(indices).context("indices")?;
    let limits = match &tensor::shape(indices)?[..] {
        [n] if *n == n_values => vec![n_places],
        [n, rank] if *n == n_values && *rank == dims.len() => dims.clone(),
        found => {
            let expected = format!("[{n_values}] or [{n_values}, {}]", dims.len());
            return Err(anyhow!("indices have the shape {found:?}, expected {expected}"));
        }
    };
    for (place, &limit) in places.iter().zip(limits.iter().cycle()) {
        let is_inside = usize::try_from(*place).is_ok_and(|place| place < limit);
        ensure!(is_inside, "index is {place}, expected 0 to {} for the shape {dims:?}", limit.saturating_sub(1));
    }
    Ok(())
}

//! Inlines the functions of a model, which nodes call by name.

use super::names::Names;
use super::node::{self, node_name, plain_domain, shown_domain};
use super::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use crate::diag::WithHint;
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;

/// Maximum nodes of a model once its functions are inlined. Nested calls multiply the number of nodes.
const MAX_NODES: usize = 1_000_000;
/// Maximum depth of nested function calls.
const MAX_DEPTH: usize = 64;

/// Domain, name and overload of a function, as a calling node gives them.
type Key = [String; 3];

/// Replaces each call of a function by the nodes of the function. New nodes and tensors are named after the calling
/// node, as `call/inner`. Afterwards the model has no functions. Source: ONNX IR, section "Functions". Fails if a
/// function calls itself, has fewer inputs or outputs than a call, uses another operator set than the model, or the
/// model would become too large; the message names the node or the function.
pub fn inline(model: &mut ModelProto) -> Result<()> {
    let functions = std::mem::take(&mut model.functions);
    if functions.is_empty() {
        return Ok(());
    }
    let by_key: BTreeMap<Key, &FunctionProto> =
        functions.iter().map(|it| (key(it.domain(), it.name(), it.overload()), it)).collect();
    let graph = model.graph_mut()?;
    let mut sizes = Sizes { functions: &by_key, known: BTreeMap::new() };
    let Size { n_nodes, .. } = sizes.of(&graph.node, 0)?;
    ensure!(n_nodes <= MAX_NODES, "its functions have more than {MAX_NODES} nodes once inlined, which is the limit");
    let names = Names::of(graph);
    let mut inliner = Inliner { functions: by_key, names, used: BTreeMap::new() };
    inliner.graph(graph)?;
    let used = inliner.used;
    used.into_values().try_for_each(|function| import_operators(model, function))
}

fn key(domain: &str, name: &str, overload: &str) -> Key {
    [plain_domain(domain), name, overload].map(str::to_string)
}

struct Inliner<'a> {
    functions: BTreeMap<Key, &'a FunctionProto>,
    names: Names,
    /// The functions that were called.
    used: BTreeMap<Key, &'a FunctionProto>,
}

/// Sizes of functions once all calls are inlined. They are computed before any node is copied.
struct Sizes<'f, 'a> {
    functions: &'f BTreeMap<Key, &'a FunctionProto>,
    known: BTreeMap<Key, Size>,
}

#[derive(Clone, Copy)]
struct Size {
    n_nodes: usize,
    /// Maximum depth of nested function calls.
    height: usize,
}

impl Sizes<'_, '_> {
    /// Returns the size of the nodes of a graph, once inlined. The graph itself is `depth` calls deep.
    fn of(&mut self, nodes: &[NodeProto], depth: usize) -> Result<Size> {
        let mut sum = Size { n_nodes: 0, height: 0 };
        for node in nodes {
            let size = self.of_node(node, depth)?;
            sum.n_nodes = sum.n_nodes.saturating_add(size.n_nodes);
            sum.height = sum.height.max(size.height);
        }
        Ok(sum)
    }

    fn of_node(&mut self, node: &NodeProto, depth: usize) -> Result<Size> {
        let key = key(node.domain(), node.op_type(), node.overload());
        let Some(function) = self.functions.get(&key) else {
            let mut size = Size { n_nodes: 1, height: 0 };
            for graph in node.attribute.iter().flat_map(|it| it.g.iter().chain(&it.graphs)) {
                let inner = self.of(&graph.node, depth)?;
                size.n_nodes = size.n_nodes.saturating_add(inner.n_nodes);
                size.height = size.height.max(inner.height);
            }
            return Ok(size);
        };
        let known = self.known.get(&key).copied();
        let is_deep = depth + known.map_or(1, |size| size.height) > MAX_DEPTH;
        let place = || format!("node `{}` ({})", node_name(node), node.op_type());
        ensure!(!is_deep, "{}: functions call each other more than {MAX_DEPTH} deep", place());
        match known {
            Some(size) => Ok(size),
            None => {
                let body = self.of(&function.node, depth + 1)?;
                let size = Size { height: body.height + 1, ..body };
                self.known.insert(key, size);
                Ok(size)
            }
        }
    }
}

impl<'a> Inliner<'a> {
    fn graph(&mut self, graph: &mut GraphProto) -> Result<()> {
        graph.node = self.nodes(std::mem::take(&mut graph.node))?;
        Ok(())
    }

    fn nodes(&mut self, nodes: Vec<NodeProto>) -> Result<Vec<NodeProto>> {
        let mut inlined = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            let key = key(node.domain(), node.op_type(), node.overload());
            let Some(&function) = self.functions.get(&key) else {
                for attribute in &mut node.attribute {
                    let graphs = attribute.g.iter_mut().chain(&mut attribute.graphs);
                    graphs.into_iter().try_for_each(|graph| self.graph(graph))?;
                }
                inlined.push(node);
                continue;
            };
            let place = || format!("node `{}` ({})", node_name(&node), node.op_type());
            self.used.insert(key, function);
            let body = self.call(&node, function).with_context(place)?;
            inlined.extend(self.nodes(body)?);
        }
        Ok(inlined)
    }

    /// Returns the nodes of `function`, with the tensors and attributes that the calling `node` passes.
    fn call(&mut self, node: &NodeProto, function: &FunctionProto) -> Result<Vec<NodeProto>> {
        for (found, taken, what) in
            [(node.input.len(), function.input.len(), "inputs"), (node.output.len(), function.output.len(), "outputs")]
        {
            ensure!(found <= taken, "has {found} {what}, expected at most {taken}, as its function has");
        }
        let given = |i: usize| node.input.get(i).cloned().unwrap_or_default();
        let known: BTreeMap<String, String> =
            function.input.iter().enumerate().map(|(i, name)| (name.clone(), given(i))).collect();
        let mut body = InlinedCall { names: &mut self.names, prefix: node_name(node), known, node, function };
        let mut copies = Vec::new();
        for (inner, output) in function.output.iter().zip(&node.output).filter(|(_, output)| !output.is_empty()) {
            match body.known.get(inner) {
                // The output of the function is also its input, or is listed twice.
                Some(source) => copies.push((source.clone(), output.as_str())),
                None => {
                    body.known.insert(inner.clone(), output.clone());
                }
            }
        }
        let mut nodes: Vec<NodeProto> = function.node.iter().map(|inner| body.node(inner)).collect();
        for (source, output) in copies {
            let name = body.names.fresh(&format!("{}/Identity", body.prefix));
            nodes.push(node::make("Identity", &name, &[&source], output));
        }
        Ok(nodes)
    }
}

/// The body of a function while one call is inlined.
struct InlinedCall<'a> {
    names: &'a mut Names,
    prefix: &'a str,
    /// Names of tensors in the function, with the names of the same tensors in the model.
    known: BTreeMap<String, String>,
    node: &'a NodeProto,
    function: &'a FunctionProto,
}

impl InlinedCall<'_> {
    fn node(&mut self, inner: &NodeProto) -> NodeProto {
        let mut node = inner.clone();
        let base = if inner.name().is_empty() { inner.op_type() } else { inner.name() };
        node.name = Some(self.names.fresh(&format!("{}/{base}", self.prefix)));
        node.input.iter_mut().chain(&mut node.output).for_each(|name| self.rename(name));
        node.attribute = inner.attribute.iter().filter_map(|attribute| self.attribute(attribute)).collect();
        node
    }

    fn rename(&mut self, name: &mut String) {
        if name.is_empty() {
            return;
        }
        if !self.known.contains_key(name) {
            let fresh = self.names.fresh(&format!("{}/{name}", self.prefix));
            self.known.insert(name.clone(), fresh);
        }
        name.clone_from(&self.known[name]);
    }

    /// Returns the attribute. A reference to an attribute of the function becomes the call's value, or else the
    /// default. `None` if there is neither.
    fn attribute(&mut self, attribute: &AttributeProto) -> Option<AttributeProto> {
        if let Some(of_function) = attribute.ref_attr_name.as_deref().filter(|name| !name.is_empty()) {
            let defaults = &self.function.attribute_proto;
            let mut values = self.node.attribute.iter().chain(defaults);
            let value = values.find(|value| value.name() == of_function)?;
            return Some(AttributeProto { name: attribute.name.clone(), ..value.clone() });
        }
        let mut attribute = attribute.clone();
        attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(|graph| self.graph(graph));
        Some(attribute)
    }

    fn graph(&mut self, graph: &mut GraphProto) {
        let values = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
        let sparse = graph.sparse_initializer.iter_mut().filter_map(|tensor| tensor.values.as_mut());
        let tensors = graph.initializer.iter_mut().chain(sparse);
        let names = values.filter_map(|value| value.name.as_mut()).chain(tensors.filter_map(|it| it.name.as_mut()));
        names.for_each(|name| self.rename(name));
        graph.node = graph.node.iter().map(|node| self.node(node)).collect();
    }
}

/// Adds the operator sets of an inlined function to the model.
fn import_operators(model: &mut ModelProto, function: &FunctionProto) -> Result<()> {
    for set in &function.opset_import {
        let of_model =
            model.opset_import.iter().find(|other| plain_domain(other.domain()) == plain_domain(set.domain()));
        match of_model.map(|other| other.version()) {
            Some(version) if version == set.version() => {}
            Some(version) => {
                let (name, found) = (function.name(), set.version());
                let domain = shown_domain(set.domain());
                return Err(anyhow!(
                    "function `{name}` uses version {found} of operator set `{domain}`, expected {version}, the version of the model"
                )
                .hint("convert it in Python with onnx.inliner.inline_local_functions(model, convert_version=True)"));
            }
            None => model.opset_import.push(set.clone()),
        }
    }
    Ok(())
}

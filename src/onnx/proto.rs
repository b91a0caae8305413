//! Messages of the ONNX file format, IR version 13, complete: prost drops unknown fields, so a missing one here would
//! be lost on saving. Field names and numbers are those of `onnx.proto`, which documents them. Presence of scalars is
//! kept (the format is proto2). The members of a `oneof` are plain optional fields, which have the same encoding.
//! Messages that mqq never reads are kept as bytes.
#![allow(missing_docs)]

use anyhow::{Context, Result};

/// A named attribute of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttributeProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
    #[prost(string, optional, tag = "13")]
    pub doc_string: Option<String>,
    #[prost(int32, optional, tag = "20")]
    pub r#type: Option<i32>,
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<bytes::Bytes>,
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    #[prost(bytes = "bytes", optional, tag = "22")]
    pub sparse_tensor: Option<bytes::Bytes>,
    #[prost(bytes = "bytes", optional, tag = "14")]
    pub tp: Option<bytes::Bytes>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<bytes::Bytes>,
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    #[prost(bytes = "bytes", repeated, tag = "23")]
    pub sparse_tensors: Vec<bytes::Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub type_protos: Vec<bytes::Bytes>,
}

/// Name and type of a value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueInfoProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    #[prost(string, optional, tag = "3")]
    pub doc_string: Option<String>,
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub metadata_props: Vec<bytes::Bytes>,
}

/// A call of an operator or function.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    #[prost(string, optional, tag = "8")]
    pub overload: Option<String>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub metadata_props: Vec<bytes::Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "10")]
    pub device_configurations: Vec<bytes::Bytes>,
}

/// A whole ONNX file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelProto {
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub domain: Option<String>,
    #[prost(int64, optional, tag = "5")]
    pub model_version: Option<i64>,
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    pub metadata_props: Vec<bytes::Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "20")]
    pub training_info: Vec<bytes::Bytes>,
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
    #[prost(bytes = "bytes", repeated, tag = "26")]
    pub configuration: Vec<bytes::Bytes>,
}

/// A key and a value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StringStringEntryProto {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// Nodes, initializers, inputs and outputs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(string, optional, tag = "10")]
    pub doc_string: Option<String>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    pub quantization_annotation: Vec<bytes::Bytes>,
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
    #[prost(bytes = "bytes", repeated, tag = "16")]
    pub metadata_props: Vec<bytes::Bytes>,
}

/// A tensor with its data, or a reference to data in another file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub segment: Option<bytes::Bytes>,
    #[prost(float, repeated, packed = "true", tag = "4")]
    pub float_data: Vec<f32>,
    #[prost(int32, repeated, packed = "true", tag = "5")]
    pub int32_data: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<bytes::Bytes>,
    #[prost(int64, repeated, packed = "true", tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<bytes::Bytes>,
    #[prost(double, repeated, packed = "true", tag = "10")]
    pub double_data: Vec<f64>,
    #[prost(uint64, repeated, packed = "true", tag = "11")]
    pub uint64_data: Vec<u64>,
    #[prost(string, optional, tag = "12")]
    pub doc_string: Option<String>,
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
    #[prost(bytes = "bytes", repeated, tag = "16")]
    pub metadata_props: Vec<bytes::Bytes>,
}

/// Non-zero values and their indices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub dims: Vec<i64>,
}

/// Dimensions of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// One dimension; at most one of `dim_value` and `dim_param`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub denotation: Option<String>,
}

/// A type; one of the `_type` fields is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub sequence_type: Option<bytes::Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub map_type: Option<bytes::Bytes>,
    #[prost(string, optional, tag = "6")]
    pub denotation: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub opaque_type: Option<bytes::Bytes>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub sparse_tensor_type: Option<bytes::Bytes>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub optional_type: Option<bytes::Bytes>,
}

/// Element type and shape of a dense tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorType {
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// An operator set and its version.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OperatorSetIdProto {
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

/// A function that nodes can call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FunctionProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    #[prost(string, optional, tag = "8")]
    pub doc_string: Option<String>,
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(string, optional, tag = "10")]
    pub domain: Option<String>,
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    #[prost(message, repeated, tag = "12")]
    pub value_info: Vec<ValueInfoProto>,
    #[prost(string, optional, tag = "13")]
    pub overload: Option<String>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    pub metadata_props: Vec<bytes::Bytes>,
}

impl ModelProto {
    /// The graph.
    ///
    /// # Errors
    /// If there is none.
    pub fn graph(&self) -> Result<&GraphProto> {
        self.graph.as_ref().context("model has no graph")
    }

    /// The graph, mutable.
    ///
    /// # Errors
    /// If there is none.
    pub fn graph_mut(&mut self) -> Result<&mut GraphProto> {
        self.graph.as_mut().context("model has no graph")
    }

    /// Returns a model of a single node, with `constants` and `inputs` for the tensors that the node reads.
    #[must_use]
    pub fn of_node(&self, node: &NodeProto, constants: Vec<TensorProto>, inputs: Vec<ValueInfoProto>) -> ModelProto {
        let outputs = node.output.iter().filter(|name| !name.is_empty());
        let graph = GraphProto {
            name: Some("node".into()),
            node: vec![node.clone()],
            initializer: constants,
            input: inputs,
            output: outputs.map(|name| ValueInfoProto { name: Some(name.clone()), ..Default::default() }).collect(),
            ..Default::default()
        };
        let (ir_version, opset_import) = (self.ir_version, self.opset_import.clone());
        ModelProto { ir_version, opset_import, graph: Some(graph), ..Default::default() }
    }
}

impl GraphProto {
    /// Returns the initializer with this name.
    pub fn initializer_named(&self, name: &str) -> Option<&TensorProto> {
        self.initializer.iter().find(|tensor| tensor.name() == name)
    }
}

impl ValueInfoProto {
    /// Returns a tensor value of unknown shape. `data_type` is a number of `TensorProto.DataType`.
    pub fn without_shape(name: &str, data_type: i32) -> ValueInfoProto {
        let tensor_type = Some(TensorType { elem_type: Some(data_type), shape: None });
        let r#type = Some(TypeProto { tensor_type, ..TypeProto::default() });
        ValueInfoProto { name: Some(name.to_string()), r#type, ..ValueInfoProto::default() }
    }

    /// Returns the element type and shape if the value is a tensor.
    pub fn tensor_type(&self) -> Option<&TensorType> {
        self.r#type.as_ref()?.tensor_type.as_ref()
    }
}

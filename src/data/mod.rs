//! Placeholder of the vocabulary.

/// One input.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSpec {
    /// Name.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub data_type: i32,
}

/// Values.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Values {
    F32(Vec<f32>),
    I64(Vec<i64>),
    I32(Vec<i32>),
    I8(Vec<i8>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

/// Array.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Values,
}

/// Sample.
pub type Sample = Vec<Array>;

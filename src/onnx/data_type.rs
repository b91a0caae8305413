//! The element types of ONNX in one table: number, name, size and kind.

use DataType::*;

/// Element types of ONNX, as numbers of `TensorProto.DataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum DataType {
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Complex64 = 14,
    Complex128 = 15,
    Bfloat16 = 16,
    Float8E4m3fn = 17,
    Float8E4m3fnuz = 18,
    Float8E5m2 = 19,
    Float8E5m2fnuz = 20,
    Uint4 = 21,
    Int4 = 22,
    Float4E2m1 = 23,
    Float8E8m0 = 24,
    Uint2 = 25,
    Int2 = 26,
}

/// Kinds of element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TypeKind {
    Bool,
    Unsigned,
    Signed,
    Float,
    Complex,
    String,
}

/// Every element type with its name, its bits in raw data (0 for strings), and its kind. Names are NumPy's, and ONNX's
/// for types that NumPy lacks.
const TYPES: [(DataType, &str, usize, TypeKind); 26] = [
    (Float, "float32", 32, TypeKind::Float),
    (Uint8, "uint8", 8, TypeKind::Unsigned),
    (Int8, "int8", 8, TypeKind::Signed),
    (Uint16, "uint16", 16, TypeKind::Unsigned),
    (Int16, "int16", 16, TypeKind::Signed),
    (Int32, "int32", 32, TypeKind::Signed),
    (Int64, "int64", 64, TypeKind::Signed),
    (String, "string", 0, TypeKind::String),
    (Bool, "bool", 8, TypeKind::Bool),
    (Float16, "float16", 16, TypeKind::Float),
    (Double, "float64", 64, TypeKind::Float),
    (Uint32, "uint32", 32, TypeKind::Unsigned),
    (Uint64, "uint64", 64, TypeKind::Unsigned),
    (Complex64, "complex64", 64, TypeKind::Complex),
    (Complex128, "complex128", 128, TypeKind::Complex),
    (Bfloat16, "bfloat16", 16, TypeKind::Float),
    (Float8E4m3fn, "float8e4m3fn", 8, TypeKind::Float),
    (Float8E4m3fnuz, "float8e4m3fnuz", 8, TypeKind::Float),
    (Float8E5m2, "float8e5m2", 8, TypeKind::Float),
    (Float8E5m2fnuz, "float8e5m2fnuz", 8, TypeKind::Float),
    (Uint4, "uint4", 4, TypeKind::Unsigned),
    (Int4, "int4", 4, TypeKind::Signed),
    (Float4E2m1, "float4e2m1", 4, TypeKind::Float),
    (Float8E8m0, "float8e8m0", 8, TypeKind::Float),
    (Uint2, "uint2", 2, TypeKind::Unsigned),
    (Int2, "int2", 2, TypeKind::Signed),
];

impl DataType {
    /// Returns the type with this number; `None` if ONNX has no such type.
    pub fn of(number: i32) -> Option<DataType> {
        DataType::all().find(|data_type| *data_type as i32 == number)
    }

    /// Returns all types, by number.
    pub fn all() -> impl Iterator<Item = DataType> {
        TYPES.iter().map(|row| row.0)
    }

    fn row(self) -> &'static (DataType, &'static str, usize, TypeKind) {
        &TYPES[self as usize - 1]
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the bits of an element in raw data; 0 for strings.
    pub fn bits(self) -> usize {
        self.row().2
    }

    /// Returns the bytes of an element of a type that [`is_plain`](DataType::is_plain).
    pub fn size(self) -> usize {
        self.bits() / 8
    }

    /// Returns the kind.
    pub fn kind(self) -> TypeKind {
        self.row().3
    }

    /// Whether values are numbers or booleans of whole bytes that arrays can hold: no complex numbers and no floats of
    /// 8 bits.
    pub fn is_plain(self) -> bool {
        let least = if self.kind() == TypeKind::Float { 16 } else { 8 };
        self.bits() >= least && self.kind() != TypeKind::Complex
    }

    /// Returns the least and the largest value of an integer type with 2 to 16 bits; `None` for other types.
    pub fn integer_range(self) -> Option<[i32; 2]> {
        match (self.kind(), self.bits()) {
            (TypeKind::Signed, bits @ 2..=16) => Some([-(1 << (bits - 1)), (1 << (bits - 1)) - 1]),
            (TypeKind::Unsigned, bits @ 2..=16) => Some([0, (1 << bits) - 1]),
            _ => None,
        }
    }
}

/// Returns the name of the element type with this number; `unknown` if ONNX has no such type.
pub fn type_name(number: i32) -> &'static str {
    DataType::of(number).map_or("unknown", DataType::name)
}

/// Returns the number of the element type with this name.
pub fn type_number(name: &str) -> Option<i32> {
    DataType::all().find(|data_type| data_type.name() == name).map(|data_type| data_type as i32)
}

/// Returns the bytes of an element; `None` for strings, complex numbers, 8-bit floats and types that share bytes.
pub fn element_bytes(number: i32) -> Option<usize> {
    DataType::of(number).filter(|data_type| data_type.is_plain()).map(DataType::size)
}

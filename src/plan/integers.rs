//! The integers of a weight, in one byte each if all of them fit.

/// A list of integers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Integers {
    /// Integers that are at most 255 above the lowest one.
    Bytes {
        /// The lowest integer.
        lowest: i32,
        /// Difference of each integer from the lowest one.
        above: Vec<u8>,
    },
    /// Integers that are further apart.
    Words(Vec<i32>),
}

impl Default for Integers {
    fn default() -> Integers {
        Integers::Words(Vec::new())
    }
}

impl From<Vec<i32>> for Integers {
    fn from(integers: Vec<i32>) -> Integers {
        let lowest = integers.iter().copied().min().unwrap_or_default();
        let above = integers.iter().map(|&q| q.checked_sub(lowest).and_then(|above| u8::try_from(above).ok()));
        match above.collect() {
            Some(above) => Integers::Bytes { lowest, above },
            None => Integers::Words(integers),
        }
    }
}

impl Integers {
    fn len(&self) -> usize {
        match self {
            Integers::Bytes { above, .. } => above.len(),
            Integers::Words(integers) => integers.len(),
        }
    }

    /// The integer at a position.
    pub fn at(&self, position: usize) -> i32 {
        match self {
            Integers::Bytes { lowest, above } => lowest + i32::from(above[position]),
            Integers::Words(integers) => integers[position],
        }
    }

    /// The integers in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = i32> {
        (0..self.len()).map(|position| self.at(position))
    }
}

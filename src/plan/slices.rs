//! Which scale each value of a weight belongs to.

/// The parts of a tensor that have a scale each: the whole, the slices of an axis, or blocks along an axis,
/// in row-major order of the tensor of scales.
pub struct Slices {
    /// Number of scales.
    pub n: usize,
    /// Positions along the axis.
    dim: usize,
    /// Values behind one position.
    inner: usize,
    block: Option<usize>,
}

/// Dimensions of the scales of a tensor of `shape`; the last block of an axis may be shorter.
pub fn scale_shape(shape: &[usize], axis: Option<usize>, block: Option<usize>) -> Vec<usize> {
    match (axis, block) {
        (None, _) => Vec::new(),
        (Some(axis), None) => shape.get(axis).copied().into_iter().collect(),
        (Some(axis), Some(block)) => {
            let blocks = |(i, &dim): (usize, &usize)| {
                if i == axis { dim.div_ceil(block.max(1)) } else { dim }
            };
            shape.iter().enumerate().map(blocks).collect()
        }
    }
}

impl Slices {
    /// Those of a tensor of `shape`.
    ///
    /// # Panics
    /// If the tensor has no such axis.
    pub fn of(shape: &[usize], axis: Option<usize>, block: Option<usize>) -> Slices {
        let n = scale_shape(shape, axis, block).iter().product();
        let (dim, inner) = match axis {
            Some(axis) => (shape[axis], shape[axis + 1..].iter().product()),
            None => (1, usize::MAX),
        };
        Slices { n, dim, inner, block: axis.and(block) }
    }

    /// Index of the scale of the value at `position`.
    pub fn of_value(&self, position: usize) -> usize {
        let (inner, dim) = (self.inner.max(1), self.dim.max(1));
        let along = position / inner % dim;
        match self.block {
            None => along,
            Some(block) => {
                let outer = position / inner / dim;
                (outer * dim.div_ceil(block.max(1)) + along / block.max(1)) * inner
                    + position % inner
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scales(shape: &[usize], axis: Option<usize>, block: Option<usize>) -> Vec<usize> {
        let slices = Slices::of(shape, axis, block);
        (0..shape.iter().product()).map(|position| slices.of_value(position)).collect()
    }

    #[test]
    fn every_value_finds_its_scale() {
        assert_eq!(scales(&[2, 2], None, None), [0, 0, 0, 0]);
        assert_eq!(scales(&[2, 3], Some(0), None), [0, 0, 0, 1, 1, 1]);
        assert_eq!(scales(&[2, 3], Some(1), None), [0, 1, 2, 0, 1, 2]);
        // Blocks of 2 along 3 positions: the last one is shorter.
        assert_eq!(scales(&[2, 3], Some(1), Some(2)), [0, 0, 1, 2, 2, 3]);
        assert_eq!(scales(&[3, 2], Some(0), Some(2)), [0, 1, 0, 1, 2, 3]);
        assert_eq!(scale_shape(&[3, 2], Some(0), Some(2)), [2, 2]);
        assert_eq!(scale_shape(&[4, 5, 6], Some(1), None), [5]);
    }
}

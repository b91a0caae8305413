//! Masks of boxes: sums of prototypes.

use super::boxes::Detection;
use super::part::PartRows;

/// The masks of the boxes of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct BoxMasks {
    /// Factors of the prototypes, a row for each box.
    pub(super) coefficients: PartRows,
    /// Prototypes, a row for each pixel.
    pub(super) prototypes: PartRows,
    /// Width of the prototypes.
    pub(super) width: usize,
    /// Pixels of the prototypes for each unit of boxes, along x and y.
    pub(super) scale: [f32; 2],
}

impl BoxMasks {
    /// Whether each pixel of the prototypes is in the mask: inside the box, and where the sum of the prototypes, each times
    /// its coefficient, is above 0.
    pub fn of(&self, detection: &Detection) -> Vec<bool> {
        let coefficients = self.coefficients.row(detection.row);
        let ([left, top, right, bottom], [across, down]) = (detection.corners, self.scale);
        let is_set = |pixel: usize| {
            let [x, y] = [(pixel % self.width) as f32, (pixel / self.width) as f32];
            let is_inside = x >= left * across && x < right * across && y >= top * down && y < bottom * down;
            let sum = || self.prototypes.row(pixel).iter().zip(coefficients).map(|(a, b)| a * b).sum::<f32>();
            is_inside && sum() > 0.0
        };
        (0..self.prototypes.n_rows()).map(is_set).collect()
    }
}

//! Masks of boxes, which are sums of prototypes.

use super::boxes::Detection;
use super::part::PartRows;

/// The masks of the boxes of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct BoxMasks {
    /// Coefficients of the prototypes, a row for each box.
    pub(super) coefficients: PartRows,
    /// The prototypes, a row for each pixel.
    pub(super) prototypes: PartRows,
    /// Width of the prototypes in pixels.
    pub(super) width: usize,
    /// Prototype pixels per unit of box coordinates, along x and y.
    pub(super) scale: [f32; 2],
}

impl BoxMasks {
    /// Returns whether each prototype pixel is in the mask: inside the box, and with the sum of the prototypes, each
    /// times its coefficient, above 0.
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

//! The way of an image into an input: scale and place.

/// From pixels of an image to those of the input: `input = image * scale + offset`, across and down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageFit {
    /// Width and height of the image.
    pub size: [usize; 2],
    /// Factors.
    pub scale: [f64; 2],
    /// Pixels to the left and above; below 0 where the image is cropped.
    pub offset: [f64; 2],
}

impl ImageFit {
    /// Corners in the image of a box with these corners in the input, within the image.
    pub fn to_image(&self, corners: [f64; 4]) -> [f64; 4] {
        std::array::from_fn(|i| {
            let side = i % 2;
            ((corners[i] - self.offset[side]) / self.scale[side]).clamp(0.0, self.size[side] as f64)
        })
    }
}

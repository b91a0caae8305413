//! The fit of an image into an input: scale and offset.

/// The map from pixels of an image to pixels of the input, in x and y: `input = image * scale + offset`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageFit {
    /// Width and height of the image.
    pub size: [usize; 2],
    /// Input pixels per image pixel.
    pub scale: [f64; 2],
    /// Input pixels to the left of the image and above it; below 0 where the image is cropped.
    pub offset: [f64; 2],
}

impl ImageFit {
    /// Returns the corners in the image for the corners of a box in the input, clamped to the image.
    pub fn to_image(&self, corners: [f64; 4]) -> [f64; 4] {
        std::array::from_fn(|i| {
            let side = i % 2;
            ((corners[i] - self.offset[side]) / self.scale[side]).clamp(0.0, self.size[side] as f64)
        })
    }
}

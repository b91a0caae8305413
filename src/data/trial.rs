//! Trials of other pixel values than the recipe's: images are decoded and resized once, changed, and laid out as
//! inputs.

use super::image::Pixels;
use super::preprocess::{Color, Preprocessing};
use super::presets::PRESETS;
use super::recipe::Recipe;
use super::{Array, Dataset, Item};
use anyhow::{Context, Result, bail};

/// The order of the color channels, and the value of a pixel in each channel: `(pixel * scale - mean) / std`.
#[derive(Debug, Clone, PartialEq)]
pub struct PixelValues {
    /// `rgb` or `bgr`.
    pub color: Color,
    /// Factor of the pixels.
    pub scale: f64,
    /// Number subtracted after scaling, by channel of the input.
    pub mean: [f64; 3],
    /// Divisor after subtracting the mean, by channel of the input.
    pub std: [f64; 3],
}

impl PixelValues {
    /// Whether both give the same input values.
    pub fn is_same(&self, other: &PixelValues) -> bool {
        self.color == other.color && self.has_same_scale(other)
    }

    /// Whether both give the same input values, ignoring the order of the channels.
    pub fn has_same_scale(&self, other: &PixelValues) -> bool {
        let ends = |values: &PixelValues, channel: usize| {
            [0.0, 255.0].map(|pixel| (pixel * values.scale - values.mean[channel]) / values.std[channel])
        };
        (0..3).all(|channel| {
            let ([a, b], [c, d]) = (ends(self, channel), ends(other, channel));
            let near = 1e-6 * (a.abs() + b.abs());
            (a - c).abs() <= near && (b - d).abs() <= near
        })
    }

    /// Returns the command-line options that ask for these pixel values.
    pub fn to_options(&self) -> String {
        let inverse = (1.0 / self.scale).round();
        let scale = match self.scale {
            1.0 => "1".to_string(),
            scale if 1.0 / inverse == scale => format!("1/{inverse}"),
            scale => scale.to_string(),
        };
        let list = |values: &[f64; 3]| match values {
            [a, b, c] if a == b && b == c => a.to_string(),
            values => values.map(|value| value.to_string()).join(","),
        };
        let color = if self.color == Color::Bgr { "bgr" } else { "rgb" };
        let (mean, std) = (list(&self.mean), list(&self.std));
        format!("--color {color} --scale {scale} --mean {mean} --std {std}")
    }

    /// Returns the names of the presets that have these pixel values.
    pub fn presets(&self) -> Vec<&'static str> {
        let is_one = |values: Option<PixelValues>| values.is_some_and(|values| values.is_same(self));
        let named = PRESETS.iter().filter(|preset| is_one(PixelValues::of(&preset.preprocessing())));
        named.map(|preset| preset.name.as_str()).collect()
    }

    /// Returns the pixel values of a preprocessing for three channels; `None` for gray, Y, or another number of
    /// channels.
    fn of(asked: &Preprocessing) -> Option<PixelValues> {
        let color = asked.color.unwrap_or(Color::Rgb);
        let by_channel = |values: &Option<Vec<f64>>, default: f64| match values.as_deref() {
            None => Some([default; 3]),
            Some(&[value]) => Some([value; 3]),
            Some(values) => values.try_into().ok(),
        };
        Some(PixelValues {
            color: matches!(color, Color::Rgb | Color::Bgr).then_some(color)?,
            scale: asked.scale.unwrap_or(1.0 / 255.0),
            mean: by_channel(&asked.mean, 0.0)?,
            std: by_channel(&asked.std, 1.0)?,
        })
    }
}

/// An image in the input's size.
pub struct FittedImage(Pixels);

impl FittedImage {
    /// Returns the image mirrored and cropped to the central 94 % of its sides, in the same size.
    ///
    /// # Errors
    /// If the image cannot be resized.
    pub fn mirrored_and_cropped(&self) -> Result<FittedImage> {
        self.0.mirrored().central(0.94).map(FittedImage)
    }

    /// Returns the image with pixels `factor` times as bright.
    pub fn brighter(&self, factor: f32) -> FittedImage {
        FittedImage(self.0.mapped(|pixel| (f32::from(pixel) * factor).round_ties_even().min(255.0) as u8))
    }
}

/// A dataset's recipe with other pixel values.
pub struct ImageTrial<'a> {
    dataset: &'a Dataset,
    recipe: Recipe,
}

impl Dataset {
    /// Returns the pixel values of the samples; `None` if a sample is not one float image of three channels.
    pub fn pixel_values(&self) -> Option<PixelValues> {
        let recipe = self.recipe.as_ref().filter(|recipe| recipe.batch == 1 && recipe.tables.len() == 3)?;
        PixelValues::of(&recipe.options)
    }

    /// Returns the image of sample `i` in the input's size.
    ///
    /// # Errors
    /// If the sample is not an image, or cannot be read.
    pub fn fitted_image(&self, i: usize) -> Result<FittedImage> {
        let recipe = self.recipe.as_ref().context("no images")?;
        let (_, Item::Images(first), sample) = self.locate(i) else { bail!("sample {i} is not an image") };
        let mut images = recipe.read(&self.images_of(*first, sample))?;
        images.pop().map(FittedImage).context("no image")
    }

    /// Returns a trial of other pixel values.
    ///
    /// # Errors
    /// If the samples are not images, or the values do not fit the input.
    pub fn trial(&self, values: &PixelValues) -> Result<ImageTrial<'_>> {
        let recipe = self.recipe.as_ref().context("no images")?;
        let asked = recipe.options.clone().overlaid(Preprocessing {
            color: Some(values.color),
            scale: Some(values.scale),
            mean: Some(values.mean.to_vec()),
            std: Some(values.std.to_vec()),
            ..Preprocessing::default()
        });
        Ok(ImageTrial { dataset: self, recipe: Recipe::new(&self.inputs[0], &asked)? })
    }
}

impl ImageTrial<'_> {
    /// Returns the input array of an image.
    pub fn array(&self, image: &FittedImage) -> Array {
        self.recipe.array(std::slice::from_ref(&image.0), &self.dataset.inputs[0])
    }
}

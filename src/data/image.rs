//! Decoding an image and laying it out as an input.

use super::{Array, Color, InputSpec, Preprocessing, Resize, Values};
use anyhow::{Context, Result, bail, ensure};
use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{DynamicImage, ImageReader, RgbImage};
use std::path::Path;

/// Where an input keeps its channels, rows and columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    /// NCHW, not NHWC.
    pub channels_first: bool,
    /// 1 or 3.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Layout {
    /// The layout of `input`: the axis of 1 or 3 channels decides, NCHW where both could be meant.
    ///
    /// # Errors
    /// If the input cannot hold one image.
    pub fn of(input: &InputSpec) -> Result<Layout> {
        let fail = || {
            format!(
                "input `{}` has the shape {:?}, expected [1, 1 or 3, height, width] or [1, height, width, 1 or 3] for images\nhint: give its data as .npy or .npz",
                input.name, input.shape
            )
        };
        match input.shape[..] {
            [1, channels @ (1 | 3), height, width] => {
                Ok(Layout { channels_first: true, channels, height, width })
            }
            [1, height, width, channels @ (1 | 3)] => {
                Ok(Layout { channels_first: false, channels, height, width })
            }
            _ => bail!(fail()),
        }
    }
}

/// The input that images feed.
///
/// # Errors
/// If there are several inputs, or the one cannot hold an image.
pub fn image_input(inputs: &[InputSpec]) -> Result<&InputSpec> {
    let [input] = inputs else {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        bail!(
            "an image feeds one input, but the model has {}: {}\nhint: give the data as .npz files with a key per input",
            inputs.len(),
            names.join(", ")
        );
    };
    Layout::of(input)?;
    ensure!(
        matches!(input.data_type, 1 | 2),
        "input `{}` has the element type {}, expected float32 (1) or uint8 (2) for images",
        input.name,
        input.data_type
    );
    Ok(input)
}

/// Decodes the file and applies the preprocessing. EXIF orientation is not applied, as in the
/// tools that models are trained with.
///
/// # Errors
/// If the file is no image, or its size does not fit.
pub fn load(path: &Path, input: &InputSpec, preprocessing: &Preprocessing) -> Result<Array> {
    let layout = Layout::of(input)?;
    let decoded = ImageReader::open(path)?
        .with_guessed_format()?
        .decode()
        .context("cannot be decoded as an image")?;
    let rgb = fit(to_rgb(decoded), layout, preprocessing)?;
    let color = preprocessing.color_for(layout.channels);
    ensure!(
        (color == Color::Gray) == (layout.channels == 1),
        "colour is {color:?}, but input `{}` has {} channels",
        input.name,
        layout.channels
    );
    let values = match input.data_type {
        2 => Values::U8(lay_out(&rgb, layout, color, |_, pixel| pixel)),
        _ => {
            let tables = preprocessing.tables(layout.channels)?;
            let value = |channel: usize, pixel: u8| tables[channel][usize::from(pixel)];
            Values::F32(lay_out(&rgb, layout, color, value))
        }
    };
    Ok(Array { shape: input.shape.clone(), values })
}

/// 8 bits, three channels; 16-bit images lose their low byte, transparency is dropped.
fn to_rgb(decoded: DynamicImage) -> RgbImage {
    decoded.into_rgb8()
}

fn fit(image: RgbImage, layout: Layout, preprocessing: &Preprocessing) -> Result<RgbImage> {
    let (height, width) = (layout.height as u32, layout.width as u32);
    let (w, h) = image.dimensions();
    ensure!(w > 0 && h > 0, "image is empty");
    match preprocessing.resize.unwrap_or(Resize::Exact) {
        Resize::Exact => scale(image, width, height),
        Resize::ShortSide(side) => {
            let (new_w, new_h) = if w <= h {
                (side, (u64::from(side) * u64::from(h) / u64::from(w)) as u32)
            } else {
                ((u64::from(side) * u64::from(w) / u64::from(h)) as u32, side)
            };
            crop(scale(image, new_w, new_h)?, width, height)
        }
        Resize::None => crop(image, width, height),
        resize @ (Resize::Letterbox | Resize::LetterboxCentered) => {
            let ratio = (f64::from(width) / f64::from(w)).min(f64::from(height) / f64::from(h));
            let new_w = ((f64::from(w) * ratio) as u32).clamp(1, width);
            let new_h = ((f64::from(h) * ratio) as u32).clamp(1, height);
            let small = scale(image, new_w, new_h)?;
            let pad = preprocessing.pad_value.unwrap_or(114);
            let mut canvas = RgbImage::from_pixel(width, height, image::Rgb([pad; 3]));
            let centered = resize == Resize::LetterboxCentered;
            let (x, y) = if centered { ((width - new_w) / 2, (height - new_h) / 2) } else { (0, 0) };
            image::imageops::replace(&mut canvas, &small, i64::from(x), i64::from(y));
            Ok(canvas)
        }
    }
}

/// Bilinear with antialiasing, as PIL does it.
fn scale(image: RgbImage, width: u32, height: u32) -> Result<RgbImage> {
    if image.dimensions() == (width, height) {
        return Ok(image);
    }
    let (w, h) = image.dimensions();
    let source = Image::from_vec_u8(w, h, image.into_raw(), PixelType::U8x3)?;
    let mut target = Image::new(width, height, PixelType::U8x3);
    let options =
        ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    Resizer::new().resize(&source, &mut target, &options)?;
    RgbImage::from_raw(width, height, target.into_vec()).context("resizing lost pixels")
}

fn crop(mut image: RgbImage, width: u32, height: u32) -> Result<RgbImage> {
    let (w, h) = image.dimensions();
    ensure!(
        w >= width && h >= height,
        "image is {w}x{h}, expected at least {width}x{height} to crop from\nhint: --resize exact"
    );
    if (w, h) == (width, height) {
        return Ok(image);
    }
    Ok(image::imageops::crop(&mut image, (w - width) / 2, (h - height) / 2, width, height).to_image())
}

fn lay_out<T: Copy + Default>(
    rgb: &RgbImage,
    layout: Layout,
    color: Color,
    value: impl Fn(usize, u8) -> T,
) -> Vec<T> {
    let n_pixels = layout.height * layout.width;
    let mut out = vec![T::default(); n_pixels * layout.channels];
    for (position, pixel) in rgb.as_raw().chunks_exact(3).enumerate() {
        for channel in 0..layout.channels {
            let level = match color {
                Color::Rgb => pixel[channel],
                Color::Bgr => pixel[2 - channel],
                Color::Gray => luma(pixel),
            };
            let at = match layout.channels_first {
                true => channel * n_pixels + position,
                false => position * layout.channels + channel,
            };
            out[at] = value(channel, level);
        }
    }
    out
}

/// BT.601, with the rounding of PIL's conversion to `L`.
fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [0, 1, 2].map(|i| u32::from(pixel[i]));
    ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16) as u8
}

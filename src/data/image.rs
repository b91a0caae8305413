//! Converts images to inputs.
//!
//! Files are recognized by their content. Only the first picture of an animation is read. EXIF orientation is not
//! applied, as in the tools that models are trained with. Transparency is dropped, unless the input has four channels.
//! 16-bit pixels are rounded to 8 bits, and palettes are looked up.

use super::fit::ImageFit;
use super::preprocess::{Color, Crop, Filter, Layout};
use super::recipe::Recipe;
use super::resize::Resize;
use super::{Array, Values};
use crate::diag::WithHint;
use crate::foreign;
use crate::onnx::inputs::InputSpec;
use anyhow::{Context, Result, anyhow, ensure};
use image::{DynamicImage, ImageError, ImageFormat, ImageReader};
use mqq_concrete::resample::{Kernel, resize};
use std::error::Error;
use std::io::{BufReader, Cursor};
use std::path::{Path, PathBuf};

/// The formats that are read.
const FORMATS: &str = "JPEG, PNG, BMP, WebP, GIF, TIFF or PNM";

/// Pixels of 8 bits, channels last.
pub(super) struct Pixels {
    width: usize,
    height: usize,
    n_channels: usize,
    data: Vec<u8>,
}

impl Recipe {
    /// Reads a sample's images and fits them to the input's size. Fails if an image cannot be read or has the wrong
    /// size. The message begins with its path.
    pub fn read(&self, paths: &[PathBuf]) -> Result<Vec<Pixels>> {
        let read = |path: &PathBuf| {
            let fitted = self.decode(path).and_then(|pixels| self.fit(pixels));
            fitted.with_context(|| format!("`{}`", path.display()))
        };
        paths.iter().map(read).collect()
    }

    /// Returns the input array of a sample's images.
    pub fn array(&self, images: &[Pixels], input: &InputSpec) -> Array {
        let n_values = self.n_channels * self.height * self.width * images.len();
        let mut bytes = Vec::with_capacity(if self.tables.is_empty() { n_values } else { 0 });
        let mut floats = Vec::with_capacity(if self.tables.is_empty() { 0 } else { n_values });
        for pixels in images {
            if self.tables.is_empty() {
                self.lay_out(pixels, &mut bytes, |_, pixel| pixel);
            } else {
                let value = |channel: usize, pixel: u8| self.tables[channel][usize::from(pixel)];
                self.lay_out(pixels, &mut floats, value);
            }
        }
        let values = match self.tables.is_empty() {
            true => Values::U8(bytes),
            false => Values::F32(floats),
        };
        Array { shape: input.shape.clone(), values }
    }

    fn decode(&self, path: &Path) -> Result<Pixels> {
        let bytes = foreign::read(path)?;
        ensure!(!bytes.is_empty(), "is empty, expected an image");
        let format =
            image::guess_format(&bytes).ok().with_context(|| format!("is not an image, expected {FORMATS}"))?;
        let name = format!("{format:?}").to_uppercase();
        ensure!(
            format.reading_enabled(),
            anyhow!("is an image in the format {name}, expected {FORMATS}").hint("convert it to PNG")
        );
        ensure!(
            format != ImageFormat::Jpeg || has_jpeg_end(&bytes),
            "is truncated: {} bytes without the end of the JPEG image",
            bytes.len()
        );
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        reader.limits(image::Limits::default());
        let decoded = reader.decode().map_err(|error| match error {
            ImageError::Unsupported(_) => anyhow!(
                "is a {name} image of a kind that mqq does not read, expected gray or RGB pixels of 8 or 16 bits"
            )
            .hint("convert it to PNG"),
            error => anyhow!("cannot be decoded as {name}: {}", reason(&error)),
        })?;
        ensure!(decoded.width() > 0 && decoded.height() > 0, "image has no pixels");
        ensure!(
            !matches!(decoded, DynamicImage::ImageRgb32F(_) | DynamicImage::ImageRgba32F(_)),
            anyhow!("image holds floats, expected pixels of 8 or 16 bits").hint("pass the data as .npy")
        );
        let (width, height) = (decoded.width() as usize, decoded.height() as usize);
        let data = match (self.color, self.n_channels) {
            (Color::Gray | Color::Y, _) if !decoded.color().has_color() => {
                // For `gray`, a gray pixel is its own luma. For `y`, PIL's tables lower some gray levels by one.
                let gray = decoded.into_luma8().into_raw();
                match self.color {
                    Color::Y => gray.into_iter().map(|gray| luma_y(gray, gray, gray)).collect(),
                    _ => gray,
                }
            }
            (Color::Gray, _) => map_rgb(&decoded.into_rgb8().into_raw(), luma_gray),
            (Color::Y, _) => map_rgb(&decoded.into_rgb8().into_raw(), luma_y),
            (_, 4) => decoded.into_rgba8().into_raw(),
            _ => decoded.into_rgb8().into_raw(),
        };
        Ok(Pixels { width, height, n_channels: self.n_channels, data })
    }

    /// Resizes, pads and crops to the input's size.
    fn fit(&self, pixels: Pixels) -> Result<Pixels> {
        let [w, h] = self.target([pixels.width, pixels.height]);
        let resized = pixels.resized(w, h, self.filter)?;
        let pixels = match self.resize {
            Resize::Letterbox | Resize::LetterboxCentered => self.padded(&resized),
            _ => resized,
        };
        let (w, h) = (pixels.width, pixels.height);
        let is_large = w >= self.width && h >= self.height;
        let fits = match self.crop {
            Crop::Center => is_large,
            Crop::None => (w, h) == (self.width, self.height),
        };
        let hint = match self.crop {
            Crop::None if is_large => "set `crop: center`, or `resize: exact`",
            _ => "set `resize: exact`",
        };
        ensure!(
            fits,
            anyhow!(
                "image is {w}x{h} pixels (width x height) before cropping, expected {}{}x{}",
                if self.crop == Crop::Center { "at least " } else { "" },
                self.width,
                self.height
            )
            .hint(hint)
        );
        Ok(self.cropped(pixels))
    }

    /// Returns the width and height that an image is resized to.
    fn target(&self, [image_width, image_height]: [usize; 2]) -> [usize; 2] {
        let (width, height) = (self.width as f64, self.height as f64);
        let (w, h) = (image_width as f64, image_height as f64);
        match self.resize {
            Resize::None => [image_width, image_height],
            Resize::Exact(None) => [self.width, self.height],
            Resize::Exact(Some((height, width))) => [width as usize, height as usize],
            Resize::ShortSide(side) => self.scaled_by_side(side, [image_width, image_height]),
            Resize::Letterbox | Resize::LetterboxCentered => {
                let ratio = (width / w).min(height / h);
                // YOLOX truncates. The centered form of Ultralytics rounds.
                let [w, h] = match self.resize {
                    Resize::LetterboxCentered => {
                        [w, h].map(|pixels| (pixels * ratio).round_ties_even().max(1.0) as usize)
                    }
                    _ => [w, h].map(|pixels| ((pixels * ratio) as usize).max(1)),
                };
                [w.min(self.width), h.min(self.height)]
            }
        }
    }

    /// Returns the width and height that an image of `size` is resized to: one side gets the wanted number of pixels,
    /// and the other side is rounded down, as in torchvision.
    fn scaled_by_side(&self, side: Option<u32>, size: [usize; 2]) -> [usize; 2] {
        let input = [self.width, self.height];
        let mut wanted = match side {
            Some(side) => vec![(usize::from(size[1] < size[0]), f64::from(side))],
            None => [0, 1].map(|axis| (axis, (input[axis] as f64 * 256.0 / 224.0).round_ties_even())).to_vec(),
        };
        // For inputs that are not square, the resized image has to cover both sides.
        if self.crop == Crop::Center {
            wanted.extend(input.iter().enumerate().map(|(axis, &pixels)| (axis, pixels as f64)));
        }
        let ratio = |&(axis, pixels): &(usize, f64)| pixels / size[axis] as f64;
        let largest = wanted.into_iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let Some((axis, pixels)) = largest else { return size };
        size.map(|side| ((side as f64 * pixels / size[axis] as f64) as usize).max(1))
    }

    /// Returns the number of input pixels to the left of a resized image, and above it; below 0 where the image is
    /// cropped. Half of an odd number of cropped pixels is rounded to even, as in torchvision.
    fn corner(&self, [width, height]: [usize; 2]) -> [i64; 2] {
        match self.resize {
            Resize::Letterbox => [0, 0],
            _ => [(self.width, width), (self.height, height)].map(|(input, image)| match input.checked_sub(image) {
                Some(room) => room as i64 / 2,
                None => -(((image - input) as f64 / 2.0).round_ties_even() as i64),
            }),
        }
    }

    /// Returns the fit of an image file into the input. Only the file's header is read. Fails if the file is not an
    /// image. The message begins with its path.
    pub fn image_fit(&self, path: &Path) -> Result<ImageFit> {
        let size = image_size(path).with_context(|| format!("`{}`", path.display()))?;
        let size = size.map(|side| side as usize);
        let target = self.target(size);
        let scale = std::array::from_fn(|i| target[i] as f64 / size[i] as f64);
        Ok(ImageFit { size, scale, offset: self.corner(target).map(|pixels| pixels as f64) })
    }

    /// Crops the center of the pixels to the input's size.
    fn cropped(&self, pixels: Pixels) -> Pixels {
        let Pixels { width, height, n_channels, .. } = pixels;
        if (width, height) == (self.width, self.height) {
            return pixels;
        }
        let [left, top] = self.corner([width, height]).map(|pixels| pixels.unsigned_abs() as usize);
        let row = |y: usize| &pixels.data[(y * width + left) * n_channels..][..self.width * n_channels];
        let data = (top..top + self.height).map(row).collect::<Vec<&[u8]>>().concat();
        Pixels { width: self.width, height: self.height, n_channels, data }
    }

    fn padded(&self, pixels: &Pixels) -> Pixels {
        let mut canvas = Pixels {
            width: self.width,
            height: self.height,
            n_channels: self.n_channels,
            data: vec![self.pad_value; self.width * self.height * self.n_channels],
        };
        let [left, top] = self.corner([pixels.width, pixels.height]).map(|pixels| pixels.unsigned_abs() as usize);
        let row_len = pixels.width * pixels.n_channels;
        for (y, row) in pixels.data.chunks_exact(row_len).enumerate() {
            let start = ((top + y) * self.width + left) * self.n_channels;
            canvas.data[start..][..row_len].copy_from_slice(row);
        }
        canvas
    }

    /// Appends the pixels to `out` in the input's layout.
    fn lay_out<T>(&self, pixels: &Pixels, out: &mut Vec<T>, value: impl Fn(usize, u8) -> T) {
        let n = self.n_channels;
        let stored: [usize; 4] = match self.color {
            Color::Bgr => [2, 1, 0, 3],
            _ => [0, 1, 2, 3],
        };
        match self.layout {
            Layout::Nchw => {
                for (channel, &at) in stored[..n].iter().enumerate() {
                    let pixels = pixels.data.chunks_exact(n);
                    out.extend(pixels.map(|pixel| value(channel, pixel[at])));
                }
            }
            Layout::Nhwc => {
                for pixel in pixels.data.chunks_exact(n) {
                    out.extend((0..n).map(|channel| value(channel, pixel[stored[channel]])));
                }
            }
        }
    }
}

impl Pixels {
    /// Returns the pixels mirrored from left to right.
    pub fn mirrored(&self) -> Pixels {
        let n = self.n_channels;
        let mut data = self.data.clone();
        for (to, from) in data.chunks_exact_mut(self.width * n).zip(self.data.chunks_exact(self.width * n)) {
            to.chunks_exact_mut(n).zip(from.chunks_exact(n).rev()).for_each(|(to, from)| to.copy_from_slice(from));
        }
        Pixels { data, ..*self }
    }

    /// Returns the central `share` of both sides, resized to the same width and height.
    pub fn central(&self, share: f64) -> Result<Pixels> {
        let inner = |side: usize| ((side as f64 * share).round() as usize).clamp(1, side);
        let (width, height) = (inner(self.width), inner(self.height));
        let (left, top) = ((self.width - width) / 2, (self.height - height) / 2);
        let row = |y: usize| &self.data[(y * self.width + left) * self.n_channels..][..width * self.n_channels];
        let data = (top..top + height).map(row).collect::<Vec<&[u8]>>().concat();
        Pixels { width, height, n_channels: self.n_channels, data }.resized(self.width, self.height, Filter::Bilinear)
    }

    /// Returns the pixels with `value` applied to each.
    pub fn mapped(&self, value: impl Fn(u8) -> u8) -> Pixels {
        Pixels { data: self.data.iter().map(|&pixel| value(pixel)).collect(), ..*self }
    }

    fn resized(self, width: usize, height: usize, filter: Filter) -> Result<Pixels> {
        if (self.width, self.height) == (width, height) {
            return Ok(self);
        }
        ensure!(
            width.max(height) < 1 << 16,
            "image of {}x{} pixels would be {width}x{height} when resized, expected sides below 65536",
            self.width,
            self.height
        );
        // Rows first, as in PIL. The order matters because intermediate values are rounded and clipped.
        let is_two_pass = filter != Filter::Nearest && self.width != width && self.height != height;
        if is_two_pass {
            let rows = self.height;
            return self.resized(width, rows, filter)?.resized(width, height, filter);
        }
        let kernel = match filter {
            Filter::Nearest => Kernel::Nearest,
            Filter::Bilinear => Kernel::Bilinear,
            Filter::Bicubic => Kernel::Bicubic,
            Filter::Lanczos => Kernel::Lanczos,
        };
        let (from, to) = ([self.width as u32, self.height as u32], [width as u32, height as u32]);
        let data = resize(&self.data, self.n_channels, from, to, kernel)?;
        Ok(Pixels { width, height, n_channels: self.n_channels, data })
    }
}

/// Reads width and height of an image from its header.
pub(super) fn image_size(path: &Path) -> Result<[u32; 2]> {
    let reader = ImageReader::new(BufReader::new(foreign::open(path)?)).with_guessed_format()?;
    Ok(reader.into_dimensions()?.into())
}

/// Returns the reason of the decoder, with the name of a PNG chunk instead of its fields.
fn reason(error: &ImageError) -> String {
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let parts = text.split_once("ChunkType { type: ").and_then(|(before, rest)| {
        let (fields, after) = rest.split_once(" }")?;
        Some(format!("{before}{}{after}", fields.split(',').next()?))
    });
    parts.unwrap_or(text)
}

/// Whether a JPEG file has an end-of-image marker behind the header of its first scan. Decoders fill missing parts with
/// gray. A thumbnail in front of the scan has a marker of its own.
fn has_jpeg_end(bytes: &[u8]) -> bool {
    const START_OF_SCAN: u8 = 0xda;
    let mut at = 2;
    while let Some(&[0xff, marker, high, low]) = bytes.get(at..at + 4) {
        if marker == START_OF_SCAN {
            return bytes[at..].windows(2).any(|pair| pair == [0xff, 0xd9]);
        }
        // A fill byte may stand in front of a marker.
        at += if marker == 0xff { 1 } else { 2 + usize::from(u16::from_be_bytes([high, low])) };
    }
    false
}

fn map_rgb(rgb: &[u8], luma: fn(u8, u8, u8) -> u8) -> Vec<u8> {
    let (pixels, _) = rgb.as_chunks::<3>();
    pixels.iter().map(|&[r, g, b]| luma(r, g, b)).collect()
}

/// Luma as in PIL's `Convert.c`: weights 0.299, 0.587 and 0.114 in 65536ths, rounded to nearest.
fn luma_gray(r: u8, g: u8, b: u8) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

/// Luma as in PIL's `ConvertYCbCr.c`: each part is rounded to 64ths, and the sum is rounded down.
fn luma_y(r: u8, g: u8, b: u8) -> u8 {
    let part = |level: u8, weight: u32| (u32::from(level) * weight * 64 + 500) / 1000;
    ((part(r, 299) + part(g, 587) + part(b, 114)) >> 6) as u8
}

//! Preprocessing of images: the options, their YAML, and how they override each other. This file does not touch images.

use super::resize::Resize;
use crate::diag::{in_plain_words, suggesting};
use anyhow::{Context, Result, ensure};
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{self, DeserializeOwned, Error as _, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;
use std::fmt;

/// Interpolation for resizing. All kernels except `nearest` widen when they shrink an image, as in PIL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// Triangle kernel.
    Bilinear,
    /// Cubic kernel with a = -0.5.
    Bicubic,
    /// The nearest pixel.
    Nearest,
    /// Sinc kernel with three lobes.
    Lanczos,
}

/// Cropping of a resized image that is larger than the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crop {
    /// Cut to the center. At the top and left, half of an odd number of pixels is rounded to even, as in torchvision.
    Center,
    /// No cropping. Another size than the input's is an error.
    None,
}

/// The meaning of the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Color {
    /// Red, green, blue; alpha as a fourth where the input takes four.
    Rgb,
    /// Blue, green, red; alpha as a fourth where the input takes four.
    Bgr,
    /// Luma of BT.601, rounded as in PIL's conversion to `L`.
    Gray,
    /// Luma of BT.601, rounded down as in PIL's conversion to `YCbCr`.
    Y,
}

/// The order of the axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Channels before rows and columns.
    Nchw,
    /// Channels last.
    Nhwc,
}

/// Options for the steps from an image to an input. `None` stands for the default.
///
/// The steps are, in order: color, resize, crop, then `(pixel * scale - mean) / std` with pixels from 0 to 255. Mean
/// and std are in the order of the model's channels, or one number for all. A uint8 input gets the pixels unchanged. As
/// a file:
///
/// ```yaml
/// preset: imagenet            # the other keys replace its own
/// resize: { short_side: 232 } # none, exact, short_side, letterbox, letterbox_centered
/// filter: bicubic
/// color: bgr
/// scale: 1/255
/// mean: [0.5, 0.5, 0.5]       # or one number for all channels
/// ```
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocessing {
    /// The preset that the other options override.
    pub preset: Option<String>,
    /// Fit to the input's size. Default: `exact`.
    pub resize: Option<Resize>,
    /// Interpolation. Default: `bilinear`.
    pub filter: Option<Filter>,
    /// Cropping. Default: `center` after `short_side` and after `exact` with a size, otherwise `none`.
    pub crop: Option<Crop>,
    /// Value of padded pixels, 0 to 255. Default: 114.
    pub pad_value: Option<u8>,
    /// Channels. Default: `rgb`, or `gray` for an input of one channel.
    pub color: Option<Color>,
    /// Factor of the pixels; in YAML a number or a fraction. Default: 1/255.
    #[serde(deserialize_with = "number", default)]
    pub scale: Option<f64>,
    /// Subtracted after scaling. Default: 0.
    #[serde(deserialize_with = "numbers", default)]
    pub mean: Option<Vec<f64>>,
    /// Divisor after subtracting the mean. Default: 1.
    #[serde(deserialize_with = "numbers", default)]
    pub std: Option<Vec<f64>>,
    /// Axes of the input. Default: the layout whose channel axis has 1, 3 or 4 channels; `nchw` if both have.
    pub layout: Option<Layout>,
}

/// Reads a number or a fraction, such as `1/255`.
///
/// # Errors
/// If the text is neither, or the number is not finite.
pub fn parse_number(text: &str) -> Result<f64> {
    let number = match text.split_once('/') {
        Some((above, below)) => parse_plain(above).zip(parse_plain(below)).map(|(a, b)| a / b),
        None => parse_plain(text),
    };
    let number = number.filter(|number| number.is_finite());
    number.with_context(|| format!("`{text}` is not a number, expected one or a fraction such as 1/255"))
}

fn parse_plain(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

/// A number or a fraction in YAML; with `LIST` a number or a list of numbers and fractions.
struct Numbers<const LIST: bool>(Vec<f64>);

struct NumbersVisitor<const LIST: bool>;

impl<'de, const LIST: bool> Visitor<'de> for NumbersVisitor<LIST> {
    type Value = Numbers<LIST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if LIST { "a number or a list of numbers" } else { "a number, or a fraction such as 1/255" })
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Numbers(vec![number]))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Numbers(vec![number as f64]))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Numbers(vec![number as f64]))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        match LIST {
            true => Err(E::invalid_type(Unexpected::Str(text), &self)),
            false => parse_number(text).map(|number| Numbers(vec![number])).map_err(E::custom),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        if !LIST {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let mut numbers = Vec::new();
        while let Some(Numbers::<false>(number)) = list.next_element()? {
            numbers.extend(number);
        }
        Ok(Numbers(numbers))
    }
}

impl<'de, const LIST: bool> Deserialize<'de> for Numbers<LIST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumbersVisitor)
    }
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::<Numbers<false>>::deserialize(deserializer)?.and_then(|number| number.0.first().copied()))
}

fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<f64>>, D::Error> {
    Ok(Option::<Numbers<true>>::deserialize(deserializer)?.map(|numbers| numbers.0))
}

/// Parses the value of an option as written in YAML, or in another case: a [`Resize`], [`Filter`], [`Crop`], [`Color`]
/// or [`Layout`].
///
/// # Errors
/// If the value is unknown; the message lists the valid ones.
pub fn parse_option<T: DeserializeOwned>(text: &str) -> Result<T> {
    let of = |text: &str| T::deserialize(StrDeserializer::<ValueError>::new(text));
    of(text)
        .or_else(|error| of(&text.to_lowercase()).map_err(|_| error))
        .map_err(|error| in_plain_words(&error.to_string()))
        .map_err(|message| suggesting(&message, &message))
}

impl Preprocessing {
    /// Checks the numbers that no input allows.
    ///
    /// # Errors
    /// If there is one. The message begins with its key.
    pub fn check_numbers(&self) -> Result<()> {
        if let Some(scale) = self.scale {
            ensure!(scale.is_finite() && scale != 0.0, "`scale` is {scale}, expected a finite number other than 0");
        }
        for (key, values) in [("mean", &self.mean), ("std", &self.std)] {
            let Some(values) = values else { continue };
            ensure!(!values.is_empty(), "`{key}` is an empty list, expected one number, or one for each channel");
            ensure!(values.iter().all(|value| value.is_finite()), "`{key}` is {values:?}, expected numbers");
        }
        let std = self.std.as_deref().unwrap_or_default();
        ensure!(!std.contains(&0.0), "`std` is {std:?}, expected no zeros");
        Ok(())
    }

    /// Returns the options of `over`, completed by those of `self`.
    pub fn overlaid(self, over: Preprocessing) -> Preprocessing {
        Preprocessing {
            preset: over.preset.or(self.preset),
            resize: over.resize.or(self.resize),
            filter: over.filter.or(self.filter),
            crop: over.crop.or(self.crop),
            pad_value: over.pad_value.or(self.pad_value),
            color: over.color.or(self.color),
            scale: over.scale.or(self.scale),
            mean: over.mean.or(self.mean),
            std: over.std.or(self.std),
            layout: over.layout.or(self.layout),
        }
    }
}

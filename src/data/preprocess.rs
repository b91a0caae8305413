//! How an image becomes an input: size, colour, scale.

use super::InputSpec;
use crate::diag::did_you_mean;
use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How the image is brought to the input's height and width.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resize {
    /// Stretched to the input's size.
    Exact,
    /// The shorter side to this many pixels, the aspect ratio kept; then cropped in the middle.
    ShortSide(u32),
    /// Shrunk or enlarged to fit, the aspect ratio kept, at the top left; the rest is padded.
    Letterbox,
    /// As `letterbox`, with the image in the middle.
    LetterboxCentered,
    /// Not resized: the image must have the input's size, or is cropped in the middle.
    None,
}

/// What the channels hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Color {
    /// Red, green, blue.
    Rgb,
    /// Blue, green, red.
    Bgr,
    /// Luma of BT.601, one channel.
    Gray,
}

/// Steps from an image to an input; what is `None` takes its default. Values are
/// `(pixel * scale - mean) / std`, pixels from 0 to 255, means and deviations in the order of the channels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocessing {
    /// Default: exact.
    pub resize: Option<Resize>,
    /// Value of padded pixels, 0 to 255. Default: 114.
    pub pad_value: Option<u8>,
    /// Default: rgb, or gray for one channel.
    pub color: Option<Color>,
    /// Default: 1/255.
    pub scale: Option<f32>,
    /// Default: 0.
    pub mean: Option<Vec<f32>>,
    /// Default: 1.
    pub std: Option<Vec<f32>>,
}

/// A named preprocessing.
pub struct Preset {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    make: fn() -> Preprocessing,
}

const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

fn with(
    resize: Resize,
    color: Color,
    scale: f32,
    mean: Option<[f32; 3]>,
    std: Option<[f32; 3]>,
) -> Preprocessing {
    Preprocessing {
        resize: Some(resize),
        pad_value: None,
        color: Some(color),
        scale: Some(scale),
        mean: mean.map(|mean| mean.to_vec()),
        std: std.map(|std| std.to_vec()),
    }
}

const UNIT: f32 = 1.0 / 255.0;

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "imagenet",
        description: "short side 256, crop, RGB, /255, ImageNet mean and deviation (torchvision)",
        make: || {
            let (mean, std) = (Some(IMAGENET_MEAN), Some(IMAGENET_STD));
            with(Resize::ShortSide(256), Color::Rgb, UNIT, mean, std)
        },
    },
    Preset {
        name: "imagenet-caffe",
        description: "short side 256, crop, BGR, 0..255 minus (104, 117, 123)",
        make: || with(Resize::ShortSide(256), Color::Bgr, 1.0, Some([104.0, 117.0, 123.0]), None),
    },
    Preset {
        name: "minus-one-to-one",
        description: "stretched, RGB, -1..1 (TensorFlow)",
        make: || with(Resize::Exact, Color::Rgb, 1.0 / 127.5, Some([1.0; 3]), None),
    },
    Preset {
        name: "unit",
        description: "stretched, RGB, 0..1",
        make: || with(Resize::Exact, Color::Rgb, UNIT, None, None),
    },
    Preset {
        name: "raw",
        description: "stretched, RGB, 0..255",
        make: || with(Resize::Exact, Color::Rgb, 1.0, None, None),
    },
    Preset {
        name: "half",
        description: "stretched, RGB, /255, mean 0.5, deviation 0.5",
        make: || with(Resize::Exact, Color::Rgb, UNIT, Some([0.5; 3]), Some([0.5; 3])),
    },
    Preset {
        name: "yolox",
        description: "letterbox at the top left with 114, BGR, 0..255",
        make: || with(Resize::Letterbox, Color::Bgr, 1.0, None, None),
    },
    Preset {
        name: "yolo",
        description: "letterbox in the middle with 114, RGB, 0..1",
        make: || with(Resize::LetterboxCentered, Color::Rgb, UNIT, None, None),
    },
    Preset {
        name: "ultraface",
        description: "stretched, RGB, (x - 127) / 128",
        make: || with(Resize::Exact, Color::Rgb, 1.0, Some([127.0; 3]), Some([128.0; 3])),
    },
    Preset {
        name: "paddleocr",
        description: "stretched, BGR, /255, ImageNet mean and deviation in channel order",
        make: || {
            with(Resize::Exact, Color::Bgr, UNIT, Some(IMAGENET_MEAN), Some(IMAGENET_STD))
        },
    },
    Preset {
        name: "gray-unit",
        description: "stretched, luma, 0..1 (MNIST, super-resolution)",
        make: || with(Resize::Exact, Color::Gray, UNIT, None, None),
    },
];

impl Preprocessing {
    /// The preset `name`, or the YAML file at that path.
    ///
    /// # Errors
    /// If there is neither, or the file has an unknown key or a wrong value.
    pub fn named(name: &str) -> Result<Preprocessing> {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) {
            return Ok((preset.make)());
        }
        if Path::new(name).is_file() {
            let yaml = std::fs::read_to_string(name).with_context(|| format!("`{name}`"))?;
            return serde_yaml::from_str(&yaml).map_err(|error| {
                let message = error.to_string();
                let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
                let hint = match quoted.split_first() {
                    Some((found, expected)) if message.contains("unknown") => {
                        did_you_mean(found, expected.iter().copied())
                    }
                    _ => String::new(),
                };
                anyhow!("`{name}`: {message}{hint}")
            });
        }
        let names = || PRESETS.iter().map(|preset| preset.name);
        bail!(
            "preprocessing `{name}` is unknown, expected the path of a YAML file or one of: {}{}",
            names().collect::<Vec<_>>().join(", "),
            did_you_mean(name, names())
        )
    }

    /// What `over` sets, and the rest from `self`.
    pub fn overlaid(self, over: Preprocessing) -> Preprocessing {
        Preprocessing {
            resize: over.resize.or(self.resize),
            pad_value: over.pad_value.or(self.pad_value),
            color: over.color.or(self.color),
            scale: over.scale.or(self.scale),
            mean: over.mean.or(self.mean),
            std: over.std.or(self.std),
        }
    }

    /// One line: what is done for `input`, and what of it is a default.
    pub fn describe(&self, input: &InputSpec) -> String {
        let Ok(layout) = super::image::Layout::of(input) else { return "no image input".into() };
        let marked = |text: String, given: bool| if given { text } else { format!("{text} (default)") };
        let resize = match self.resize.unwrap_or(Resize::Exact) {
            Resize::Exact => format!("stretched to {}x{}", layout.height, layout.width),
            Resize::ShortSide(n) => {
                format!("short side {n}, cropped to {}x{}", layout.height, layout.width)
            }
            Resize::Letterbox => format!("letterbox {}x{}", layout.height, layout.width),
            Resize::LetterboxCentered => {
                format!("centered letterbox {}x{}", layout.height, layout.width)
            }
            Resize::None => "not resized".into(),
        };
        let color = match self.color_for(layout.channels) {
            Color::Rgb => "RGB",
            Color::Bgr => "BGR",
            Color::Gray => "gray",
        };
        let scale = self.scale.unwrap_or(UNIT);
        let scale = match (1.0 / scale).round() {
            inverse if inverse > 1.0 && 1.0 / inverse == scale => format!("/{inverse}"),
            _ => format!("x{scale}"),
        };
        let mut parts = vec![
            marked(resize, self.resize.is_some()),
            marked(color.to_string(), self.color.is_some()),
            marked(scale, self.scale.is_some()),
        ];
        parts.extend(self.mean.as_ref().map(|mean| format!("mean {mean:?}")));
        parts.extend(self.std.as_ref().map(|std| format!("std {std:?}")));
        parts.push(if layout.channels_first { "NCHW".into() } else { "NHWC".into() });
        parts.join(", ")
    }

    /// The colour order for an input of so many channels.
    pub(super) fn color_for(&self, channels: usize) -> Color {
        self.color.unwrap_or(if channels == 1 { Color::Gray } else { Color::Rgb })
    }

    /// `pixel -> value` for each channel.
    ///
    /// # Errors
    /// If `mean` or `std` has neither one entry nor one per channel, or a deviation is 0.
    pub(super) fn tables(&self, channels: usize) -> Result<Vec<[f32; 256]>> {
        let scale = self.scale.unwrap_or(UNIT);
        let of = |key: &str, list: &Option<Vec<f32>>, default: f32, channel: usize| match list {
            None => Ok(default),
            Some(list) if list.len() == 1 => Ok(list[0]),
            Some(list) if list.len() == channels => Ok(list[channel]),
            Some(list) => Err(anyhow!(
                "`{key}` has {} numbers, expected 1 or one for each of {channels} channels",
                list.len()
            )),
        };
        let table = |channel: usize| {
            let mean = of("mean", &self.mean, 0.0, channel)?;
            let std = of("std", &self.std, 1.0, channel)?;
            anyhow::ensure!(std != 0.0, "`std` is 0, expected another number");
            let mut table = [0.0; 256];
            for (pixel, value) in table.iter_mut().enumerate() {
                *value = (pixel as f32 * scale - mean) / std;
            }
            Ok(table)
        };
        (0..channels).map(table).collect()
    }
}

//! Named preprocessings, what families of models were trained with; and those of a file, over a named one.

use super::preprocess::{Color, Preprocessing};
use super::resize::Resize;
use crate::diag::{WithHint, did_you_mean, suggesting};
use anyhow::{Context, Result, anyhow};
use std::path::Path;

/// A named preprocessing.
pub struct Preset {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    resize: Resize,
    /// `None`: by the number of channels.
    color: Option<Color>,
    scale: f64,
    mean: &'static [f64],
    std: &'static [f64],
}

const IMAGENET_MEAN: &[f64] = &[0.485, 0.456, 0.406];
const IMAGENET_STD: &[f64] = &[0.229, 0.224, 0.225];
const UNIT: f64 = 1.0 / 255.0;

/// What the entries below differ from.
const STRETCHED: Preset = Preset {
    name: "",
    description: "",
    resize: Resize::Exact(None),
    color: Some(Color::Rgb),
    scale: 1.0,
    mean: &[0.0],
    std: &[1.0],
};

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "imagenet",
        description: "short side 256 for 224, cropped, RGB, /255, ImageNet mean and std (torchvision)",
        resize: Resize::ShortSide(None),
        scale: UNIT,
        mean: IMAGENET_MEAN,
        std: IMAGENET_STD,
        ..STRETCHED
    },
    Preset {
        name: "imagenet-caffe",
        description: "short side 256 for 224, cropped, BGR, 0..255 minus (104, 117, 123)",
        resize: Resize::ShortSide(None),
        color: Some(Color::Bgr),
        mean: &[104.0, 117.0, 123.0],
        ..STRETCHED
    },
    Preset {
        name: "imagenet-tf",
        description: "short side 256 for 224, cropped, RGB, x/127.5 - 1 (TensorFlow)",
        resize: Resize::ShortSide(None),
        mean: &[127.5],
        std: &[127.5],
        ..STRETCHED
    },
    Preset {
        name: "minus-one-to-one",
        description: "stretched, RGB, x/127.5 - 1",
        mean: &[127.5],
        std: &[127.5],
        ..STRETCHED
    },
    Preset { name: "raw", description: "stretched, RGB, 0..255 as it is", color: None, ..STRETCHED },
    Preset { name: "unit", description: "stretched, RGB, /255", scale: UNIT, color: None, ..STRETCHED },
    Preset {
        name: "half",
        description: "stretched, RGB, /255, mean 0.5, std 0.5",
        scale: UNIT,
        mean: &[0.5],
        std: &[0.5],
        color: None,
        ..STRETCHED
    },
    Preset {
        name: "yolox",
        description: "letterbox at the top left with 114, BGR, 0..255",
        resize: Resize::Letterbox,
        color: Some(Color::Bgr),
        ..STRETCHED
    },
    Preset {
        name: "yolo",
        description: "letterbox in the middle with 114, RGB, /255",
        resize: Resize::LetterboxCentered,
        scale: UNIT,
        ..STRETCHED
    },
    Preset {
        name: "ultraface",
        description: "stretched, RGB, (x - 127) / 128",
        mean: &[127.0],
        std: &[128.0],
        ..STRETCHED
    },
    Preset {
        name: "paddleocr",
        description: "stretched, BGR, /255, ImageNet mean and std in the order of the channels",
        color: Some(Color::Bgr),
        scale: UNIT,
        mean: IMAGENET_MEAN,
        std: IMAGENET_STD,
        ..STRETCHED
    },
    Preset {
        name: "superres-y",
        description: "stretched, Y of YCbCr, /255",
        color: Some(Color::Y),
        scale: UNIT,
        ..STRETCHED
    },
    Preset {
        name: "gray-unit",
        description: "stretched, luma, /255",
        color: Some(Color::Gray),
        scale: UNIT,
        ..STRETCHED
    },
    Preset { name: "mnist", description: "stretched, gray, /255", color: Some(Color::Gray), scale: UNIT, ..STRETCHED },
];

impl Preset {
    /// Its options.
    pub fn preprocessing(&self) -> Preprocessing {
        Preprocessing {
            preset: Some(self.name.to_owned()),
            resize: Some(self.resize),
            color: self.color,
            scale: Some(self.scale),
            mean: (self.mean != [0.0]).then(|| self.mean.to_vec()),
            std: (self.std != [1.0]).then(|| self.std.to_vec()),
            ..Preprocessing::default()
        }
    }
}

impl Preprocessing {
    /// The preset of that name, or what the YAML file at that path says.
    ///
    /// # Errors
    /// If there is neither, or the file has an unknown key or a wrong value: file, line and key.
    pub fn named(name: &str) -> Result<Preprocessing> {
        if let Some(preset) = find(name) {
            return Ok(preset.preprocessing());
        }
        if !Path::new(name).is_file() {
            let what = if name.ends_with(".yaml") || name.ends_with(".yml") {
                format!("`{name}`: does not exist, expected a YAML file or one of the presets")
            } else {
                format!("preprocessing `{name}` is unknown, expected a YAML file or one of")
            };
            return Err(unknown(&what, name));
        }
        let yaml = std::fs::read_to_string(name).with_context(|| format!("`{name}`"))?;
        Preprocessing::from_yaml(&yaml, name)
    }

    /// What a YAML text says, over the preset that it names. `file` is for messages.
    ///
    /// # Errors
    /// If it has an unknown key or a wrong value: file, line and key.
    pub fn from_yaml(yaml: &str, file: &str) -> Result<Preprocessing> {
        let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        if yaml.lines().all(is_blank) {
            return Ok(Preprocessing::default());
        }
        let parsed: Preprocessing = serde_yaml::from_str(yaml).map_err(|error| {
            let place = error.location().map_or(String::new(), |place| format!(":{}", place.line()));
            let text = error.to_string();
            let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
            let is_key = |c: char| c.is_ascii_alphanumeric() || "_[].".contains(c);
            let message = match text.split_once(": ") {
                Some((key, rest)) if key.chars().all(is_key) => format!("`{key}`: {rest}"),
                _ => text.to_owned(),
            };
            suggesting(&message, format!("`{file}`{place}: {message}"))
        })?;
        parsed.resolved().with_context(|| format!("`{file}`: `preset`"))
    }

    /// With the options of the preset that it names.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn resolved(self) -> Result<Preprocessing> {
        let Some(name) = &self.preset else { return Ok(self) };
        let preset =
            find(name).ok_or_else(|| unknown(&format!("preset `{name}` is unknown, expected one of"), name))?;
        Ok(preset.preprocessing().overlaid(self))
    }
}

fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// The error `what`, with the names of all presets behind it, and the one nearest to `found` as a hint.
fn unknown(what: &str, found: &str) -> anyhow::Error {
    let names = || PRESETS.iter().map(|preset| preset.name);
    let list = names().collect::<Vec<_>>().join(", ");
    anyhow!("{what} {list}").hint(did_you_mean(found, names()))
}

//! The preprocessing for one input with all defaults resolved, and its description.

use super::preprocess::{Color, Crop, Filter, Layout, Preprocessing};
use super::resize::Resize;
use crate::diag::{WithHint, count, quoted};
use crate::onnx::data_type::{DataType, type_name};
use crate::onnx::inputs::InputSpec;
use anyhow::{Result, anyhow, bail, ensure};

/// The preprocessing steps for one input, with all defaults resolved.
pub struct Recipe {
    /// The options of the user, completed by the preset, without defaults.
    pub options: Preprocessing,
    /// Images per sample.
    pub batch: usize,
    pub layout: Layout,
    pub n_channels: usize,
    pub height: usize,
    pub width: usize,
    pub resize: Resize,
    pub filter: Filter,
    pub crop: Crop,
    pub pad_value: u8,
    pub color: Color,
    scale: f64,
    mean: Vec<f64>,
    std: Vec<f64>,
    /// The input value of each pixel level, per channel; empty if the input takes uint8 pixels.
    pub tables: Vec<[f32; 256]>,
}

/// Returns the input for images. Fails if images alone cannot feed the model.
pub fn image_input(inputs: &[InputSpec]) -> Result<&InputSpec> {
    let is_fed = |input: &&InputSpec| {
        input.shape.len() == 4 && matches!(DataType::of(input.data_type), Some(DataType::Float | DataType::Uint8))
    };
    if let [input] = inputs {
        ensure!(
            is_fed(&input),
            anyhow!(
                "images cannot feed input `{}`: it takes {} of shape {:?}, expected float32 or uint8 of rank 4",
                input.name,
                type_name(input.data_type),
                input.shape
            )
            .hint("pass its data as .npy or .npz")
        );
        return Ok(input);
    }
    let names = |inputs: Vec<&InputSpec>| quoted(inputs.iter().map(|input| &input.name), ", ");
    let (fed, rest): (Vec<&InputSpec>, Vec<&InputSpec>) = inputs.iter().partition(is_fed);
    let error = match fed.len() {
        1 => anyhow!("an image feeds input {}, but there are no data for {}", names(fed), names(rest)),
        _ => anyhow!("an image feeds one input, but the model takes {}", names(inputs.iter().collect())),
    };
    Err(error.hint("use .npz files with one key per input"))
}

impl Recipe {
    /// Resolves the steps from the user's options. Fails if the input does not have an image's shape, or an option does
    /// not fit it.
    pub fn new(input: &InputSpec, preprocessing: &Preprocessing) -> Result<Recipe> {
        let options = preprocessing.clone().resolved()?;
        options.check_numbers()?;
        let (layout, [batch, n_channels, height, width]) = settle_layout(input, options.layout)?;
        let side_limit = 1 << 16;
        ensure!(
            batch > 0 && (1..side_limit).contains(&height) && (1..side_limit).contains(&width),
            "input `{}` has shape {:?}, expected sides of 1 to 65535 pixels",
            input.name,
            input.shape
        );
        let default = if n_channels == 1 { Color::Gray } else { Color::Rgb };
        let color = options.color.unwrap_or(default);
        let is_luma = matches!(color, Color::Gray | Color::Y);
        ensure!(
            is_luma == (n_channels == 1),
            anyhow!(
                "`color`: {} gives {}, input `{}` takes {n_channels} (shape {:?})",
                color_name(color),
                count(if is_luma { 1 } else { 3 }, "channel"),
                input.name,
                input.shape
            )
            .hint(if is_luma {
                "use --color rgb or bgr"
            } else {
                "use --color gray, and one number for --mean and --std"
            })
        );
        let resize = options.resize.unwrap_or(Resize::Exact(None));
        let crops = matches!(resize, Resize::ShortSide(_) | Resize::Exact(Some(_)));
        let is_uint8 = input.data_type == DataType::Uint8 as i32;
        let (scale, mean, std) = scale_mean_std(&options, input, n_channels)?;
        let table = |channel: usize| {
            std::array::from_fn(|pixel| ((pixel as f64 * scale - mean[channel]) / std[channel]) as f32)
        };
        let tables = if is_uint8 { Vec::new() } else { (0..n_channels).map(table).collect() };
        Ok(Recipe {
            batch,
            layout,
            n_channels,
            height,
            width,
            resize,
            filter: options.filter.unwrap_or(Filter::Bilinear),
            crop: options.crop.unwrap_or(if crops { Crop::Center } else { Crop::None }),
            pad_value: options.pad_value.unwrap_or(114),
            color,
            scale,
            mean,
            std,
            tables,
            options,
        })
    }

    /// Describes every step in one line, and marks defaults.
    pub fn describe(&self, input: &InputSpec) -> String {
        let options = &self.options;
        let (width, height) = (self.width, self.height);
        let size = format!("{width}x{height}");
        let mark = |text: String, is_given: bool| match is_given {
            true => text,
            false => format!("{text} (default)"),
        };
        let filter = option_name(self.filter);
        let side = width.min(height) as f64 * 256.0 / 224.0;
        let resize = match self.resize {
            Resize::None => "not resized".to_owned(),
            Resize::Exact(None) => format!("stretched to {size} {filter}"),
            Resize::Exact(Some((h, w))) => format!("stretched to {w}x{h} {filter}"),
            Resize::ShortSide(None) if width != height => {
                format!("scaled to cover 256/224 of {size} {filter}")
            }
            Resize::ShortSide(n) => {
                format!("short side to {} {filter}", n.unwrap_or(side.round_ties_even() as u32))
            }
            Resize::Letterbox => format!("letterbox {size} {filter}, pad {}", self.pad_value),
            Resize::LetterboxCentered => {
                format!("centered letterbox {size} {filter}, pad {}", self.pad_value)
            }
        };
        let mut steps = vec![mark(resize, options.resize.is_some())];
        if self.crop == Crop::Center {
            steps.push(format!("center crop {size}"));
        }
        steps.push(mark(color_name(self.color).to_owned(), options.color.is_some()));
        if self.tables.is_empty() {
            steps.push("0..255 as uint8".to_owned());
        } else {
            let inverse = (1.0 / self.scale).round();
            let scale = match self.scale {
                1.0 => "0..255".to_owned(),
                scale if 1.0 / inverse == scale => format!("/{inverse}"),
                scale => format!("*{scale}"),
            };
            steps.push(mark(scale, options.scale.is_some()));
            steps.extend(options.mean.is_some().then(|| format!("mean {:?}", self.mean)));
            steps.extend(options.std.is_some().then(|| format!("std {:?}", self.std)));
        }
        let layout = option_name(self.layout).to_uppercase();
        let by_shape = if options.layout.is_some() { "" } else { " (by its shape)" };
        steps.push(format!("{layout} {:?}{by_shape}", input.shape));
        let preset = options.preset.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        format!("images for input `{}`{preset}: {}", input.name, steps.join(", "))
    }
}

/// Whether two descriptions of preprocessing have the same steps, given or by default.
pub fn same_preprocessing(one: &str, other: &str) -> bool {
    steps(one) == steps(other)
}

/// Returns the steps of a description, without the input, the marks of defaults, and steps that change nothing.
fn steps(description: &str) -> String {
    let steps = description.rsplit_once("`").and_then(|(_, rest)| rest.split_once(": "));
    let mut steps = steps.map_or(description, |(_, steps)| steps).to_string();
    for mark in [" (default)", " (by its shape)"] {
        steps = steps.replace(mark, "");
    }
    for (name, neutral) in [("mean", 0.0), ("std", 1.0)] {
        for n_channels in [1, 3] {
            steps = steps.replace(&format!(", {name} {:?}", vec![neutral; n_channels]), "");
        }
    }
    // The shape of the input stands at the end.
    steps.rsplit_once(" [").map_or(steps.clone(), |(steps, _)| steps.to_string())
}

/// Returns height and width of the images that an input takes; `None` if its shape is not that of images.
pub fn image_size(input: &InputSpec) -> Option<[usize; 2]> {
    settle_layout(input, None).ok().map(|(_, [_, _, height, width])| [height, width])
}

/// Whether an image can have this number of channels.
pub(super) fn has_image_channels(n_channels: usize) -> bool {
    matches!(n_channels, 1 | 3 | 4)
}

/// Returns the layout of an image input, and the sizes in the order batch, channels, height, width.
fn settle_layout(input: &InputSpec, option: Option<Layout>) -> Result<(Layout, [usize; 4])> {
    let layout = match (option, &input.shape[..]) {
        (None | Some(Layout::Nchw), &[n, c, h, w]) if has_image_channels(c) => Some((Layout::Nchw, [n, c, h, w])),
        (None | Some(Layout::Nhwc), &[n, h, w, c]) if has_image_channels(c) => Some((Layout::Nhwc, [n, c, h, w])),
        _ => None,
    };
    layout.ok_or_else(|| {
        let expected = match option {
            None => "[N, C, H, W] or [N, H, W, C]",
            Some(Layout::Nchw) => "[N, C, H, W]",
            Some(Layout::Nhwc) => "[N, H, W, C]",
        };
        anyhow!(
            "images cannot feed input `{}`: its shape is {:?}, expected {expected} with 1, 3 or 4 channels",
            input.name,
            input.shape
        )
        .hint("pass its data as .npy or .npz")
    })
}

/// Returns the scale, and the mean and std of each channel.
fn scale_mean_std(options: &Preprocessing, input: &InputSpec, n_channels: usize) -> Result<(f64, Vec<f64>, Vec<f64>)> {
    if input.data_type != DataType::Uint8 as i32 {
        let scale = options.scale.unwrap_or(1.0 / 255.0);
        let mean = per_channel("mean", options.mean.as_deref(), 0.0, n_channels, input)?;
        let std = per_channel("std", options.std.as_deref(), 1.0, n_channels, input)?;
        return Ok((scale, mean, std));
    }
    let is_plain = options.scale.is_none_or(|scale| scale == 1.0)
        && options.mean.iter().flatten().all(|&mean| mean == 0.0)
        && options.std.iter().flatten().all(|&std| std == 1.0);
    ensure!(
        is_plain,
        anyhow!(
            "input `{}` takes uint8, but the preprocessing has a scale, mean or std, expected none of these",
            input.name
        )
        .hint("use the preset `raw`, or no scale, mean and std")
    );
    Ok((1.0, vec![0.0; n_channels], vec![1.0; n_channels]))
}

fn per_channel(
    key: &str,
    values: Option<&[f64]>,
    default: f64,
    n_channels: usize,
    input: &InputSpec,
) -> Result<Vec<f64>> {
    let values = match values {
        None => vec![default; n_channels],
        Some(&[value]) => vec![value; n_channels],
        Some(values) if values.len() == n_channels => values.to_vec(),
        Some(values) => bail!(
            anyhow!(
                "`{key}` has {}, expected for input `{}`: 1, or one for each of {n_channels} channels",
                count(values.len(), "number"),
                input.name
            )
            .hint(format!("--{key}, or the key `{key}` of the file of --preprocess, sets the numbers"))
        ),
    };
    Ok(values)
}

fn color_name(color: Color) -> &'static str {
    match color {
        Color::Rgb => "RGB",
        Color::Bgr => "BGR",
        Color::Gray => "gray",
        Color::Y => "Y",
    }
}

/// Returns an option as it is written in YAML.
fn option_name(option: impl std::fmt::Debug) -> String {
    format!("{option:?}").to_lowercase()
}

//! Heads of networks that make maps and pictures.

use super::kind::{HeadKind, described};
use super::part::{OutputPart, OutputView};
use super::task::TaskName;
use anyhow::{Context, Result};
use serde::Deserialize;

/// A map or a picture that a network makes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapHead {
    /// `map`.
    pub task: TaskName,
    /// A row for each pixel, a column for each channel.
    pub map: OutputPart,
    /// The largest value of a picture, 1 or 255. Absent: the map is not a picture.
    pub peak: Option<f32>,
}

impl MapHead {
    /// Returns height and width, and the values of each channel.
    ///
    /// # Errors
    /// If the output is missing, or does not have two axes beside the channels.
    pub fn channels(&self, outputs: &[OutputView]) -> Result<([usize; 2], Vec<Vec<f32>>)> {
        let sides = self.map.sides(outputs).context("`map`")?;
        let rows = self.map.rows(outputs).context("`map`")?;
        let channel = |k: usize| rows.values.iter().skip(k).step_by(rows.n_columns).copied().collect();
        Ok((sides, (0..rows.n_columns).map(channel).collect()))
    }

    /// Whether most values lie in the range of a picture with this peak.
    fn is_picture(&self, images: &[Vec<OutputView>], peak: f32) -> bool {
        let values: Vec<f32> =
            images.iter().flat_map(|outputs| self.map.rows(outputs).unwrap_or_default().values).collect();
        let n_within = values.iter().filter(|&&x| (-0.05 * peak..=1.05 * peak).contains(&x)).count();
        let reaches = values.iter().any(|&x| x > 0.05 * peak);
        reaches && n_within as f32 >= 0.95 * values.len() as f32
    }
}

impl HeadKind for MapHead {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match self.peak {
            Some(peak) if peak.is_nan() || peak <= 0.0 => Err(("peak", format!("{peak}, expected a number above 0"))),
            _ => Ok(()),
        }
    }

    fn fits(&self, outputs: &[OutputView], _: Option<[usize; 2]>) -> Result<()> {
        self.channels(outputs).map(drop)
    }

    fn recognizes(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Option<String> {
        let outputs = images.first()?;
        self.fits(outputs, input).ok()?;
        let n_channels = self.map.rows(outputs).ok()?.n_columns;
        let is_of = |peak: f32| matches!(n_channels, 1 | 3) && self.is_picture(images, peak);
        let described = described(&self.map.outputs(outputs).ok()?);
        match self.peak {
            Some(peak) if peak <= 1.0 => is_of(peak).then(|| format!("{described} with values from 0 to {peak}")),
            Some(peak) => (is_of(peak) && !is_of(1.0)).then(|| format!("{described} with values from 0 to {peak}")),
            None => {
                (!is_of(1.0) && !is_of(255.0)).then(|| format!("{described}, whose values are not those of a picture"))
            }
        }
    }
}

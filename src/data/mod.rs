//! Calibration data: files decoded into what the model takes.
//!
//! In: folders, files, globs or lists, the model's [`InputSpec`]s, a [`Preprocessing`]. Out: a
//! [`Dataset`] whose samples are loaded one at a time, from any thread and in any order, so that memory
//! does not grow with their number. It does not run the model.

mod array;
mod image;
mod preprocess;
mod sources;

pub use preprocess::{Color, PRESETS, Preprocessing, Preset, Resize};

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// One input that the model takes.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSpec {
    /// ONNX name.
    pub name: String,
    /// Dimensions, outermost first, all fixed.
    pub shape: Vec<usize>,
    /// Element type, by its number in `TensorProto.DataType`.
    pub data_type: i32,
}

/// Values of an array, in row-major order.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Values {
    F32(Vec<f32>),
    I64(Vec<i64>),
    I32(Vec<i32>),
    I8(Vec<i8>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

/// A dense array.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The values.
    pub values: Values,
}

/// One sample: an array per input, in the order of the inputs.
pub type Sample = Vec<Array>;

/// Where one sample comes from.
#[derive(Debug, Clone)]
enum Item {
    Image(PathBuf),
    /// A sample of an array file, or of a folder of `.pb` files: (index into `arrays`, sample).
    Array(usize, usize),
}

/// Samples that can be loaded in any order.
pub struct Dataset {
    inputs: Vec<InputSpec>,
    preprocessing: Preprocessing,
    arrays: Vec<array::ArrayFile>,
    items: Vec<Item>,
}

impl Dataset {
    /// Lists the samples of `sources`: folders, files, glob patterns, or lists (`.txt` with a path per
    /// line, `.csv` with a column `file`), whose paths are relative to the list. Folders are read in the
    /// order of their names. Array files (`.npy`, `.npz`, `.pb`) are opened here, images when they are
    /// loaded. Keeps the first `limit` samples.
    ///
    /// # Errors
    /// If a source does not exist or holds no data, or an array does not fit the inputs.
    pub fn open(
        sources: &[String],
        inputs: &[InputSpec],
        preprocessing: &Preprocessing,
        limit: Option<usize>,
    ) -> Result<Dataset> {
        let mut dataset = Dataset {
            inputs: inputs.to_vec(),
            preprocessing: preprocessing.clone(),
            arrays: Vec::new(),
            items: Vec::new(),
        };
        for source in sources {
            let n_before = dataset.items.len();
            for path in sources::expand(source)? {
                dataset.add(&path).with_context(|| format!("`{}`", path.display()))?;
            }
            ensure!(
                dataset.items.len() > n_before,
                "`{source}`: no data found, expected images (JPEG, PNG, BMP, WebP, GIF, TIFF, PNM), .npy, .npz or .pb files"
            );
        }
        dataset.items.truncate(limit.unwrap_or(usize::MAX));
        ensure!(!dataset.items.is_empty(), "no calibration data, expected at least one sample");
        Ok(dataset)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        if path.is_dir() || array::is_array_file(path) {
            let file = array::ArrayFile::open(path, &self.inputs)?;
            let array_idx = self.arrays.len();
            self.items.extend((0..file.n_samples()).map(|sample| Item::Array(array_idx, sample)));
            self.arrays.push(file);
        } else {
            image::image_input(&self.inputs)?;
            self.items.push(Item::Image(path.to_path_buf()));
        }
        Ok(())
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no sample; never so after [`Dataset::open`].
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether some samples are images, so that the preprocessing matters.
    pub fn has_images(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Image(_)))
    }

    /// The file of sample `i`, with its position where the file holds several.
    pub fn name(&self, i: usize) -> String {
        match &self.items[i] {
            Item::Image(path) => path.display().to_string(),
            Item::Array(array_idx, sample) => {
                format!("{}[{sample}]", self.arrays[*array_idx].path().display())
            }
        }
    }

    /// Reads sample `i`.
    ///
    /// # Errors
    /// If its file cannot be decoded or does not fit the inputs; the message names the file.
    pub fn load(&self, i: usize) -> Result<Sample> {
        let load = || match &self.items[i] {
            Item::Image(path) => {
                let input = image::image_input(&self.inputs)?;
                Ok(vec![image::load(path, input, &self.preprocessing)?])
            }
            Item::Array(array_idx, sample) => self.arrays[*array_idx].load(*sample, &self.inputs),
        };
        load().with_context(|| format!("`{}`", self.name(i)))
    }

    /// One line that says how images become inputs.
    pub fn describe(&self) -> Option<String> {
        let input = image::image_input(&self.inputs).ok().filter(|_| self.has_images())?;
        Some(self.preprocessing.describe(input))
    }
}

#[cfg(test)]
mod tests;

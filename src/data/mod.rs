//! Calibration data: files decoded into what the model takes.
//!
//! In: folders, files, patterns or lists, the model's [`InputSpec`]s, a [`Preprocessing`]. Out: a
//! [`Dataset`] whose samples are loaded one at a time, from any thread and in any order, so that memory
//! does not grow with their number. It does not run the model, and leaves out no bad file by itself.
//!
//! Images are preprocessed; arrays are what the model gets, value for value.

mod array;
mod columns;
mod image;
mod kept;
mod labels;
mod npy;
mod pb;
mod preprocess;
mod presets;
mod recipe;
mod resize;
mod sources;
mod table;

pub use labels::Labels;
pub use preprocess::{Color, Crop, Filter, Layout, Preprocessing, parse_number, parse_option};
pub use presets::{PRESETS, Preset};
pub use resize::Resize;
pub use sources::{ensure_found, files, is_data};

use crate::diag::{WithHint, copy_of};
use anyhow::{Context, Result, anyhow, ensure};
use columns::{ArrayFile, Cache};
use kept::Kept;
use recipe::Recipe;
use sources::Found;
use std::path::PathBuf;

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
    /// The values, as many as the shape says.
    pub values: Values,
}

/// One sample: an array per input, in the order of the inputs.
pub type Sample = Vec<Array>;

/// Where samples come from; each item but `Arrays` is one sample.
enum Item {
    /// As many images as the input's batch holds.
    Images(Vec<PathBuf>),
    /// All samples of a file, or of a folder of `.pb` files.
    Arrays(ArrayFile),
    /// A file that cannot be used, and why.
    Bad { path: PathBuf, error: anyhow::Error },
}

/// Samples that can be loaded in any order, from any thread.
pub struct Dataset {
    inputs: Vec<InputSpec>,
    /// How images become the input; `None` where there are none.
    recipe: Option<Recipe>,
    items: Vec<Item>,
    /// Number of samples up to and with each item.
    ends: Vec<usize>,
    n_samples: usize,
    cache: Cache,
    kept: Kept,
}

impl Dataset {
    /// Lists the samples of `sources`, in the order given, and keeps the first `limit`.
    ///
    /// A source is a folder (its files by name, not those of folders in it), a file, a pattern
    /// (`dir/*.png`), or a list (`.txt` with a path per line, `.csv` with a column `file`), whose paths are
    /// relative to the list. Of array files (`.npy`, `.npz`, `.pb`) the headers are read here; images are
    /// opened when they are loaded.
    ///
    /// An array of the input's shape is one sample, as is one that lacks only a batch axis of 1. With more
    /// entries along the first axis it is batches joined along it; with one axis more in front, it is
    /// samples along that one. An array that holds one sample beside inputs that hold more
    /// goes with each of them.
    ///
    /// A bad file among good ones is an error of [`Dataset::load`], so that the caller may skip it.
    ///
    /// # Errors
    /// If a source does not exist or holds no data, no file can be used, the preprocessing does not suit
    /// the input, or images are given to a model that takes none.
    pub fn open(
        sources: &[String],
        inputs: &[InputSpec],
        preprocessing: &Preprocessing,
        limit: Option<usize>,
    ) -> Result<Dataset> {
        inputs.iter().try_for_each(array::ensure_supported)?;
        let limit = limit.unwrap_or(usize::MAX);
        ensure!(limit > 0, "limit is 0 samples, expected at least 1");
        let mut dataset = Dataset {
            inputs: inputs.to_vec(),
            recipe: None,
            items: Vec::new(),
            ends: Vec::new(),
            n_samples: 0,
            cache: Cache::default(),
            kept: Kept::default(),
        };
        let mut images = Vec::new();
        for source in sources {
            for found in sources::expand(source, inputs.len())? {
                if dataset.n_samples >= limit {
                    break;
                }
                match found {
                    Found::Image(path) => dataset.add_image(path, &mut images, preprocessing)?,
                    Found::Arrays(path) => dataset.add_arrays(path),
                }
            }
        }
        if dataset.n_samples < limit && !images.is_empty() {
            let (n, batch, input) = (images.len(), dataset.batch(), &inputs[0].name);
            let hint = match dataset.n_samples {
                0 => format!(
                    "give {batch} images or more, or another batch by --shape where the model leaves it open"
                ),
                n => format!("--limit {n} leaves them out: it counts batches"),
            };
            return Err(anyhow!(
                "{n} images are left over, expected a multiple of {batch}, the batch of input `{input}`"
            )
            .hint(hint));
        }
        if let Some(Item::Bad { error, .. }) = dataset.items.first()
            && dataset.items.iter().all(|item| matches!(item, Item::Bad { .. }))
        {
            return Err(copy_of(error));
        }
        dataset.n_samples = dataset.n_samples.min(limit);
        ensure!(dataset.n_samples > 0, "no calibration data, expected at least one sample");
        Ok(dataset)
    }

    /// Keeps the first images once they are decoded, for data that is loaded more than once.
    #[must_use]
    pub fn keeping_images(mut self) -> Dataset {
        if self.recipe.is_some() {
            let n_bytes = self.inputs.first().map_or(0, |input| input.shape.iter().product());
            self.kept = Kept::new(self.n_samples, n_bytes);
        }
        self
    }

    fn add_image(
        &mut self,
        path: PathBuf,
        pending: &mut Vec<PathBuf>,
        preprocessing: &Preprocessing,
    ) -> Result<()> {
        if self.recipe.is_none() {
            let input = recipe::image_input(&self.inputs);
            let input = input.with_context(|| format!("`{}`", path.display()))?;
            self.recipe = Some(Recipe::new(input, preprocessing)?);
        }
        pending.push(path);
        if self.recipe.as_ref().is_some_and(|recipe| recipe.batch == pending.len()) {
            self.push(Item::Images(std::mem::take(pending)), 1);
        }
        Ok(())
    }

    fn add_arrays(&mut self, path: PathBuf) {
        match ArrayFile::open(&path, &self.inputs) {
            Ok(file) => {
                let n_samples = file.n_samples();
                self.push(Item::Arrays(file), n_samples);
            }
            Err(error) => {
                let error = error.context(format!("`{}`", path.display()));
                self.push(Item::Bad { path, error }, 1);
            }
        }
    }

    fn push(&mut self, item: Item, n_samples: usize) {
        self.n_samples = self.n_samples.saturating_add(n_samples);
        self.items.push(item);
        self.ends.push(self.n_samples);
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.n_samples
    }

    /// Whether there is no sample; never so after [`Dataset::open`].
    pub fn is_empty(&self) -> bool {
        self.n_samples == 0
    }

    /// One line that says how images become the input, where there are images.
    pub fn describe(&self) -> Option<String> {
        self.recipe.as_ref().map(|recipe| recipe.describe(&self.inputs[0]))
    }

    /// Parts of a sample: as many images, or entries of an array, as the first input takes at a time.
    pub fn batch(&self) -> usize {
        let by_shape = || match &self.inputs.first()?.shape[..] {
            [batch, _, ..] => Some(*batch),
            _ => None,
        };
        self.recipe.as_ref().map_or_else(|| by_shape().unwrap_or(1), |recipe| recipe.batch)
    }

    /// The item of sample `i`, its number, and the sample's position in it.
    fn locate(&self, i: usize) -> (usize, &Item, usize) {
        assert!(i < self.n_samples, "sample {i} of {}", self.n_samples);
        let item_idx = self.ends.partition_point(|&end| end <= i);
        let start = item_idx.checked_sub(1).map_or(0, |before| self.ends[before]);
        (item_idx, &self.items[item_idx], i - start)
    }

    /// The file of sample `i`, with its position where the file holds several: `data.npy[3]`.
    ///
    /// # Panics
    /// If `i` is not below [`Dataset::len`].
    pub fn name(&self, i: usize) -> String {
        match self.locate(i) {
            (_, Item::Images(paths), _) => paths[0].display().to_string(),
            (_, Item::Arrays(file), _) if file.n_samples() == 1 => {
                file.path().display().to_string()
            }
            (_, Item::Arrays(file), sample) => format!("{}[{sample}]", file.path().display()),
            (_, Item::Bad { path, .. }, _) => path.display().to_string(),
        }
    }

    /// The files of the [`batch`](Dataset::batch) of sample `i`: its images, or the entries of its array along the first
    /// axis, `data.npy[3]`.
    ///
    /// # Panics
    /// If `i` is not below [`Dataset::len`].
    pub fn parts(&self, i: usize) -> Vec<String> {
        let batch = self.batch();
        match self.locate(i) {
            (_, Item::Images(paths), _) => {
                paths.iter().map(|path| path.display().to_string()).collect()
            }
            (_, Item::Arrays(file), sample) if batch != 1 => (sample * batch..(sample + 1) * batch)
                .map(|entry| format!("{}[{entry}]", file.path().display()))
                .collect(),
            _ => vec![self.name(i)],
        }
    }

    /// Reads sample `i`.
    ///
    /// # Errors
    /// If its file cannot be read or does not fit the inputs; the message begins with the file.
    ///
    /// # Panics
    /// If `i` is not below [`Dataset::len`].
    pub fn load(&self, i: usize) -> Result<Sample> {
        match self.locate(i) {
            (_, Item::Images(paths), _) => {
                let recipe = self.recipe.as_ref().context("internal error: images, no recipe")?;
                let array = |images: &[_]| vec![recipe.array(images, &self.inputs[0])];
                self.kept.with(i, || recipe.read(paths), array)
            }
            (item_idx, Item::Arrays(file), sample) => file
                .load(sample, &self.inputs, item_idx, &self.cache)
                .with_context(|| format!("`{}`", self.name(i))),
            (_, Item::Bad { error, .. }, _) => Err(copy_of(error)),
        }
    }
}

#[cfg(test)]
mod tests;

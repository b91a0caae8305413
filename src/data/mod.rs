//! Calibration data: decodes files into inputs of the model.
//!
//! In: folders, files, patterns or lists, the model's [`InputSpec`]s, a [`Preprocessing`]. Out: a [`Dataset`] whose
//! samples are loaded one at a time, from any thread and in any order. Only the path of a sample stays in memory, in
//! about ten bytes. This module does not run the model, and does not skip bad files by itself.
//!
//! Images are preprocessed. Arrays are used without change.

mod array;
mod coco;
mod columns;
mod fit;
mod image;
mod image_cache;
mod labels;
mod npy;
mod paths;
mod pb;
mod preprocess;
mod presets;
mod recipe;
mod resize;
mod sample_shapes;
mod shapes;
mod sources;
mod spread;
mod table;
mod trial;

pub use array::{Array, Values, ensure_supported};
pub use coco::{BoxLabels, ImageTruth, TrueBox};
pub use fit::ImageFit;
pub use labels::Labels;
pub use paths::Paths;
pub use preprocess::{Color, Crop, Filter, Layout, Preprocessing, parse_number, parse_option};
pub use presets::{PRESETS, Preset};
pub use recipe::same_preprocessing;
pub use resize::Resize;
pub use shapes::{SeenShapes, add_shapes};
pub use sources::{BadEntries, ensure_found, files, is_data};
pub use spread::spread;
pub use trial::{FittedImage, ImageTrial, PixelValues};

use crate::diag::{WithHint, copy_of, count, hint_of, quoted};
use crate::onnx::inputs::{InputSpec, ShapeRange};
use anyhow::{Context, Result, anyhow, ensure};
use columns::{ArrayFile, Cache};
use image_cache::ImageCache;
use recipe::Recipe;
use sample_shapes::SampleShapes;
use sources::Found;
use std::path::{Path, PathBuf};

/// The hint of errors about data of which no sample can be read.
const HOW_TO_PASS: &str = "docs/guide.md explains how to pass data";

/// Returns the error for data of which no sample can be read. `first` is the error of one of them.
pub fn no_readable_sample(first: &str) -> anyhow::Error {
    anyhow!("no sample can be read, expected at least one: {first}").hint(HOW_TO_PASS)
}

/// A sample: one array per input, in the order of the inputs.
pub type Sample = Vec<Array>;

/// A source of one or more consecutive samples.
enum Item {
    /// A run of image samples, each with as many images as the input's batch. Holds the index of its first image in
    /// [`Dataset::images`].
    Images(usize),
    /// A run of array files with one sample each. Holds the index of its first file in [`Dataset::arrays`].
    Single(usize),
    /// All samples of an array file, or of a folder of `.pb` files.
    Arrays(ArrayFile),
    /// A file that cannot be used, with the reason. It counts as one sample.
    Bad { path: PathBuf, error: anyhow::Error },
}

/// Samples of calibration data, which can be loaded in any order, from any thread.
pub struct Dataset {
    inputs: Vec<InputSpec>,
    /// Preprocessing of the images; `None` without images.
    recipe: Option<Recipe>,
    items: Vec<Item>,
    /// Number of samples up to and including each item.
    ends: Vec<usize>,
    /// Ascending positions of the chosen samples in the list; `None` if all are chosen.
    chosen: Option<Vec<usize>>,
    n_samples: usize,
    images: Paths,
    /// Number of images that belong to complete samples.
    n_images: usize,
    arrays: Paths,
    shapes: SampleShapes,
    cache: Cache,
    image_cache: ImageCache,
}

impl Dataset {
    /// Lists the samples of `sources`, in order, and keeps the first `limit`.
    ///
    /// A source is a folder (its files and subfolders, by name), a file, a pattern (`dir/*.png`), or a list (`.txt`
    /// with one path per line, `.csv` with a column `file`) with paths relative to the list. Headers of array files
    /// (`.npy`, `.npz`, `.pb`) are read here; images are opened when they are loaded.
    ///
    /// An array with the input's shape is one sample, even without the batch axis of length 1. An array with more
    /// entries along the first axis holds several batches, joined along that axis. An array with one more axis in front
    /// holds samples along that axis. An array with one sample is used with every sample of the other inputs. Files may
    /// differ along open axes.
    ///
    /// A bad file among good ones is an error of [`Dataset::load`], so that the caller may skip it.
    ///
    /// # Errors
    /// If a source does not exist or has no data, no file can be used, images are left over that do not fill a batch,
    /// an input's element type is not supported, the preprocessing does not fit the input, or images are given and the
    /// model has no image input.
    pub fn open(
        sources: &[String],
        inputs: &[InputSpec],
        preprocessing: &Preprocessing,
        limit: Option<usize>,
    ) -> Result<Dataset> {
        ensure!(
            !inputs.is_empty(),
            anyhow!("{}: the model has no input that takes data, expected at least one", quoted(sources, ", "))
                .hint("export the model with graph inputs in place of constants")
        );
        inputs.iter().try_for_each(ensure_supported)?;
        let limit = limit.unwrap_or(usize::MAX);
        ensure!(limit > 0, "limit is 0 samples, expected at least 1");
        let mut dataset = Dataset {
            inputs: inputs.to_vec(),
            recipe: None,
            items: Vec::new(),
            ends: Vec::new(),
            chosen: None,
            n_samples: 0,
            images: Paths::default(),
            n_images: 0,
            arrays: Paths::default(),
            shapes: SampleShapes::default(),
            cache: Cache::default(),
            image_cache: ImageCache::default(),
        };
        for source in sources {
            let mut added = Ok(());
            sources::expand(source, inputs.len(), &mut |found| {
                if added.is_ok() && dataset.n_samples < limit {
                    added = dataset.add(found, preprocessing);
                }
            })?;
            added?;
        }
        if dataset.n_samples < limit {
            dataset.ensure_whole_batches()?;
        }
        if let Some(Item::Bad { error, .. }) = dataset.items.first()
            && dataset.items.iter().all(|item| matches!(item, Item::Bad { .. }))
        {
            return Err(copy_of(error).hint(if hint_of(error).is_empty() { HOW_TO_PASS } else { "" }));
        }
        dataset.n_samples = dataset.n_samples.min(limit);
        ensure!(dataset.n_samples > 0, "{}: holds no samples, expected at least one", quoted(sources, ", "));
        dataset.shapes.finish();
        Ok(dataset)
    }

    /// Keeps the first `n` samples in the order of [`spread`], as if only these samples had been listed.
    #[must_use]
    pub fn take_spread(mut self, n: usize) -> Dataset {
        if n < self.n_samples {
            let mut chosen = spread(self.n_samples);
            chosen.truncate(n);
            chosen.sort_unstable();
            (self.chosen, self.n_samples) = (Some(chosen), n);
        }
        self
    }

    /// Returns the position of sample `i` in the list.
    fn list_position(&self, i: usize) -> usize {
        self.chosen.as_ref().map_or(i, |chosen| chosen[i])
    }

    /// Caches the first images once they are decoded, for data that are loaded more than once.
    #[must_use]
    pub fn keeping_images(mut self) -> Dataset {
        if self.recipe.is_some() {
            let n_bytes = self.inputs.first().map_or(0, |input| input.shape.iter().product());
            self.image_cache = ImageCache::new(self.n_samples, n_bytes);
        }
        self
    }

    /// Adds an entry of the sources.
    fn add(&mut self, found: Found, preprocessing: &Preprocessing) -> Result<()> {
        match found {
            Found::Image(path) => self.add_image(&path, preprocessing)?,
            Found::Arrays(path) => self.add_arrays(path),
            // A bad image keeps its place among the images that form a sample, so that the other images keep theirs.
            Found::Bad(path, _) if self.batch() > 1 && sources::is_image(&path) => {
                self.add_image(&path, preprocessing)?;
            }
            Found::Bad(path, error) => self.push(Item::Bad { path, error }, 1),
        }
        Ok(())
    }

    /// Fails if images are left over that do not fill a batch.
    fn ensure_whole_batches(&self) -> Result<()> {
        let n = self.images.count() - self.n_images;
        if n == 0 {
            return Ok(());
        }
        let batch = self.batch();
        let hint = match self.n_samples {
            0 => format!("pass {batch} images or more, or set another batch size with --shape if the model allows it"),
            n => format!("--limit {n} skips them: it counts batches"),
        };
        let input = &self.inputs[0].name;
        let found = count(n, "image");
        Err(anyhow!("{found} left over, expected a multiple of {batch}, the batch of input `{input}`").hint(hint))
    }

    fn add_image(&mut self, path: &Path, preprocessing: &Preprocessing) -> Result<()> {
        if self.recipe.is_none() {
            let input = recipe::image_input(&self.inputs);
            let input = input.with_context(|| format!("`{}`", path.display()))?;
            self.recipe = Some(Recipe::new(input, preprocessing)?);
        }
        self.images.push(path);
        if self.images.count() - self.n_images == self.batch() {
            self.push(Item::Images(self.n_images), 1);
            self.n_images = self.images.count();
        }
        Ok(())
    }

    fn add_arrays(&mut self, path: PathBuf) {
        match ArrayFile::open(&path, &self.inputs) {
            Ok(file) => {
                let n_samples = file.n_samples();
                if self.inputs.iter().any(InputSpec::has_open) {
                    self.shapes.add(self.n_samples, file.shapes());
                }
                if n_samples == 1 {
                    self.arrays.push(&path);
                    self.push(Item::Single(self.arrays.count() - 1), 1);
                } else {
                    self.push(Item::Arrays(file), n_samples);
                }
            }
            Err(error) => {
                let error = error.context(format!("`{}`", path.display()));
                self.push(Item::Bad { path, error }, 1);
            }
        }
    }

    /// Adds samples. Extends the last item if they continue its run.
    fn push(&mut self, item: Item, n_samples: usize) {
        self.n_samples = self.n_samples.saturating_add(n_samples);
        if let (Some(last), Some(end)) = (self.items.last(), self.ends.last_mut())
            && matches!((last, &item), (Item::Images(_), Item::Images(_)) | (Item::Single(_), Item::Single(_)))
        {
            *end = self.n_samples;
            return;
        }
        self.items.push(item);
        self.ends.push(self.n_samples);
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.n_samples
    }

    /// Whether there are no samples. Never true after [`Dataset::open`].
    pub fn is_empty(&self) -> bool {
        self.n_samples == 0
    }

    /// Describes the preprocessing of images in one line; `None` without images.
    pub fn describe(&self) -> Option<String> {
        self.recipe.as_ref().map(|recipe| recipe.describe(&self.inputs[0]))
    }

    /// Returns the options of the preprocessing of images, completed by those of the preset; `None` without images.
    pub fn preprocessing(&self) -> Option<&Preprocessing> {
        self.recipe.as_ref().map(|recipe| &recipe.options)
    }

    /// Returns the rank of a sample's shape, from the largest shape to the smallest; 0 if all samples have one shape.
    ///
    /// Samples are processed in this order, so that the engine for each shape is built once.
    pub fn shape_rank(&self, i: usize) -> usize {
        self.shapes.rank(self.list_position(i))
    }

    /// Returns the samples grouped by shape, with the first `n_first` samples in front; `None` if all have one shape.
    pub fn by_shape(&self, n_first: usize) -> Option<Vec<usize>> {
        self.shapes.differ().then(|| {
            let mut order: Vec<usize> = (0..self.n_samples).collect();
            order.sort_by_cached_key(|&i| (i >= n_first, self.shape_rank(i)));
            order
        })
    }

    /// Returns the range of shapes of each input; `None` if all samples have one shape.
    pub fn input_shapes(&self) -> Option<Vec<ShapeRange>> {
        self.shapes.of_inputs()
    }

    /// Returns the batch size of a sample: the number of images, or of entries of an array, that the first input takes
    /// at a time.
    pub fn batch(&self) -> usize {
        let by_shape = || match &self.inputs.first()?.shape[..] {
            [batch, _, ..] => Some(*batch),
            _ => None,
        };
        self.recipe.as_ref().map_or_else(|| by_shape().unwrap_or(1), |recipe| recipe.batch)
    }

    /// Returns the fit of each image of sample `i` into the input; empty for arrays.
    ///
    /// # Errors
    /// If a file is not an image.
    ///
    /// # Panics
    /// If `i` is not below [`Dataset::len`].
    pub fn image_fits(&self, i: usize) -> Result<Vec<ImageFit>> {
        match (self.locate(i), &self.recipe) {
            ((_, Item::Images(first), sample), Some(recipe)) => {
                self.images_of(*first, sample).iter().map(|path| recipe.image_fit(path)).collect()
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns height and width of the images that an input takes; `None` if no input has the shape of images.
    pub fn image_size(&self) -> Option<[usize; 2]> {
        match &self.recipe {
            Some(recipe) => Some([recipe.height, recipe.width]),
            None => self.inputs.iter().find_map(recipe::image_size),
        }
    }

    /// Returns the index of the item that holds sample `i`, the item, and the sample's position in it.
    fn locate(&self, i: usize) -> (usize, &Item, usize) {
        assert!(i < self.n_samples, "sample {i} of {}", self.n_samples);
        let i = self.list_position(i);
        let item_idx = self.ends.partition_point(|&end| end <= i);
        let start = item_idx.checked_sub(1).map_or(0, |before| self.ends[before]);
        (item_idx, &self.items[item_idx], i - start)
    }

    /// Returns the images of a sample, by the sample's position in a run that begins with image `first`.
    fn images_of(&self, first: usize, sample: usize) -> Vec<PathBuf> {
        let first = first + sample * self.batch();
        (first..first + self.batch()).map(|image| self.images.get(image)).collect()
    }

    /// Returns the file of sample `i`, with the sample's position if the file holds several: `data.npy[3]`.
    ///
    /// # Panics
    /// If `i` is not below [`Dataset::len`].
    pub fn name(&self, i: usize) -> String {
        match self.locate(i) {
            (_, Item::Images(first), sample) => self.images.get(first + sample * self.batch()).display().to_string(),
            (_, Item::Single(first), sample) => self.arrays.get(first + sample).display().to_string(),
            (_, Item::Arrays(file), sample) => format!("{}[{sample}]", file.path().display()),
            (_, Item::Bad { path, .. }, _) => path.display().to_string(),
        }
    }

    /// Returns the files of the [`batch`](Dataset::batch) of sample `i`: its images, or the entries of its array along
    /// the first axis, such as `data.npy[3]`.
    ///
    /// # Panics
    /// If `i` is not below [`Dataset::len`].
    pub fn entry_names(&self, i: usize) -> Vec<String> {
        let batch = self.batch();
        let entries = |path: &Path, sample: usize| {
            let entries = sample * batch..(sample + 1) * batch;
            entries.map(|entry| format!("{}[{entry}]", path.display())).collect()
        };
        match self.locate(i) {
            (_, Item::Images(first), sample) => {
                let images = self.images_of(*first, sample).into_iter();
                images.map(|path| path.display().to_string()).collect()
            }
            (_, Item::Single(first), sample) if batch != 1 => entries(&self.arrays.get(first + sample), 0),
            (_, Item::Arrays(file), sample) if batch != 1 => entries(file.path(), sample),
            _ => vec![self.name(i)],
        }
    }

    /// Reads sample `i`.
    ///
    /// # Errors
    /// If its file cannot be read or does not fit the inputs. The message begins with the file.
    ///
    /// # Panics
    /// If `i` is not below [`Dataset::len`].
    pub fn load(&self, i: usize) -> Result<Sample> {
        match self.locate(i) {
            (_, Item::Images(first), sample) => {
                let recipe = self.recipe.as_ref().context("internal error: images, no recipe")?;
                let array = |images: &[_]| vec![recipe.array(images, &self.inputs[0])];
                self.image_cache.with(i, || recipe.read(&self.images_of(*first, sample)), array)
            }
            (item_idx, Item::Single(first), sample) => {
                let path = self.arrays.get(first + sample);
                let load = || {
                    let file = ArrayFile::open(&path, &self.inputs)?;
                    ensure!(file.n_samples() == 1, "has changed since it was opened");
                    file.load(0, &self.inputs, item_idx, &self.cache)
                };
                load().with_context(|| format!("`{}`", path.display()))
            }
            (item_idx, Item::Arrays(file), sample) => {
                file.load(sample, &self.inputs, item_idx, &self.cache).with_context(|| format!("`{}`", self.name(i)))
            }
            (_, Item::Bad { error, .. }, _) => Err(copy_of(error)),
        }
    }
}

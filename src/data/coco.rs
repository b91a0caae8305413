//! Boxes of images, from a file in COCO's format.

use super::fit::ImageFit;
use super::{Dataset, labels};
use crate::diag::{WithHint, in_plain_words};
use crate::foreign;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Boxes of the images in an `instances.json`.
#[derive(Debug, Clone)]
pub struct BoxLabels {
    file: PathBuf,
    /// Boxes of each image, by its `file_name`.
    images: BTreeMap<PathBuf, Vec<TrueBox>>,
}

/// A box of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrueBox {
    /// Position of the category in the file's categories, ordered by their ids.
    pub class: usize,
    /// Left, top, right, bottom in the image's pixels.
    pub corners: [f64; 4],
    /// Whether the box stands for many objects. Boxes within it are not counted as wrong.
    pub is_crowd: bool,
}

/// The boxes of an image, and the fit of the image into the input.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageTruth {
    /// Labeled boxes.
    pub boxes: Vec<TrueBox>,
    /// Scale and offset from the image to the input.
    pub fit: ImageFit,
}

#[derive(Deserialize)]
struct Instances {
    images: Vec<ImageEntry>,
    annotations: Vec<Annotation>,
    categories: Vec<Category>,
}

#[derive(Deserialize)]
struct ImageEntry {
    id: i64,
    file_name: PathBuf,
}

#[derive(Deserialize)]
struct Annotation {
    image_id: i64,
    category_id: i64,
    /// Left, top, width, height.
    bbox: [f64; 4],
    #[serde(default)]
    iscrowd: u8,
}

#[derive(Deserialize)]
struct Category {
    id: i64,
}

impl BoxLabels {
    /// Reads an `instances.json`. Classes are numbered in ascending order of the category ids.
    ///
    /// # Errors
    /// If the file cannot be read, or a box names an image or a category that the file lacks. The message begins with
    /// the file.
    pub fn read(file: &Path) -> Result<BoxLabels> {
        let read = || -> Result<BoxLabels> {
            let text = foreign::read(file)?;
            let instances: Instances = serde_json::from_slice(&text).map_err(|error| {
                anyhow!("is not an instances.json of COCO: {}", in_plain_words(&error.to_string()))
                    .hint("an instances.json has the keys `images`, `annotations` and `categories`")
            })?;
            let mut ids: Vec<i64> = instances.categories.iter().map(|category| category.id).collect();
            ids.sort_unstable();
            ids.dedup();
            let mut boxes: BTreeMap<i64, Vec<TrueBox>> =
                instances.images.iter().map(|image| (image.id, Vec::new())).collect();
            for (i, Annotation { image_id, category_id, bbox, iscrowd }) in
                instances.annotations.into_iter().enumerate()
            {
                let image = boxes.get_mut(&image_id);
                let image =
                    image.with_context(|| format!("`annotations[{i}]`: image {image_id} is not in `images`"))?;
                let class = ids.binary_search(&category_id).ok();
                let class = class
                    .with_context(|| format!("`annotations[{i}]`: category {category_id} is not in `categories`"))?;
                let [left, top, width, height] = bbox;
                ensure!(
                    width >= 0.0 && height >= 0.0,
                    "`annotations[{i}]`: the box has width {width} and height {height}, expected 0 or more"
                );
                let corners = [left, top, left + width, top + height];
                image.push(TrueBox { class, corners, is_crowd: iscrowd != 0 });
            }
            let mut images = BTreeMap::new();
            for (i, ImageEntry { id, file_name }) in instances.images.into_iter().enumerate() {
                let name = file_name.display();
                ensure!(
                    !images.contains_key(&file_name),
                    "`images[{i}]`: an earlier image has the `file_name` `{name}`, too, expected each once"
                );
                images.insert(file_name, boxes.get(&id).cloned().unwrap_or_default());
            }
            Ok(BoxLabels { file: file.to_path_buf(), images })
        };
        read().with_context(|| format!("`{}`", file.display()))
    }

    /// Returns the boxes of every image of every sample.
    ///
    /// # Errors
    /// If the data are not images, or the file lacks one of the images.
    pub fn of_dataset(&self, dataset: &Dataset) -> Result<Vec<Vec<ImageTruth>>> {
        let file = self.file.display();
        let mut matched = labels::MatchedEntries::default();
        let mut of_image = |(path, fit): (String, ImageFit)| -> Result<ImageTruth> {
            let path = labels::absolute(Path::new(&path))?;
            let Some((name, boxes)) = labels::by_end(&self.images, &path) else {
                bail!(
                    "`{}` is not in `{file}`, expected an image whose `file_name` is the end of this path",
                    path.display()
                );
            };
            if let Some(earlier) = matched.earlier(name, &path) {
                bail!(
                    "`{}` and `{}` both match the `file_name` `{}` of `{file}`, expected an image for each",
                    earlier.display(),
                    path.display(),
                    name.display()
                );
            }
            Ok(ImageTruth { boxes: boxes.clone(), fit })
        };
        let of_sample = |i: usize| -> Result<Vec<ImageTruth>> {
            let fits = dataset.image_fits(i)?;
            let parts = dataset.entry_names(i);
            ensure!(
                fits.len() == parts.len(),
                "`{}` is not an image, expected images for the boxes of `{file}`",
                dataset.name(i)
            );
            parts.into_iter().zip(fits).map(&mut of_image).collect()
        };
        (0..dataset.len()).map(of_sample).collect()
    }
}

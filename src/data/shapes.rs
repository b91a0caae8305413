//! Shapes of inputs with open dimensions, from the arrays and images of the data.

use super::array::sample_shape;
use super::image::image_size;
use super::npy::{Archive, Stored};
use super::pb;
use super::preprocess::{Layout, Preprocessing};
use super::recipe::has_image_channels;
use super::resize::Resize;
use super::sources::{self, Found, test_input_idx};
use crate::diag::WithHint;
use crate::onnx::inputs::{InputSpec, OpenInput, Shapes};
use crate::onnx::tensor;
use anyhow::{Result, anyhow};
use std::path::{Path, PathBuf};

/// The smallest and the largest sample for the open inputs, by their number of values.
#[derive(Debug, Default)]
pub struct SeenShapes {
    smallest: Option<SeenSample>,
    largest: Option<SeenSample>,
}

/// A sample's shapes for the open inputs, and its file. A shape is `None` if the array does not fit the input.
#[derive(Debug, Clone, PartialEq)]
struct SeenSample {
    shapes: Vec<Option<Vec<usize>>>,
    file: PathBuf,
}

impl SeenSample {
    /// Returns the key by which samples are compared: number of values, then shapes.
    fn key(&self) -> (usize, &Vec<Option<Vec<usize>>>) {
        (self.shapes.iter().flatten().map(|shape| shape.iter().product::<usize>()).sum(), &self.shapes)
    }
}

impl SeenShapes {
    fn add(&mut self, sample: SeenSample) {
        if self.largest.as_ref().is_none_or(|largest| sample.key() > largest.key()) {
            self.largest = Some(sample.clone());
        }
        if self.smallest.as_ref().is_none_or(|smallest| sample.key() < smallest.key()) {
            self.smallest = Some(sample);
        }
    }

    /// Describes the first input whose shape differs between the smallest and the largest sample, such as ``input `x`
    /// is [1, 7] in `a.npz` and [1, 60] in `b.npz` ``; `None` if all samples have one shape.
    pub fn differing(&self, open: &[OpenInput]) -> Option<String> {
        let (a, b) = (self.smallest.as_ref()?, self.largest.as_ref()?);
        let position = a.shapes.iter().zip(&b.shapes).position(|(a, b)| a != b)?;
        let shape = |sample: &SeenSample| sample.shapes[position].clone().unwrap_or_default();
        let of = |sample: &SeenSample| format!("{:?} in `{}`", shape(sample), sample.file.display());
        Some(format!("input `{}` is {} and {}", open.get(position)?.name, of(a), of(b)))
    }
}

/// The shapes of the data for the open inputs of a model.
struct FoundShapes<'a> {
    open: &'a [OpenInput],
    n_inputs: usize,
    n_samples: usize,
    arrays: SeenShapes,
    images: SeenShapes,
    /// The first error of an array file.
    wrong: Option<anyhow::Error>,
}

impl FoundShapes<'_> {
    /// Adds an image, with the shape that it gives the only input if that can be told.
    fn add_image(&mut self, file: PathBuf, shape: Option<Vec<usize>>) {
        self.n_samples += 1;
        if let Some(shape) = shape {
            self.images.add(SeenSample { shapes: vec![Some(shape)], file });
        }
    }

    /// Adds a file of arrays, which holds as many samples as its longest array.
    fn add_arrays(&mut self, file: PathBuf) {
        let open = self.open;
        let of_inputs: Vec<Option<(Vec<usize>, usize)>> =
            open.iter().map(|input| self.of_array(&file, input)).collect();
        self.n_samples += of_inputs.iter().flatten().map(|(_, n)| *n).max().unwrap_or(0);
        let shapes: Vec<Option<Vec<usize>>> =
            of_inputs.into_iter().map(|found| found.map(|(shape, _)| shape)).collect();
        if shapes.iter().any(Option::is_some) {
            self.arrays.add(SeenSample { shapes, file });
        }
    }

    /// Returns the shape of a sample in the array for `input`, and the number of samples; `None` if the file has no
    /// such array, cannot be read, or the array does not fit the input.
    fn of_array(&mut self, file: &Path, input: &OpenInput) -> Option<(Vec<usize>, usize)> {
        let array = match array_shape(file, input, self.n_inputs) {
            Ok(array) => array?,
            Err(error) => {
                self.wrong.get_or_insert_with(|| error.context(format!("`{}`", file.display())));
                return None;
            }
        };
        let shape = sample_shape(&array, &spec(input))?;
        let n = array.iter().product::<usize>().checked_div(shape.iter().product())?;
        Some((shape, n))
    }
}

/// Adds a shape for each of the `open` inputs of a model with `n_inputs` inputs: that of the largest of the first
/// `limit` samples, because memory and placement must suit the largest sample. Only headers of files are read.
/// [`Dataset::open`](super::Dataset::open) reports files that cannot be read or do not fit.
///
/// # Errors
/// If images have several sizes and the preprocessing does not name the one size that all are fitted to, or an array
/// that an open input needs is missing or cannot be read.
pub fn add_shapes(
    sources: &[String],
    open: &[OpenInput],
    n_inputs: usize,
    limit: Option<usize>,
    preprocessing: &Preprocessing,
    shapes: &mut Shapes,
) -> Result<SeenShapes> {
    let of_image = image_shape(open, n_inputs, preprocessing)?;
    let mut found = FoundShapes {
        open,
        n_inputs,
        n_samples: 0,
        arrays: SeenShapes::default(),
        images: SeenShapes::default(),
        wrong: None,
    };
    for source in sources {
        let mut visit = |entry| match entry {
            _ if limit.is_some_and(|limit| found.n_samples >= limit) => {}
            Found::Arrays(file) => found.add_arrays(file),
            Found::Image(file) => {
                let shape = of_image.as_ref().and_then(|of_image| of_image(&file));
                found.add_image(file, shape);
            }
            Found::Bad(..) => {}
        };
        _ = sources::expand(source, n_inputs, &mut visit);
    }
    let FoundShapes { arrays: seen, images: of_images, wrong, .. } = found;
    if let Some(differing) = of_images.differing(open) {
        return Err(anyhow!("{differing}, expected images of one size for an input with open height and width").hint(
            "give the size that the network runs at, as --resize exact=HxW, or as the input's shape with --shape",
        ));
    }
    let largest = seen.largest.as_ref().or(of_images.largest.as_ref());
    if let Some(wrong) = wrong
        && largest.is_none_or(|largest| largest.shapes.iter().any(Option::is_none))
    {
        return Err(wrong);
    }
    if let Some(largest) = largest {
        let named = open.iter().map(|input| input.name.clone()).zip(&largest.shapes);
        shapes.extend(named.filter_map(|(name, shape)| Some((name, shape.clone()?))));
    }
    Ok(seen)
}

/// Returns the shape that an image, given by its path, gives an input; `None` if the image cannot be read.
type ImageShape<'a> = dyn Fn(&Path) -> Option<Vec<usize>> + 'a;

/// Returns the function from an image to the shape of the only input, whose height and width are open. They are the size
/// that the preprocessing names, otherwise the image's own size. `None` for other inputs and for `short_side`.
fn image_shape<'a>(
    open: &'a [OpenInput],
    n_inputs: usize,
    preprocessing: &Preprocessing,
) -> Result<Option<Box<ImageShape<'a>>>> {
    let ([input], 1) = (open, n_inputs) else { return Ok(None) };
    let preprocessing = preprocessing.clone().resolved()?;
    let first_axis = match (preprocessing.layout, &input.dims[..]) {
        (None | Some(Layout::Nchw), &[_, Some(n), None, None]) if has_image_channels(n) => 2,
        (None | Some(Layout::Nhwc), &[_, None, None, Some(n)]) if has_image_channels(n) => 1,
        _ => return Ok(None),
    };
    let named = match preprocessing.resize {
        Some(Resize::Exact(Some((height, width)))) => Some([height, width]),
        Some(Resize::ShortSide(_)) => return Ok(None),
        _ => None,
    };
    Ok(Some(Box::new(move |path| {
        let sides = named.or_else(|| image_size(path).ok().map(|[width, height]| [height, width]))?;
        let mut shape: Vec<usize> = input.dims.iter().map(|dim| dim.unwrap_or(1)).collect();
        for (axis, side) in (first_axis..).zip(sides) {
            shape[axis] = side as usize;
        }
        Some(shape)
    })))
}

/// Returns the input with its open axes. An open batch is 1.
fn spec(input: &OpenInput) -> InputSpec {
    let open = |(axis, dim): (usize, &Option<usize>)| (axis > 0 && dim.is_none()).then(String::new);
    InputSpec {
        name: input.name.clone(),
        shape: input.dims.iter().map(|dim| dim.unwrap_or(1)).collect(),
        data_type: 0,
        open: input.dims.iter().enumerate().map(open).collect(),
    }
}

/// Reads the shape of an input's array in a file, or in a folder of `.pb` files.
fn array_shape(path: &Path, input: &OpenInput, n_inputs: usize) -> Result<Option<Vec<usize>>> {
    if path.is_dir() {
        for file in sources::pb_files(path)? {
            let (message, _) = pb::read(&file)?;
            let is_named = message.name() == input.name;
            if is_named || message.name().is_empty() && test_input_idx(&file) == Some(input.position) {
                return tensor::shape(&message).map(Some);
            }
        }
        return Ok(None);
    }
    match sources::extension(path).as_str() {
        "npz" => Ok(Some(Archive::open(path)?.array_for(&input.name, n_inputs == 1)?.header.shape)),
        "pb" => tensor::shape(&pb::read(path)?.0).map(Some),
        _ => Ok(Some(Stored::open(path)?.header.shape)),
    }
}

//! Heads of detectors: what their outputs mean.
//!
//! In: a built-in head's name or the path of a YAML file, the outputs of one run. Out: boxes with classes and scores, image
//! by image. A new head is a file in `backends/heads/` and a line in [`BUILT_IN`]; nothing else in the crate knows a head's
//! name. It compares no boxes.

mod decode;
mod grid;
mod read;
mod rows;
mod values;

pub use rows::NamedOutput;

use serde::Deserialize;

/// A line per built-in head.
macro_rules! heads {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../backends/heads/", $name, ".yaml")))),*]
    };
}

/// The heads that come with mqq: name and YAML.
pub const BUILT_IN: &[(&str, &str)] = heads![
    "boxes-scores-labels", "detr", "ltrb-dfl", "rt-detr", "ssd", "ssd-priors", "yolo-nms", "yolov5", "yolov5-raw",
    "yolov8", "yolov8-dfl", "yolox", "yolox-decoded",
];

/// What the outputs of a detector mean. Each row of its outputs is a candidate for a box.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The built-in name, or the file.
    #[serde(skip)]
    pub name: String,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    boxes: Boxes,
    scores: Scores,
    objectness: Option<Objectness>,
    labels: Option<Labelled>,
    grid: Option<CellGrid>,
    priors: Option<Priors>,
    /// The least score of a box.
    pub score_threshold: f64,
    /// Boxes that a better one of their class overlaps by more are dropped; absent where the model does that.
    nms_iou: Option<f64>,
}

/// Columns of an output.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Columns {
    /// Which outputs; several are rows behind each other. Absent for the first one that no other part takes.
    output: Option<Outputs>,
    /// The axis of the columns, from the end where it is negative; the last. The others are the rows.
    axis: Option<ColumnAxis>,
    /// The first column, from the end where it is negative.
    first: isize,
    /// The one behind the last, from the end where it is negative; absent for as many as there are, or as it takes.
    end: Option<isize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected an axis, or `none` where each value is a row")]
enum ColumnAxis {
    Number(isize),
    None(NoAxis),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NoAxis {
    None,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected an output's position, its name, {columns: N}, or a list of them")]
enum Outputs {
    One(OutputName),
    Several(Vec<OutputName>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected an output's position, its name, or {columns: N}")]
enum OutputName {
    Position(usize),
    Name(String),
    Shape(OutputShape),
}

/// The output with so many columns: the first one, or the one behind `skip` others.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputShape {
    columns: usize,
    #[serde(default)]
    skip: usize,
}

/// What four columns of a box are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum BoxForm {
    /// Left, top, right, bottom; behind priors their offsets, in the prior's size.
    Ltrb,
    /// Centre and size; in a grid relative to the cell, behind priors to the prior.
    Cxcywh,
    /// Distances of the four sides from the cell's point, in strides.
    LtrbDistances,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Boxes {
    #[serde(default)]
    columns: Columns,
    form: BoxForm,
    /// Columns per distance: its distribution over 0, 1, 2 … before the Softmax.
    #[serde(default = "one")]
    bins: usize,
    /// What becomes of the centre.
    #[serde(default)]
    centre: Curve,
    /// What becomes of the size, or of the distances.
    #[serde(default)]
    size: Curve,
}

/// `(scale · activation(x) + shift) ^ power`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Curve {
    activation: ActivationFunction,
    scale: f64,
    shift: f64,
    power: i32,
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { activation: ActivationFunction::None, scale: 1.0, shift: 0.0, power: 1 }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ActivationFunction {
    #[default]
    None,
    Sigmoid,
    Exp,
    /// Over the classes.
    Softmax,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scores {
    #[serde(default)]
    columns: Columns,
    #[serde(default)]
    activation: ActivationFunction,
    /// The class that is none.
    background: Option<Background>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Background {
    First,
    Last,
}

/// A factor of the scores.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Objectness {
    #[serde(default)]
    columns: Columns,
    #[serde(default)]
    activation: ActivationFunction,
}

/// The class of each row, where it is not the one with the largest score.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Labelled {
    #[serde(default)]
    columns: Columns,
}

/// The rows are the cells of grids over the image: stride by stride, anchor by anchor, row by row.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct CellGrid {
    /// Pixels per cell.
    strides: Vec<usize>,
    /// Where in its cell the point of a box is: .5 for the middle.
    #[serde(default)]
    offset: f64,
    /// Width and height of each stride's anchors, in pixels; absent where the stride is both.
    anchors: Option<Vec<Vec<[f64; 2]>>>,
}

/// Boxes that a row's is relative to, from an output: a row per box.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Priors {
    #[serde(default)]
    columns: Columns,
    /// `ltrb` or `cxcywh`.
    form: BoxForm,
    /// Factors of the offsets of centre and size.
    #[serde(default = "ones")]
    variances: [f64; 2],
}

fn one() -> usize {
    1
}

fn ones() -> [f64; 2] {
    [1.0; 2]
}

//! Heads: how the outputs of a network are decoded.
//!
//! In: a head's YAML, the outputs of a network for one image. Out: detections. It compares nothing and runs no network.
//!
//! A new head is a file `NAME.yaml` and a line in [`BUILT_IN`]; a user's own is a file alone.

mod activation;
mod boxes;
mod detect;
mod load;
mod part;
mod recognize;
mod task;

pub use activation::HeadActivation;
pub use boxes::{Anchors, BoxForm, Corners, Detection, iou};
pub use detect::{Background, Candidates, DetectHead};
pub use load::{is_path, resolve};
pub use part::{OutputPart, OutputView, PartRows, WhichOutput};
pub use recognize::recognize;
pub use task::TaskName;

use anyhow::{Context, Result};

/// A line per built-in head.
macro_rules! heads {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!($name, ".yaml")))),*]
    };
}

/// The heads that come with mqq: name and YAML.
pub const BUILT_IN: &[(&str, &str)] = heads![
    "yolox", "yolox-decoded", "yolov5", "yolov8", "yolo-nms", "ssd", "ultraface", "st-ssd", "retina", "fcos",
    "ltrb-dfl", "detr", "detr-logits", "detr-softmax", "efficient-nms",
];

/// Other names of heads.
pub const ALSO: &[(&str, &str)] = &[
    ("yolov6", "yolox-decoded"),
    ("yolov7", "yolov5"),
    ("yolov9", "yolov8"),
    ("yolo11", "yolov8"),
    ("yolo12", "yolov8"),
    ("yolov10", "yolo-nms"),
    ("yolo26", "yolo-nms"),
    ("nanodet", "ltrb-dfl"),
    ("rt-detr", "detr"),
    ("d-fine", "detr"),
    ("deim", "detr"),
];

/// A head with the input size of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskHead {
    /// The head.
    pub head: Head,
    /// Height and width of the images that the network takes, where it takes images.
    pub input: Option<[usize; 2]>,
    /// Why the head was recognized; absent where the user named it.
    pub reason: Option<String>,
}

/// Decoding of a network's outputs, with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// Its name, or the path of its file.
    pub name: String,
    /// Decoding of the outputs.
    pub meaning: Meaning,
}

/// Decoding of outputs, by task.
#[derive(Debug, Clone, PartialEq)]
pub enum Meaning {
    /// Boxes with classes.
    Detect(DetectHead),
}

impl Head {
    /// Its task.
    pub fn task(&self) -> TaskName {
        match self.meaning {
            Meaning::Detect(_) => TaskName::Detect,
        }
    }
}

impl TaskHead {
    /// Whether the outputs for one image can be read.
    ///
    /// # Errors
    /// If an output is missing or has another shape.
    pub fn check_fit(&self, outputs: &[OutputView]) -> Result<()> {
        let fits = match &self.head.meaning {
            Meaning::Detect(head) => head.candidates(outputs, self.input).map(drop),
        };
        fits.with_context(|| format!("head `{}`", self.head.name))
    }
}

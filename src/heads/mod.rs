//! Heads: decoding of a network's outputs.
//!
//! In: a head's YAML, the outputs of a network for one image. Out: decoded results, such as boxes. This module compares
//! nothing and runs no network.
//!
//! A new built-in head is a file `NAME.yaml` and a line in [`BUILT_IN`]. A user's own head is only a file.

mod activation;
mod boxes;
mod classify;
mod detect;
mod embed;
mod keypoints;
mod kind;
mod load;
mod map;
mod masks;
mod part;
mod recognize;
mod request;
mod segment;
mod strides;
mod task;
mod text;

pub use activation::HeadActivation;
pub use boxes::{Anchors, BoxForm, Corners, Detection, iou};
pub use classify::ClassifyHead;
pub use detect::{Background, Candidates, DetectHead};
pub use embed::EmbedHead;
pub use keypoints::{KeypointsHead, PointForm, ScoredPoint};
pub use load::{is_path, resolve};
pub use map::MapHead;
pub use masks::BoxMasks;
pub use part::{OutputPart, OutputView, PartRows, WhichOutput, largest};
pub use recognize::recognize;
pub use request::HeadRequest;
pub use segment::SegmentHead;
pub use strides::{StrideRule, Strides};
pub use task::TaskName;
pub use text::TextHead;

use anyhow::{Context, Result};
use kind::HeadKind;

/// Lists the built-in heads, a line for each.
macro_rules! heads {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!($name, ".yaml")))),*]
    };
}

/// Name and YAML of each built-in head.
pub const BUILT_IN: &[(&str, &str)] = heads![
    "yolox", "yolox-decoded", "yolov5", "yolov8", "yolov8-pose", "yolov8-seg", "yolo-nms", "yolov3", "yolov5-raw",
    "centernet", "centernet-logits", "corners", "ppyoloe", "ssd", "ultraface", "yunet", "scrfd", "st-ssd", "retina",
    "fcos", "ltrb-dfl", "detr", "detr-logits", "detr-softmax", "efficient-nms", "class-scores", "token-scores",
    "argmax", "argmax-last", "mask", "mask-logits", "embedding", "picture", "picture-255", "map", "map-flat",
    "heatmap", "simcc", "points", "points-normalized", "points-flat", "points-flat-3", "points-flat-normalized",
    "points-flat-3-normalized", "ctc", "ctc-last",
];

/// Other names of built-in heads, with the heads' own names.
pub const ALIASES: &[(&str, &str)] = &[
    ("picodet", "ppyoloe"),
    ("yolov4", "yolov3"),
    ("yolov6", "yolox-decoded"),
    ("yolov7", "yolov5"),
    ("yolov7-raw", "yolov5-raw"),
    ("yolov9", "yolov8"),
    ("yolo11", "yolov8"),
    ("yolo12", "yolov8"),
    ("yolov9-seg", "yolov8-seg"),
    ("yolo11-seg", "yolov8-seg"),
    ("yolo12-seg", "yolov8-seg"),
    ("yolo11-pose", "yolov8-pose"),
    ("yolo12-pose", "yolov8-pose"),
    ("yolov10", "yolo-nms"),
    ("yolo26", "yolo-nms"),
    ("nanodet", "ltrb-dfl"),
    ("rt-detr", "detr"),
    ("d-fine", "detr"),
    ("deim", "detr"),
];

/// A head, with the input size of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskHead {
    /// The head.
    pub head: Head,
    /// Height and width of the images that the network takes; `None` if it does not take images.
    pub input: Option<[usize; 2]>,
    /// The reason that the head was recognized; absent if the user named it.
    pub reason: Option<String>,
}

/// The decoding of a network's outputs, with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// Name of the head, or path of its file.
    pub name: String,
    /// The other name that the user gave.
    pub alias: Option<String>,
    /// Decoding of the outputs, by task.
    pub decoding: Decoding,
}

/// The decoding of outputs, by task.
#[derive(Debug, Clone, PartialEq)]
// The size does not matter: a network has one head.
#[allow(missing_docs, clippy::large_enum_variant)]
pub enum Decoding {
    Classify(ClassifyHead),
    Detect(DetectHead),
    Segment(SegmentHead),
    Embed(EmbedHead),
    Map(MapHead),
    Keypoints(KeypointsHead),
    Text(TextHead),
}

impl Decoding {
    fn kind(&self) -> &dyn HeadKind {
        match self {
            Decoding::Classify(head) => head,
            Decoding::Detect(head) => head,
            Decoding::Segment(head) => head,
            Decoding::Embed(head) => head,
            Decoding::Map(head) => head,
            Decoding::Keypoints(head) => head,
            Decoding::Text(head) => head,
        }
    }
}

/// A head of one task.
pub trait OfTask: Sized {
    /// Returns the head, if `decoding` is of this task.
    fn of(decoding: &Decoding) -> Option<&Self>;
}

/// Implements [`OfTask`], a line for each task.
macro_rules! of_task {
    ($($task:ident: $head:ty),* $(,)?) => {
        $(impl OfTask for $head {
            fn of(decoding: &Decoding) -> Option<&$head> {
                if let Decoding::$task(head) = decoding { Some(head) } else { None }
            }
        })*
    };
}

of_task! {
    Classify: ClassifyHead,
    Detect: DetectHead,
    Segment: SegmentHead,
    Embed: EmbedHead,
    Map: MapHead,
    Keypoints: KeypointsHead,
    Text: TextHead,
}

impl Head {
    /// Returns the head's task.
    pub fn task(&self) -> TaskName {
        match self.decoding {
            Decoding::Classify(_) => TaskName::Classify,
            Decoding::Detect(_) => TaskName::Detect,
            Decoding::Segment(_) => TaskName::Segment,
            Decoding::Embed(_) => TaskName::Embed,
            Decoding::Map(_) => TaskName::Map,
            Decoding::Keypoints(_) => TaskName::Keypoints,
            Decoding::Text(_) => TaskName::Text,
        }
    }
}

impl TaskHead {
    /// Decodes the outputs for one image and drops the result.
    ///
    /// # Errors
    /// If an output is missing or has another shape.
    pub fn check_fit(&self, outputs: &[OutputView]) -> Result<()> {
        let fits = self.head.decoding.kind().fits(outputs, self.input);
        fits.with_context(|| match &self.head.alias {
            Some(alias) => format!("head `{alias}` ({})", self.head.name),
            None => format!("head `{}`", self.head.name),
        })
    }
}

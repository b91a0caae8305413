//! The methods of tuning: ways to bring the quantized network nearer to the float one.
//!
//! [`METHODS`] is the open list. A method says when it is tried, at which stage of a run, and what it changes on the way
//! through the network; `tune/accept.rs` says when the result is accepted.

mod bias;
pub mod bias_calibration;
mod channel_scales;
pub mod clip;
mod equalize;
mod observer;
pub mod ranges;
pub mod rounding;

pub use bias::{BIAS, BiasCorrector, BiasSlot, rebias};
pub use channel_scales::ScaledGroup;
pub use equalize::{EQUALIZE, Equalized, Proposal, propose};
pub use observer::{OBSERVER, ObserverChoice, choose_observer};
pub use ranges::{RANGES, RangeSearch, ahead};

use super::effort::Effort;
use crate::diag::none_of;
use crate::simulate::LayerHook;
use anyhow::Result;
use serde::{Serialize, Serializer};

/// Every method, in the order in which they are tried.
pub const METHODS: &[Method] =
    &[EQUALIZE, OBSERVER, clip::CLIP, BIAS, bias_calibration::BIAS_CALIBRATION, RANGES, rounding::ROUNDING];

/// One way to bring the quantized network nearer to the float one.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// Its name on the command line and in the sidecar.
    pub name: &'static str,
    /// What it is called where people read.
    pub title: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// When in a run it is at work.
    pub stage: Stage,
    /// Whether it is tried where the user names no methods.
    pub is_tried: fn(Case) -> bool,
    /// Names of methods that it cannot do without.
    pub needs: &'static [&'static str],
    /// What it changes on the way through the network.
    pub touches: Touches,
    /// What it does there, where `touches` does not say all of it.
    pub hook: Option<fn() -> Box<dyn LayerHook>>,
}

/// When in a run a method is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It changes the float model, before there is a plan, and leaves what it computes.
    FloatModel,
    /// It chooses among plans by other observers.
    Observer,
    /// It tunes a plan, on top of the methods before it.
    Plan,
}

impl Stage {
    /// What a method works on then.
    pub fn name(self) -> &'static str {
        match self {
            Stage::FloatModel => "float model",
            Stage::Observer => "observer",
            Stage::Plan => "plan",
        }
    }
}

/// What methods are tried for.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// How much work is wanted.
    pub effort: Effort,
    /// Whether some weights have fewer than 7 bits.
    pub few_bits: bool,
    /// Whether most weights have fewer than 8 bits or one scale per tensor, so that rounding is most of the error.
    pub coarse: bool,
}

/// What is changed on the way through the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Touches {
    /// Whether ranges of activations are.
    pub ranges: bool,
    /// By what weights are, if they are.
    pub weights: Option<WeightRule>,
    /// By what biases are, if they are.
    pub biases: Option<BiasRule>,
}

/// What weights are changed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightRule {
    /// Other scales, by the error that they leave at the layer's output.
    Scales,
    /// Integers that reproduce the layer's float output.
    Rounding,
}

/// What biases are corrected by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BiasRule {
    /// The error that the outputs' own quantization brings.
    OwnGrid,
    /// The means of the float network's outputs.
    FloatMeans,
}

impl BiasRule {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            BiasRule::OwnGrid => "own grid",
            BiasRule::FloatMeans => "float means",
        }
    }
}

impl Touches {
    /// Nothing.
    const NONE: Touches = Touches { ranges: false, weights: None, biases: None };

    /// Whether biases are corrected by the float network.
    pub fn corrects_biases(self) -> bool {
        self.biases == Some(BiasRule::FloatMeans)
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Method) -> bool {
        self.name == other.name
    }
}

impl Serialize for Method {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// A set of methods, by their positions in [`METHODS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Methods(u16);

fn bit(name: &str) -> u16 {
    METHODS.iter().position(|method| method.name == name).map_or(0, |position| 1 << position)
}

impl Methods {
    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self == Methods::default()
    }

    /// Whether `method` is among them.
    pub fn contains(self, method: Method) -> bool {
        self.0 & bit(method.name) != 0
    }

    /// These and `method`, with those that it cannot do without.
    #[must_use]
    pub fn with(self, method: Method) -> Methods {
        let needed = method.needs.iter().fold(0, |bits, name| bits | bit(name));
        Methods(self.0 | bit(method.name) | needed)
    }

    /// The methods, in the order in which they are tried.
    pub fn iter(self) -> impl Iterator<Item = Method> {
        METHODS.iter().copied().filter(move |method| self.contains(*method))
    }

    /// Those of a stage.
    pub fn of_stage(self, stage: Stage) -> impl Iterator<Item = Method> {
        self.iter().filter(move |method| method.stage == stage)
    }

    /// Those that are tried where the user names none.
    pub fn tried(case: Case) -> Methods {
        let tried = METHODS.iter().filter(|method| (method.is_tried)(case));
        tried.fold(Methods::default(), |all, &method| all.with(method))
    }

    /// What they change together; of several rules the one that looks at more.
    pub fn touches(self) -> Touches {
        self.iter().map(|method| method.touches).fold(Touches::NONE, |all, one| Touches {
            ranges: all.ranges || one.ranges,
            weights: all.weights.max(one.weights),
            biases: all.biases.max(one.biases),
        })
    }

    /// The methods of a list such as `bias,rounding`; `none` for none.
    ///
    /// # Errors
    /// If a name is unknown.
    pub fn of(list: &str) -> Result<Methods> {
        if list == "none" {
            return Ok(Methods::default());
        }
        let mut methods = Methods::default();
        for name in list.split(',').map(str::trim) {
            if bit(name) == 0 {
                let names = METHODS.iter().map(|method| method.name);
                return Err(none_of(format_args!("method `{name}` is unknown"), name, names));
            }
            methods.0 |= bit(name);
        }
        Ok(methods)
    }
}

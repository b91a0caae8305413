//! What tuning tries.

mod channel_scales;
mod equalize;
mod observer;

pub use channel_scales::ScaledGroup;
pub use equalize::{Equalized, Proposal, propose};
pub use observer::{ObserverChoice, TriedObserver, choose_observer};

use crate::diag::{WithHint, did_you_mean};
use anyhow::{Result, anyhow};
use serde::{Serialize, Serializer};

/// One way to bring the quantized network nearer to the float one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Factors of channels between layers, from each to the next: [`crate::equalize`].
    Equalize,
    /// Another range observer for all activations, where the outputs are nearer to float with it.
    Observer,
    /// Scales of weights by the error that they leave at the layer's output.
    Clip,
    /// Biases by the mean error of each output channel.
    Bias,
    /// Biases by the mean error that the grid of the layer's own output brings, in small steps.
    BiasCalibration,
    /// Ranges of activations by the error that they leave at the outputs of the layers behind.
    Ranges,
    /// Integers of weights that reproduce the layer's float output; corrects biases as well.
    Rounding,
}

impl Method {
    /// Every method, in the order in which they are tried.
    pub const ALL: &[Method] = &[
        Method::Equalize,
        Method::Observer,
        Method::Clip,
        Method::Bias,
        Method::BiasCalibration,
        Method::Ranges,
        Method::Rounding,
    ];

    /// Its name on the command line and in the sidecar.
    pub fn name(self) -> &'static str {
        match self {
            Method::Equalize => "equalize",
            Method::Observer => "observer",
            Method::Clip => "clip",
            Method::Bias => "bias",
            Method::BiasCalibration => "bias-calibration",
            Method::Ranges => "ranges",
            Method::Rounding => "rounding",
        }
    }

    /// Whether it changes the float model, before tuning, and leaves what it computes.
    pub fn is_exact(self) -> bool {
        self == Method::Equalize
    }

    /// Whether it tunes a plan, on top of the methods before it.
    pub fn is_tuning(self) -> bool {
        !self.is_exact() && self != Method::Observer
    }
}

impl Serialize for Method {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A set of methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Methods(u16);

impl Methods {
    /// Whether `method` is among them.
    pub fn contains(self, method: Method) -> bool {
        self.0 & (1 << method as u16) != 0
    }

    /// These and `method`, with those that it cannot do without.
    #[must_use]
    pub fn with(self, method: Method) -> Methods {
        let bias = if method == Method::Rounding { 1 << Method::Bias as u16 } else { 0 };
        Methods(self.0 | 1 << method as u16 | bias)
    }

    /// The methods, in the order in which they are tried.
    pub fn iter(self) -> impl Iterator<Item = Method> {
        Method::ALL.iter().copied().filter(move |method| self.contains(*method))
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
            let Some(method) = Method::ALL.iter().find(|method| method.name() == name) else {
                let names = || Method::ALL.iter().map(|method| method.name());
                return Err(anyhow!(
                    "method `{name}` is unknown, expected some of: {}",
                    names().collect::<Vec<_>>().join(", ")
                )
                .hint(did_you_mean(name, names())));
            };
            methods.0 |= 1 << *method as u16;
        }
        Ok(methods)
    }
}

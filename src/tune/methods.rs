//! What tuning tries, and on how many samples.

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

/// What is tried for better parameters.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How much work goes into it.
    pub effort: Effort,
    /// What it goes into, where that is not the effort's own choice.
    pub methods: Option<Methods>,
}

impl Options {
    /// Whether samples are looked at more than once.
    pub fn looks_again(&self) -> bool {
        self.effort.looks_again() || self.methods.is_some()
    }
}

/// How much work goes into better parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(u8);

/// Values of the largest tensor, over all samples, up to which more samples cost little.
const CHEAP: usize = 1 << 22;

impl Effort {
    /// Levels, with what each does.
    pub const LEVELS: &[(&str, &str)] = &[
        ("0", "plain observers"),
        (
            "1",
            "equalization, choice of the observer, bias correction, rounding of coarse weights, on 32 samples or more",
        ),
        ("2", "as 1, and ranges of activations, or coarse weights as in 3"),
        ("3", "as 1, and learned rounding, on 96 samples"),
    ];

    /// The level of a digit.
    pub fn of(level: &str) -> Option<Effort> {
        Effort::LEVELS.iter().position(|(name, _)| *name == level).map(|level| Effort(level as u8))
    }

    /// What it tries. Learned rounding comes without refined ranges (docs/design/observers.md); below level 3 it is for
    /// `coarse` weights, where rounding is most of the error. Scales of weights are tried only where some have
    /// `few_bits` (docs/design/rounding.md).
    pub fn methods(self, few_bits: bool, coarse: bool) -> Methods {
        let methods = match self.0 {
            0 => &[][..],
            1 if !coarse => &[Method::Clip, Method::Bias],
            2 if !coarse => &[Method::Clip, Method::Bias, Method::Ranges],
            _ => &[Method::Clip, Method::Bias, Method::Rounding],
        };
        let before = if self.0 > 0 { &[Method::Equalize, Method::Observer][..] } else { &[] };
        let methods = before.iter().chain(methods);
        let wanted = methods.filter(|method| few_bits || **method != Method::Clip);
        wanted.fold(Methods::default(), |all, &method| all.with(method))
    }

    /// Whether samples are looked at more than once.
    pub fn looks_again(self) -> bool {
        self.0 > 0
    }

    /// Samples that are looked at, those held back included, where the network's largest tensor has
    /// `largest` values.
    pub fn n_samples(self, largest: usize) -> usize {
        match self.0 {
            0 => 0,
            1 => (CHEAP / largest.max(1)).clamp(32, 96),
            _ => 96,
        }
    }

    /// Bytes that the tensors of all samples may take at a time, about; fewer samples are looked at where
    /// they would take more.
    pub fn max_bytes(self) -> usize {
        if self.0 <= 1 { 1 << 30 } else { 3 << 30 }
    }

    /// Samples to learn from, of `n`; the others are held back, two or more.
    pub fn n_tune(self, n: usize) -> usize {
        n.saturating_sub(if self.0 <= 1 { n / 4 } else { n / 3 }.max(2))
    }
}

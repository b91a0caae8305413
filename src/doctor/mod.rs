//! Examines a model and its data before any quantization.
//!
//! In: [`Facts`]: the prepared float model, its placement for a backend, a survey of the data, and the verdict on the
//! pixel values. Out: the [`Examined`] result of each of the [`EXAMINATIONS`]: findings, none, information, or the
//! reason that the facts do not tell. It changes nothing.

mod examinations;
mod survey;

pub use examinations::{ENOUGH_SHARE, EXAMINATIONS, MIN_RANGE_SAMPLES, NO_DATA, RangeAgreement, range_agreement};
pub use survey::{DataSurvey, SampleSurvey, SurveyedTensor, TensorSurvey, survey};

use crate::check::{Finding, Severity};
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::Placement;
use crate::preprocessing::PixelVerdict;
use crate::scheme::Scheme;
use crate::statistics::UntilStable;

/// The facts that examinations look at.
pub struct Facts<'a> {
    /// The model, prepared for the backend.
    pub model: &'a ModelProto,
    /// Types and shapes of the model's tensors.
    pub value_info: &'a ValueInfos,
    /// The model's placement: quantizers and float nodes.
    pub placement: &'a Placement,
    /// The backend's table; `None` where the user names no backend.
    pub scheme: Option<&'a Scheme>,
    /// The data; `None` without data.
    pub data: Option<&'a DataSurvey>,
    /// The rounds of samples until the backend's ranges are stable; `None` without `--until-stable`.
    pub until_stable: Option<&'a UntilStable>,
    /// The verdict on the pixel values.
    pub pixel_values: &'a PixelVerdict,
    /// That the network, a known detector, finds no box in the data, in words; `None` else.
    pub no_box: Option<&'a str>,
}

/// One examination of a model and its data.
pub struct Examination {
    /// Its name, the rule of its findings.
    pub name: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// The function that examines the facts.
    pub examine: fn(&Facts) -> Examined,
}

impl Examination {
    const fn of(name: &'static str, about: &'static str, examine: fn(&Facts) -> Examined) -> Examination {
        Examination { name, about, examine }
    }
}

/// The result of an examination.
#[derive(Debug)]
pub enum Examined {
    /// The findings; empty if all is well.
    Found(Vec<Finding>),
    /// Nothing that the user can change: information, as a sentence without a period.
    Information(String),
    /// The facts do not tell, for this reason.
    Unknown(String),
    /// The facts do not tell, but give a hint.
    Hint {
        /// The reason.
        reason: String,
        /// The hint.
        hint: String,
    },
}

impl Examined {
    /// Returns the finding as an error: results would be wrong.
    fn error(finding: Finding) -> Examined {
        Examined::Found(vec![Finding { severity: Severity::Error, ..finding }])
    }

    /// Returns the finding as a warning: results would be worse, or slower, than they could be.
    fn warning(finding: Finding) -> Examined {
        Examined::Found(vec![Finding { severity: Severity::Warning, ..finding }])
    }

    /// Returns no findings.
    fn nothing() -> Examined {
        Examined::Found(Vec::new())
    }
}

/// Returns every examination's result, in the order of [`EXAMINATIONS`]. Findings have its name as their rule.
pub fn examine(facts: &Facts) -> Vec<(&'static Examination, Examined)> {
    let one = |examination: &'static Examination| {
        let examined = match (examination.examine)(facts) {
            Examined::Found(findings) => {
                let named = findings.into_iter().map(|finding| Finding { rule: examination.name, ..finding });
                Examined::Found(named.collect())
            }
            others => others,
        };
        (examination, examined)
    };
    EXAMINATIONS.iter().map(one).collect()
}

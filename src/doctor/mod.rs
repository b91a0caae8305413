//! Looks at a model and its data before any run.
//!
//! In: [`Facts`]: the prepared float model, its placement for a backend, a survey of the data, and the verdict on the pixel
//! values. Out: for each of the [`EXAMINATIONS`] its [`Examined`] result: findings, nothing, or why it cannot be told. It
//! changes nothing.

mod examinations;
mod survey;

pub use examinations::{ENOUGH_SHARE, EXAMINATIONS, NO_DATA, RangesByImages, ranges_by_images};
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
    /// The model as placed: prepared for the backend.
    pub model: &'a ModelProto,
    /// Types and shapes of its tensors.
    pub value_info: &'a ValueInfos,
    /// Where the backend quantizes it.
    pub placement: &'a Placement,
    /// The backend's table; `None` where the user names no backend.
    pub scheme: Option<&'a Scheme>,
    /// The data; `None` without data.
    pub data: Option<&'a DataSurvey>,
    /// How many samples the ranges of the backend need; `None` where that is not asked for.
    pub until_stable: Option<&'a UntilStable>,
    /// The verdict on the pixel values.
    pub pixel_values: &'a PixelVerdict,
}

/// One thing to look at.
pub struct Examination {
    /// The name in findings.
    pub name: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// Looks at the facts.
    pub examine: fn(&Facts) -> Examined,
}

/// The result of an examination.
#[derive(Debug)]
pub enum Examined {
    /// Findings; empty where nothing was found.
    Found(Vec<Finding>),
    /// The facts do not tell, for this reason.
    Unknown(String),
    /// The facts do not tell; only a hint.
    Hint {
        /// The reason.
        reason: String,
        /// The hint.
        hint: String,
    },
}

impl Examined {
    /// One error: results would be wrong.
    fn error(finding: Finding) -> Examined {
        Examined::Found(vec![Finding { severity: Severity::Error, ..finding }])
    }

    /// One warning: results would be worse, or slower, than they could be.
    fn warning(finding: Finding) -> Examined {
        Examined::Found(vec![Finding { severity: Severity::Warning, ..finding }])
    }

    /// Nothing was found.
    fn nothing() -> Examined {
        Examined::Found(Vec::new())
    }
}

/// Every examination's result, in the order of [`EXAMINATIONS`]; findings have its name as their rule.
pub fn examine(facts: &Facts) -> Vec<(&'static Examination, Examined)> {
    let one = |examination: &'static Examination| {
        let examined = match (examination.examine)(facts) {
            Examined::Found(findings) => {
                let named = findings.into_iter().map(|finding| Finding { rule: examination.name, ..finding });
                Examined::Found(named.collect())
            }
            unknown => unknown,
        };
        (examination, examined)
    };
    EXAMINATIONS.iter().map(one).collect()
}

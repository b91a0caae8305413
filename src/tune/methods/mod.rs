//! The list of methods: ways to bring the quantized network nearer to the float one.

pub mod bias;
pub mod bias_calibration;
mod bias_grid;
mod channel_scales;
mod clip;
mod equalize;
mod insert_scales;
mod keep_first;
pub mod local_bias;
mod observer;
pub mod ranges;
mod rounding;
mod smooth;

pub use bias_grid::new_quantizer;
pub use keep_first::KEEP_FIRST;

use super::method::{Case, Method, Methods};
use super::setup::Setup;
use crate::diag::{WithHint, none_of};
use crate::place::Placement;
use crate::plan::QuantPlan;
use anyhow::{Result, anyhow};

/// Every method, in the order in which they are tried.
pub const METHODS: &[Method] = &[
    equalize::EQUALIZE,
    insert_scales::INSERT_SCALES,
    smooth::SMOOTH,
    keep_first::KEEP_FIRST,
    observer::OBSERVER,
    clip::CLIP,
    local_bias::LOCAL_BIAS,
    bias::BIAS,
    bias_calibration::BIAS_CALIBRATION,
    ranges::RANGES,
    rounding::ROUNDING,
];

/// Checks a list of method names such as `bias` and `rounding`, and returns it. `none` alone is the empty list.
///
/// # Errors
/// If a name is unknown.
pub fn names(list: &[String]) -> Result<Vec<&'static str>> {
    if list == ["none"] {
        return Ok(Vec::new());
    }
    let name = |name: &str| {
        let names = || METHODS.iter().map(|method| method.name);
        // A title is what lines of a run are printed with.
        let words = name.replace('-', " ");
        let meant = METHODS.iter().find(|method| method.title.eq_ignore_ascii_case(&words));
        let meant = meant.map_or(name, |method| method.name);
        let error = || match name {
            "rescue" => anyhow!("method `{name}` is unknown").hint("rescue is an option of its own: --rescue PERCENT"),
            _ => none_of(format_args!("method `{name}` is unknown"), meant, names()),
        };
        names().find(|known| *known == name).ok_or_else(error)
    };
    list.iter().map(|found| name(found.trim())).collect()
}

/// Returns the methods with these names.
pub fn named(names: &[&str]) -> Methods {
    Methods::among(METHODS, |method| names.contains(&method.name))
}

/// Returns the methods that are tried where the user names none.
pub fn tried(case: Case) -> Methods {
    Methods::among(METHODS, |method| (method.is_tried)(case))
}

/// Returns the methods of a run before its plan is known.
pub fn before_plan(setup: &Setup, placement: &Placement) -> Methods {
    let transformer = placement.is_transformer;
    let case = Case { effort: setup.options.effort, few_bits: false, rounding_matters: false, transformer };
    setup.options.methods.as_ref().map_or_else(|| tried(case), |names| named(names))
}

/// Returns the methods of a run for a plan. Range search is added where some tensors have candidate ranges of several
/// observers.
pub fn of_plan(setup: &Setup, placement: &Placement, plan: &QuantPlan) -> Methods {
    let few_bits = plan.weights.iter().any(|weight| weight.qtype.bits < 7);
    let (rounding_matters, transformer) = (plan.rounding_matters(), placement.is_transformer);
    let case = Case { effort: setup.options.effort, few_bits, rounding_matters, transformer };
    let methods = setup.options.methods.as_ref().map_or_else(|| tried(case), |names| named(names));
    let chooses = plan.activations.iter().any(|planned| !planned.candidates.is_empty());
    Methods::among(METHODS, |method| methods.contains(method.name) || chooses && *method == ranges::RANGES)
}

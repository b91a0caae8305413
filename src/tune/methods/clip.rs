//! Scales of weights with the least error at the layer's output.

use super::rounding::ROUNDING;
use crate::simulate::{LayerHook, NoHook};
use crate::tune::method::{Action, LayerContext, Method};
use crate::tune::weights::{WeightRule, WeightSearch};
use anyhow::Result;

/// The method that chooses the scales of weights with the least error at the layer's output. Tried by default only
/// where some weights have few bits (docs/design/rounding.md).
pub const CLIP: Method = Method {
    name: "clip",
    title: "weight range search",
    about: "scales of weights, to minimize the squared error at the layer's output (weight clipping)",
    is_tried: |case| case.effort.level() > 0 && case.few_bits,
    waits: false,
    action: Action::Layer(hook),
};

/// Creates the hook; an empty one beside learned rounding, which chooses the scales as well.
fn hook<'a>(context: &'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>> {
    match context.has(ROUNDING.name) {
        true => Ok(Box::new(NoHook)),
        false => Ok(Box::new(WeightSearch::new(WeightRule::Scales, context))),
    }
}

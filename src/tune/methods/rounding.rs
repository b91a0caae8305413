//! Learned rounding of weights, which reproduces the layer's float output.

use crate::simulate::LayerHook;
use crate::tune::method::{Action, LayerContext, Method};
use crate::tune::weights::{WeightRule, WeightSearch};
use anyhow::Result;

/// The method that learns integers of weights, so that they reproduce the layer's float output. It runs without range
/// search (docs/design/observers.md). At efforts 1 and 2 it is tried only where the rounding of weights is most of the
/// error (few bits, one scale, or activations of more than 8 bits), and for transformers, whose linear layers gain
/// most.
pub const ROUNDING: Method = Method {
    name: "rounding",
    title: "learned rounding",
    about: "integers of weights, to reproduce the layer's float output (GPTQ's objective, COMQ's descent; in place of AdaRound)",
    is_tried: |case| case.effort.level() == 3 || case.effort.level() > 0 && (case.rounding_matters || case.transformer),
    waits: true,
    action: Action::Layer(hook),
};

fn hook<'a>(context: &'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>> {
    Ok(Box::new(WeightSearch::new(WeightRule::Rounding, context)))
}

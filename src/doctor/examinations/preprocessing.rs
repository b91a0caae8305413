//! The examination of the preprocessing of images.

use super::{Examination, Examined, Facts};
use crate::check::Finding;
use crate::preprocessing::{BetterPixels, PixelVerdict};

/// Scale of the pixels and order of the color channels that do not fit the network.
pub const PREPROCESSING: Examination = Examination {
    name: "preprocessing",
    about: "scale of the pixels and order of the color channels, judged by the network's own outputs",
    examine: |facts| match facts.pixel_values {
        PixelVerdict::Unknown(reason) => Examined::Unknown(reason.clone()),
        PixelVerdict::Hint { reason, hint } => Examined::Hint { reason: reason.clone(), hint: hint.clone() },
        PixelVerdict::Fit => Examined::nothing(),
        PixelVerdict::Better(better) => found(facts, better),
    },
};

fn found(facts: &Facts, better: &BetterPixels) -> Examined {
    let BetterPixels { given, better, sentence, .. } = better;
    let input = facts.model.graph.as_ref().and_then(|graph| graph.input.first()).map_or("", |input| input.name());
    let hint = format!("{sentence}; pass these options if the network was trained with them");
    Examined::error(Finding::new("the preprocessing", format!("`{given}`"), better.clone()).on(input).hint(&hint))
}

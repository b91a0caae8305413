//! The examination of the preprocessing of images.

use super::{Examined, Facts};
use crate::check::Finding;
use crate::preprocessing::{BetterPixels, PixelVerdict};

/// Scale of the pixels and order of the color channels that do not fit the network.
pub(super) fn preprocessing(facts: &Facts) -> Examined {
    match facts.pixel_values {
        PixelVerdict::Unknown(_) if facts.no_box.is_some() => nothing_detected(facts, None),
        PixelVerdict::Hint { hint, .. } if facts.no_box.is_some() => nothing_detected(facts, Some(hint.as_str())),
        PixelVerdict::Unknown(reason) => Examined::Unknown(reason.clone()),
        PixelVerdict::Hint { reason, hint } => Examined::Hint { reason: reason.clone(), hint: hint.clone() },
        PixelVerdict::Fit => Examined::nothing(),
        PixelVerdict::Better(better) => found(facts, better),
    }
}

fn found(facts: &Facts, better: &BetterPixels) -> Examined {
    let BetterPixels { given, better, sentence, .. } = better;
    let input = facts.model.graph.as_ref().and_then(|graph| graph.input.first()).map_or("", |input| input.name());
    let hint = format!("{sentence}; pass these options if the network was trained with them");
    Examined::error(Finding::new("the preprocessing", format!("`{given}`"), better.clone()).on(input).hint(&hint))
}

/// Returns a warning about a detector that finds no box, where its outputs do not tell which pixel values fit.
fn nothing_detected(facts: &Facts, hint: Option<&str>) -> Examined {
    let found = facts.no_box.unwrap_or_default().to_string();
    let finding = Finding::new("the float network's result", found, "boxes");
    Examined::warning(finding.hint(hint.unwrap_or("check --preprocess and the data")))
}

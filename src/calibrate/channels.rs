//! Extremes per channel over a part of the samples.

use super::samples::{SampleSet, each_of};
use crate::data::Sample;
use crate::engine::{Parsed, ShapedEngines, ShapedSession};
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::progress::Progress;
use crate::statistics::ChannelExtremes;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// Runs the samples at `range` of the content order. Returns, by tensor, the lowest and highest value of each channel
/// of `tensors` along the last axis.
///
/// # Errors
/// If a sample cannot be loaded or run; the message names it.
pub fn channel_extremes(
    model: &ModelProto,
    shapes: &Shapes,
    tensors: Vec<String>,
    samples: &SampleSet,
    range: Range<usize>,
    progress: &Progress,
) -> Result<BTreeMap<String, ChannelExtremes>> {
    let engines = ShapedEngines::new(Parsed::new(model, shapes)?, &tensors)?;
    let start = || Ok((vec![ChannelExtremes::default(); tensors.len()], engines.session()?));
    let job = |seen: &mut Vec<ChannelExtremes>, session: &mut ShapedSession, sample_idx, loaded: Result<Sample>| {
        let ran = session.run(&loaded?, &mut |at, shape, values| {
            seen[at].observe(shape, values);
            Ok(())
        });
        ran.with_context(|| format!("`{}`", samples.name(sample_idx)))?;
        Ok(())
    };
    let tick = progress("channels of half of the samples", range.len());
    let chosen = &samples.by_content()[range];
    let mut all = vec![ChannelExtremes::default(); tensors.len()];
    for share in each_of((chosen.len(), &|i| chosen[i]), &|i| samples.load(i), &*tick, start, job)? {
        all.iter_mut().zip(share).for_each(|(all, part)| all.merge(&part));
    }
    Ok(tensors.into_iter().zip(all).collect())
}

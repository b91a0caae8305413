//! Recognition of the head that fits a network's outputs.

use super::load::built_in;
use super::part::OutputView;
use super::task::TaskName;
use super::{Head, TaskHead};
use anyhow::Result;

/// Returns the built-in heads of a task that fit the outputs of a float network for some images. Of several heads that
/// fit, only those that require the most dimensions and names are returned. A single head is recognized; with none or
/// several, the user has to choose.
///
/// # Errors
/// If a built-in head is wrong, which a test excludes.
pub fn recognize(task: TaskName, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Result<Vec<TaskHead>> {
    let mut found: Vec<(usize, TaskHead)> = Vec::new();
    for head in built_in()?.into_iter().filter(|head| head.task() == task) {
        let kind = head.decoding.kind();
        let (specificity, reason) = (kind.specificity(), kind.recognizes(images, input));
        let is_some = reason.is_some();
        found.extend(is_some.then_some((specificity, TaskHead { head, input, reason })));
    }
    let most = found.iter().map(|(specificity, _)| *specificity).max();
    Ok(found.into_iter().filter(|(specificity, _)| Some(*specificity) == most).map(|(_, found)| found).collect())
}

/// Returns the built-in heads of a task that can decode the outputs for an image, even if the outputs leave a doubt.
pub(super) fn fitting(task: TaskName, outputs: &[OutputView], input: Option<[usize; 2]>) -> Vec<Head> {
    let fits = |head: &Head| head.task() == task && head.decoding.kind().fits(outputs, input).is_ok();
    built_in().unwrap_or_default().into_iter().filter(fits).collect()
}

//! The interface of the heads of all tasks.

use super::part::OutputView;
use anyhow::Result;

/// A head of one task.
pub(super) trait HeadKind {
    /// Checks the head's values beyond their types. An error holds a key and a message.
    fn check(&self) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    /// Decodes the outputs for one image and drops the result.
    ///
    /// # Errors
    /// If an output is missing or has another shape.
    fn fits(&self, outputs: &[OutputView], input: Option<[usize; 2]>) -> Result<()>;

    /// Returns the reason that the float outputs for some images fit this head; `None` if they leave a doubt.
    fn recognizes(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Option<String>;

    /// Returns the number of dimensions and names that the head requires.
    fn specificity(&self) -> usize {
        0
    }
}

/// Describes outputs as "outputs `name` [shape], ...".
pub(super) fn described(outputs: &[&OutputView]) -> String {
    let mut all: Vec<String> = Vec::new();
    for output in outputs {
        let described = format!("`{}` {:?}", output.name, output.shape);
        if !all.contains(&described) {
            all.push(described);
        }
    }
    format!("output{} {}", if all.len() == 1 { "" } else { "s" }, all.join(", "))
}

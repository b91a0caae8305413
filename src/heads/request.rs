//! The head of a network, given by the user or recognized.

use super::part::OutputView;
use super::recognize::{fitting, recognize};
use super::task::TaskName;
use super::{Head, TaskHead};
use crate::diag::WithHint;
use anyhow::{Error, Result, anyhow};

/// The task and the head of a network, as far as the user gives them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadRequest {
    /// The task.
    pub task: Option<TaskName>,
    /// The head.
    pub head: Option<Head>,
}

impl HeadRequest {
    /// The task that the user gives, also by a head.
    pub fn given_task(&self) -> Option<TaskName> {
        self.task.or_else(|| self.head.as_ref().map(Head::task))
    }

    /// The head that the user gives, or the one that fits the float outputs for some `images`. `None` where the user gives no
    /// task and not exactly one head fits.
    ///
    /// # Errors
    /// If the user's head does not fit, or names a task of which no head fits or several do.
    pub fn resolve(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Result<Option<TaskHead>> {
        let Some(first) = images.first() else { return Ok(None) };
        if let Some(head) = &self.head {
            let head = TaskHead { head: head.clone(), input, reason: None };
            let advice = |error: Error| match &fitting(head.head.task(), first, input)[..] {
                [other] => error.hint(format!("head `{}` fits these outputs", other.name)),
                _ => error.hint("docs/tasks.md lists the heads and the outputs that they read"),
            };
            head.check_fit(first).map_err(advice)?;
            return Ok(Some(head));
        }
        let mut found = recognize(self.task.unwrap_or(TaskName::Detect), images, input)?;
        match (found.len(), self.task) {
            (1, _) => Ok(found.pop()),
            (_, None) => Ok(None),
            (n, Some(task)) => {
                let names: Vec<&str> = found.iter().map(|found| found.head.name.as_str()).collect();
                let outputs = first.iter().map(|output| format!("`{}` {:?}", output.name, output.shape));
                let outputs = outputs.collect::<Vec<_>>().join(", ");
                let task = task.name();
                Err(match n {
                    0 => anyhow!("no built-in head of task {task} fits the outputs {outputs}"),
                    _ => anyhow!("heads {} of task {task} fit the outputs {outputs}, expected one", names.join(", ")),
                }
                .hint("say by --head NAME or --head FILE.yaml how they are read: docs/tasks.md"))
            }
        }
    }
}

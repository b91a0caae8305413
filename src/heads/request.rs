//! The head of a network, which the user gives or which is recognized.

use super::part::OutputView;
use super::recognize::{fitting, recognize};
use super::task::TaskName;
use super::{Head, TaskHead};
use crate::diag::{WithHint, quoted};
use anyhow::{Error, Result, anyhow};

/// The task and the head of a network, if the user gives them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadRequest {
    /// The task that the user gives.
    pub task: Option<TaskName>,
    /// The head that the user gives.
    pub head: Option<Head>,
}

impl HeadRequest {
    /// Returns the task that the user gives, directly or by a head.
    pub fn given_task(&self) -> Option<TaskName> {
        self.task.or_else(|| self.head.as_ref().map(Head::task))
    }

    /// Returns the user's head, or the head that fits the float outputs for some `images`. If the user gives no task,
    /// heads of detectors are tried, and the result is `None` unless exactly one fits.
    ///
    /// # Errors
    /// If the user's head does not fit, or if not exactly one head of the user's task fits.
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
                let fitting = if n == 0 { fitting(task, first, input) } else { Vec::new() };
                let hint = match &fitting[..] {
                    [] => {
                        "name the head that reads them with --head NAME or --head FILE.yaml: docs/tasks.md".to_string()
                    }
                    heads => {
                        let heads = quoted(heads.iter().map(|head| &head.name), ", ");
                        format!("the shapes fit {heads}: name one with --head, if it reads them")
                    }
                };
                let task = task.name();
                Err(match n {
                    0 => anyhow!("no built-in head of task {task} fits the outputs {outputs}"),
                    _ => anyhow!("heads {} of task {task} fit the outputs {outputs}, expected one", names.join(", ")),
                }
                .hint(hint))
            }
        }
    }
}

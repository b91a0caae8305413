//! Tasks of networks.

use crate::diag::none_of;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The task of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum TaskName {
    Classify,
    Detect,
    Segment,
    Embed,
    Map,
    Keypoints,
    Text,
}

impl TaskName {
    /// All tasks, with their names.
    pub const ALL: &[(TaskName, &str)] = &[
        (TaskName::Classify, "classify"),
        (TaskName::Detect, "detect"),
        (TaskName::Segment, "segment"),
        (TaskName::Embed, "embed"),
        (TaskName::Map, "map"),
        (TaskName::Keypoints, "keypoints"),
        (TaskName::Text, "text"),
    ];

    /// Returns the name of the task.
    pub fn name(self) -> &'static str {
        TaskName::ALL.iter().find(|(task, _)| *task == self).map_or("", |(_, name)| name)
    }

    /// Finds a task by its name.
    ///
    /// # Errors
    /// If there is no such task. The message lists the names.
    pub fn parse(name: &str) -> Result<TaskName> {
        let found = TaskName::ALL.iter().find(|(_, known)| *known == name).map(|(task, _)| *task);
        found.ok_or_else(|| {
            none_of(format_args!("task `{name}` is unknown"), name, TaskName::ALL.iter().map(|(_, name)| *name))
        })
    }
}

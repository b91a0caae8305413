//! Tasks of networks.

use crate::diag::none_of;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The purpose of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskName {
    /// Which objects, and where.
    Detect,
}

impl TaskName {
    /// Every task.
    pub const ALL: &[TaskName] = &[TaskName::Detect];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            TaskName::Detect => "detect",
        }
    }

    /// The task of a name.
    ///
    /// # Errors
    /// If there is none; the message lists them.
    pub fn parse(name: &str) -> Result<TaskName> {
        let names = || TaskName::ALL.iter().map(|task| task.name());
        let found = TaskName::ALL.iter().copied().find(|task| task.name() == name);
        found.ok_or_else(|| none_of(format_args!("task `{name}` is unknown"), name, names()))
    }
}

//! What a model is for, and what is asked of it.

use super::Failure;
use crate::data::parse_number;
use crate::heads::{BUILT_IN, Head};
use crate::metrics::task::{Blank, MEASURES, Measure, TaskGate, TaskKind, TaskOptions};
use crate::pipeline::TaskRequest;
use crate::scheme;
use anyhow::{Result, anyhow, ensure};
use clap::Args;
use std::path::Path;

/// What the model is for, and bounds of its figures. A bound that is missed, or could not be measured, ends with exit
/// code 3.
#[derive(Debug, Args)]
#[command(next_help_heading = "Task: what is left of the float model's own results")]
pub struct TaskArgs {
    #[arg(long, value_name = "TASK", value_parser = task, help = task_help())]
    task: Option<TaskKind>,
    #[arg(long, value_name = "NAME|FILE", help = head_help())]
    head: Option<String>,
    /// Measure this output; repeatable [default: all that the task can be measured on]
    #[arg(long = "task-output", value_name = "NAME")]
    outputs: Vec<String>,
    /// detect: the least score of a box [default: the head's]; segment: what counts in a map of one channel [default: .5]
    #[arg(long, value_name = "X", value_parser = parse_number)]
    threshold: Option<f64>,
    /// segment, regress: the axis of the channels [default: 1; segment: 3 where axes 1 and 2 alone are equal]; ctc: that of
    /// the classes [default: 2]
    #[arg(long, value_name = "N")]
    channel_axis: Option<usize>,
    /// ctc: the class that is no letter, an index or `last` [default: 0]
    #[arg(long, value_name = "N|last", value_parser = blank)]
    blank: Option<Blank>,
    /// classify: least share of samples with the float model's class, in percent
    #[arg(long, value_name = "PERCENT", value_parser = parse_number)]
    min_agreement: Option<f64>,
    /// classify, with --labels: most that the share of right classes loses, in percentage points
    #[arg(long, value_name = "POINTS", value_parser = parse_number, allow_hyphen_values = true)]
    max_top1_drop: Option<f64>,
    /// detect: least F1 of boxes of one class at an IoU of .5
    #[arg(long, value_name = "0..1", value_parser = parse_number)]
    min_f1: Option<f64>,
    /// detect: least mean IoU of the same boxes
    #[arg(long, value_name = "0..1", value_parser = parse_number)]
    min_iou: Option<f64>,
    /// segment: least mean IoU of the classes
    #[arg(long, value_name = "0..1", value_parser = parse_number)]
    min_miou: Option<f64>,
    /// embed: least mean cosine
    #[arg(long, value_name = "-1..1", value_parser = parse_number, allow_hyphen_values = true)]
    min_cosine: Option<f64>,
    /// embed: least share of samples that keep their nearest neighbour
    #[arg(long, value_name = "0..1", value_parser = parse_number)]
    min_neighbours: Option<f64>,
    /// regress: least correlation, mean over the channels
    #[arg(long, value_name = "-1..1", value_parser = parse_number, allow_hyphen_values = true)]
    min_correlation: Option<f64>,
    /// regress: largest error in standard deviations of the float values, mean over the channels
    #[arg(long, value_name = "X", value_parser = parse_number)]
    max_centred_error: Option<f64>,
    /// ctc: most letters to change, by the letters of the float model
    #[arg(long, value_name = "X", value_parser = parse_number)]
    max_edit_distance: Option<f64>,
}

fn task_help() -> String {
    let names: Vec<&str> = TaskKind::ALL.iter().map(|row| row.1).collect();
    format!("What the model is for: {}", names.join(", "))
}

fn head_help() -> String {
    let names: Vec<&str> = BUILT_IN.iter().map(|row| row.0).collect();
    format!("detect: what the outputs mean, a built-in head ({}) or a YAML file", names.join(", "))
}

fn task(name: &str) -> Result<TaskKind, String> {
    let names: Vec<&str> = TaskKind::ALL.iter().map(|row| row.1).collect();
    TaskKind::named(name).ok_or_else(|| format!("expected one of: {}", names.join(", ")))
}

fn blank(text: &str) -> Result<Blank, String> {
    let index = || text.parse().map(Blank::Index);
    if text == "last" { Ok(Blank::Last) } else { index().map_err(|_| "expected an index or `last`".to_string()) }
}

impl TaskArgs {
    /// The task and its bounds, where there is one. Bounds of classes alone need no --task.
    pub(super) fn resolve(&self, has_labels: bool) -> Result<Option<(TaskRequest, Vec<TaskGate>)>, Failure> {
        let gates = self.gates();
        let Some(kind) = self.kind(&gates).map_err(Failure::Usage)? else { return Ok(None) };
        self.check(kind, &gates, has_labels).map_err(Failure::Usage)?;
        let mut head = match &self.head {
            Some(name) => Some(Head::named(name).map_err(|error| {
                let is_file = scheme::is_path(name) || Path::new(name).is_file();
                if is_file { Failure::Failed(error) } else { Failure::Usage(error) }
            })?),
            None => None,
        };
        if let (Some(head), Some(threshold)) = (&mut head, self.threshold) {
            head.score_threshold = threshold;
        }
        let default = TaskOptions::default();
        let options = TaskOptions {
            threshold: self.threshold.unwrap_or(default.threshold),
            channel_axis: self.channel_axis,
            blank: self.blank.unwrap_or(default.blank),
        };
        Ok(Some((TaskRequest { kind, head, outputs: self.outputs.clone(), options }, gates)))
    }

    fn gates(&self) -> Vec<TaskGate> {
        let bounds = [
            ("--min-agreement", self.min_agreement),
            ("--max-top1-drop", self.max_top1_drop),
            ("--min-f1", self.min_f1),
            ("--min-iou", self.min_iou),
            ("--min-miou", self.min_miou),
            ("--min-cosine", self.min_cosine),
            ("--min-neighbours", self.min_neighbours),
            ("--min-correlation", self.min_correlation),
            ("--max-centred-error", self.max_centred_error),
            ("--max-edit-distance", self.max_edit_distance),
        ];
        let of = |measure: &'static Measure| {
            let bound = bounds.iter().find(|(option, _)| *option == measure.option)?.1?;
            Some(TaskGate { measure, bound })
        };
        MEASURES.iter().filter_map(of).collect()
    }

    /// Options beside the bounds that are given, and the tasks that have them.
    fn options(&self) -> impl Iterator<Item = (&'static str, &'static [TaskKind])> {
        use TaskKind::{Classify, Ctc, Detect, Embed, Regress, Segment};
        let options: [(bool, &'static str, &'static [TaskKind]); 5] = [
            (self.head.is_some(), "--head", &[Detect]),
            (!self.outputs.is_empty(), "--task-output", &[Classify, Segment, Embed, Regress, Ctc]),
            (self.threshold.is_some(), "--threshold", &[Detect, Segment]),
            (self.channel_axis.is_some(), "--channel-axis", &[Segment, Regress, Ctc]),
            (self.blank.is_some(), "--blank", &[Ctc]),
        ];
        options.into_iter().filter(|option| option.0).map(|(_, option, tasks)| (option, tasks))
    }

    fn kind(&self, gates: &[TaskGate]) -> Result<Option<TaskKind>> {
        if self.task.is_some() {
            return Ok(self.task);
        }
        let of_classes = |gate: &TaskGate| gate.measure.task == TaskKind::Classify;
        if let Some(gate) = gates.iter().find(|gate| !of_classes(gate)) {
            return Err(anyhow!("{} needs --task {}", gate.measure.option, gate.measure.task.name()));
        }
        if let Some((option, tasks)) = self.options().next() {
            let names: Vec<&str> = tasks.iter().map(|task| task.name()).collect();
            return Err(anyhow!("{option} needs --task {}", names.join(" or ")));
        }
        Ok((!gates.is_empty()).then_some(TaskKind::Classify))
    }

    fn check(&self, kind: TaskKind, gates: &[TaskGate], has_labels: bool) -> Result<()> {
        let name = kind.name();
        for gate in gates {
            let TaskGate { measure: Measure { option, task, range: [low, high], .. }, bound } = gate;
            let of_task: Vec<&str> = MEASURES.iter().filter(|it| it.task == kind).map(|it| it.option).collect();
            ensure!(*task == kind, "{option} is none of --task {name}, expected {}", of_task.join(", "));
            ensure!((*low..=*high).contains(bound), "{option} is {bound}, expected {low} to {high}");
        }
        let shares = self.min_agreement.filter(|bound| *bound > 0.0 && *bound <= 1.0);
        ensure!(shares.is_none(), "--min-agreement is {}, expected percent, such as 99", shares.unwrap_or_default());
        for (option, tasks) in self.options() {
            let names: Vec<&str> = tasks.iter().map(|task| task.name()).collect();
            ensure!(tasks.contains(&kind), "{option} is none of --task {name}, expected with {}", names.join(", "));
        }
        ensure!(kind != TaskKind::Detect || self.head.is_some(), "--task detect needs --head: {}", {
            BUILT_IN.iter().map(|row| row.0).collect::<Vec<_>>().join(", ")
        });
        let threshold = self.threshold.filter(|bound| kind == TaskKind::Detect && !(0.0..=1.0).contains(bound));
        ensure!(threshold.is_none(), "--threshold is {}, expected a score, 0 to 1", threshold.unwrap_or_default());
        ensure!(self.max_top1_drop.is_none() || has_labels, "--max-top1-drop needs --labels");
        Ok(())
    }
}

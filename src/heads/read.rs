//! From YAML to a checked [`Head`].

use super::{ActivationFunction, BUILT_IN, BoxForm, Head};
use crate::diag::{in_yaml, none_of};
use anyhow::{Context, Result, ensure};
use std::path::Path;

impl Head {
    /// The built-in head of that name, or what the YAML file at that path says.
    ///
    /// # Errors
    /// If there is neither, or the file is wrong: file, line, key, what was expected.
    pub fn named(name: &str) -> Result<Head> {
        if let Some((name, yaml)) = BUILT_IN.iter().find(|row| row.0 == name) {
            return Head::from_yaml(yaml, name);
        }
        if !Path::new(name).is_file() {
            let is_file = name.ends_with(".yaml") || name.ends_with(".yml") || name.contains('/');
            ensure!(!is_file, "`{name}`: does not exist, expected a YAML file or the name of a head");
            let names = BUILT_IN.iter().map(|row| row.0);
            return Err(none_of(format_args!("head `{name}` is unknown"), name, names));
        }
        let yaml = std::fs::read_to_string(name).with_context(|| format!("`{name}`"))?;
        Head::from_yaml(&yaml, name)
    }

    /// What a YAML text says. `name` is for messages.
    ///
    /// # Errors
    /// If it has an unknown key or a wrong value, or values that do not go together: file, line and key.
    pub fn from_yaml(yaml: &str, name: &str) -> Result<Head> {
        let head: Head = serde_yaml::from_str(yaml).map_err(|error| in_yaml(name, &error))?;
        head.check().with_context(|| format!("`{name}`"))?;
        Ok(Head { name: name.to_string(), ..head })
    }

    fn check(&self) -> Result<()> {
        let Head { boxes, scores, objectness, grid, priors, .. } = self;
        let share = |key: &str, value: f64| {
            ensure!((0.0..=1.0).contains(&value), "`{key}` is {value}, expected 0 to 1");
            Ok(())
        };
        share("score_threshold", self.score_threshold)?;
        self.nms_iou.map_or(Ok(()), |iou| share("nms_iou", iou))?;
        ensure!(grid.is_none() || priors.is_none(), "`grid` and `priors`, expected one of them");
        let is_distances = boxes.form == BoxForm::LtrbDistances;
        ensure!(boxes.bins > 0, "`boxes.bins` is 0, expected 1 or more");
        ensure!(boxes.bins == 1 || is_distances, "`boxes.bins`, expected with `form: ltrb-distances` alone");
        ensure!(!is_distances || grid.is_some(), "`boxes.form` is ltrb-distances, expected `grid` beside it");
        ensure!(grid.is_none() || boxes.form != BoxForm::Ltrb, "`grid`, expected with another `boxes.form` than ltrb");
        for (key, activation) in [
            ("boxes.centre", boxes.centre.activation),
            ("boxes.size", boxes.size.activation),
            ("objectness", objectness.as_ref().map_or(ActivationFunction::None, |objectness| objectness.activation)),
        ] {
            let softmax = activation == ActivationFunction::Softmax;
            ensure!(!softmax, "`{key}.activation` is softmax, expected it for `scores` alone");
        }
        let labelled = self.labels.is_some() && scores.background.is_some();
        ensure!(!labelled, "`scores.background` beside `labels`, expected one of them");
        if let Some(grid) = grid {
            ensure!(!grid.strides.is_empty() && !grid.strides.contains(&0), "`grid.strides`: expected 1 or more each");
            let anchors = grid.anchors.as_deref().unwrap_or_default();
            let fits = anchors.len() == grid.strides.len() && anchors.iter().all(|of_stride| !of_stride.is_empty());
            ensure!(grid.anchors.is_none() || fits, "`grid.anchors`: expected a list for each stride");
            ensure!(grid.anchors.is_none() || !is_distances, "`grid.anchors`, expected with `form: cxcywh` alone");
        }
        if let Some(priors) = priors {
            ensure!(priors.form != BoxForm::LtrbDistances, "`priors.form`, expected ltrb or cxcywh");
        }
        Ok(())
    }
}

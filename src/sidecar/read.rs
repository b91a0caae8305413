//! Reads the sidecar of an earlier run, and the edits of the float model in it.

use super::packed::unpack;
use super::schema::{Encoding, SCHEMA_VERSION, Sidecar};
use crate::diag::{WithHint, file_name, in_plain_words, key_and_words};
use crate::foreign;
use crate::onnx::edit::{ModelEdit, NewValues};
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::GraphProto;
use crate::onnx::{sha256, tensor};
use crate::quant::TensorParams;
use anyhow::{Context, Result, anyhow, ensure};
use std::path::Path;

impl Sidecar {
    /// Reads a sidecar from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or as [`Sidecar::from_json`]. The message begins with the path.
    pub fn read(path: &Path) -> Result<Sidecar> {
        let of_path = || format!("`{}`", path.display());
        if path.extension().is_some_and(|ending| ending == "onnx") {
            let sidecar = file_name(&path.with_extension("json"));
            let hint = format!("the sidecar of a quantized model is the .json file beside it: `{sidecar}`");
            return Err(anyhow!("`{}`: is a model, expected a sidecar", path.display()).hint(hint));
        }
        let text = foreign::read(path).with_context(of_path)?;
        let text = String::from_utf8(text).ok().context("is not a text file, expected a sidecar");
        text.and_then(|text| Sidecar::from_json(&text)).with_context(of_path)
    }

    /// Reads the sidecar beside a quantized model; `None` if no sidecar can be read there.
    pub fn beside(model: &Path) -> Option<Sidecar> {
        Sidecar::read(&model.with_extension("json")).ok()
    }

    /// Whether this is the sidecar of the model at `model`. True if an earlier version of mqq wrote it without a hash.
    pub fn is_sidecar_of(&self, model: &Path) -> bool {
        let Some(record) = &self.quantized else { return true };
        sha256(model).is_ok_and(|found| found == record.sha256)
    }

    /// Parses the text of a sidecar.
    ///
    /// # Errors
    /// If the text is not a sidecar, has a version that this program cannot read, or holds inconsistent numbers.
    pub fn from_json(text: &str) -> Result<Sidecar> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| {
            anyhow!("does not parse as JSON, expected a sidecar: {}", in_plain_words(&error.to_string()))
        })?;
        let version = value.get("schema_version").and_then(|version| version.as_str());
        let version =
            version.context("has no string `schema_version`, expected a sidecar of `mqq calibrate`")?.to_string();
        let parts = |version: &str| -> Option<(u32, u32)> {
            let (major, minor) = version.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let found = parts(&version).with_context(|| format!("schema_version is `{version}`, expected two numbers"))?;
        let known = parts(SCHEMA_VERSION).context("the program's own version is wrong")?;
        ensure!(
            (1..=known.0).contains(&found.0) && found != (1, 0),
            anyhow!("schema_version is {version}, expected 1.1 to {}.x", known.0)
                .hint("calibrate again with this version of mqq")
        );
        let sidecar: Sidecar = serde_path_to_error::deserialize(value).map_err(|error| {
            let (keys, words) = key_and_words(error);
            match keys.is_empty() {
                true => anyhow!("{words}"),
                false => anyhow!("{}: {words}", keys.join(".")),
            }
        })?;
        for encoding in sidecar.activation_encodings.iter().chain(&sidecar.param_encodings) {
            encoding.check().with_context(|| format!("tensor `{}`", encoding.name))?;
        }
        Ok(sidecar)
    }

    /// Whether the sidecar has equalized channels in the form of earlier versions.
    pub fn has_equalized_channels(&self) -> bool {
        let has = |key: &str| self.equalization.as_ref()?.get(key)?.as_array().map(|list| !list.is_empty());
        has("spaces").unwrap_or_default() || has("offsets").unwrap_or_default()
    }

    /// Returns the edits of the prepared float model, in order.
    ///
    /// # Errors
    /// If the edits are in a form that this version cannot repeat.
    pub fn model_edits(&self) -> Result<Vec<ModelEdit>> {
        ensure!(
            !self.has_equalized_channels(),
            anyhow!("the sidecar has equalized channels in the format of an earlier version of mqq")
                .hint("calibrate again with this version of mqq")
        );
        let biases = self.tuning.iter().flat_map(|tuning| &tuning.biases);
        Ok(self.edits.iter().cloned().chain(biases.cloned().map(ModelEdit::ReplaceBias)).collect())
    }

    /// Returns the edits that set the weights of learned rounding, as
    /// [`QuantPlan::learned_weights`](crate::plan::QuantPlan::learned_weights) does. `graph` must have all other edits.
    ///
    /// # Errors
    /// If the graph lacks a weight or differs, or an earlier version did not write the rounding. The message names the
    /// weight.
    pub fn learned_weights(&self, graph: &GraphProto) -> Result<Vec<ModelEdit>> {
        let learned = self.param_encodings.iter().filter_map(|e| Some((e, e.rounding.as_ref()?)));
        let n_learned = self.tuning.as_ref().map_or(learned.clone().count(), |it| it.n_rounded);
        ensure!(
            n_learned == learned.clone().count(),
            anyhow!(
                "the sidecar lacks the learned rounding of {n_learned} weights: an earlier version of mqq wrote it"
            )
            .hint("calibrate again with this version of mqq")
        );
        let index = GraphIndex::new(graph);
        let mut edits = Vec::new();
        for (encoding, rounding) in learned {
            let name = || format!("initializer `{}`", encoding.name);
            // A weight that is also read in float keeps its values.
            if index.has_only(&encoding.name, encoding.uses(graph).with_context(name)?.len()) {
                edits.push(encoding.learned(&index, rounding).with_context(name)?);
            }
        }
        Ok(edits)
    }
}

impl Encoding {
    /// Returns the edit to the learned values: the nearest integers plus the differences in `rounding`, dequantized.
    fn learned(&self, index: &GraphIndex, rounding: &str) -> Result<ModelEdit> {
        let stored = index.initializer(&self.name).context("does not exist")?;
        let (shape, values) = (tensor::shape(stored)?, tensor::f32_values(stored)?);
        let differences = unpack(rounding, values.len()).context("its `rounding`")?;
        let params = self.params();
        let params = TensorParams::new(self.layout_of(&shape)?, &params)?;
        let nearest = params.quantize(&values)?.into_iter().zip(&differences);
        let integers: Vec<i32> = nearest.map(|(q, by)| q.saturating_add(*by)).collect();
        let values = params.dequantize(&integers);
        Ok(ModelEdit::ReplaceValues(NewValues { tensor: self.name.clone(), values }))
    }
}

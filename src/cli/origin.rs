//! The origin of results. `--skip-existing` keeps results of the same model, data, options and version.

use super::given_options::{Options, given_options};
use crate::data;
use crate::diag::file_name;
use crate::onnx::{RunFile, sha256, texts_sha256};
use crate::scheme::Scheme;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Options that are not hashed: they change no result, or are part of the table or of the hash of the data.
const LEFT_OUT: &[&str] = &[
    "backend", "switch", "set", "data", "output", "out-dir", "json", "quiet", "verbose", "threads", "keep-going",
    "skip-existing", "save-stats", "for", "keep-samples", "resume",
];

/// The version of the program, and hashes of the model, the data and the options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    mqq: String,
    model: String,
    data: String,
    options: String,
}

impl Origin {
    /// Returns the origin of the results of a model; `None` if the model is not a file. `data` and `options` are
    /// hashes.
    pub fn new(model: &Path, data: &str, options: &str) -> Option<Origin> {
        let files = RunFile::read_model("float model", model);
        model.is_file().then(|| Origin {
            mqq: env!("CARGO_PKG_VERSION").to_string(),
            model: texts_sha256(files.iter().map(|file| hashed(&file.path))),
            data: data.to_string(),
            options: options.to_string(),
        })
    }

    /// Returns the path of the origin's file, beside the quantized model `output`.
    pub fn path(output: &Path) -> PathBuf {
        output.with_extension("origin")
    }

    /// Returns the text of the origin's file. Fails if it cannot be written as JSON.
    pub fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Returns the parts that differ from the origin of the existing results; `None` if these have no origin file.
    pub fn differing(&self, output: &Path) -> Option<Vec<&'static str>> {
        let text = std::fs::read_to_string(Origin::path(output)).ok()?;
        let of_results: Origin = serde_json::from_str(&text).ok()?;
        let pairs = [
            ("version", &self.mqq, &of_results.mqq),
            ("model", &self.model, &of_results.model),
            ("data", &self.data, &of_results.data),
            ("options", &self.options, &of_results.options),
        ];
        Some(pairs.iter().filter(|(_, now, then)| now != then).map(|(name, ..)| *name).collect())
    }
}

/// Returns the hash of all data files: their names and contents.
pub fn data_sha256(sources: &[String]) -> String {
    let mut files = Vec::new();
    data::files(sources, &mut |path| files.push(path.to_path_buf()));
    texts_sha256(files.iter().map(|path| hashed(path)))
}

/// Returns the hash of the options on the command line, of the files that they name, and of the tables. Fails if a
/// table cannot be written as JSON.
pub fn options_sha256(files: &[RunFile], tables: (&Scheme, Option<&Scheme>)) -> Result<String> {
    let mut options: Options = given_options();
    LEFT_OUT.iter().for_each(|name| drop(options.remove(*name)));
    let files: Vec<String> = files.iter().map(|file| hashed(&file.path)).collect();
    Ok(texts_sha256([serde_json::to_string(&(options, files, tables))?]))
}

/// Returns a file's name and hash; only the name if the file cannot be read.
fn hashed(path: &Path) -> String {
    format!("{} {}", file_name(path), sha256(path).unwrap_or_default())
}

//! Statements of the documents: the worked example, rules and keys of tables, the sidecar's fields, formats, links.

use crate::support::command::mqq;
use crate::support::repository;
use mqq::backends;
use mqq::export::FORMATS;
use mqq::place::RULES;
use mqq::sidecar::{SCHEMA_VERSION, Sidecar};
use serde::Deserialize;
use serde::de::value::{Error, MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;

/// The text between the lines of the first fenced block of `kind`.
fn block(document: &str, kind: &str) -> String {
    let fence = format!("```{kind}\n");
    let start = document.find(&fence).unwrap() + fence.len();
    let end = start + document[start..].find("```").unwrap();
    document[start..end].to_string()
}

#[test]
fn the_worked_example_quantizes_the_bundled_model() {
    let document = fs::read_to_string(repository("docs/backends.md")).unwrap();
    let table = block(&document, "yaml");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mynpu.yaml");
    fs::write(&path, &table).unwrap();
    let model = folder.path().join("quantized.onnx");
    let data = ["--data", "calib_data/calib", "--preprocess", "half", "--output"];
    let mut calibrate = mqq();
    calibrate.current_dir(repository("."));
    calibrate.args(["calibrate", "fixtures/digits_cnn.onnx", "--backend"]).arg(&path);
    calibrate.args(data).arg(&model).assert().success();
    let mut compare = mqq();
    compare.current_dir(repository(".")).args(["compare", "fixtures/digits_cnn.onnx"]).arg(&model);
    // 35.3 dB.
    compare.args(["--data", "calib_data/eval", "--preprocess", "half", "--min-sqnr", "33.3"]);
    compare.assert().success();
    // It is the built-in table but for its name.
    let own = backends::resolve(path.to_str().unwrap()).unwrap();
    let built_in = backends::resolve("tflitemicro").unwrap();
    assert_eq!((own.types, own.ops, own.placement), (built_in.types, built_in.ops, built_in.placement));
}

#[test]
fn every_rule_and_key_is_explained() {
    let document = fs::read_to_string(repository("docs/backends.md")).unwrap();
    let explained = |name: &str| document.contains(&format!("`{name}`"));
    for rule in RULES {
        assert!(explained(rule.name), "rule {}", rule.name);
        for (parameter, _) in rule.takes {
            assert!(explained(parameter), "parameter {parameter} of rule {}", rule.name);
        }
    }
    // Keys that a resolved table can have, from all built-in ones.
    for (name, _) in backends::BUILT_IN {
        assert!(explained(name), "table {name}");
        let value = serde_yaml::to_value(backends::resolve(name).unwrap()).unwrap();
        let keys = |value: &serde_yaml::Value| -> Vec<String> {
            let mapping = value.as_mapping().into_iter().flatten();
            mapping.filter_map(|(key, _)| key.as_str().map(str::to_string)).collect()
        };
        let entries = |key: &str| -> Vec<serde_yaml::Value> {
            value[key].as_mapping().into_iter().flatten().map(|(_, entry)| entry.clone()).collect()
        };
        let nested = entries("types").into_iter().chain(entries("ops")).chain(entries("switches"));
        for key in keys(&value).into_iter().chain(nested.flat_map(|entry| keys(&entry))) {
            assert!(explained(&key), "key {key} of {name}");
        }
    }
}

/// Rows of tables whose first cell begins with code: the code of the first cell, and the row.
fn rows(document: &str) -> Vec<(Vec<String>, &str)> {
    let lines = document.lines().filter(|line| line.starts_with("| `"));
    let first = |line: &str| line.split(" | ").next().unwrap().to_string();
    lines.map(|line| (code(&first(line)).map(str::to_string).collect(), line)).collect()
}

/// The texts between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Variants of the enum that has most, `ModelEdit`.
const MAX_VARIANTS: usize = 5;

/// Keys of earlier schemas that are still read.
const EARLIER: [&str; 1] = ["n_judges"];

/// Reads any type from nothing, and notes the path of every field and variant.
#[derive(Clone)]
struct Fields<'a> {
    path: String,
    /// Which variant of an enum is read.
    variant: usize,
    seen: &'a RefCell<BTreeSet<String>>,
}

impl Fields<'_> {
    fn below(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) };
        self.seen.borrow_mut().insert(path.clone());
        Fields { path, ..*self }
    }
}

impl<'de> IntoDeserializer<'de> for Fields<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(0)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(false)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str("")
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str("")
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_tuple(1, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, n: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(SeqDeserializer::new(vec![self; n].into_iter()))
    }

    /// A goal by its option.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(MapDeserializer::new(std::iter::once(("keep-float", self))))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let field = |name: &&'static str| (*name, self.below(name));
        visitor.visit_map(MapDeserializer::new(fields.iter().filter(|name| !EARLIER.contains(name)).map(field)))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let variant = variants[self.variant % variants.len()];
        let one = MapDeserializer::new(std::iter::once((variant, self.below(variant))));
        MapAccessDeserializer::new(one).deserialize_enum(name, variants, visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit_struct newtype_struct
        tuple_struct identifier ignored_any
    }
}

#[test]
fn every_field_of_the_sidecar_is_explained() {
    let document = fs::read_to_string(repository("docs/sidecar.md")).unwrap();
    let version = format!("`schema_version` is `{SCHEMA_VERSION}`");
    assert!(document.contains(&version), "docs/sidecar.md: expected {version}");
    let seen = RefCell::default();
    for variant in 0..MAX_VARIANTS {
        Sidecar::deserialize(Fields { path: String::new(), variant, seen: &seen }).unwrap();
    }
    let fields = seen.into_inner();
    let (of_file, of_encoding) = document.split_once("\nAn encoding:\n").unwrap();
    let mut explained = BTreeSet::new();
    for (keys, row) in rows(of_file) {
        // `tuning.n_samples`, `n_held_back`: the second is of `tuning`, too.
        let place = keys[0].rsplit_once('.').map_or(String::new(), |(place, _)| format!("{place}."));
        for key in &keys {
            let path = if key.contains('.') { key.clone() } else { format!("{place}{key}") };
            assert!(fields.contains(&path), "docs/sidecar.md: `{path}` is no field of the sidecar");
            explained.extend(code(row).map(|word| format!("{path}.{word}")));
            explained.insert(path);
        }
    }
    for (keys, _) in rows(of_encoding) {
        for key in keys {
            let path = format!("activation_encodings.{key}");
            assert!(fields.contains(&path), "docs/sidecar.md: `{key}` is no field of an encoding");
            explained.insert(path.replace("activation", "param"));
            explained.insert(path);
        }
    }
    // In a row of its own, or in the row of what it is in; a key that holds others by those.
    let is_explained = |field: &String| {
        let leaf = field.rsplit('.').next().unwrap();
        let around = field.match_indices('.').map(|(end, _)| format!("{}.{leaf}", &field[..end]));
        let others = format!("{field}.");
        let holds = || explained.iter().any(|path| path.starts_with(&others));
        explained.contains(field) || around.into_iter().any(|p| explained.contains(&p)) || holds()
    };
    let missing: Vec<_> = fields.iter().filter(|field| !is_explained(field)).collect();
    assert!(missing.is_empty(), "docs/sidecar.md: nothing of {missing:?}");
}

#[test]
fn every_format_is_in_the_list() {
    let document = fs::read_to_string(repository("docs/formats.md")).unwrap();
    let found: Vec<(String, String, bool)> = rows(&document)
        .into_iter()
        .map(|(names, row)| {
            let cells: Vec<&str> = row.split(" | ").collect();
            (names[0].clone(), cells[1].replace('`', ""), cells[2].contains("the model"))
        })
        .collect();
    let expected: Vec<(String, String, bool)> =
        FORMATS.iter().map(|format| (format.name.into(), format.suffix.into(), format.needs_model)).collect();
    assert_eq!(found, expected, "name, ending, needs the model");
}

#[test]
fn links_lead_somewhere() {
    let mut documents = vec!["README.md".to_string(), "ARCHITECTURE.md".into()];
    documents.extend(["fixtures/README.md", "calib_data/README.md"].map(String::from));
    for entry in walk("docs") {
        documents.push(entry);
    }
    for name in documents {
        let text = fs::read_to_string(repository(&name)).unwrap();
        let folder = repository(&name).parent().unwrap().to_path_buf();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { repository(&name) } else { folder.join(file) };
            assert!(target.exists(), "{name}: `{link}` does not exist");
            let found = heading.is_empty() || headings(&fs::read_to_string(&target).unwrap()).contains(heading);
            assert!(found, "{name}: `{link}`: no such heading");
        }
    }
}

/// Documents of a folder of the repository, those of its folders too.
fn walk(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository(folder)).unwrap() {
        let name = format!("{folder}/{}", entry.unwrap().file_name().to_str().unwrap());
        match repository(&name).is_dir() {
            true => found.extend(walk(&name)),
            false if name.ends_with(".md") => found.push(name),
            false => {}
        }
    }
    found
}

/// Headings as links spell them.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let kept = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let spelled = |line: &str| -> String {
        line.trim_start_matches('#').trim().to_lowercase().chars().filter(|c| kept(*c)).collect()
    };
    lines.map(|line| spelled(line).replace(' ', "-")).collect()
}

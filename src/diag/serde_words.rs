//! Errors of serde in plain words, with the place in the file and a suggestion.

use super::{WithHint, did_you_mean};
use serde_path_to_error::Segment;
use std::borrow::Cow;
use std::fmt;

/// Returns the error `text`, with a suggestion where serde's `message` lists the valid names.
pub fn suggesting(message: &str, text: impl fmt::Display) -> anyhow::Error {
    let listed = message.split_once("unknown ").map_or("", |(_, listed)| listed);
    let mut quoted = listed.split('`').skip(1).step_by(2);
    let found = quoted.next().unwrap_or_default();
    anyhow::anyhow!("{text}").hint(did_you_mean(found, quoted))
}

/// Returns serde's message in plain words: `found the text "x", expected a whole number` for `invalid type: string "x",
/// expected i64`. The line and column that end a message begin the plain words.
pub fn in_plain_words(message: &str) -> String {
    let split = message.rsplit_once(" at line ");
    let split = split.and_then(|(message, place)| Some((message, place.split_once(" column ")?)));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((message, (line, column))) = split.filter(|(_, (line, column))| is_number(line) && is_number(column)) {
        return format!("line {line}, column {column}: {}", in_plain_words(message));
    }
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    if let Some((found, expected)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("found {}, expected {}", found_words(found), expected_words(expected));
    }
    let rest = message.strip_prefix("invalid length ").and_then(|rest| rest.split_once(", expected "));
    if let Some((found, expected)) = rest {
        return format!("found {}, expected {}", list_of(found), expected_words(expected));
    }
    if let Some((key, rest)) = message.split_once(": ").filter(|(_, rest)| rest.starts_with("invalid ")) {
        return format!("{key}: {}", in_plain_words(rest));
    }
    if message.starts_with("EOF while parsing") {
        return "ends too early".to_string();
    }
    for (field, key) in [("unknown field ", "unknown key "), ("missing field ", "missing key ")] {
        if let Some(rest) = message.strip_prefix(field) {
            return format!("{key}{rest}");
        }
    }
    if message.starts_with("data did not match any variant") {
        return "found a value of another form than expected".to_string();
    }
    match (message.strip_prefix("duplicate field "), message.strip_prefix("unknown variant ")) {
        (Some(key), _) => format!("key {key} is given twice"),
        (_, Some(rest)) => format!("unknown value {rest}"),
        _ => message.to_string(),
    }
}

/// Returns plain words for serde's description of a value that was found.
fn found_words(found: &str) -> String {
    let kinds = ["integer ", "floating point ", "boolean "];
    let found = found.strip_suffix(" as u128").or_else(|| found.strip_suffix(" as i128")).unwrap_or(found);
    match found {
        "unit value" | "null" => "nothing".to_string(),
        "map" => "keys with values".to_string(),
        "sequence" => "a list".to_string(),
        _ => match (found.strip_prefix("string "), kinds.iter().find_map(|kind| found.strip_prefix(kind))) {
            (Some(text), _) => format!("the text {text}"),
            (_, Some(value)) => value.to_string(),
            _ => found.to_string(),
        },
    }
}

/// Returns plain words for serde's description of the expected value.
fn expected_words(expected: &str) -> Cow<'_, str> {
    let words = match expected {
        "u8" => "a whole number from 0 to 255",
        "i32" | "i64" => "a whole number",
        "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "any YAML value" => "a smaller number",
        "a YAML tag starting with '!'" | "a Value::Tagged enum" => "a name",
        "a string" | "a borrowed string" | "path string" => "text",
        "a sequence" => "a list",
        "a map" => "keys with values",
        "field identifier" => "keys with values",
        _ if expected.starts_with("struct ") => "keys with values",
        _ if expected.starts_with("fewer elements") => "fewer",
        _ if expected.starts_with("enum ") || expected == "variant identifier" => "a name",
        _ => {
            let list = expected.strip_prefix("an array of length ").or(expected.strip_prefix("a tuple of size "));
            return list.map_or(Cow::Borrowed(expected), |n| Cow::Owned(list_of(n)));
        }
    };
    Cow::Borrowed(words)
}

/// Returns text such as `a list of 4 values` for a number of values.
fn list_of(n: &str) -> String {
    match n {
        "0" => "an empty list".to_string(),
        "1" => "a list of 1 value".to_string(),
        _ => format!("a list of {n} values"),
    }
}

/// Returns the keys that lead to an error of serde, and its message in plain words.
pub fn key_and_words<E: fmt::Display>(error: serde_path_to_error::Error<E>) -> (Vec<String>, String) {
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    let keys = error.path().iter().filter_map(step).collect();
    (keys, in_plain_words(&error.into_inner().to_string()))
}

/// Returns the error of a YAML text with file, line and key, and with a suggestion where there is one.
pub fn in_yaml(file: &str, error: &serde_yaml::Error) -> anyhow::Error {
    let place = error.location().map_or(String::new(), |place| format!(":{}", place.line()));
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let is_key = |c: char| c.is_ascii_alphanumeric() || "_[].".contains(c);
    let message = match text.split_once(": ") {
        Some((key, rest)) if key.chars().all(is_key) => format!("`{key}`: {}", in_plain_words(rest)),
        _ => in_plain_words(text),
    };
    suggesting(&message, format!("`{file}`{place}: {message}"))
}

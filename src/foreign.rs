//! Input files of the user: only regular files are opened, and YAML has limits on its size, depth and expanded aliases.

use anyhow::{Context, Result, bail, ensure};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Opens a file. A pipe would wait for a writer, and a device may have no end, so neither is opened.
///
/// # Errors
/// If it cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> Result<File> {
    let metadata = std::fs::metadata(path)?;
    ensure!(!metadata.is_dir(), "is a directory, expected a file");
    ensure!(metadata.is_file(), "is not a regular file, expected one");
    Ok(File::open(path)?)
}

/// Returns the bytes of a file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let mut file = open(path)?;
    let mut bytes = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or(0));
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Maximum size of a YAML file in bytes.
const MAX_YAML_BYTES: u64 = 1 << 20;
/// Maximum nesting depth of a YAML file.
const MAX_YAML_DEPTH: usize = 64;
/// Maximum number of values of a YAML file after its aliases are expanded.
const MAX_YAML_VALUES: usize = 100_000;

/// Returns the text of a YAML file, without a byte order mark.
///
/// # Errors
/// As [`open`]; also if the file is not UTF-8, or exceeds one of the limits.
pub fn read_yaml(path: &Path) -> Result<String> {
    let n_bytes = open(path)?.metadata()?.len();
    ensure!(n_bytes <= MAX_YAML_BYTES, "has {n_bytes} bytes, expected at most {MAX_YAML_BYTES}");
    let text = String::from_utf8(read(path)?).ok().context("is not UTF-8 text")?;
    // The parser takes what follows the mark for another document.
    let text = text.trim_start_matches('\u{feff}').to_string();
    check_yaml(&text)?;
    Ok(text)
}

fn check_yaml(text: &str) -> Result<()> {
    // The parser's time grows with the square of the depth, so brackets and dashes are counted first.
    let mut depth = 0usize;
    // The line of a comment. With a quote, it may be the end of a text of several lines.
    let is_comment = |line: &str| line.trim_start().starts_with('#') && !line.contains(['"', '\'']);
    for (line_idx, line) in text.lines().enumerate().filter(|(_, line)| !is_comment(line)) {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            ensure!(depth <= MAX_YAML_DEPTH, "line {}: nested deeper than {MAX_YAML_DEPTH} levels", line_idx + 1);
        }
        let n_dashes = line.split_whitespace().take_while(|word| matches!(*word, "-" | "?" | ":")).count();
        ensure!(n_dashes <= MAX_YAML_DEPTH, "line {}: nested deeper than {MAX_YAML_DEPTH} levels", line_idx + 1);
    }
    let n_values = Cell::new(0);
    // Other errors are ignored here: the parser that reads the contents reports them.
    let counted = Counted(&n_values).deserialize(serde_yaml::Deserializer::from_str(text));
    let gives_up = counted.is_err_and(|error| error.to_string().contains("repetition limit"));
    if gives_up || n_values.get() > MAX_YAML_VALUES {
        bail!("has more than {MAX_YAML_VALUES} values with its aliases expanded, expected fewer");
    }
    Ok(())
}

/// A visitor that counts values, and returns an error above the limit.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > MAX_YAML_VALUES {
            return Err(D::Error::custom("too many values"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(self)?.is_some() {
            map.next_value_seed(self)?;
        }
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let (_, value): (IgnoredAny, _) = tagged.variant()?;
        value.newtype_variant_seed(self)
    }
}

//! The line of a key in a YAML text.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Returns the line of the key, or of the list's element, at the end of the steps `at`, such as those of
/// `types.act8.bits` or `placement.2`. `None` if the text has no such key.
pub fn line_of(text: &str, at: &[&str]) -> Option<usize> {
    // The walk ends with an error when it arrives, because the parser adds the line to errors.
    let walk = Walk::Along(at).deserialize(serde_yaml::Deserializer::from_str(text));
    let arrived = walk.err().filter(|error| error.to_string().contains(ARRIVED));
    arrived?.location().map(|location| location.line())
}

const ARRIVED: &str = "<arrived>";

/// A step of the walk. An error other than [`ARRIVED`] means that the path does not exist.
enum Walk<'a> {
    /// Follows the remaining steps.
    Along(&'a [&'a str]),
    /// Reads a key; arrives if it is the given one.
    Key(Option<&'a str>),
    /// Arrives at any value.
    Arrive,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    /// The key that was read.
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        match self {
            Walk::Along(_) => deserializer.deserialize_any(self),
            Walk::Key(_) | Walk::Arrive => deserializer.deserialize_str(self),
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if matches!(self, Walk::Arrive) { ARRIVED } else { "steps" })
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<String, E> {
        match self {
            Walk::Key(wanted) if wanted != Some(key) => Ok(key.to_string()),
            Walk::Key(_) | Walk::Arrive => Err(E::custom(ARRIVED)),
            Walk::Along(_) => Err(E::custom("no steps lead on from a text")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
        let Walk::Along([first, rest @ ..]) = self else { return Ok(String::new()) };
        let wanted = rest.is_empty().then_some(*first);
        while let Some(key) = map.next_key_seed(Walk::Key(wanted))? {
            match key == *first {
                true => drop(map.next_value_seed(Walk::Along(rest))?),
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(String::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<String, A::Error> {
        let Walk::Along([first, rest @ ..]) = self else { return Ok(String::new()) };
        for position in 0.. {
            let more = match first.parse() == Ok(position) {
                true if rest.is_empty() => seq.next_element_seed(Walk::Arrive)?.map(drop),
                true => seq.next_element_seed(Walk::Along(rest))?.map(drop),
                false => seq.next_element::<IgnoredAny>()?.map(drop),
            };
            if more.is_none() {
                break;
            }
        }
        Ok(String::new())
    }
}

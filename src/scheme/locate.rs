//! The line of a key in a YAML text.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Line of the key, or of the list's element, at the dotted path `at` (`types.act8.bits`, `placement.2`);
/// `None` where the text has no such key.
pub fn line_of(text: &str, at: &[&str]) -> Option<usize> {
    if at.is_empty() {
        return None;
    }
    // The walk fails where it arrives: the parser adds to an error where it happened.
    let walk = Walk(at).deserialize(serde_yaml::Deserializer::from_str(text));
    walk.err()?.location().map(|location| location.line())
}

const ARRIVED: &str = "arrived";

/// Follows the steps that are left.
struct Walk<'a>(&'a [&'a str]);

/// Reads a key; fails where it is the one asked for.
struct Key<'a>(Option<&'a str>);

/// Fails at whatever comes.
struct Arrive;

macro_rules! ignore_scalars {
    ($value:expr) => {
        fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    ignore_scalars!(());

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((&first, rest)) = self.0.split_first() else { return Ok(()) };
        let wanted = rest.is_empty().then_some(first);
        while let Some(key) = map.next_key_seed(Key(wanted))? {
            match key.as_deref() == Some(first) {
                true => map.next_value_seed(Walk(rest))?,
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((&first, rest)) = self.0.split_first() else { return Ok(()) };
        for position in 0.. {
            let here = first.parse() == Ok(position);
            let more = match (here, rest.is_empty()) {
                (true, true) => seq.next_element_seed(Arrive)?,
                (true, false) => seq.next_element_seed(Walk(rest))?,
                (false, _) => seq.next_element::<IgnoredAny>()?.map(drop),
            };
            if more.is_none() {
                break;
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Key<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    ignore_scalars!(None);

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        match self.0 {
            Some(wanted) if wanted == key => Err(E::custom(ARRIVED)),
            _ => Ok(Some(key.to_string())),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Arrive {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Arrive {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(ARRIVED)
    }
}

//! The fit of an image to the input's height and width, and its spelling as an option.

use crate::diag::quoted;
use anyhow::{Result, anyhow, bail};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The fit of an image to the input's height and width.
///
/// Spelled `none`, `exact`, `exact=HxW`, `short_side`, `short_side=N` or only `N`, `letterbox`, `letterbox_centered`;
/// in YAML also `{ short_side: N }` and `{ exact: [H, W] }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// Not resized.
    None,
    /// Stretched to (height, width), by default the input's.
    Exact(Option<(u32, u32)>),
    /// Shorter side scaled to this many pixels, with the aspect ratio kept; the longer side is rounded down, as in
    /// torchvision. Default: 256/224 of the input's side, as common for ImageNet.
    ShortSide(Option<u32>),
    /// Scaled to fit inside the input, with the aspect ratio kept, at the top left. The remaining pixels are padded.
    Letterbox,
    /// As [`Resize::Letterbox`], with the image in the middle.
    LetterboxCentered,
}

impl Resize {
    pub(super) const NAMES: &[&str] = &["none", "exact", "short_side", "letterbox", "letterbox_centered"];

    fn parse(text: &str) -> Result<Resize> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (text.trim(), None),
        };
        let pixels = |value: &str| {
            let n: Option<u32> = value.trim().parse().ok();
            n.filter(|n| (1..=65535).contains(n))
                .ok_or_else(|| anyhow!("`{text}`: `{value}` is not a number of pixels, expected 1 to 65535"))
        };
        Ok(match (name, value) {
            ("none", None) => Resize::None,
            (size, None) if size.starts_with(|c: char| c.is_ascii_digit()) && size.contains('x') => {
                bail!("found `{size}`, expected `exact={size}`, height x width, or a number for the shorter side")
            }
            (number, None) if number.starts_with(|c: char| c.is_ascii_digit()) => {
                Resize::ShortSide(Some(pixels(number)?))
            }
            ("exact", None) => Resize::Exact(None),
            ("exact", Some(value)) => {
                let (height, width) = value.split_once(['x', ',']).unwrap_or((value, value));
                Resize::Exact(Some((pixels(height)?, pixels(width)?)))
            }
            ("short_side" | "short-side", None) => Resize::ShortSide(None),
            ("short_side" | "short-side", Some(value)) => Resize::ShortSide(Some(pixels(value)?)),
            ("letterbox", None) => Resize::Letterbox,
            ("letterbox_centered" | "letterbox-centered", None) => Resize::LetterboxCentered,
            (name, Some(_)) if Resize::NAMES.contains(&name) => {
                bail!("`{text}`: `{name}` takes no value")
            }
            ("stretch" | "stretched", _) => {
                bail!("found `{text}`, expected `exact`, which stretches an image to the input's size, or `exact=HxW`")
            }
            // The wording is that of serde's message, so that the same hint is found.
            (name, _) => {
                bail!("unknown value `{name}`, expected one of {}", quoted(Resize::NAMES, ", "))
            }
        })
    }
}

struct ResizeVisitor;

impl<'de> Visitor<'de> for ResizeVisitor {
    type Value = Resize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {}", Resize::NAMES.join(", "))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Resize, E> {
        Resize::parse(text).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, side: u64) -> Result<Resize, E> {
        Resize::parse(&side.to_string()).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Resize, A::Error> {
        let Some(name) = map.next_key::<String>()? else {
            return Err(A::Error::custom("is empty, expected `short_side` or `exact`"));
        };
        let text = match name.as_str() {
            "exact" => {
                let (height, width): (u32, u32) = map.next_value()?;
                format!("exact={height}x{width}")
            }
            _ => format!("{name}={}", map.next_value::<u32>()?),
        };
        if let Some(second) = map.next_key::<String>()? {
            return Err(A::Error::custom(format!("has the keys `{name}` and `{second}`, expected one key")));
        }
        Resize::parse(&text).map_err(A::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Resize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Resize, D::Error> {
        deserializer.deserialize_any(ResizeVisitor)
    }
}

impl Serialize for Resize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Resize::None => serializer.serialize_str("none"),
            Resize::Exact(None) => serializer.serialize_str("exact"),
            Resize::Exact(Some((height, width))) => serializer.collect_str(&format_args!("exact={height}x{width}")),
            Resize::ShortSide(None) => serializer.serialize_str("short_side"),
            Resize::ShortSide(Some(side)) => serializer.collect_str(&format_args!("short_side={side}")),
            Resize::Letterbox => serializer.serialize_str("letterbox"),
            Resize::LetterboxCentered => serializer.serialize_str("letterbox_centered"),
        }
    }
}

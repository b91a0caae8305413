//! TensorRT's calibration cache: a line `TRT-…`, then lines `tensor: <scale>` with the bits of a float32 in
//! hexadecimal. `amax = 127 * scale`.

use super::{Contents, RangeReader};
use crate::quant::GivenRange;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

pub(super) const READER: RangeReader = RangeReader { name: "trt-cache", recognizes, read };

fn recognizes(contents: &Contents) -> bool {
    contents.text.starts_with("TRT-")
}

fn read(contents: &Contents) -> Result<BTreeMap<String, GivenRange>> {
    let mut ranges = BTreeMap::new();
    for (line_idx, line) in contents.text.lines().enumerate().skip(1) {
        if line.trim().is_empty() {
            continue;
        }
        let parsed = line.rsplit_once(':').and_then(|(name, bits)| {
            let bits = bits.trim();
            let scale = f32::from_bits(u32::from_str_radix(bits, 16).ok()?);
            (bits.len() == 8).then_some((name.to_string(), scale))
        });
        let line_number = line_idx + 1;
        let (name, scale) = parsed.with_context(|| {
            format!("line {line_number}: is `{line}`, expected `tensor: ` and 8 hexadecimal digits")
        })?;
        let range = GivenRange::from_params(f64::from(scale), 0, 8, true)
            .with_context(|| format!("line {line_number}: tensor `{name}`"))?;
        let earlier = ranges.insert(name, range);
        ensure!(
            earlier.is_none_or(|earlier| earlier == range),
            "line {line_number}: repeats a tensor with another scale"
        );
    }
    Ok(ranges)
}

//! Many small integers as text: each as zigzag in LEB128, all of them compressed by zlib, in Base64.

use anyhow::{Context, Result, ensure};
use base64ct::{Base64, Encoding};
use flate2::Compression;
use flate2::bufread::ZlibDecoder;
use flate2::write::ZlibEncoder;
use std::io::{Read, Write};

/// The text of `integers`.
///
/// # Errors
/// If there is no memory for it.
pub fn pack(integers: &[i32]) -> Result<String> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    let mut bytes = Vec::with_capacity(integers.len());
    for &integer in integers {
        let mut rest = ((integer << 1) ^ (integer >> 31)) as u32;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    encoder.write_all(&bytes)?;
    Ok(Base64::encode_string(&encoder.finish()?))
}

/// The `n` integers of a text.
///
/// # Errors
/// If it is no such text, or of more or fewer integers.
pub fn unpack(text: &str, n: usize) -> Result<Vec<i32>> {
    let packed = Base64::decode_vec(text).ok().context("is no Base64")?;
    // No number takes more than five bytes: what is longer is not unpacked to its end.
    let limit = 5 * n as u64 + 1;
    let mut bytes = Vec::new();
    let decoder = ZlibDecoder::new(packed.as_slice());
    decoder.take(limit).read_to_end(&mut bytes).context("is not compressed by zlib")?;
    let mut integers = Vec::with_capacity(n.min(bytes.len()));
    let (mut value, mut shift) = (0u32, 0);
    for byte in bytes {
        ensure!(shift < 35, "holds a number of more than 32 bits");
        value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        shift += 7;
        if byte < 0x80 {
            integers.push((value >> 1) as i32 ^ -((value & 1) as i32));
            (value, shift) = (0, 0);
        }
    }
    let found = integers.len();
    ensure!(found == n && shift == 0, "holds {found} integers, expected {n}");
    Ok(integers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unpacking_gives_what_was_packed(integers in prop::collection::vec(any::<i32>(), 0..50)) {
            let text = pack(&integers).unwrap();
            prop_assert_eq!(unpack(&text, integers.len()).unwrap(), integers.clone());
            prop_assert!(unpack(&text, integers.len() + 1).is_err());
        }

        #[test]
        fn other_texts_are_errors(text in "[A-Za-z0-9+/]{0,40}") {
            prop_assert!(unpack(&text, 3).is_err());
        }
    }

    #[test]
    fn differences_of_learned_rounding_take_less_than_two_bits() {
        let integers: Vec<i32> = (0..10_000i32).map(|i| (i * i / 7 % 5 == 0) as i32).collect();
        assert!(8 * pack(&integers).unwrap().len() < 2 * integers.len());
    }
}

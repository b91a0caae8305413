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

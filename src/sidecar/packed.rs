//! Many small integers as text: each in zigzag and LEB128, then together in zlib and Base64.

use crate::onnx::{decode_varint, encode_varint};
use anyhow::{Context, Result, ensure};
use base64ct::{Base64, Encoding};
use flate2::Compression;
use flate2::bufread::ZlibDecoder;
use flate2::write::ZlibEncoder;
use std::io::{Read, Write};

/// Packs integers into a text.
///
/// # Errors
/// If compression fails.
pub fn pack(integers: &[i32]) -> Result<String> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    let mut bytes = Vec::with_capacity(integers.len());
    for &integer in integers {
        let zigzag = ((integer << 1) ^ (integer >> 31)) as u32;
        encode_varint(u64::from(zigzag), &mut bytes);
    }
    encoder.write_all(&bytes)?;
    Ok(Base64::encode_string(&encoder.finish()?))
}

/// Unpacks the `n` integers of a text.
///
/// # Errors
/// If the text is invalid, or has more or fewer integers.
pub fn unpack(text: &str, n: usize) -> Result<Vec<i32>> {
    let packed = Base64::decode_vec(text).ok().context("is not Base64")?;
    // An integer takes at most five bytes, so unpacking stops beyond that.
    let limit = 5 * n as u64 + 1;
    let mut bytes = Vec::new();
    let decoder = ZlibDecoder::new(packed.as_slice());
    decoder.take(limit).read_to_end(&mut bytes).context("is not compressed by zlib")?;
    let mut integers = Vec::with_capacity(n.min(bytes.len()));
    let (mut rest, mut is_whole) = (bytes.as_slice(), true);
    while is_whole && !rest.is_empty() {
        match decode_varint(&mut rest) {
            Ok(value) => {
                let value = u32::try_from(value).ok().context("holds a number of more than 32 bits")?;
                integers.push((value >> 1) as i32 ^ -((value & 1) as i32));
            }
            Err(_) => is_whole = false,
        }
    }
    let found = integers.len();
    ensure!(found == n && is_whole, "holds {found} integers, expected {n}");
    Ok(integers)
}

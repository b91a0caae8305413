//! Headers of `.npy` files and of arrays in `.npz` archives, and the bytes of one sample.
//!
//! Source: NumPy, `numpy.lib.format`; versions 1 to 3.

use crate::diag::{WithHint, did_you_mean, quoted};
use crate::foreign;
use crate::onnx::data_type::{DataType, TypeKind};
use anyhow::{Context, Result, anyhow, bail, ensure};
use npyz::npz::NpzArchive;
use npyz::{DType, NpyHeader, Order};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, sink};
use std::path::Path;
use std::sync::Arc;

/// The header of an array.
#[derive(Debug, Clone)]
pub struct Header {
    pub shape: Vec<usize>,
    pub element: DataType,
    pub is_big_endian: bool,
    is_column_major: bool,
    n_bytes: usize,
}

/// Maximum bytes of a header's text, as in NumPy.
const MAX_HEADER_BYTES: usize = 10_000;
/// Maximum depth of nested brackets in a header. The parser's time doubles with each level.
const MAX_HEADER_DEPTH: usize = 8;
/// Maximum bytes of an array in a compressed archive.
const MAX_UNPACKED: usize = 2 << 30;
/// Size in bytes above which an array may be compressed by at most the factor [`MAX_RATIO`].
const LARGE_UNPACKED: usize = 256 << 20;
const MAX_RATIO: u64 = 200;

/// Reads the bytes of a header, magic string and length included, up to the array's values.
fn header_bytes(mut reader: impl Read) -> Result<Vec<u8>> {
    const IS_NO_ARRAY: &str = "is not a NumPy array";
    let mut bytes = vec![0; 10];
    reader.read_exact(&mut bytes).context(IS_NO_ARRAY)?;
    ensure!(bytes.starts_with(b"\x93NUMPY") && (1..=3).contains(&bytes[6]), IS_NO_ARRAY);
    if bytes[6] > 1 {
        bytes.resize(12, 0);
        reader.read_exact(&mut bytes[10..]).context(IS_NO_ARRAY)?;
    }
    let n_bytes = bytes[8..].iter().rev().fold(0usize, |n, &byte| n << 8 | usize::from(byte));
    ensure!(n_bytes <= MAX_HEADER_BYTES, "header has {n_bytes} bytes, expected at most {MAX_HEADER_BYTES}");
    let start = bytes.len();
    bytes.resize(start + n_bytes, 0);
    reader.read_exact(&mut bytes[start..]).context("is truncated in its header")?;
    let mut depth = 0usize;
    for byte in &bytes[start..] {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        ensure!(depth <= MAX_HEADER_DEPTH, "header is nested deeper than {MAX_HEADER_DEPTH} levels");
    }
    Ok(bytes)
}

/// Returns the error of a header that cannot be read.
fn header_error(bytes: &[u8], error: &io::Error) -> anyhow::Error {
    let text = String::from_utf8_lossy(bytes);
    // The text of the type: `=f4` of `'descr': '=f4'`.
    let element = text.split_once("'descr'").and_then(|(_, rest)| rest.split('\'').nth(1));
    match element {
        Some(element) if error.to_string().starts_with("invalid type string") => {
            anyhow!("has the element type `{element}`, expected numbers or booleans, such as `<f4`")
        }
        _ => anyhow!("is not a NumPy array: its header lacks `descr`, `fortran_order` or `shape`, or one is wrong"),
    }
}

/// Returns the element type for NumPy's kind and size, such as `f4`.
fn element_type(text: &str) -> Option<DataType> {
    let (kind, size) = text.split_at_checked(1)?;
    let kind = match kind {
        "b" => TypeKind::Bool,
        "u" => TypeKind::Unsigned,
        "i" => TypeKind::Signed,
        "f" => TypeKind::Float,
        _ => return None,
    };
    let is_of = |of: &DataType| of.is_plain() && of.kind() == kind && of.size().to_string() == size;
    // NumPy has no bfloat16.
    DataType::all().find(|of| is_of(of) && *of != DataType::Bfloat16)
}

impl Header {
    /// Reads a header. Returns its length in bytes, too.
    fn read(reader: impl Read) -> Result<(Header, u64)> {
        let bytes = header_bytes(reader)?;
        let npy = NpyHeader::from_reader(&mut &bytes[..]).map_err(|error| header_error(&bytes, &error))?;
        let DType::Plain(plain) = npy.dtype() else {
            bail!("holds records, expected plain numbers");
        };
        let text = plain.to_string();
        let Some(element) = element_type(text.trim_start_matches(['<', '>', '|', '='])) else {
            bail!("has the element type `{text}`, expected numbers or booleans");
        };
        let shape: Result<Vec<usize>, _> = npy.shape().iter().map(|&n| usize::try_from(n)).collect();
        let shape = shape.context("is too large to hold in memory")?;
        let n_bytes = shape.iter().try_fold(element.size(), |n, &dim| n.checked_mul(dim));
        let n_bytes = n_bytes.filter(|&n| isize::try_from(n).is_ok());
        let header = Header {
            n_bytes: n_bytes.with_context(|| format!("shape is {shape:?}, too large to hold in memory"))?,
            is_column_major: npy.order() == Order::Fortran && shape.len() > 1,
            is_big_endian: text.starts_with('>'),
            shape,
            element,
        };
        Ok((header, bytes.len() as u64))
    }

    /// Returns the bytes of each of `n_samples` samples.
    pub fn sample_bytes(&self, n_samples: usize) -> usize {
        self.n_bytes / n_samples
    }

    /// Copies the elements of one sample out of the whole array `data`, into row-major order.
    fn gather(&self, data: &[u8], sample: usize, n_samples: usize) -> Vec<u8> {
        let size = self.element.size();
        let n_bytes = self.sample_bytes(n_samples);
        if !self.is_column_major {
            return data[sample * n_bytes..][..n_bytes].to_vec();
        }
        let mut sample_data = Vec::with_capacity(n_bytes);
        for position in (sample * n_bytes / size..).take(n_bytes / size) {
            let (mut rest, mut at, mut stride) = (position, 0, self.n_bytes / size);
            for &dim in self.shape.iter().rev() {
                stride /= dim;
                at += rest % dim * stride;
                rest /= dim;
            }
            sample_data.extend_from_slice(&data[at * size..][..size]);
        }
        sample_data
    }
}

/// An array in a file.
#[derive(Debug)]
pub struct Stored {
    pub header: Header,
    place: ArrayPlace,
}

/// The place of an array's values.
#[derive(Debug)]
enum ArrayPlace {
    /// Uncompressed in the file, at this byte offset.
    Plain(u64),
    /// Compressed in the archive's member of this name.
    Packed(String),
}

impl Stored {
    /// Reads the header of a `.npy` file.
    pub fn open(path: &Path) -> Result<Stored> {
        let file = foreign::open(path)?;
        let file_bytes = file.metadata()?.len();
        let (header, start) = Header::read(BufReader::new(file))?;
        Stored::plain(header, start, file_bytes)
    }

    fn plain(header: Header, start: u64, file_bytes: u64) -> Result<Stored> {
        let held = file_bytes.saturating_sub(start);
        ensure!(
            held >= header.n_bytes as u64,
            "holds {held} bytes of data, expected {} for shape {:?}: it is truncated",
            header.n_bytes,
            header.shape
        );
        Ok(Stored { header, place: ArrayPlace::Plain(start) })
    }

    /// Reads the bytes of one of `n_samples` samples, in row-major order. `unpacked` returns the whole array if it is
    /// compressed.
    pub fn read(
        &self,
        path: &Path,
        sample: usize,
        n_samples: usize,
        unpacked: impl FnOnce() -> Result<Arc<Vec<u8>>>,
    ) -> Result<Vec<u8>> {
        let ArrayPlace::Plain(start) = self.place else {
            return Ok(self.header.gather(&unpacked()?, sample, n_samples));
        };
        let mut file = foreign::open(path)?;
        if self.header.is_column_major {
            // SAFETY: the map is read-only and private to this process; as with every memory map, nobody else may
            // truncate the file while it is in use.
            let map = unsafe { memmap2::Mmap::map(&file)? };
            let data = usize::try_from(start).ok().and_then(|start| map.get(start..));
            let data = data.filter(|data| data.len() >= self.header.n_bytes);
            let data = data.context("became shorter after it was opened")?;
            return Ok(self.header.gather(data, sample, n_samples));
        }
        let n_bytes = self.header.sample_bytes(n_samples);
        let mut bytes = vec![0; n_bytes];
        file.seek(SeekFrom::Start(start + (sample * n_bytes) as u64))?;
        file.read_exact(&mut bytes).context("became shorter after it was opened")?;
        Ok(bytes)
    }

    /// Unpacks the whole compressed array, without its header.
    pub fn unpack(&self, path: &Path) -> Result<Vec<u8>> {
        let ArrayPlace::Packed(file_name) = &self.place else { bail!("internal error: the array is not compressed") };
        let mut archive = NpzArchive::open(path)?;
        let mut member = archive.zip_archive().by_name(file_name)?;
        Header::read(&mut member)?;
        let mut data = Vec::new();
        let in_member = || format!("`{file_name}`");
        (&mut member).take(self.header.n_bytes as u64).read_to_end(&mut data).with_context(in_member)?;
        // Reading to the end makes the archive compare the checksum.
        let n_more = io::copy(&mut member, &mut sink()).with_context(in_member)?;
        ensure!(
            data.len() == self.header.n_bytes && n_more == 0,
            "`{file_name}` holds {} bytes of data, expected {} for shape {:?}",
            data.len() as u64 + n_more,
            self.header.n_bytes,
            self.header.shape
        );
        Ok(data)
    }
}

/// A `.npz` file.
pub struct Archive {
    zip: NpzArchive<BufReader<File>>,
    file_bytes: u64,
    /// Names of the arrays, sorted.
    pub names: Vec<String>,
}

impl Archive {
    pub fn open(path: &Path) -> Result<Archive> {
        let file = foreign::open(path)?;
        let file_bytes = file.metadata()?.len();
        let zip = NpzArchive::new(BufReader::new(file)).context("is not an .npz archive")?;
        let mut names: Vec<String> = zip.array_names().map(str::to_owned).collect();
        names.sort();
        Ok(Archive { zip, file_bytes, names })
    }

    /// Returns the name of the array for an input: the array of the same name, or the only array if the model has one
    /// input.
    fn name_for(&self, input: &str, is_only_input: bool) -> Option<&str> {
        let own = self.names.iter().find(|name| *name == input);
        let only = self.names.first().filter(|_| is_only_input && self.names.len() == 1);
        own.or(only).map(String::as_str)
    }

    /// Reads the header of the array for an input. Fails if there is no such array, or it cannot be read. The message
    /// names the input or the array.
    pub fn array_for(&mut self, input: &str, is_only_input: bool) -> Result<Stored> {
        let Some(name) = self.name_for(input, is_only_input).map(str::to_string) else {
            let found = || self.names.iter().map(String::as_str);
            let list = if self.names.is_empty() { "nothing".to_string() } else { quoted(found(), ", ") };
            let hint = match did_you_mean(input, found()) {
                near if near.is_empty() => {
                    format!("name each array as its input: numpy.savez(\"x.npz\", {input}=array)")
                }
                near => near,
            };
            return Err(anyhow!("has no array for input `{input}`, found {list}").hint(hint));
        };
        self.member(&name).with_context(|| format!("array `{name}`"))
    }

    /// Reads the header of the array `name`, which is one of `names`.
    pub fn member(&mut self, name: &str) -> Result<Stored> {
        let file_name = npyz::npz::file_name_from_array_name(name);
        let mut member = self.zip.zip_archive().by_name(&file_name)?;
        let is_stored = member.compression().to_string() == "Stored";
        let (data_start, packed_bytes) = (member.data_start(), member.compressed_size());
        let (header, header_bytes) = Header::read(&mut member)?;
        if !is_stored {
            let n_bytes = header.n_bytes;
            let is_bomb = n_bytes > LARGE_UNPACKED && n_bytes as u64 / MAX_RATIO > packed_bytes;
            ensure!(
                n_bytes <= MAX_UNPACKED && !is_bomb,
                anyhow!(
                    "array of {n_bytes} bytes is compressed to {packed_bytes}, expected at most {MAX_UNPACKED}, and \
                     from {LARGE_UNPACKED} on no more than {MAX_RATIO} times the compressed ones"
                )
                .hint("write it without compression (numpy.savez), or as several files")
            );
            return Ok(Stored { header, place: ArrayPlace::Packed(file_name) });
        }
        // The values are read from the file later, without the archive. The checksum is therefore compared here.
        io::copy(&mut member, &mut sink())?;
        drop(member);
        Stored::plain(header, data_start + header_bytes, self.file_bytes)
    }
}

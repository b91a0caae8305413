//! Compact lists of paths.

use crate::onnx::{decode_varint, encode_varint};
use itertools::Itertools;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Paths in the order of insertion. Each path is stored as its difference from the path before, except the first of a
/// block. A hundred thousand images of a folder take about a megabyte.
#[derive(Default)]
pub struct Paths {
    /// For each path: length of the prefix shared with the path before, length of the remaining bytes, and these bytes.
    bytes: Vec<u8>,
    /// Offset of each block in `bytes`.
    blocks: Vec<usize>,
    last: Vec<u8>,
    n: usize,
}

impl Paths {
    const BLOCK: usize = 64;

    /// Returns the number of paths.
    pub fn count(&self) -> usize {
        self.n
    }

    /// Returns the number of bytes in use.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&self.blocks[..])
    }

    /// Appends a path.
    pub fn push(&mut self, path: &Path) {
        if self.n.is_multiple_of(Paths::BLOCK) {
            self.blocks.push(self.bytes.len());
            self.last.clear();
        }
        let path = path.as_os_str().as_encoded_bytes();
        let n_shared = path.iter().zip(&self.last).take_while(|(a, b)| a == b).count();
        encode_varint(n_shared as u64, &mut self.bytes);
        encode_varint((path.len() - n_shared) as u64, &mut self.bytes);
        self.bytes.extend(&path[n_shared..]);
        self.last.truncate(n_shared);
        self.last.extend(&path[n_shared..]);
        self.n += 1;
    }

    /// Returns the path at position `i`.
    ///
    /// # Panics
    /// If `i` is not below [`Paths::count`].
    pub fn get(&self, i: usize) -> PathBuf {
        assert!(i < self.n, "path {i} of {}", self.n);
        let mut rest = &self.bytes[self.blocks[i / Paths::BLOCK]..];
        let mut path = Vec::new();
        let take = |rest: &mut &[u8]| decode_varint(rest).unwrap_or_default() as usize;
        for _ in 0..=i % Paths::BLOCK {
            let (n_shared, n) = (take(&mut rest), take(&mut rest));
            path.truncate(n_shared);
            path.extend(&rest[..n]);
            rest = &rest[n..];
        }
        PathBuf::from(os_string(path))
    }
}

/// Names of the files in a folder, to be sorted. They are stored in several blocks: after one large block is freed,
/// glibc keeps as much free memory again.
#[derive(Default)]
pub struct FileNames {
    /// Names, each followed by a separator, which no name contains.
    runs: Vec<Vec<u8>>,
}

impl FileNames {
    const RUN: usize = 1 << 15;

    pub fn push(&mut self, name: &OsStr) {
        if self.runs.last().is_none_or(|run| run.len() >= FileNames::RUN) {
            self.runs.push(Vec::new());
        }
        let bytes = name.as_encoded_bytes().iter().chain(b"/");
        self.runs.last_mut().into_iter().for_each(|run| run.extend(bytes.clone()));
    }

    pub fn sorted(self) -> impl Iterator<Item = OsString> {
        self.runs.into_iter().map(sorted).kmerge()
    }
}

fn sorted(names: Vec<u8>) -> impl Iterator<Item = OsString> {
    let ends = names.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end as u32 + 1);
    let mut starts: Vec<u32> = std::iter::once(0).chain(ends).collect();
    starts.pop();
    starts.sort_unstable_by(|&a, &b| name(&names, a).cmp(name(&names, b)));
    starts.into_iter().map(move |start| os_string(name(&names, start).to_vec()))
}

/// Returns the name that begins at byte `start`.
fn name(bytes: &[u8], start: u32) -> &[u8] {
    bytes[start as usize..].split(|&byte| byte == b'/').next().unwrap_or_default()
}

/// Returns the string with these bytes.
fn os_string(bytes: Vec<u8>) -> OsString {
    // SAFETY: the bytes are those of whole strings of this process.
    unsafe { OsString::from_encoded_bytes_unchecked(bytes) }
}

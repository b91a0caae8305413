//! Many paths in a few bytes each.

use crate::onnx::{decode_varint, encode_varint};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Paths in the order in which they came. Of each only what differs from the one before is kept, but for the first of a
/// block: a hundred thousand images of a folder take about a megabyte.
#[derive(Default)]
pub struct Paths {
    /// Per path: bytes that it begins with like the one before, number of the others, and these.
    bytes: Vec<u8>,
    /// Where each block begins.
    blocks: Vec<usize>,
    last: Vec<u8>,
    n: usize,
}

impl Paths {
    const BLOCK: usize = 64;

    /// Number of paths.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Bytes that they take.
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

    /// The path at `i`.
    ///
    /// # Panics
    /// If `i` is not below [`Paths::len`].
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

/// Names of files in a folder, on their way into an order. All are in one place, which is given back as a whole.
#[derive(Default)]
pub struct FileNames {
    /// Each with a closing separator, which no name holds.
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl FileNames {
    pub fn push(&mut self, name: &OsStr) {
        self.starts.push(self.bytes.len());
        self.bytes.extend(name.as_encoded_bytes());
        self.bytes.push(b'/');
    }

    pub fn sorted(self) -> impl Iterator<Item = OsString> {
        let FileNames { bytes, mut starts } = self;
        starts.sort_unstable_by(|&a, &b| name(&bytes, a).cmp(name(&bytes, b)));
        starts.into_iter().map(move |start| os_string(name(&bytes, start).to_vec()))
    }
}

/// The name that begins at `start`.
fn name(bytes: &[u8], start: usize) -> &[u8] {
    bytes[start..].split(|&byte| byte == b'/').next().unwrap_or_default()
}

/// The string that the bytes are of.
fn os_string(bytes: Vec<u8>) -> OsString {
    // SAFETY: here are only bytes that a whole string of this process was taken apart into.
    unsafe { OsString::from_encoded_bytes_unchecked(bytes) }
}

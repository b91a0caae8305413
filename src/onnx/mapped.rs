//! Memory maps of files, whose pages are released once they are read.
//!
//! In: a file. Out: its bytes. A page of a map that was read counts as memory of the process until the system reclaims
//! it. [`release_pages`] releases it at once, so that a large model does not fill the memory while its weights are read
//! one after the other.

use anyhow::Result;
use bytes::Bytes;
use memmap2::Mmap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// All existing maps. Entries of dropped maps are removed when the next file is mapped.
static MAPS: Mutex<Vec<Weak<Mmap>>> = Mutex::new(Vec::new());

/// Minimum length of data that [`release_pages`] releases, in bytes.
const LARGE: usize = 1 << 20;

/// A shared map as an owner of [`Bytes`].
struct Mapped(Arc<Mmap>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Maps a file and returns its bytes.
pub(super) fn map(file: &File) -> Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the map is read-only and private to this process; as with every memory map, nobody else may truncate the
    // file while it is in use.
    let map = Arc::new(unsafe { Mmap::map(file)? });
    let mut maps = MAPS.lock().unwrap_or_else(PoisonError::into_inner);
    maps.retain(|map| map.strong_count() > 0);
    maps.push(Arc::downgrade(&map));
    Ok(Bytes::from_owner(Mapped(map)))
}

/// Releases the pages of `bytes` if they are many and belong to a map. A later read gets them from the file again.
pub fn release_pages(bytes: &[u8]) {
    if bytes.len() < LARGE {
        return;
    }
    let maps: Vec<Arc<Mmap>> =
        MAPS.lock().unwrap_or_else(PoisonError::into_inner).iter().flat_map(Weak::upgrade).collect();
    let start = bytes.as_ptr().addr();
    let offset = |map: &Mmap| start.checked_sub(map.as_ptr().addr()).filter(|offset| offset + bytes.len() <= map.len());
    for map in maps {
        if let Some(offset) = offset(&map) {
            advise_dont_need(&map, offset, bytes.len());
        }
    }
}

#[cfg(unix)]
fn advise_dont_need(map: &Mmap, offset: usize, n_bytes: usize) {
    // SAFETY: the pages of a read-only map have the same values when they are read from the file again. A failure does
    // no harm: the pages stay in memory.
    let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, n_bytes) };
}

#[cfg(not(unix))]
fn advise_dont_need(_: &Mmap, _: usize, _: usize) {}

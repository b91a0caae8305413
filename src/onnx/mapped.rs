//! Files as memory maps whose pages are given back once they were read.
//!
//! In: a file. Out: its bytes. A page of a map that was read counts as memory of the process until the system needs it
//! for something else. [`let_go`] takes it out at once: a large model does not fill the memory while its weights are
//! read one after the other.

use anyhow::Result;
use bytes::Bytes;
use memmap2::Mmap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The maps that exist, and some that do not any more.
static MAPS: Mutex<Vec<Weak<Mmap>>> = Mutex::new(Vec::new());

/// Bytes from this number on are given back.
const LARGE: usize = 1 << 20;

/// A shared map, as [`Bytes`] takes owners.
struct Mapped(Arc<Mmap>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of a file.
///
/// # Errors
/// If it cannot be mapped.
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

/// Gives the pages of many bytes back, where they are those of a map. Who reads them again gets them from the file.
pub fn let_go(bytes: &[u8]) {
    if bytes.len() < LARGE {
        return;
    }
    let maps: Vec<Arc<Mmap>> =
        MAPS.lock().unwrap_or_else(PoisonError::into_inner).iter().flat_map(Weak::upgrade).collect();
    let start = bytes.as_ptr().addr();
    let offset = |map: &Mmap| start.checked_sub(map.as_ptr().addr()).filter(|offset| offset + bytes.len() <= map.len());
    for map in maps {
        if let Some(offset) = offset(&map) {
            give_back(&map, offset, bytes.len());
        }
    }
}

#[cfg(unix)]
fn give_back(map: &Mmap, offset: usize, n_bytes: usize) {
    // SAFETY: the pages of a read-only map have the same values when they are read from the file again. It is no error where
    // the system keeps them.
    let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, n_bytes) };
}

#[cfg(not(unix))]
fn give_back(_: &Mmap, _: usize, _: usize) {}

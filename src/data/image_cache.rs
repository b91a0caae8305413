//! Cache of decoded images for samples that are loaded more than once.

use super::image::Pixels;
use anyhow::Result;
use std::sync::OnceLock;

/// Pixels of the first samples of a dataset. Two limits, in samples and in bytes, keep memory from growing with the
/// data.
#[derive(Default)]
pub(super) struct ImageCache(Vec<OnceLock<Vec<Pixels>>>);

impl ImageCache {
    const MAX_SAMPLES: usize = 96;
    const MAX_BYTES: usize = 64 << 20;

    /// Returns an empty cache for samples of `n_bytes` each.
    pub fn new(n_samples: usize, n_bytes: usize) -> ImageCache {
        let n = n_samples.min(ImageCache::MAX_SAMPLES).min(ImageCache::MAX_BYTES / n_bytes.max(1));
        ImageCache((0..n).map(|_| OnceLock::new()).collect())
    }

    /// Calls `then` with the images of a sample, which `read` loads if they are not cached.
    pub fn with<T>(
        &self,
        sample: usize,
        read: impl FnOnce() -> Result<Vec<Pixels>>,
        then: impl FnOnce(&[Pixels]) -> T,
    ) -> Result<T> {
        let Some(place) = self.0.get(sample) else { return Ok(then(&read()?)) };
        Ok(match place.get() {
            Some(images) => then(images),
            None => {
                let images = read()?;
                then(place.get_or_init(|| images))
            }
        })
    }
}

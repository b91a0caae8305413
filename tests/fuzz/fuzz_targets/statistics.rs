//! Saved statistics, read back, merged, and in place of data in a run.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::statistics::{SavedStatistics, merge_shards, mismatch, read_statistics, statistics_bytes};
use mqq_fuzz::quantize::{TINY, quantize};
use mqq_fuzz::{holds, number_of, table};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Name of the array with the hash of all others.
const CHECKSUM: &str = "sha256";

/// The bytes with the checksum of their contents, as otherwise each change is refused alike; `None` where there is no
/// place for one.
fn with_checksum(bytes: &[u8]) -> Option<Vec<u8>> {
    let (n_header, metadata) = SafeTensors::read_metadata(bytes).ok()?;
    let place = metadata.info(CHECKSUM)?.data_offsets;
    let text = metadata.metadata().as_ref()?.get("mqq_statistics")?;
    let container = SafeTensors::deserialize(bytes).ok()?;
    let mut arrays: BTreeMap<String, TensorView> = container.tensors().into_iter().collect();
    arrays.remove(CHECKSUM)?;
    let mut hasher = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(text.as_bytes());
    for (name, array) in &arrays {
        add(name.as_bytes());
        add(format!("{:?} {:?}", array.dtype(), array.shape()).as_bytes());
        add(array.data());
    }
    let mut changed = bytes.to_vec();
    let start = size_of::<u64>() + n_header;
    let place = changed.get_mut(start + place.0..start + place.1)?;
    let hash = hasher.finalize();
    (place.len() == hash.len()).then(|| place.copy_from_slice(&hash))?;
    Some(changed)
}

fuzz_target!(|data: &[u8]| holds(|| {
    let changed = with_checksum(data);
    let bytes = changed.as_deref().unwrap_or(data);
    let saved = read_statistics(bytes)?;
    let again = read_statistics(&statistics_bytes(&saved)?)?;
    assert_eq!(mismatch(&saved, &again), None, "read and written again");
    let files = ["0", "1"].map(PathBuf::from);
    let _ = merge_shards(&files, |_| read_statistics(bytes));
    for model in saved.models.values() {
        for tensor in model.tensors.keys() {
            for batch_size in [None, Some(1), Some(2)] {
                _ = model.statistics(tensor, batch_size);
            }
        }
    }
    let saved: Arc<SavedStatistics> = Arc::new(saved);
    quantize(&TINY, table(number_of(data)).clone(), Some(saved)).map(drop)
}));

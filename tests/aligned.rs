//! An allocator for large alignments.

use mqq::aligned::Aligned;
use std::alloc::{GlobalAlloc, Layout};

#[test]
fn memory_is_aligned_and_keeps_its_values() {
    for align in [1, 8, 16, 32, 64, 4096] {
        for size in [1, 64, 1000, 1 << 20] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the layouts are those of the memory, and all of it was written to.
            unsafe {
                let zeros = Aligned.alloc_zeroed(layout);
                assert!(!zeros.is_null() && zeros.addr().is_multiple_of(align));
                assert!(std::slice::from_raw_parts(zeros, size).iter().all(|&byte| byte == 0));
                zeros.write_bytes(7, size);
                for new in [2 * size, size.div_ceil(2)] {
                    let moved = Aligned.realloc(Aligned.alloc(layout), layout, new);
                    assert!(moved.addr().is_multiple_of(align));
                    moved.write_bytes(9, new);
                    Aligned.dealloc(moved, Layout::from_size_align(new, align).unwrap());
                }
                let grown = Aligned.realloc(zeros, layout, 3 * size);
                let kept = std::slice::from_raw_parts(grown, size);
                assert!(kept.iter().all(|&byte| byte == 7));
                Aligned.dealloc(grown, Layout::from_size_align(3 * size, align).unwrap());
            }
        }
    }
}

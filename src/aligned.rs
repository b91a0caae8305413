//! An allocator that takes memory of large alignment from memory of the usual one.
//!
//! The engine aligns its tensors to 64 bytes. glibc before 2.38 cannot reuse such a block for the same size: a run held
//! up to twice the memory that it needed, and more the longer it took. If an allocation fails, [`guard`] ends the run.

use crate::guard;
use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, asked only for the usual alignment.
pub struct Aligned;

/// An allocator for larger alignments. It keeps the trait's default `alloc_zeroed` and `realloc`.
struct Padded;

/// Alignment in bytes that every allocator guarantees.
const USUAL: usize = 16;

/// Returns a layout that holds `layout` after any address of the usual alignment; `None` if it would be too large.
fn padded(layout: Layout) -> Option<Layout> {
    let n_bytes = layout.size().checked_add(layout.align())?;
    Layout::from_size_align(n_bytes, USUAL).ok()
}

// SAFETY: each block lies inside a block of the system's allocator, has the size and alignment of its layout, and is
// freed with the address and layout of the outer block.
unsafe impl GlobalAlloc for Padded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(padded) = padded(layout) else { return std::ptr::null_mut() };
        // SAFETY: the size of `padded` is at least the alignment, and so not 0.
        let start = unsafe { System.alloc(padded) };
        if start.is_null() {
            return start;
        }
        // The offset is from 16 bytes to the alignment, because both addresses are multiples of 16.
        let offset = layout.align() - start.addr() % layout.align();
        // SAFETY: the block has room for the size after the offset, and for a `usize` before it.
        unsafe {
            let aligned = start.add(offset);
            aligned.cast::<usize>().sub(1).write(offset);
            aligned
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(padded) = padded(layout) {
            // SAFETY: `alloc` has written the offset there and allocated this layout.
            unsafe {
                let offset = pointer.cast::<usize>().sub(1).read();
                System.dealloc(pointer.sub(offset), padded);
            }
        }
    }
}

/// Returns the allocator for a layout.
fn allocator_for(layout: Layout) -> &'static dyn GlobalAlloc {
    if layout.align() <= USUAL { &System } else { &Padded }
}

/// Returns the block; ends the run if the allocation failed.
fn allocated_or_end(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        guard::out_of_memory(size);
    }
    block
}

// SAFETY: the alignment selects the allocator, and `realloc` keeps it; the caller promises everything else.
unsafe impl GlobalAlloc for Aligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        guard::before_allocation(layout.size());
        allocated_or_end(unsafe { allocator_for(layout).alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        guard::after_release(layout.size());
        unsafe { allocator_for(layout).dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        guard::before_allocation(layout.size());
        allocated_or_end(unsafe { allocator_for(layout).alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        guard::before_allocation(size);
        guard::after_release(layout.size());
        allocated_or_end(unsafe { allocator_for(layout).realloc(pointer, layout, size) }, size)
    }
}

/// Returns free memory to the system that glibc would keep, for instance after listing many files.
pub fn give_free_memory_back() {
    // SAFETY: it releases free memory only.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    let _ = unsafe { libc::malloc_trim(0) };
}

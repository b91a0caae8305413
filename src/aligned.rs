//! Memory of more than the usual alignment, taken from memory of the usual one.
//!
//! The engine aligns its tensors to 64 bytes. What glibc before 2.38 gives out so aligned it cannot use again for the same
//! size: a run held up to twice the memory that it needed, more the longer it took.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, asked for no more than the usual alignment.
pub struct Aligned;

/// What every allocator aligns to.
const USUAL: usize = 16;

/// Room for what is asked for at any place with the usual alignment; `None` where it would be too large.
fn padded(layout: Layout) -> Option<Layout> {
    let n_bytes = layout.size().checked_add(layout.align())?;
    Layout::from_size_align(n_bytes, USUAL).ok()
}

// SAFETY: what is given out lies inside memory of the system's allocator, is as large and aligned as the layout says, and
// goes back with the layout and address that it came with.
unsafe impl GlobalAlloc for Aligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= USUAL {
            // SAFETY: as the caller promises.
            return unsafe { System.alloc(layout) };
        }
        let Some(padded) = padded(layout) else { return std::ptr::null_mut() };
        // SAFETY: its size is at least the alignment.
        let start = unsafe { System.alloc(padded) };
        if start.is_null() {
            return start;
        }
        // From 16 bytes to the alignment: both are multiples of 16.
        let offset = layout.align() - start.addr() % layout.align();
        // SAFETY: behind the offset there is room for the size, and in front of it for a number.
        unsafe {
            let aligned = start.add(offset);
            aligned.cast::<usize>().sub(1).write(offset);
            aligned
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if layout.align() <= USUAL {
            // SAFETY: as the caller promises.
            return unsafe { System.dealloc(pointer, layout) };
        }
        if let Some(padded) = padded(layout) {
            // SAFETY: `alloc` has written the offset there, and took memory of this layout.
            unsafe {
                let offset = pointer.cast::<usize>().sub(1).read();
                System.dealloc(pointer.sub(offset), padded);
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= USUAL {
            // SAFETY: as the caller promises. Pages of zeros take no memory before they are written to.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as the caller promises; there is room for so many bytes.
        unsafe {
            let pointer = self.alloc(layout);
            if !pointer.is_null() {
                pointer.write_bytes(0, layout.size());
            }
            pointer
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= USUAL {
            // SAFETY: as the caller promises.
            return unsafe { System.realloc(pointer, layout, size) };
        }
        let Ok(new) = Layout::from_size_align(size, layout.align()) else {
            return std::ptr::null_mut();
        };
        // SAFETY: as the caller promises; both have room for the smaller size.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(pointer, size.min(layout.size()));
                self.dealloc(pointer, layout);
            }
            moved
        }
    }
}

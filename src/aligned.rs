//! Memory of more than the usual alignment, taken from memory of the usual one.
//!
//! The engine aligns its tensors to 64 bytes. What glibc before 2.38 gives out so aligned it cannot use again for the same
//! size: a run held up to twice the memory that it needed, more the longer it took.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, asked for no more than the usual alignment.
pub struct Aligned;

/// What gives out memory of more than the usual alignment; what the trait makes of these two does for the rest.
struct Padded;

/// What every allocator aligns to.
const USUAL: usize = 16;

/// Room for what is asked for at any place with the usual alignment; `None` where it would be too large.
fn padded(layout: Layout) -> Option<Layout> {
    let n_bytes = layout.size().checked_add(layout.align())?;
    Layout::from_size_align(n_bytes, USUAL).ok()
}

// SAFETY: what is given out lies inside memory of the system's allocator, is as large and aligned as the layout says, and
// goes back with the layout and address that it came with.
unsafe impl GlobalAlloc for Padded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
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
        if let Some(padded) = padded(layout) {
            // SAFETY: `alloc` has written the offset there, and took memory of this layout.
            unsafe {
                let offset = pointer.cast::<usize>().sub(1).read();
                System.dealloc(pointer.sub(offset), padded);
            }
        }
    }
}

/// Who gives out memory of this layout, and takes it back.
fn owner(layout: Layout) -> &'static dyn GlobalAlloc {
    if layout.align() <= USUAL { &System } else { &Padded }
}

// SAFETY: the alignment says who owns memory, and stays the same when it is made larger; all else is as the caller promises.
unsafe impl GlobalAlloc for Aligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        unsafe { owner(layout).alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { owner(layout).dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        unsafe { owner(layout).alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        unsafe { owner(layout).realloc(pointer, layout, size) }
    }
}

/// Gives free memory back to the system, where glibc would hold on to it: names of many files, for instance.
pub fn give_free_memory_back() {
    // SAFETY: it touches what is free alone.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::malloc_trim(0) };
}

//! Encodes a message piece by piece, so that memory never holds all bytes of a large model.

use super::mapped;
use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut};
use prost::Message;

/// Size of a piece, in bytes. A field of at least this size is a piece of its own.
const PIECE: usize = 1 << 16;

/// Passes the bytes of `message` to `take`, piece by piece in order, until `take` fails.
pub(super) fn encode_into<E>(message: &impl Message, take: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut pieces = Pieces { buffer: Vec::with_capacity(PIECE), take, outcome: Ok(()) };
    // Encoding fails only without room, and there is always room.
    _ = message.encode(&mut pieces);
    pieces.flush();
    pieces.outcome
}

struct Pieces<'t, E> {
    buffer: Vec<u8>,
    take: &'t mut dyn FnMut(&[u8]) -> Result<(), E>,
    outcome: Result<(), E>,
}

impl<E> Pieces<'_, E> {
    fn flush(&mut self) {
        if self.outcome.is_ok() {
            self.outcome = (self.take)(&self.buffer);
        }
        self.buffer.clear();
    }
}

// SAFETY: all memory belongs to the buffer, a `Vec`, whose `BufMut` meets the same requirements.
unsafe impl<E> BufMut for Pieces<'_, E> {
    fn remaining_mut(&self) -> usize {
        usize::MAX
    }

    unsafe fn advance_mut(&mut self, n: usize) {
        // SAFETY: the caller has initialized these `n` bytes, which are the buffer's.
        unsafe { self.buffer.advance_mut(n) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        if self.buffer.len() >= PIECE {
            self.flush();
        }
        self.buffer.chunk_mut()
    }

    fn put<T: Buf>(&mut self, mut from: T) {
        while from.has_remaining() {
            let n = from.chunk().len();
            self.put_slice(from.chunk());
            from.advance(n);
        }
    }

    fn put_slice(&mut self, from: &[u8]) {
        if self.buffer.len() + from.len() > PIECE {
            self.flush();
        }
        if from.len() < PIECE {
            return self.buffer.extend_from_slice(from);
        }
        if self.outcome.is_ok() {
            self.outcome = (self.take)(from);
        }
        mapped::release_pages(from);
    }
}

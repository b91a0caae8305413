//! ONNX Runtime's `calibration.flatbuffers`, which its TensorRT execution provider reads
//! (microsoft/onnxruntime, onnxruntime/core/providers/tensorrt, `ReadDynamicRange`):
//!
//! ```text
//! table KeyValue { key: string; value: string; }
//! table TrtTable { dict: [KeyValue]; }
//! root_type TrtTable;
//! ```
//!
//! Source of the encoding: <https://flatbuffers.dev/internals/>. All numbers are little-endian. Offsets are relative to
//! their own position and point forwards, except the one from a table to its vtable, which is subtracted.

use super::PLAIN;
use super::ort::sorted_amax;
use crate::export::{Format, SidecarIndex};
use anyhow::{Context, Result};

/// Values are strings with `127 * scale`; entries are sorted by name.
pub(super) const FORMAT: Format = Format {
    name: "ort-flatbuffers",
    description: "ONNX Runtime's calibration table for its TensorRT provider: FlatBuffers, amax per tensor",
    suffix: "ort.flatbuffers",
    write,
    needs_int8: true,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let entries = sorted_amax(index)?;
    let mut buffer = Buffer::default();
    let root = buffer.offset();
    let [dict] = buffer.table(root)?;
    buffer.point(dict)?;
    buffer.u32(u32::try_from(entries.len())?);
    let offsets: Vec<usize> = entries.iter().map(|_| buffer.offset()).collect();
    for ((name, amax), at) in entries.iter().zip(offsets) {
        let [key, value] = buffer.table(at)?;
        buffer.string(key, name)?;
        buffer.string(value, &amax.to_string())?;
    }
    Ok(buffer.bytes)
}

/// A buffer written front to back: offsets are reserved, and filled in when their targets are written.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    fn u16(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Reserves an offset. Returns its position.
    fn offset(&mut self) -> usize {
        self.align();
        self.u32(0);
        self.bytes.len() - 4
    }

    fn fill(&mut self, at: usize, target: usize) -> Result<()> {
        let offset = u32::try_from(target - at)?;
        let place = self.bytes.get_mut(at..at + 4).context("offset outside the buffer")?;
        place.copy_from_slice(&offset.to_le_bytes());
        Ok(())
    }

    /// Sets the offset at `at` to the current position.
    fn point(&mut self, at: usize) -> Result<()> {
        self.align();
        self.fill(at, self.bytes.len())
    }

    /// Writes a table of `N` offsets after its vtable and sets the offset at `at` to it. Returns the positions of the
    /// fields.
    fn table<const N: usize>(&mut self, at: usize) -> Result<[usize; N]> {
        self.align();
        let vtable = self.bytes.len();
        self.u16(u16::try_from(4 + 2 * N)?);
        self.u16(u16::try_from(4 + 4 * N)?);
        for field in 0..N {
            self.u16(u16::try_from(4 + 4 * field)?);
        }
        self.align();
        let table = self.bytes.len();
        self.fill(at, table)?;
        self.u32(u32::try_from(table - vtable)?);
        Ok(std::array::from_fn(|_| self.offset()))
    }

    /// Writes a string with its length and a final zero byte, and sets the offset at `at` to it.
    fn string(&mut self, at: usize, text: &str) -> Result<()> {
        self.point(at)?;
        self.u32(u32::try_from(text.len())?);
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        Ok(())
    }
}

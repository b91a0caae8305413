//! The cells that rows stand for.

use super::CellGrid;
use anyhow::{Result, ensure};

/// A cell, for one anchor.
pub(super) struct Cell {
    /// The point that a box is relative to, in cells.
    pub point: [f64; 2],
    /// Pixels per cell.
    pub stride: f64,
    /// Width and height of the anchor, in pixels.
    pub anchor: [f64; 2],
}

impl CellGrid {
    /// A cell per row, over an image of this height and width.
    ///
    /// # Errors
    /// If there are not as many cells as rows.
    pub(super) fn cells(&self, image: [usize; 2], n_rows: usize) -> Result<Vec<Cell>> {
        let mut cells = Vec::with_capacity(n_rows);
        for (i, &stride) in self.strides.iter().enumerate() {
            let own = [[stride as f64; 2]];
            let anchors = self.anchors.as_ref().map_or(&own[..], |anchors| &anchors[i]);
            let [height, width] = image.map(|n| n.div_ceil(stride));
            for &anchor in anchors {
                let points = (0..height).flat_map(|y| (0..width).map(move |x| [x, y]));
                cells.extend(points.map(|point| Cell {
                    point: point.map(|at| at as f64 + self.offset),
                    stride: stride as f64,
                    anchor,
                }));
            }
        }
        ensure!(
            cells.len() == n_rows,
            "{n_rows} rows, expected {}, a cell each of strides {:?} on an input of {} x {}",
            cells.len(),
            self.strides,
            image[0],
            image[1]
        );
        Ok(cells)
    }
}

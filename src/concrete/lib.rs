//! Generic libraries, compiled once for the types that mqq uses.
//!
//! A generic function is compiled in the crate that calls it: in mqq's own crate, matrix products and image resizing
//! would be compiled again with every change, and took a third of its build time. Nothing here is generic.
// The slices of ndarray allow it for themselves.
#![deny(unsafe_code)]

pub mod matrix;
pub mod resample;

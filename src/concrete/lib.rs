//! Generic libraries, compiled once for the types that mqq uses.
//!
//! A generic function is compiled in the crate that calls it. In mqq's own crate, matrix products and image resizing
//! would be compiled again with every change; they took a third of its build time. No public function here is generic.
// Not `forbid`: ndarray's `s!` macro allows unsafe code for itself.
#![deny(unsafe_code)]

pub mod matrix;
pub mod resample;

//! How far outputs are from those of the float model; what is NaN or infinite is never a good figure.

mod compare;
mod error;
mod figures;
mod outputs;
mod task;

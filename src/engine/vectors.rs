//! Loops that are compiled for the processor's own vectors.

use pulp::Arch;

/// Runs `f`, compiled for AVX2 as well where the processor has it. The results are the same: nothing is reordered or fused.
pub fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(f)
}

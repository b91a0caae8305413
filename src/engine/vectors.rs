//! Loops that are compiled for the processor's own vectors.

use pulp::{Arch, Simd, WithSimd};

/// A loop over values. A short closure can be one. A longer loop needs a type whose `run` is marked
/// `#[inline(always)]`.
pub trait ValueLoop {
    /// The result of the loop.
    type Output;
    /// Runs the loop.
    fn run(self) -> Self::Output;
}

impl<R, F: FnOnce() -> R> ValueLoop for F {
    type Output = R;

    #[inline(always)]
    fn run(self) -> R {
        self()
    }
}

/// Runs a loop, in a version compiled for AVX2 where the processor has it. Both versions give the same results: no
/// operation is reordered or fused.
pub fn vectorized<L: ValueLoop>(values: L) -> L::Output {
    struct Compiled<L>(L);
    impl<L: ValueLoop> WithSimd for Compiled<L> {
        type Output = L::Output;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> L::Output {
            self.0.run()
        }
    }
    Arch::new().dispatch(Compiled(values))
}

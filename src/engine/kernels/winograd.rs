//! Convolution with 3×3 windows and stride 1, in tiles of 2×2 outputs: 16 products in place of 36.
//!
//! Winograd's F(2×2, 3×3) (Lavin and Gray, arXiv:1509.09308): a tile of 4×4 inputs and the weights are transformed, the
//! products of all input planes are added up, and the 16 sums are transformed back to 2×2 outputs. The transform of
//! weights halves sums; the other transforms only add and subtract, so that rounding is about that of a direct sum.

use super::products::{BLOCK, block, blocks};
use super::windows::{RowLines, SLACK, Windows};
use pulp::{Arch, Simd, WithSimd};
use std::cell::RefCell;

/// Number of products of a tile.
const PRODUCTS: usize = 16;
/// Number of transformed inputs at a time: they stay in the second-level cache.
const GROUP: usize = 65_536;
/// Minimum number of input planes, and of output planes, for tiles to be faster.
const LEAST_PLANES: usize = 16;
/// Minimum values of an output plane.
const LEAST_LEN: usize = 36;
/// Minimum product of input planes, output planes and values of an output plane.
const LEAST_WORK: usize = 100_000;
/// Maximum number of transformed weights.
const MOST_WEIGHTS: usize = 1 << 20;

/// The tiles of a convolution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tiles {
    tiles: Windows,
    /// Rows and columns of an output plane.
    out: [usize; 2],
    /// Input and output planes of a group.
    planes: [usize; 2],
}

impl Tiles {
    /// Returns the tiles of windows with `planes` input and output planes in each of `groups`; `None` where another way
    /// is faster or the transformed weights would be too many.
    pub fn new(windows: &Windows, planes: [usize; 2], groups: usize) -> Option<Tiles> {
        let tiles = windows.tiles()?;
        let len = windows.out_len();
        let is_large = planes.iter().all(|&planes| planes >= LEAST_PLANES) && len >= LEAST_LEN;
        let is_large = is_large && planes[0] * planes[1] * len >= LEAST_WORK;
        let is_kept = PRODUCTS * planes[0] * planes[1] * groups <= MOST_WEIGHTS;
        (is_large && is_kept).then(|| Tiles { tiles, out: windows.out_size(), planes })
    }

    /// Returns the transformed weights, in the order of groups, blocks of output planes, products, input planes and
    /// output planes of the block.
    pub fn transformed(&self, weights: &[f32]) -> Vec<f32> {
        let (n_in, n_taps) = (self.planes[0], 9);
        let mut transformed = Vec::with_capacity(weights.len() / n_taps * PRODUCTS);
        for group in weights.chunks_exact(self.planes[1] * n_in * n_taps) {
            let mut first = 0;
            for n in blocks(self.planes[1]) {
                let block = &group[first * n_in * n_taps..][..n * n_in * n_taps];
                let of_pairs: Vec<[f32; PRODUCTS]> = block.chunks_exact(n_taps).map(transform_weights).collect();
                let pairs = (0..n_in).flat_map(|i| (0..n).map(move |o| o * n_in + i));
                let of_pairs = &of_pairs;
                transformed
                    .extend((0..PRODUCTS).flat_map(|product| pairs.clone().map(move |pair| of_pairs[pair][product])));
                first += n;
            }
        }
        transformed
    }

    /// Writes the convolution of all samples in `input` to `output`.
    pub fn run(&self, input: &[f32], weights: &[f32], bias: &[f32], output: &mut [f32]) {
        let [n_in, n_out] = self.planes;
        let lines = self.tiles.lines(n_in);
        let len = lines.n_rows * self.tiles.pitch() + SLACK;
        let most = (GROUP / (PRODUCTS * n_in)).max(2 * SLACK).min(len) + SLACK;
        let [phases, columns] = [n_in * lines.plane_len + SLACK, 8 * most];
        let [inputs, products, outputs] = [PRODUCTS * n_in * most, PRODUCTS * BLOCK * most, 4 * n_out * len];
        SCRATCH.with_borrow_mut(|scratch| {
            let size = phases + columns + inputs + products + outputs;
            scratch.resize(scratch.len().max(size), 0.0);
            let (phases, scratch) = scratch.split_at_mut(phases);
            let (columns, scratch) = scratch.split_at_mut(columns);
            let (inputs, scratch) = scratch.split_at_mut(inputs);
            let (products, outputs) = scratch.split_at_mut(products);
            phases.fill(0.0);
            let weights = weights.chunks_exact(PRODUCTS * n_in * n_out).zip(bias.chunks_exact(n_out)).cycle();
            let of_groups = input.chunks_exact(n_in * self.tiles.in_len());
            let to_groups = output.chunks_exact_mut(n_out * self.out[0] * self.out[1]);
            for ((input, output), (weights, bias)) in of_groups.zip(to_groups).zip(weights) {
                let (phases, columns, inputs) = (&mut *phases, &mut *columns, &mut *inputs);
                let (products, outputs) = (&mut *products, &mut *outputs);
                let scratch = Scratch { phases, columns, inputs, products, outputs };
                let (tiles, lines) = (self, &lines);
                Arch::new().dispatch(TiledGroup { tiles, lines, input, weights, bias, scratch, output });
            }
        });
    }
}

thread_local! {
    /// Scratch memory of a thread's convolutions.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The parts of the scratch memory.
struct Scratch<'a> {
    /// The phases of the input planes.
    phases: &'a mut [f32],
    /// Transformed columns of a plane's tiles.
    columns: &'a mut [f32],
    /// Transformed inputs: for each product and input plane some vectors of tiles.
    inputs: &'a mut [f32],
    /// Sums of products: for each product and plane of a block some vectors of tiles.
    products: &'a mut [f32],
    /// For each output plane the four outputs of all tiles of a line.
    outputs: &'a mut [f32],
}

/// The output planes of one group and one sample, computed from the same input planes.
struct TiledGroup<'a> {
    tiles: &'a Tiles,
    lines: &'a RowLines,
    input: &'a [f32],
    weights: &'a [f32],
    bias: &'a [f32],
    scratch: Scratch<'a>,
    output: &'a mut [f32],
}

impl WithSimd for TiledGroup<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let TiledGroup {
            tiles: Tiles { tiles, out, planes: [n_in, n_out] }, lines, input, bias, scratch, output, ..
        } = self;
        let (n_in, n_out, pitch) = (*n_in, *n_out, tiles.pitch());
        let Scratch { phases, columns, inputs, products, outputs } = scratch;
        let inputs = S::as_mut_simd_f32s(inputs).0;
        let products = S::as_mut_simd_f32s(products).0;
        let mut offsets = [0; PRODUCTS];
        offsets.copy_from_slice(&lines.offsets[..PRODUCTS]);
        // An even number of vectors.
        let most = (GROUP / (PRODUCTS * n_in * 2 * S::F32_LANES)).max(1) * 2;
        for line in 0..lines.n() {
            tiles.fill(lines, line, input, 0.0, phases);
            let (y, n_rows) = tiles.rows_of(lines, line);
            let n_vectors = tiles.line_len(n_rows).div_ceil(S::F32_LANES);
            let transformed_outputs = S::as_mut_simd_f32s(&mut outputs[..4 * n_out * n_vectors * S::F32_LANES]).0;
            for at in (0..n_vectors).step_by(most) {
                let n = most.min(n_vectors - at);
                let inputs = &mut inputs[..PRODUCTS * n_in * n];
                for plane in 0..n_in {
                    let phases = &phases[plane * lines.plane_len + at * S::F32_LANES..];
                    transform_inputs(simd, phases, &offsets, columns, &mut inputs[plane * n..], [n, n_in * n]);
                }
                let (mut weights, mut first) = (self.weights, 0);
                for n_block in blocks(n_out) {
                    let (of_block, rest) = weights.split_at(PRODUCTS * n_in * n_block);
                    weights = rest;
                    let of_products = of_block.chunks_exact(n_in * n_block).zip(inputs.chunks_exact(n_in * n));
                    for ((weights, inputs), sums) in of_products.zip(products.chunks_exact_mut(n_block * n)) {
                        block(simd, weights, inputs, sums, [n_block, n]);
                    }
                    for plane in 0..n_block {
                        let to = &mut transformed_outputs[4 * (first + plane) * n_vectors + at..];
                        let products = &products[plane * n..];
                        inverse_to_outputs(simd, bias[first + plane], products, n_block * n, to, [n, n_vectors]);
                    }
                    first += n_block;
                }
            }
            let len = n_vectors * S::F32_LANES;
            let planes = output.chunks_exact_mut(out[0] * out[1]).zip(outputs.chunks_exact(4 * len));
            for (output, of_tiles) in planes {
                let rows = output.chunks_exact_mut(out[1]).skip(2 * y).take(2 * n_rows).enumerate();
                for (row, to) in rows {
                    let from = |column: usize| &of_tiles[(row % 2 * 2 + column) * len + row / 2 * pitch..];
                    interleave(from(0), from(1), to);
                }
            }
        }
    }
}

/// Writes the values of two slices alternately.
#[inline(always)]
fn interleave(even: &[f32], odd: &[f32], to: &mut [f32]) {
    let half = to.len() / 2;
    let pairs = to.chunks_exact_mut(2).zip(&even[..half]).zip(&odd[..half]);
    pairs.for_each(|((to, even), odd)| (to[0], to[1]) = (*even, *odd));
    if to.len() % 2 == 1 {
        to[2 * half] = even[half];
    }
}

/// Returns the 16 transformed weights of a window.
fn transform_weights(taps: &[f32]) -> [f32; PRODUCTS] {
    let of_three = |[a, b, c]: [f32; 3]| [a, 0.5 * (a + b + c), 0.5 * (a - b + c), c];
    let rows: [[f32; 4]; 3] =
        std::array::from_fn(|row| of_three([taps[3 * row], taps[3 * row + 1], taps[3 * row + 2]]));
    let mut transformed = [0.0; PRODUCTS];
    for column in 0..4 {
        let values = of_three([rows[0][column], rows[1][column], rows[2][column]]);
        values.into_iter().enumerate().for_each(|(row, value)| transformed[4 * row + column] = value);
    }
    transformed
}

/// Transforms four inputs along one axis.
#[inline(always)]
fn transform_four<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> [S::f32s; 4] {
    [simd.sub_f32s(a, c), simd.add_f32s(b, c), simd.sub_f32s(c, b), simd.sub_f32s(b, d)]
}

/// Transforms four sums back to two outputs along one axis.
#[inline(always)]
fn inverse_to_two<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> [S::f32s; 2] {
    [simd.add_f32s(simd.add_f32s(a, b), c), simd.sub_f32s(simd.sub_f32s(b, c), d)]
}

/// Transforms `n` vectors of tiles of a plane. The products of a tile are `step` vectors apart. The last two columns of
/// a tile are the first two of the next tile, so that each column is transformed only once.
#[inline(always)]
fn transform_inputs<S: Simd>(
    simd: S,
    phases: &[f32],
    offsets: &[usize; PRODUCTS],
    columns: &mut [f32],
    to: &mut [S::f32s],
    [n, step]: [usize; 2],
) {
    let len = (n + 1) * S::F32_LANES;
    for column in 0..2 {
        let tap = |row: usize| &S::as_simd_f32s(&phases[offsets[4 * row + column]..]).0[..=n];
        let (a, b, c, d) = (tap(0), tap(1), tap(2), tap(3));
        let to = S::as_mut_simd_f32s(&mut columns[4 * column * len..][..4 * len]).0;
        for i in 0..=n {
            let values = transform_four(simd, [a[i], b[i], c[i], d[i]]);
            (to[i], to[n + 1 + i], to[2 * (n + 1) + i], to[3 * (n + 1) + i]) =
                (values[0], values[1], values[2], values[3]);
        }
    }
    for row in 0..4 {
        let column = |column: usize, next: usize| &S::as_simd_f32s(&columns[(4 * column + row) * len + next..]).0[..n];
        let (a, b, c, d) = (column(0, 0), column(1, 0), column(0, 1), column(1, 1));
        let to = &mut to[4 * row * step..];
        for i in 0..n {
            let values = transform_four(simd, [a[i], b[i], c[i], d[i]]);
            (to[i], to[step + i], to[2 * step + i], to[3 * step + i]) = (values[0], values[1], values[2], values[3]);
        }
    }
}

/// Writes the four outputs of `n` vectors of tiles of a plane. Products are `step` vectors apart, outputs `len`
/// vectors.
#[inline(always)]
fn inverse_to_outputs<S: Simd>(
    simd: S,
    bias: f32,
    products: &[S::f32s],
    step: usize,
    to: &mut [S::f32s],
    [n, len]: [usize; 2],
) {
    let bias = simd.splat_f32s(bias);
    let product = |product: usize, i: usize| products[product * step + i];
    for i in 0..n {
        let mut columns = [[bias; 2]; 4];
        for (column, to) in columns.iter_mut().enumerate() {
            let values = [product(column, i), product(4 + column, i), product(8 + column, i), product(12 + column, i)];
            *to = inverse_to_two(simd, values);
        }
        let [a, b, c, d] = columns;
        for (row, values) in [[a[0], b[0], c[0], d[0]], [a[1], b[1], c[1], d[1]]].into_iter().enumerate() {
            let [first, second] = inverse_to_two(simd, values);
            to[2 * row * len + i] = simd.add_f32s(first, bias);
            to[(2 * row + 1) * len + i] = simd.add_f32s(second, bias);
        }
    }
}

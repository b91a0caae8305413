//! Integer arithmetic: grids, rounding, and the scale of each value.

use mqq::quant::{
    ChannelScaling, Codes, GivenRange, Grid, PotRounding, QuantParams, Range, ScaleLayout, ScaleRule, Symmetry,
    TensorParams, params_for_range, round_half_even, scale_shape,
};
use proptest::prelude::*;

/// The ten numbers of NVIDIA's documented `tensor_quant` example, before printing cut them to four
/// digits (MT19937 seeded with 12345, 24 bits each).
const TENSOR_QUANT_INPUT: [f32; 10] = [
    0.981_718_2, 0.879_606_55, 0.992_143_45, 0.461_067_26, 0.083_215_95, 0.178_431_1, 0.367_431_52, 0.567_649_7,
    0.337_606_73, 0.211_946_6,
];

/// Rounded up where it would be rounded to the nearest, and nothing else of the rule changes.
#[test]
fn a_grid_that_never_narrows_rounds_its_powers_of_two_up() {
    let scale_rule =
        ScaleRule { power_of_two: Some(PotRounding::Round), half_range: true, min_real_range: 0.5, min_scale: 0.001 };
    let rounded = Grid { scale_rule, ..Grid::INT8_SYMMETRIC };
    let up = ScaleRule { power_of_two: Some(PotRounding::Ceil), ..scale_rule };
    assert_eq!(rounded.with_scales_rounded_up(), Grid { scale_rule: up, ..rounded });
    assert_eq!(Grid::INT8_SYMMETRIC.with_scales_rounded_up(), Grid::INT8_SYMMETRIC);
}

#[test]
fn only_signed_symmetric_grids_are_centred() {
    let (signed, unsigned) = (Grid::INT8_SYMMETRIC, Grid::UINT8_ASYMMETRIC);
    let symmetry = |grid: Grid, symmetry| Grid { symmetry, ..grid }.is_centred();
    assert!(symmetry(signed, Symmetry::Symmetric));
    assert!(!symmetry(signed, Symmetry::Asymmetric));
    assert!(!symmetry(unsigned, Symmetry::Symmetric));
    assert!(!symmetry(unsigned, Symmetry::Asymmetric));
}

#[test]
fn nothing_but_zeros_has_the_scale_1_in_nnie_codes_too() {
    assert_eq!(nnie(0.0).scale, 1.0);
    assert!((0.9..=1.1).contains(&(nnie(8.0).scale / 8.0)), "{}", nnie(8.0).scale);
}

#[test]
fn reproduces_the_documented_tensor_quant_example() {
    let amax = TENSOR_QUANT_INPUT.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let params = params_for_range(Range::symmetric(f64::from(amax)), &Grid::INT8_SYMMETRIC).unwrap();
    assert_eq!(params.scale, 0.007_812_153);
    let q = TENSOR_QUANT_INPUT.map(|x| params.quantize(x));
    assert_eq!(q, [126, 113, 127, 59, 11, 23, 47, 73, 43, 27]);
    let printed = TENSOR_QUANT_INPUT.map(|x| format!("{:.4}", params.fake_quantize(x)));
    let documented =
        ["0.9843", "0.8828", "0.9921", "0.4609", "0.0859", "0.1797", "0.3672", "0.5703", "0.3359", "0.2109"];
    assert_eq!(printed, documented);
}

#[test]
fn ties_round_to_even() {
    for (x, expected) in [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, 0.0), (-1.5, -2.0)] {
        assert_eq!(round_half_even(x), expected, "{x}");
    }
}

#[test]
fn degenerate_ranges_keep_a_usable_scale() {
    for grid in [Grid::INT8_SYMMETRIC, Grid::UINT8_ASYMMETRIC] {
        let zero = params_for_range(Range { min: 0.0, max: 0.0 }, &grid).unwrap();
        assert_eq!((zero.scale, zero.zero_point), (1.0, 0));
        let tiny = params_for_range(Range { min: 0.0, max: 1e-44 }, &grid).unwrap();
        assert_eq!(tiny.scale, f32::MIN_POSITIVE);
        for (min, max) in [(f64::NAN, 1.0), (0.0, f64::INFINITY), (2.0, 1.0)] {
            assert!(params_for_range(Range { min, max }, &grid).is_err());
        }
    }
}

/// The mask of attention is often the lowest float32. Its scale must not be rounded up.
#[test]
fn the_ends_of_the_widest_range_are_finite() {
    let widest = Range { min: f64::from(f32::MIN), max: 0.0 };
    for bits in [8, 16] {
        for rounding in [None, Some(PotRounding::Round), Some(PotRounding::Ceil)] {
            for grid in [Grid::INT8_SYMMETRIC, Grid::UINT8_ASYMMETRIC, Grid { signed: true, ..Grid::UINT8_ASYMMETRIC }]
            {
                let scale_rule = ScaleRule { power_of_two: rounding, ..ScaleRule::PLAIN };
                let params = params_for_range(widest, &Grid { bits, scale_rule, ..grid }).unwrap();
                let [low, high] = [params.q_min, params.q_max].map(|q| params.dequantize(q));
                assert!(low.is_finite() && high.is_finite() && low < 0.2 * f32::MIN, "{bits} {grid:?}: {low} {high}");
            }
        }
    }
}

/// The logarithm of a number right below a high power of two is that of the power.
#[test]
fn a_power_of_two_is_not_above_the_scale_that_is_rounded_down() {
    let below = 2f64.powi(100).next_down();
    assert_eq!(below.log2(), 100.0);
    // The highest integer is 1, so that the exact scale is the end of the range.
    let two_bits = Grid { bits: 2, ..Grid::INT8_SYMMETRIC };
    for (rounding, exponent) in [(PotRounding::Floor, 99), (PotRounding::Ceil, 100)] {
        let scale_rule = ScaleRule { power_of_two: Some(rounding), ..ScaleRule::PLAIN };
        let params = params_for_range(Range::symmetric(below), &Grid { scale_rule, ..two_bits }).unwrap();
        assert_eq!(params.scale, 2f32.powi(exponent), "{rounding:?}");
    }
}

/// The smallest code stands for `2^(z / 16)`, where the parameter is `2^((z + 127) / 16)`; values become 0 from
/// `2^((z - 16) / 16)` down, negative ones from a step higher.
#[test]
fn nnie_codes_end_an_octave_below_the_smallest() {
    let quantize = |z: i32, x: f32| {
        let scale = (f64::from(z + 127) / 16.0).exp2() as f32;
        QuantParams { scale, zero_point: -128, q_min: -128, q_max: 127, codes: Codes::Nnie }.quantize(x)
    };
    let above = |x: f32| f32::from_bits(x.to_bits() + 8);
    let cases = [
        (0, 0.5, -128),
        (0, above(0.5), 0),
        (0, -0.5, -128),
        // The end of the negative ones is 2^(-15 / 16), or 0.522.
        (0, -0.52, -128),
        (0, -0.524, -1),
        (15, -1.0, -128),
        (15, -above(1.0), -1),
        (0, -1e-6, -128),
        (-127, -0.001, -128),
    ];
    for (z, x, code) in cases {
        assert_eq!(quantize(z, x), code, "{z} {x}");
    }
}

#[test]
fn a_given_range_has_the_ends_of_its_grid_and_its_scale_again() {
    let of = |zero_point, bits, signed| GivenRange::from_params(0.5, zero_point, bits, signed).unwrap();
    let ends = |min, max| Range { min, max };
    assert_eq!(of(0, 8, true), GivenRange { range: ends(-64.0, 63.5), amax: Some(63.5) });
    assert_eq!(of(-3, 8, true), GivenRange { range: ends(-62.5, 65.0), amax: None });
    assert_eq!(of(0, 4, false), GivenRange { range: ends(0.0, 7.5), amax: None });
    assert_eq!(of(10, 4, false), GivenRange { range: ends(-5.0, 2.5), amax: None });
    // Without the lowest integer only where the grid is symmetric about 0.
    let symmetric = of(0, 8, true);
    let asymmetric = Grid { symmetry: Symmetry::Asymmetric, ..Grid::INT8_SYMMETRIC };
    let unsigned = Grid { signed: false, ..Grid::INT8_SYMMETRIC };
    assert_eq!(symmetric.for_grid(&Grid::INT8_SYMMETRIC), ends(-63.5, 63.5));
    assert_eq!(of(-3, 8, true).for_grid(&Grid::INT8_SYMMETRIC), ends(-62.5, 65.0));
    assert_eq!([symmetric.for_grid(&asymmetric), symmetric.for_grid(&unsigned)], [ends(-64.0, 63.5); 2]);
    for (scale, bits) in [(-0.5, 8), (f64::NAN, 8), (f64::INFINITY, 8), (0.5, 1), (0.5, 17)] {
        assert!(GivenRange::from_params(scale, 0, bits, true).is_err(), "{scale} {bits}");
    }
    assert_eq!(GivenRange::from_params(0.0, 0, 2, true).unwrap().range.amax(), 0.0);
    assert_eq!(GivenRange::from_params(1.0, 0, 16, false).unwrap().range, ends(0.0, 65535.0));
}

#[test]
fn a_tensor_is_quantized_by_the_scale_of_each_value() {
    let of_scale = |scale| QuantParams { scale, zero_point: 1, q_min: -8, q_max: 7, codes: Codes::Affine };
    let params = [of_scale(0.5), of_scale(2.0)];
    let layout = ScaleLayout::of(&[2, 2], Some(0), None);
    let tensor = TensorParams::new(layout.clone(), &params).unwrap();
    assert_eq!(tensor.quantize(&[1.0, 9.0, 1.9, -4.0]).unwrap(), [3, 7, 2, -1]);
    assert_eq!(tensor.dequantize(&[3, 100, 2, -100]), [1.0, 3.0, 2.0, -18.0]);
    assert!(tensor.quantize(&[1.0; 3]).is_err() && TensorParams::new(layout, &params[..1]).is_err());
}

#[test]
fn scales_follow_the_rule() {
    let int8 = Grid { narrow_range: false, ..Grid::INT8_SYMMETRIC };
    let with = |grid: Grid, power_of_two, half_range, min_real_range| Grid {
        scale_rule: ScaleRule { power_of_two, half_range, min_real_range, min_scale: 0.0 },
        ..grid
    };
    let (ceil, round) = (Some(PotRounding::Ceil), Some(PotRounding::Round));
    let u8 = Grid::UINT8_ASYMMETRIC;
    // (min, max, grid, scale, zero point)
    let cases = [
        (-1.0, 0.5, int8, 1.0 / 127.0, 0),
        (-1.0, 0.5, with(int8, None, true, 0.0), 1.0 / 127.5, 0),
        (-1.0, 0.5, with(Grid::INT8_SYMMETRIC, None, true, 0.0), 1.0 / 127.0, 0),
        (-1.0, 0.5, with(int8, ceil, false, 0.0), 2f64.powi(-6), 0),
        (-1.0, 0.5, with(int8, ceil, true, 0.0), 2f64.powi(-6), 0),
        (-1.0, 0.5, with(int8, round, false, 0.0), 2f64.powi(-7), 0),
        // 2.55 / 255 = 0.01 becomes 1/64, and -0.4 then lies 25.6 steps below 0.
        (-0.4, 2.15, with(u8, None, false, 0.0), 0.01, 40),
        (-0.4, 2.15, with(u8, ceil, false, 0.0), 2f64.powi(-6), 26),
        (0.0, 0.0, with(u8, None, false, 1e-4), 1e-4 / 255.0, 0),
        (-1e-6, 0.0, with(u8, None, false, 1e-4), 1e-4 / 255.0, 3),
        (0.0, 0.0, with(int8, None, false, 1e-4), 1e-4 / 127.0, 0),
        (-1.0, 1.0, with(u8, None, false, 1e-4), 2.0 / 255.0, 127),
    ];
    for (min, max, grid, scale, zero_point) in cases {
        let found = params_for_range(Range { min, max }, &grid).unwrap();
        assert_eq!((found.scale, found.zero_point), (scale as f32, zero_point), "{grid:?}");
    }
}

fn grids() -> impl Strategy<Value = Grid> {
    (prop_oneof![Just(4u8), Just(8), Just(16)], any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(bits, signed, symmetric, narrow)| Grid {
            bits,
            signed,
            symmetry: if symmetric { Symmetry::Symmetric } else { Symmetry::Asymmetric },
            narrow_range: narrow && signed,
            ..Grid::INT8_SYMMETRIC
        },
    )
}

proptest! {
    #[test]
    fn zero_and_every_integer_survive(grid in grids(), a in -1e6f64..1e6, b in -1e6f64..1e6) {
        let range = Range { min: a.min(b), max: a.max(b) };
        let p = params_for_range(range, &grid).unwrap();
        prop_assert!(p.scale.is_normal() && p.scale > 0.0);
        prop_assert_eq!(p.quantize(0.0), p.zero_point);
        prop_assert_eq!(p.dequantize(p.zero_point), 0.0);
        for q in p.q_min..=p.q_max {
            prop_assert_eq!(p.quantize(p.dequantize(q)), q);
        }
    }

    #[test]
    fn error_inside_the_grid_is_half_a_step(grid in grids(), amax in 1e-3f64..1e3, t in 0.0f64..1.0) {
        let p = params_for_range(Range { min: -amax, max: amax }, &grid).unwrap();
        let (lo, hi) = (p.dequantize(p.q_min), p.dequantize(p.q_max));
        let x = lo + (hi - lo) * t as f32;
        let limit = f64::from(p.scale) / 2.0 * (1.0 + 1e-5) + f64::from(hi - lo) * 1e-6;
        prop_assert!(f64::from((p.fake_quantize(x) - x).abs()) <= limit);
    }
}

fn scales(layout: &ScaleLayout, shape: &[usize]) -> Vec<usize> {
    (0..shape.iter().product()).map(|position| layout.scale_of(position)).collect()
}

#[test]
fn every_value_finds_its_scale() {
    type Case = (&'static [usize], Option<usize>, Option<usize>, &'static [usize]);
    let cases: [Case; 8] = [
        (&[2, 2], None, None, &[0, 0, 0, 0]),
        (&[2, 3], Some(0), None, &[0, 0, 0, 1, 1, 1]),
        (&[2, 3], Some(1), None, &[0, 1, 2, 0, 1, 2]),
        (&[1, 2, 2], Some(1), None, &[0, 0, 1, 1]),
        // Blocks of 2 along 3 positions: the last one is shorter.
        (&[2, 3], Some(1), Some(2), &[0, 0, 1, 2, 2, 3]),
        (&[3, 2], Some(0), Some(2), &[0, 1, 0, 1, 2, 3]),
        (&[3], Some(0), Some(3), &[0, 0, 0]),
        (&[0, 2], Some(1), None, &[]),
    ];
    for (shape, axis, block, expected) in cases {
        let layout = ScaleLayout::of(shape, axis, block);
        assert_eq!(scales(&layout, shape), expected, "{shape:?}");
        let mut by_run = Vec::new();
        layout.for_each_run(|scale, run| by_run.extend(run.map(|position| (position, scale))));
        assert_eq!(by_run, expected.iter().copied().enumerate().collect::<Vec<_>>(), "{shape:?}");
        // A node says the same, with the axis from the front or from the back.
        let dims = scale_shape(shape, axis, block);
        for axis in axis.map_or(vec![1], |axis| vec![axis as i64, axis as i64 - shape.len() as i64]) {
            let of_node = ScaleLayout::of_node(shape, &dims, axis, block.unwrap_or(0)).unwrap();
            assert_eq!(scales(&of_node, shape), expected, "{shape:?}");
        }
    }
    assert_eq!(scale_shape(&[3, 2], Some(0), Some(2)), [2, 2]);
    assert_eq!(scale_shape(&[4, 5, 6], Some(1), None), [5]);
}

#[test]
fn scales_that_do_not_fit_are_errors() {
    for (shape, scales, axis, block_size) in [
        (&[2, 3][..], &[2][..], 1, 0),
        (&[2, 3], &[3], 2, 0),
        (&[2, 3], &[3], -3, 0),
        (&[], &[2], 0, 0),
        (&[2, 4], &[2], 1, 2),
        (&[2, 4], &[2, 3], 1, 2),
    ] {
        let layout = ScaleLayout::of_node(shape, scales, axis, block_size);
        assert!(layout.is_err(), "{shape:?} {scales:?}");
    }
}

proptest! {
    #[test]
    fn the_fast_way_gives_the_same(
        scale in 1e-3f32..1e3, zero_point in 0i32..65536, steps in -70_000i32..70_000, off in -1i32..2
    ) {
        // Half-way between two integers, and the floats on both sides.
        let tie = (steps as f32 + 0.5) * scale;
        let x = f32::from_bits((tie.to_bits() as i32 + off) as u32);
        let (q_min, q_max) = (0, 65535);
        let params = QuantParams { scale, zero_point, q_min, q_max, codes: Codes::Affine };
        let exact = f64::from((x / scale).round_ties_even()) + f64::from(zero_point);
        prop_assert_eq!(params.quantize(x), exact.clamp(0.0, 65535.0) as i32);
        prop_assert_eq!(params.quantize_fast(x), params.quantize(x));
        prop_assert_eq!(params.fake_quantizer()(x), params.fake_quantize(x));
    }
}

#[test]
fn infinity_saturates_and_nan_becomes_the_lowest_value_as_in_onnx_runtime() {
    let params = QuantParams { scale: 0.5, zero_point: 3, q_min: 0, q_max: 15, codes: Codes::Affine };
    for (x, q) in [(f32::INFINITY, 15), (f32::NEG_INFINITY, 0), (f32::NAN, 0)] {
        assert_eq!([params.quantize(x), params.quantize_fast(x)], [q; 2], "{x}");
    }
    assert_eq!([params.fake_quantize(f32::NAN), params.fake_quantizer()(f32::NAN)], [-1.5; 2]);
    assert_eq!(params.fake_quantizer()(f32::INFINITY), 6.0);
}

#[test]
fn each_channel_has_its_factor() {
    let scaling = ChannelScaling::new(1, 2, vec![0.5, 4.0]);
    let mut out = vec![9.0];
    scaling.apply(&[2, 4, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &mut out);
    assert_eq!(out, [0.5, 1.0, 12.0, 16.0, 2.5, 3.0, 28.0, 32.0]);
    assert_eq!((0..4).map(|i| scaling.of(i)).collect::<Vec<f32>>(), [0.5, 0.5, 4.0, 4.0]);
    assert_eq!(ChannelScaling::new(1, 3, vec![0.5, 4.0]).n_entries(), 6);
}

#[test]
fn powers_of_two_of_every_rounding() {
    use PotRounding::{Ceil, Floor, Round};
    // (scale, round, ceil, floor), as exponents; log2(0.7) = -0.51, log2(0.71) = -0.49.
    let cases = [
        (0.5, -1, -1, -1),
        (0.5 + 1e-15, -1, 0, -1),
        (0.5 - 1e-15, -1, -1, -2),
        (0.7, -1, 0, -1),
        (0.71, 0, 0, -1),
        (1.0 / 127.0, -7, -6, -7),
        (6.0 / 127.5, -4, -4, -5),
        (3.0, 2, 2, 1),
        (1e-60, -126, -126, -126),
    ];
    for (scale, round, ceil, floor) in cases {
        for (rounding, exponent) in [(Round, round), (Ceil, ceil), (Floor, floor)] {
            // The integers -1, 0 and 1: the exact scale is the range's end.
            let scale_rule = ScaleRule { power_of_two: Some(rounding), ..ScaleRule::PLAIN };
            let grid = Grid { bits: 2, scale_rule, ..Grid::INT8_SYMMETRIC };
            let found = params_for_range(Range::symmetric(scale), &grid).unwrap().scale;
            assert_eq!(found, 2f32.powi(exponent), "{scale} {rounding:?}");
        }
    }
}

/// NNIE's code of 0.0.
const NNIE_ZERO: i32 = -128;

fn nnie(amax: f64) -> QuantParams {
    params_for_range(Range::symmetric(amax), &Grid { codes: Codes::Nnie, ..Grid::INT8_SYMMETRIC }).unwrap()
}

#[test]
fn golden_values_of_the_nnie_parameter_one() {
    // c = 1: z = -127, so that code k stands for 2^((k - 127) / 16).
    let params = nnie(1.0);
    assert_eq!((params.scale, params.zero_point), (1.0, NNIE_ZERO));
    let cases: [(f32, i32, f32); 9] = [
        (1.0, 127, 1.0),
        (5.0, 127, 1.0),
        (-1.0, -127, -1.0),
        (0.5, 111, 0.5),
        (-0.25, -95, -0.25),
        (0.004_1, 0, 0.004_079_194),
        (-0.004_1, -1, -0.004_259_796),
        (0.0, NNIE_ZERO, 0.0),
        (0.001, NNIE_ZERO, 0.0),
    ];
    for (x, code, value) in cases {
        assert_eq!(params.quantize(x), code, "{x}");
        assert!((params.dequantize(code) - value).abs() <= 1e-6 * value.abs(), "{x}");
    }
}

#[test]
fn every_nnie_code_stands_for_itself() {
    for params in [0.37, 6.0, 1e-3].map(nnie) {
        for code in -128..=127 {
            assert_eq!(params.quantize(params.dequantize(code)), code, "{code}");
        }
    }
}

//! Learned rounding.

use super::layers::{node, product};
use crate::support::noise;
use mqq::engine::Value;
use mqq::simulate::Samples;
use mqq::tune::weights::descent::QuadraticError;
use mqq::tune::weights::layer::LayerProduct;
use mqq::tune::weights::problem::{Bounds, LayerData, WeightProblem};
use mqq::tune::weights::{rounding, scales};
use mqq_concrete::matrix::Matrix;
use proptest::prelude::*;

/// Where inputs do not depend on each other, the best real weight lies between that of the regression and the given
/// one, by a ridge of half the input's own variance and half the mean of all: whole on grids of many integers, a fifth
/// of it on those of few.
#[test]
fn the_ridge_goes_by_the_integers_of_the_grid() {
    const N: usize = 400;
    let layer = node("Gemm", &[], &[("transB", 1)]);
    let (given, wanted) = ([0.1f32, 0.3], [1.3f32, -0.9]);
    // Variances 1 and 3, no covariance.
    let signs =
        |p: usize| [if p.is_multiple_of(2) { 1.0 } else { -1.0 }, if (p / 2).is_multiple_of(2) { 1.0 } else { -1.0 }];
    let x: Vec<[f32; 2]> = (0..N).map(|p| [signs(p)[0], signs(p)[1] * 3f32.sqrt()]).collect();
    let y: Vec<f32> = x.iter().map(|x| x[0] * wanted[0] + x[1] * wanted[1]).collect();
    let x = [Value::from_f32(&[N, 2], x.concat()).unwrap()];
    let y = [Value::from_f32(&[N, 1], y).unwrap()];
    let layer = LayerProduct::of(&layer, &[1, 2], &x[0]).unwrap();
    for (bound, share) in [(7, 0.2), (31, 0.2), (32, 1.0), (127, 1.0)] {
        let scale = 1.5 / bound as f32;
        let problem = WeightProblem {
            layer: layer.clone(),
            w: given.to_vec(),
            scales: vec![scale],
            scale_idx: Vec::new(),
            bounds: Bounds { low: -bound, high: bound, pairs: None, shifts: &[] },
            shifts: Vec::new(),
            free: false,
        };
        let learned = rounding::round(
            &problem,
            LayerData { inputs: &x, outputs: &y, bias: &[], corrects_bias: false, tokens: &[] },
        )
        .unwrap();
        let expected = [1.0, 3.0].iter().zip(given).zip(wanted).map(|((variance, given), wanted)| {
            let ridge = share * (variance + 2.0) / 2.0;
            let best = (variance * wanted + ridge * given) / (variance + ridge);
            (best / scale).round_ties_even() as i32
        });
        assert_eq!(learned.rows.integers, expected.collect::<Vec<_>>(), "{bound}");
    }
}

/// Where the bias is not corrected, it is no part of what the integers reproduce.
#[test]
fn the_bias_of_the_outputs_is_not_learned() {
    const N: usize = 1000;
    let (w, bias) = ([0.4f32, -0.7, 0.9], 3.0f32);
    let x: Vec<f32> = noise(3 * N, 5).iter().map(|x| x + 1.5).collect();
    let plain = x.chunks(3).map(|x| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>());
    let (plain, with): (Vec<f32>, Vec<f32>) = plain.map(|y| (y, y + bias)).unzip();
    let x = [Value::from_f32(&[N, 3], x).unwrap()];
    let layer = LayerProduct::of(&node("Gemm", &[], &[("transB", 1)]), &[1, 3], &x[0]).unwrap();
    let problem = WeightProblem {
        layer,
        w: w.to_vec(),
        scales: vec![0.03],
        scale_idx: Vec::new(),
        bounds: Bounds { low: -127, high: 127, pairs: None, shifts: &[] },
        shifts: Vec::new(),
        free: false,
    };
    let learned = |y: Vec<f32>, bias: &[f32]| {
        let y = [Value::from_f32(&[N, 1], y).unwrap()];
        rounding::round(&problem, LayerData { inputs: &x, outputs: &y, bias, corrects_bias: false, tokens: &[] })
            .unwrap()
            .rows
            .integers
    };
    assert_eq!(learned(with.clone(), &[bias]), learned(plain.clone(), &[]));
    assert_ne!(learned(with, &[]), learned(plain, &[]));
}

/// Integers are learned from tokens alone: what is in the padding behind them does not matter.
#[test]
fn padding_is_not_learned_from() {
    const N_IN: usize = 8;
    const N_OUT: usize = 4;
    const TOKENS: usize = 30;
    let node = node("MatMul", &[], &[]);
    let w = noise(N_OUT * N_IN, 1);
    let learned = |padding: f32, is_masked: bool| -> Vec<i32> {
        let sample = |seed: u32| {
            let own = noise(2 * TOKENS * N_IN, seed + 100);
            let common = noise(2 * TOKENS, seed);
            let value = |i: usize| own[i] + 2.0 * common[i / N_IN];
            let x =
                (0..2 * TOKENS * N_IN).map(|i| if i < TOKENS * N_IN { value(i) } else { padding * (i % N_IN) as f32 });
            Value::from_f32(&[1, 2 * TOKENS, N_IN], x.collect()).unwrap()
        };
        let x: Vec<Value> = (0..6).map(sample).collect();
        let layer = LayerProduct::of(&node, &[N_IN, N_OUT], &x[0]).unwrap();
        let output = |x: &Value| {
            let y = Value::from_f32(&[1, 2 * TOKENS, N_OUT], vec![0.0; 2 * TOKENS * N_OUT]).unwrap();
            Value::from_f32(&[1, 2 * TOKENS, N_OUT], product(&layer, &w, x, &y)).unwrap()
        };
        let y: Vec<Value> = x.iter().map(output).collect();
        let kept = (0..2 * TOKENS).map(|token| if token < TOKENS || !is_masked { 1.0 } else { 0.0 });
        let mask = vec![Value::from_f32(&[1, 2 * TOKENS], kept.collect()).unwrap()];
        let tokens = Samples { names: &["attention_mask".to_string()], values: &vec![mask; 6] }.tokens().unwrap();
        let problem = WeightProblem {
            layer: layer.clone(),
            w: w.clone(),
            scales: vec![1.0 / 7.0; N_OUT],
            scale_idx: Vec::new(),
            bounds: Bounds { low: -7, high: 7, pairs: None, shifts: &[] },
            shifts: Vec::new(),
            free: false,
        };
        let data = LayerData { inputs: &x, outputs: &y, bias: &[], corrects_bias: true, tokens: &tokens };
        rounding::round(&problem, data).unwrap().rows.integers
    };
    assert_eq!(learned(0.0, true), learned(5.0, true));
    assert_ne!(learned(0.0, false), learned(5.0, false));
}

/// One sweep over a row leaves integers that a step would still improve.
#[test]
fn a_descent_ends_where_no_step_lowers_the_error() {
    const N: usize = 64;
    for seed in 0..20 {
        // Inputs that have much in common.
        let own = noise(N * N, seed);
        let mut h = Matrix::zeros(N, N);
        for (a, b) in (0..N * N).map(|i| (i / N, i % N)) {
            let product: f32 = (0..N).map(|k| own[a * N + k] * own[b * N + k]).sum();
            h[(a, b)] = f64::from(product) + 4.0;
        }
        let targets: Vec<f64> = noise(N, seed + 100).iter().map(|&t| 12.0 * f64::from(t)).collect();
        let slopes =
            |q: &[f64]| -> Vec<f64> { (0..N).map(|a| (0..N).map(|b| h[(a, b)] * (targets[b] - q[b])).sum()).collect() };
        let error = |q: &[f64]| -> f64 {
            slopes(q).iter().zip(targets.iter().zip(q)).map(|(slope, (t, q))| slope * (t - q)).sum()
        };
        let bounds = Bounds { low: -7, high: 7, pairs: None, shifts: &[] };
        let mut q: Vec<f64> = targets.iter().map(|t| t.round()).collect();
        let (before, mut slope) = (error(&q), slopes(&q));
        let change = QuadraticError::new(&h, &[]).descend(&bounds, &[1.0; N], &mut q, &mut slope);
        let after = error(&q);
        assert!((after - before - change).abs() < 1e-6 * before, "{seed}: {before} {after} {change}");
        for k in 0..N {
            for by in [-1.0, 1.0] {
                let mut other = q.clone();
                other[k] += by;
                assert!(error(&other) > after - 1e-6 || other[k].abs() > 7.0, "{seed}: {k}");
            }
        }
    }
}

/// A bias that is off, as a coarse grid leaves it, is made up for by the integers; of two biases the one with less
/// error in the end is taken.
#[test]
fn integers_make_up_for_a_bias_that_is_off() {
    const ROWS: usize = 3;
    const N_IN: usize = 9;
    let values = noise(400 * N_IN, 3).iter().map(|v| v + 0.7).collect();
    let x = [Value::from_f32(&[400, N_IN], values).unwrap()];
    let w = noise(ROWS * N_IN, 11);
    let layer = LayerProduct::of(&node("Gemm", &[], &[("transB", 1)]), &[ROWS, N_IN], &x[0]).unwrap();
    let shape = Value::from_f32(&[400, ROWS], vec![0.0; 400 * ROWS]).unwrap();
    let y = [Value::from_f32(&[400, ROWS], product(&layer, &w, &x[0], &shape)).unwrap()];
    let scales = vec![0.5 / 127.0; ROWS];
    let problem = WeightProblem {
        layer,
        w,
        scales: scales.clone(),
        scale_idx: Vec::new(),
        bounds: Bounds { low: -127, high: 127, pairs: None, shifts: &[] },
        shifts: Vec::new(),
        free: false,
    };
    let mut learned =
        rounding::round(&problem, LayerData { inputs: &x, outputs: &y, bias: &[], corrects_bias: true, tokens: &[] })
            .unwrap();
    let real = |integers: &[i32]| -> Vec<f32> { integers.iter().map(|&q| q as f32 * scales[0]).collect() };
    // Mean squared error of a row, with a bias that takes the mean of `first` away and is then off.
    let first = product(&problem.layer, &real(&learned.rows.integers), &x[0], &shape);
    let error = |integers: &[i32], o: usize, off: f64| -> f64 {
        let found = product(&problem.layer, &real(integers), &x[0], &shape);
        let wanted = y[0].f32s().unwrap();
        let row = |values: &[f32]| -> Vec<f64> { values.iter().skip(o).step_by(ROWS).map(|&v| f64::from(v)).collect() };
        let (first, found, wanted) = (row(&first), row(&found), row(wanted));
        let n = wanted.len() as f64;
        let bias = wanted.iter().zip(&first).map(|(y, a)| y - a).sum::<f64>() / n + off;
        found.iter().zip(&wanted).map(|(a, y)| (a + bias - y).powi(2)).sum::<f64>() / n
    };
    let before = learned.rows.integers.clone();
    let errors = [vec![0.02], vec![-0.015], vec![0.5, -0.01]];
    assert_eq!(learned.compensate_bias(&problem, &errors), [0, 0, 1]);
    for (o, off) in [(0, 0.02), (1, -0.015), (2, -0.01)] {
        let (old, new) = (error(&before, o, off), error(&learned.rows.integers, o, off));
        assert!(new < 0.3 * old, "row {o}: {old} {new}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// On the layer's own data the output error is never above that of the nearest integers.
    #[test]
    fn learned_rounding_is_never_worse_than_nearest(
        seed in 0u32..10_000, bits in 3u32..8, n_in in 2usize..12, n_out in 1usize..5
    ) {
        let gemm = node("Gemm", &[], &[("transB", 1)]);
        let x: Vec<Value> = (0..4)
            .map(|i| {
                // Inputs that are correlated, as real ones are.
                let common = noise(40, seed + 50 + i);
                let own = noise(40 * n_in, seed + i);
                let values = own.iter().enumerate().map(|(k, v)| 0.3 * v + common[k / n_in]);
                Value::from_f32(&[40, n_in], values.collect()).unwrap()
            })
            .collect();
        let w = noise(n_out * n_in, seed + 7);
        let layer = LayerProduct::of(&gemm, &[n_out, n_in], &x[0]).unwrap();
        let output = |w: &[f32]| -> Vec<Value> {
            x.iter()
                .map(|x| {
                    let y = Value::from_f32(&[40, n_out], vec![0.0; 40 * n_out]).unwrap();
                    Value::from_f32(&[40, n_out], product(&layer, w, x, &y)).unwrap()
                })
                .collect()
        };
        let y = output(&w);
        let bound = (1 << (bits - 1)) - 1;
        let scales: Vec<f32> = w
            .chunks(n_in)
            .map(|row| row.iter().fold(0f32, |m, v| m.max(v.abs())) / bound as f32)
            .collect();
        let bounds = Bounds { low: -bound, high: bound, pairs: None, shifts: &[] };
        let (layer, scale_idx) = (layer.clone(), Vec::new());
        let (weight, steps) = (w.clone(), scales.clone());
        let problem = WeightProblem { layer, w: weight, scales: steps, scale_idx, bounds, shifts: Vec::new(), free: false };
        let rows = rounding::round(&problem, LayerData { inputs: &x, outputs: &y, bias: &[], corrects_bias: false, tokens: &[] }).unwrap().rows;
        let real = |q: &dyn Fn(usize) -> f32| -> Vec<f32> {
            (0..w.len()).map(|i| q(i) * scales[i / n_in]).collect()
        };
        let error = |w: &[f32]| -> f64 {
            let pairs = output(w);
            let pairs = pairs.iter().zip(&y);
            let of = |(a, b): (&Value, &Value)| -> f64 {
                let pairs = a.f32s().unwrap().iter().zip(b.f32s().unwrap());
                pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum()
            };
            pairs.map(of).sum()
        };
        let learned = error(&real(&|i| rows.integers[i] as f32));
        let nearest = error(&real(&|i| {
            (w[i] / scales[i / n_in]).round_ties_even().clamp(-bound as f32, bound as f32)
        }));
        prop_assert!(learned <= nearest * (1.0 + 1e-4) + 1e-9, "{learned} {nearest}");
    }
}

/// Blocks of a row may have zero points of their own: integers stay on the grid of each.
#[test]
fn blocks_with_zero_points_keep_to_their_own_grids() {
    const N: usize = 400;
    let (n_out, n_in, block) = (3usize, 32usize, 16usize);
    let layer = node("Gemm", &[], &[("transB", 1)]);
    // Of one sign, of the other, and of both.
    let zero_points = [0, 15, 6, 9, 3, 0];
    let of = |i: usize| i / block;
    let w: Vec<f32> = noise(n_out * n_in, 11)
        .iter()
        .enumerate()
        .map(|(i, v)| (v + 0.5) * 15.0 - zero_points[of(i)] as f32)
        .map(|v| v * 0.1)
        .collect();
    let x = noise(N * n_in, 12);
    let y: Vec<f32> =
        (0..N * n_out).map(|i| (0..n_in).map(|k| x[i / n_out * n_in + k] * w[i % n_out * n_in + k]).sum()).collect();
    let x = [Value::from_f32(&[N, n_in], x).unwrap()];
    let y = [Value::from_f32(&[N, n_out], y).unwrap()];
    let layer = LayerProduct::of(&layer, &[n_out, n_in], &x[0]).unwrap();
    let problem = WeightProblem {
        layer,
        w: w.clone(),
        scales: vec![0.1; 6],
        scale_idx: (0..n_out * n_in).map(|i| of(i) as u32).collect(),
        bounds: Bounds { low: -zero_points[0], high: 15 - zero_points[0], pairs: None, shifts: &[] },
        shifts: (0..n_out * n_in).map(|i| zero_points[of(i)] - zero_points[0]).collect(),
        free: true,
    };
    let data = LayerData { inputs: &x, outputs: &y, bias: &[], corrects_bias: false, tokens: &[] };
    for rows in [rounding::round(&problem, data).unwrap().rows, scales::search(&problem, data).unwrap()] {
        for (i, (&q, &w)) in rows.integers.iter().zip(&w).enumerate() {
            assert!((0..=15).contains(&(q + zero_points[of(i)])), "{i}: {q}");
            let scale = rows.scales[of(i)];
            assert!((0.05..=0.11).contains(&scale), "scale {scale} of block {}", of(i));
            assert!((q as f32 * scale - w).abs() <= 0.4, "{i}: {q} times {scale} for {w}");
        }
    }
}

//! Range observers on the numbers of other tools, on known properties of their results, and on hostile tensors.

use mqq::observers::{BinCenters, OBSERVERS, Observer, by_spelling, canonical, pot_search};
use mqq::quant::{Codes, Grid, PotRounding, Range, ScaleRule, params_for_range};
use mqq::statistics::{Bin, TensorStatistics};

/// The range by the observer of a spelling.
fn find(spelling: &str, statistics: &TensorStatistics, grid: &Grid) -> Range {
    by_spelling(spelling).unwrap().find(statistics, grid).unwrap()
}

/// The first `n` numbers of the Mersenne Twister MT19937 seeded with 12345, 24 bits each in [0, 1).
fn twister(n: usize) -> Vec<f32> {
    const N: usize = 624;
    let mut state = vec![12345u32];
    for i in 1..N {
        let last = state[i - 1];
        state.push(1_812_433_253u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i as u32));
    }
    let mut values = Vec::new();
    while values.len() < n {
        for i in 0..N {
            let y = (state[i] & 0x8000_0000) | (state[(i + 1) % N] & 0x7fff_ffff);
            let twist = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            state[i] = state[(i + 397) % N] ^ (y >> 1) ^ twist;
        }
        values.extend(state.iter().map(|&word| {
            let mut y = word;
            y ^= y >> 11;
            y ^= (y << 7) & 0x9d2c_5680;
            y ^= (y << 15) & 0xefc6_0000;
            y ^= y >> 18;
            (y & 0xff_ffff) as f32 / 16_777_216.0
        }));
    }
    values.truncate(n);
    values
}

/// NVIDIA's test shape 11x7x3x3 with one value replaced.
fn golden(at_76: f32) -> TensorStatistics {
    let mut values = twister(693);
    assert_eq!(values[0], 0.981_718_2);
    values[76] = at_76;
    statistic(&[&values])
}

fn statistic(samples: &[&[f32]]) -> TensorStatistics {
    let mut statistic = TensorStatistics::default();
    for values in samples {
        statistic.observe(values);
    }
    statistic
}

fn amax(spelling: &str, statistic: &TensorStatistics) -> f64 {
    find(spelling, statistic, &Grid::INT8_SYMMETRIC).max
}

/// Source: ports of pytorch-quantization's and MQBench's calibrators run on the same numbers. The width
/// of their bins is 10/2048, ours at the value is 0.4 %.
#[test]
fn golden_vector_with_one_outlier() {
    let statistic = golden(10.0);
    let cases = [
        ("max", 10.0, 0.0),
        ("entropy", 0.996_093_75, 0.01),
        ("mse", 10.0, 0.0),
        ("percentile:99", 0.976_562_5, 0.01),
        ("percentile:99.9", 9.995_117_187_5, 0.01),
        ("percentile:100", 10.0, 0.0),
    ];
    for (observer, expected, tolerance) in cases {
        let found = amax(observer, &statistic);
        assert!((found - expected).abs() <= tolerance, "{observer}: {found}, expected {expected}");
    }
}

#[test]
fn golden_vector_without_the_outlier() {
    let statistic = golden(0.5);
    for (observer, expected) in [("entropy", 0.997_288_7), ("mse", 0.993_636_5)] {
        let found = amax(observer, &statistic);
        assert!((found - expected).abs() <= 0.01, "{observer}: {found}, expected {expected}");
    }
}

/// Of so many values 99.99 % leaves two out, not three; 99.9 % would leave out all three, 99.999 % none.
#[test]
fn a_percentile_without_a_number_is_99_99() {
    for (n_far, expected) in [(3, 100.0), (1, 1.0)] {
        let mut values = twister(20_000);
        values[..n_far].fill(100.0);
        let found = amax("percentile", &statistic(&[&values]));
        assert!((found - expected).abs() <= 0.01 * expected, "{n_far}: {found}");
    }
}

#[test]
fn a_percentile_of_values_of_both_signs_cuts_half_on_each_side() {
    // One percent lies far out on each side.
    let mut values = twister(9_800);
    values.extend([[-10.0, 20.0]; 100].as_flattened());
    let statistic = statistic(&[&values]);
    let find = |percentile| find(percentile, &statistic, &Grid::UINT8_ASYMMETRIC);
    assert_eq!(find("percentile:98.2"), Range { min: -10.0, max: 20.0 });
    let cut = find("percentile:97.8");
    assert!(cut.min == 0.0 && (cut.max - 1.0).abs() < 0.01, "{cut:?}");
}

/// Counts that change every 8 of 2048 bins: 256 levels hold them exactly over the whole range, 128 over half of it.
#[test]
fn entropy_spends_all_levels_on_values_of_one_sign() {
    let counts = |bin: usize| match (bin < 1024, (bin / 8).is_multiple_of(2)) {
        (true, true) => 16,
        (false, false) => 0,
        _ => 1,
    };
    let of_bin = |bin: usize| vec![(bin as f32 + 0.5) / 2048.0; counts(bin)];
    let mut values: Vec<f32> = (0..2048).flat_map(of_bin).collect();
    values.push(1.0);
    let positive = statistic(&[&values]);
    let find = |statistic, grid| find("entropy", statistic, &grid);
    let whole = Range { min: 0.0, max: 1.0 };
    assert_eq!(find(&positive, Grid::UINT8_ASYMMETRIC), whole);
    assert_eq!(find(&positive, Grid::INT8_SYMMETRIC), Range::symmetric(0.5));
    let seven_bits = Grid { bits: 7, ..Grid::UINT8_ASYMMETRIC };
    assert_eq!(find(&positive, seven_bits), Range { min: 0.0, max: 0.5 });
    let negated: Vec<f32> = values.iter().map(|value| -value).collect();
    let negative = statistic(&[&negated]);
    assert_eq!(find(&negative, Grid::UINT8_ASYMMETRIC), Range { min: -1.0, max: 0.0 });
    values.push(-0.25);
    let both = statistic(&[&values]);
    assert_eq!(find(&both, Grid::UINT8_ASYMMETRIC), Range { min: -0.25, max: 0.5 });
}

/// The threshold with the least KL divergence by its definition, in bins of 1/2048 of the largest value.
fn entropy_by_definition(statistic: &TensorStatistics, amax: f64, n_levels: usize) -> f64 {
    let mut counts = [0.0; 2048];
    for bin in statistic.histogram.bins() {
        let end = |value: f64| (value.abs() / amax * 2048.0).min(2048.0);
        let (from, to) = (end(bin.inner), end(bin.outer));
        if from as usize >= 2047 || from == to {
            counts[(from as usize).min(2047)] += bin.count as f64;
            continue;
        }
        for (i, count) in counts.iter_mut().enumerate() {
            let overlap = to.min(i as f64 + 1.0) - from.max(i as f64);
            *count += bin.count as f64 * overlap.max(0.0) / (to - from);
        }
    }
    counts[0] = counts[1];
    let total: f64 = counts.iter().sum();
    let divergence = |n: usize| {
        let (kept, outliers) = counts.split_at(n);
        let n_kept: f64 = kept.iter().sum();
        let mut p = kept.to_vec();
        p[n - 1] += outliers.iter().sum::<f64>();
        let level = |k: usize| if n <= n_levels { k } else { k * n_levels / n };
        let mut levels = vec![(0.0, 0.0); n_levels];
        for (k, &count) in kept.iter().enumerate().filter(|(_, count)| **count > 0.0) {
            levels[level(k)].0 += count;
            levels[level(k)].1 += 1.0;
        }
        let term = |(k, &p): (usize, &f64)| match (p > 0.0, kept[k] > 0.0) {
            (false, _) => 0.0,
            (true, false) => f64::INFINITY,
            (true, true) => p / total * (p / total / (levels[level(k)].0 / levels[level(k)].1 / n_kept)).ln(),
        };
        p.iter().enumerate().map(term).sum::<f64>()
    };
    let (mut best, mut least) = (2048, f64::INFINITY);
    for n in 128..=2048 {
        let divergence = divergence(n);
        if divergence <= least + 1e-12 {
            (best, least) = (n, divergence.min(least));
        }
    }
    best as f64 / 2048.0 * amax
}

#[test]
fn entropy_is_what_its_definition_says() {
    let uniform = twister(30_000);
    let exponential: Vec<f32> = uniform.iter().map(|u| -(1.0 - u).ln()).collect();
    let cubes: Vec<f32> = uniform.iter().map(|u| (2.0 * u - 1.0).powi(3)).collect();
    // Many values in the last bin that is kept, and few beyond it.
    let mut with_outliers = uniform.clone();
    with_outliers.extend([10.0; 3]);
    let mut cuts = 0;
    for (values, sign) in [(&exponential, -1.0), (&cubes, 1.0), (&uniform, 1.0), (&with_outliers, 1.0)] {
        let values: Vec<f32> = values.iter().map(|value| sign * value).collect();
        let statistic = statistic(&[&values]);
        for bits in [4, 8] {
            let grid = Grid { bits, ..Grid::INT8_SYMMETRIC };
            let whole = find("max", &statistic, &grid).max;
            let found = find("entropy", &statistic, &grid).max;
            let expected = entropy_by_definition(&statistic, whole, 1 << (bits - 1));
            assert_eq!(found, expected, "{bits} bits, of {whole}");
            cuts += usize::from(found < whole);
        }
    }
    assert!(cuts > 2, "{cuts}");
}

/// Two values are held as well by a grid that ends at the first, with the other as an outlier there.
#[test]
fn entropy_takes_the_wider_of_equal_ranges() {
    assert_eq!(amax("entropy", &statistic(&[&[0.1, 0.1, 1.0]])), 1.0);
}

#[test]
fn the_zeros_of_a_relu_do_not_move_entropy() {
    let mut values: Vec<f32> = twister(20_000).iter().map(|u| -(1.0 - u).ln()).collect();
    let find = |values: &[f32]| find("entropy", &statistic(&[values]), &Grid::UINT8_ASYMMETRIC).max;
    let without = find(&values);
    values.resize(40_000, 0.0);
    assert_eq!(find(&values), without);
}

/// pytorch-quantization's own test: samples [0, 255 x5], then [0, 255 x4, 256].
#[test]
fn a_range_that_grows_is_followed() {
    let first = [0.0, 255.0, 255.0, 255.0, 255.0, 255.0];
    let second = [0.0, 255.0, 255.0, 255.0, 255.0, 256.0];
    let mut statistic = TensorStatistics::default();
    statistic.observe_in(0, &first);
    statistic.observe_in(1, &second);
    assert!((amax("mse", &statistic) - 255.0).abs() <= 2.6);
    assert_eq!(amax("max", &statistic), 256.0);
    assert!((amax("ema", &statistic) - 255.1).abs() < 1e-9);
}

#[test]
fn every_observer_takes_every_tensor() {
    let one_huge: Vec<f32> = (0..1000).map(|i| if i == 7 { 1e30 } else { 0.001 * i as f32 }).collect();
    let relu: Vec<f32> = (0..1000).map(|i| (i as f32 - 900.0).max(0.0)).collect();
    let tensors: [&[f32]; 7] = [
        &[0.0; 8],
        &[3.0; 8],
        &[-3.0; 8],
        &[f32::NAN, f32::INFINITY, 1.0, -2.0],
        &[f32::MAX, f32::MIN, 0.0],
        &one_huge,
        &relu,
    ];
    for observer in OBSERVERS {
        for (bits, grid) in [8, 4]
            .into_iter()
            .flat_map(|bits| [Grid::INT8_SYMMETRIC, Grid::UINT8_ASYMMETRIC].map(|grid| (bits, Grid { bits, ..grid })))
        {
            for values in tensors {
                let statistic = statistic(&[values]);
                let range = observer.find(&statistic, &grid).unwrap();
                let whole = find("max", &statistic, &grid);
                assert!(
                    whole.min <= range.min && range.min <= 0.0 && 0.0 <= range.max && range.max <= whole.max,
                    "{observer:?} with {bits} bits: {range:?} outside {whole:?}"
                );
                assert!(!grid.is_centred() || range.min == -range.max);
            }
            assert!(observer.find(&statistic(&[&[f32::NAN]]), &grid).is_err());
        }
    }
}

fn squared_error(statistic: &TensorStatistics, range: Range, grid: &Grid) -> f64 {
    BinCenters::of(&statistic.histogram).squared_error(&params_for_range(range, grid).unwrap(), f64::INFINITY)
}

#[test]
fn mse_is_never_worse_than_max_and_helps_on_a_long_tail() {
    let tail: Vec<f32> = twister(5000).iter().map(|u| -(1.0 - u).ln()).collect();
    let statistic = statistic(&[&tail]);
    for grid in [Grid::INT8_SYMMETRIC, Grid::UINT8_ASYMMETRIC, Grid { bits: 4, ..Grid::UINT8_ASYMMETRIC }] {
        let error = |spelling| squared_error(&statistic, find(spelling, &statistic, &grid), &grid);
        assert!(error("mse") <= error("max"), "{grid:?}");
        assert!(grid.bits > 4 || error("mse") < 0.9 * error("max"), "{grid:?}");
    }
}

/// Against every pair of shares of the observed ends, where values lie far out on one side or on both.
#[test]
fn mse_shrinks_both_ends_of_an_asymmetric_grid() {
    for (far, bits) in [([-8.0, 0.0], 4), ([0.0, 8.0], 4), ([-8.0, 6.0], 4), ([-8.0, 1.5], 4)] {
        let grid = Grid { bits, ..Grid::UINT8_ASYMMETRIC };
        let mut values: Vec<f32> = twister(10_000).iter().map(|u| 2.0 * u - 1.0).collect();
        values.extend(far);
        let statistic = statistic(&[&values]);
        let error = |range| squared_error(&statistic, range, &grid);
        let whole = find("max", &statistic, &grid);
        let shares = || (1..=100).map(|percent| f64::from(percent) / 100.0);
        let best = shares().flat_map(|low| shares().map(move |high| (low, high)));
        let best = best.map(|(low, high)| error(Range { min: whole.min * low, max: whole.max * high }));
        let best = best.fold(f64::INFINITY, f64::min);
        let found = find("mse", &statistic, &grid);
        assert!(error(found) <= 1.02 * best, "{far:?}: {found:?}, {} {best}", error(found));
        assert!(error(whole) > 1.5 * best, "{far:?}: nothing to gain");
        // Neither end alone leads to less.
        for share in shares() {
            assert!(error(Range { max: whole.max * share, ..found }) >= error(found), "{far:?}: {found:?}, {share}");
            assert!(error(Range { min: whole.min * share, ..found }) >= error(found), "{far:?}: {found:?}, {share}");
        }
    }
}

/// The search of `mse` with the error of each bin by itself.
fn mse_bin_by_bin(statistic: &TensorStatistics, grid: &Grid) -> Range {
    let bins: Vec<Bin> = statistic.histogram.bins().collect();
    let error = |range: Range| -> f64 {
        let quantized = params_for_range(range, grid).unwrap().fake_quantizer_f64();
        bins.iter().map(|bin| bin.count as f64 * (quantized(bin.center()) - bin.center()).powi(2)).sum()
    };
    let whole = find("max", statistic, grid);
    let share = |step: u32| f64::from(step) / 100.0;
    let (mut best, mut least) = (whole, error(whole));
    let mut attempt = |range: Range, best: &mut Range| {
        let error = error(range);
        if error < least {
            (least, *best) = (error, range);
        }
    };
    if grid.is_centred() {
        (1..100).rev().for_each(|step| attempt(Range::symmetric(whole.max * share(step)), &mut best));
        return best;
    }
    for _ in 0..3 {
        for step in (1..100).rev() {
            attempt(Range { max: whole.max * share(step), ..best }, &mut best);
        }
        for step in (1..100).rev().filter(|_| whole.min < 0.0) {
            attempt(Range { min: whole.min * share(step), ..best }, &mut best);
        }
    }
    best
}

/// Also with values far out, of one sign, of many magnitudes, and of few values, for which no sums are needed.
#[test]
fn mse_by_sums_finds_what_it_finds_bin_by_bin() {
    let uniform = twister(24_000);
    let pairs = || uniform.chunks_exact(2).map(|pair| (f64::from(pair[0]) + 1e-8, f64::from(pair[1])));
    let normal = || pairs().map(|(a, b)| (-2.0 * a.ln()).sqrt() * (b * std::f64::consts::TAU).cos());
    let f32s = |values: &mut dyn Iterator<Item = f64>| -> Vec<f32> { values.map(|x| x as f32).collect() };
    let with = |mut values: Vec<f32>, more: &[f32]| {
        values.extend(more);
        values
    };
    let tensors = [
        f32s(&mut normal()),
        f32s(&mut normal().map(|x| x.max(0.0))),
        f32s(&mut normal().map(|x| x - 1.5)),
        f32s(&mut normal().map(|x| x / (1.0 + (-x).exp()))),
        f32s(&mut pairs().map(|(a, _)| a.ln())),
        f32s(&mut pairs().map(|(a, b)| (b - 0.3).signum() * (30.0 * a).exp2())),
        f32s(&mut pairs().map(|(a, b)| (b - 0.5).signum() * (250.0 * a - 125.0).exp2())),
        with(f32s(&mut normal()), &[40.0, -9.0]),
        with(f32s(&mut normal()), &[3e7, -2e3, 1e-40]),
        with(f32s(&mut normal()), &[f32::MAX, f32::INFINITY, f32::NAN]),
        with(f32s(&mut normal().map(f64::abs)), &[1e30; 5]),
        f32s(&mut pairs().map(|(a, _)| (a * 255.0).round() / 255.0)),
    ];
    let plain = [Grid::INT8_SYMMETRIC, Grid { narrow_range: false, ..Grid::INT8_SYMMETRIC }, Grid::UINT8_ASYMMETRIC];
    for bits in [4, 8] {
        for grid in plain.into_iter().chain([power_of_two(plain[0]), power_of_two(plain[2])]) {
            let grid = Grid { bits, ..grid };
            for (i, values) in tensors.iter().enumerate() {
                let statistic = statistic(&[values]);
                let expected = mse_bin_by_bin(&statistic, &grid);
                assert_eq!(find("mse", &statistic, &grid), expected, "tensor {i}, {grid:?}");
            }
        }
    }
}

/// A grid whose scales are powers of two, rounded up.
fn power_of_two(grid: Grid) -> Grid {
    let power_of_two = Some(PotRounding::Ceil);
    Grid { scale_rule: ScaleRule { power_of_two, ..ScaleRule::PLAIN }, ..grid }
}

#[test]
fn mse_finds_the_best_power_of_two() {
    let tail: Vec<f32> = twister(5000).iter().map(|u| -(1.0 - u).ln()).collect();
    let statistic = statistic(&[&tail]);
    for bits in [3, 4, 8] {
        let grid = power_of_two(Grid { bits, ..Grid::UINT8_ASYMMETRIC });
        let found = find("mse", &statistic, &grid);
        let error = squared_error(&statistic, found, &grid);
        let best = (-10..2).map(|exponent| {
            let max = f64::from(grid.q_max()) * 2f64.powi(exponent);
            squared_error(&statistic, Range { min: 0.0, max }, &grid)
        });
        let best = best.fold(f64::INFINITY, f64::min);
        assert!(error <= best * 1.000_001, "{bits} bits: {error}, the best is {best}");
        // Of the ranges with this scale it is the widest, in steps of 1 %.
        let scale = |max: f64| params_for_range(Range { min: 0.0, max }, &grid).unwrap().scale;
        let whole = find("max", &statistic, &grid).max;
        assert!(scale((found.max + 0.01 * whole).min(whole)) > scale(found.max) || found.max == whole);
    }
}

#[test]
fn halves_of_a_power_of_two_are_tried() {
    // 8 / 127 becomes 1/8. Over 10000 values in [-1, 1] the noise of 1/8, 1/16 and 1/32 is about 13, 3.3
    // and 0.8, but 1/32 cuts the outlier to 4, which costs 16.
    let mut values: Vec<f32> = twister(10_000).iter().map(|u| 2.0 * u - 1.0).collect();
    values.push(8.0);
    let statistic = statistic(&[&values]);
    let grid = power_of_two(Grid::INT8_SYMMETRIC);
    let first = params_for_range(find("max", &statistic, &grid), &grid).unwrap();
    assert_eq!(first.scale, 0.125);
    for (n_halvings, scale) in [(0, 0.125), (1, 0.0625), (4, 0.0625)] {
        assert_eq!(pot_search(&statistic, first, n_halvings).scale, scale, "{n_halvings}");
    }
}

#[test]
fn the_squared_error_is_that_of_what_quantizing_makes_of_the_bins() {
    let values: Vec<f32> = twister(3000).iter().map(|u| 3.0 * u - 1.0).collect();
    let statistic = statistic(&[&values]);
    let bins: Vec<Bin> = statistic.histogram.bins().collect();
    let nnie = Grid { codes: Codes::Nnie, ..Grid::INT8_SYMMETRIC };
    // Values lie beyond both ends.
    for (grid, range) in [
        (Grid::UINT8_ASYMMETRIC, Range { min: -0.3, max: 1.1 }),
        (Grid::INT8_SYMMETRIC, Range::symmetric(0.8)),
        (nnie, Range::symmetric(0.8)),
    ] {
        let params = params_for_range(range, &grid).unwrap();
        let error = |bin: &Bin| f64::from(params.fake_quantize(bin.center() as f32)) - bin.center();
        let expected: f64 = bins.iter().map(|bin| bin.count as f64 * error(bin).powi(2)).sum();
        let found = squared_error(&statistic, range, &grid);
        assert!((found - expected).abs() <= 1e-4 * expected, "{grid:?}: {found}, expected {expected}");
        // Above a limit the sum may end early.
        let centers = BinCenters::of(&statistic.histogram);
        assert_eq!(centers.squared_error(&params, 1.01 * found), found, "{grid:?}");
        let ended = centers.squared_error(&params, 0.01 * found);
        assert!(ended >= 0.01 * found && ended < found, "{grid:?}: {ended}");
    }
}

#[test]
fn a_halved_scale_that_is_no_better_is_not_taken() {
    let params = params_for_range(Range::symmetric(1.0), &Grid::INT8_SYMMETRIC).unwrap();
    assert_eq!(pot_search(&statistic(&[&[0.0; 8]]), params, 4), params);
}

/// One of a hundred values is one percent of them.
#[test]
fn as_many_values_are_cut_as_the_share_says() {
    let mut values = vec![1.0; 99];
    values.push(5.0);
    let found = find("shrink:1", &statistic(&[&values]), &Grid::UINT8_ASYMMETRIC).max;
    assert!((found - 1.0).abs() < 0.01, "{found}");
}

#[test]
fn observers_have_their_options_and_say_what_they_read() {
    let read = |spelling| {
        let Observer { name, option, reads_histogram, .. } = by_spelling(spelling).unwrap();
        (name, option, reads_histogram)
    };
    let expected = [
        ("max", 0.0, false),
        ("ema", 0.9, false),
        ("percentile", 99.99, true),
        ("shrink", 0.01, true),
        ("entropy", 0.0, true),
        ("mse", 0.0, true),
        ("auto", 0.0, true),
    ];
    assert_eq!(expected.map(|(name, ..)| read(name)), expected);
    assert_eq!(read("ema:0.5:7"), ("ema", 0.5, false));
    let choices: Vec<_> = by_spelling("auto").unwrap().choices.iter().map(|one| (one.name, one.option)).collect();
    let expected = [("mse", 0.0), ("max", 0.0), ("percentile", 99.99), ("percentile", 99.9), ("entropy", 0.0)];
    assert_eq!(choices, expected);
}

#[test]
fn shrinking_cuts_each_side_of_the_values() {
    // One percent lies far below 0, the rest evenly in [0, 1).
    let mut values = twister(9_900);
    values.extend([-10.0; 100]);
    let statistic = statistic(&[&values]);
    let find = |percent: &str, grid: &Grid| find(&format!("shrink:{percent}"), &statistic, grid);
    let whole = find("0.0", &Grid::UINT8_ASYMMETRIC);
    assert_eq!(whole, self::find("max", &statistic, &Grid::UINT8_ASYMMETRIC));
    assert!(find("0.9", &Grid::UINT8_ASYMMETRIC).min < -9.9);
    let cut = find("1.1", &Grid::UINT8_ASYMMETRIC);
    assert!(cut.min == 0.0 && (cut.max - 0.989).abs() < 0.01, "{cut:?}");
    // Of the absolute values, 1 % are far out: percentile cuts them at 1 % in all, shrink at 1 % a side.
    assert!(find("0.9", &Grid::INT8_SYMMETRIC).max > 9.9);
    assert!(find("1.1", &Grid::INT8_SYMMETRIC).max < 1.0);
}

#[test]
fn a_moving_average_is_of_batches() {
    let mut statistic = TensorStatistics::default();
    for (batch, values) in [(2, [0.0, 16.0]), (0, [-1.0, 4.0]), (2, [-8.0, 0.0]), (0, [0.0, 8.0])] {
        statistic.observe_in(batch, &values);
    }
    // Two batches: [-1, 8] and [-8, 16]; no sample is of batch 1.

    for (spelling, expected) in [("ema", (-1.7, 8.8)), ("ema:0.5", (-4.5, 12.0))] {
        let Range { min, max } = find(spelling, &statistic, &Grid::UINT8_ASYMMETRIC);
        let (expected_min, expected_max) = expected;
        assert!((min - expected_min).abs() < 1e-9 && (max - expected_max).abs() < 1e-9);
    }
    // Values outside of batches count as one batch.
    let mut at_once = TensorStatistics::default();
    at_once.observe(&[-3.0, 5.0]);
    let range = find("ema", &at_once, &Grid::UINT8_ASYMMETRIC);
    assert_eq!(range, Range { min: -3.0, max: 5.0 });
    let sizes = ["ema", "ema:0.5", "ema:0.5:7"].map(|ema| by_spelling(ema).unwrap().batch_size);
    assert_eq!(sizes, [Some(32), Some(32), Some(7)]);
    for (spelling, expected) in [
        ("ema:0.9:0", "observer `ema:0.9:0`: batches of `0` samples, expected 1 or more"),
        ("ema:0.9:many", "observer `ema:0.9:many`: batches of `many` samples"),
        ("ema:32", "observer `ema:32`: 32, expected at least 0 and below 1"),
        ("percentile:99:9", "observer `percentile:99:9`: `99:9` is not a number"),
    ] {
        let error = by_spelling(spelling).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn an_observer_has_one_spelling() {
    let cases = [
        ("mse", "mse"),
        ("minmax", "max"),
        ("percentile=99.9", "percentile:99.9"),
        ("percentile:99.9", "percentile:99.9"),
        ("ema=0.95:64", "ema:0.95:64"),
    ];
    for (spelling, expected) in cases {
        assert_eq!(canonical(spelling), expected);
        assert!(by_spelling(spelling).is_ok(), "{spelling}");
    }
}

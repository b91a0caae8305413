//! Cost of watching a tensor, per value: the histogram, the extremes, and a plain linear histogram to compare with.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mqq::statistics::{Histogram, TensorStatistics};
use std::hint::black_box;

/// Values as a convolution makes them (bell-shaped), and as a ReLU leaves them (half zeros).
fn activations(relu: bool) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let mut value = || (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
    (0..1 << 20).map(|_| if relu { value().max(0.0) } else { value() }).collect()
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("statistics");
    group.throughput(Throughput::Elements(1 << 20)).sample_size(20);
    for (name, relu) in [("bell", false), ("relu", true)] {
        let values = activations(relu);
        group.bench_function(format!("float-prefix histogram, {name}"), |bencher| {
            let mut histogram = Histogram::default();
            bencher.iter(|| histogram.observe(black_box(&values)));
        });
        group.bench_function(format!("extremes, {name}"), |bencher| {
            let mut statistic = TensorStatistics::default();
            bencher.iter(|| statistic.observe_extremes(black_box(&values)));
        });
        group.bench_function(format!("linear histogram of 2048 bins, {name}"), |bencher| {
            let mut counts = vec![0u64; 2048];
            bencher.iter(|| {
                for value in black_box(&values) {
                    let bin = (value + 6.0) * (2047.0 / 12.0);
                    counts[(bin as usize).min(2047)] += 1;
                }
            });
        });
    }
    group.finish();
}

criterion_group!(statistics, benches);
criterion_main!(statistics);

//! Corrections of the means of output channels.

use crate::support::noise;
use mqq::engine::Value;
use mqq::simulate::{ActivationBounds, ChannelSum, OutChannels, correction};

fn correction_of(channels: &OutChannels, float: &[Value], quantized: &[Value], bounds: ActivationBounds) -> Vec<f64> {
    let sums = |values: &[Value]| -> Vec<Vec<ChannelSum>> {
        values.iter().map(|value| channels.sums(value, bounds)).collect()
    };
    correction(&sums(float), &sums(quantized))
}

#[test]
fn corrected_means_are_those_of_the_float_outputs() {
    let channels = OutChannels { n_out: 3, planes: true };
    let value = |seed: u32, add: f32| {
        let values = noise(2 * 3 * 16, seed);
        let shifted = values.iter().enumerate().map(|(i, v)| v + add * (i / 16 % 3) as f32);
        Value::from_f32(&[2, 3, 4, 4], shifted.collect()).unwrap()
    };
    let float: Vec<Value> = (0..6).map(|i| value(i, 0.0)).collect();
    let mut quantized: Vec<Value> = (0..6).map(|i| value(i, 0.25)).collect();
    let by = correction_of(&channels, &float, &quantized, ActivationBounds::ALL);
    for (o, by) in by.iter().enumerate() {
        assert!((by + 0.25 * o as f64).abs() < 1e-6, "{o}: {by}");
    }
    let by: Vec<f32> = by.iter().map(|&v| v as f32).collect();
    let before = quantized.clone();
    quantized.iter_mut().for_each(|value| channels.shift(value, &by).unwrap());
    assert_ne!(before[0].f32s(), quantized[0].f32s(), "a clone was changed as well");
    let left = correction_of(&channels, &float, &quantized, ActivationBounds::ALL);
    assert!(left.iter().all(|left| left.abs() < 1e-6), "{left:?}");
}

#[test]
fn an_error_that_a_relu_swallows_moves_no_bias() {
    let channels = OutChannels { n_out: 1, planes: false };
    let values = |negative: f32, positive: f32| -> Vec<Value> {
        (0..4).map(|_| Value::from_f32(&[2, 1], vec![negative, positive]).unwrap()).collect()
    };
    let (float, quantized) = (values(-5.0, 1.0), values(-1.0, 1.5));
    let relu = ActivationBounds { low: 0.0, high: f32::INFINITY };
    assert_eq!(correction_of(&channels, &float, &quantized, relu), [-0.5]);
    assert_eq!(correction_of(&channels, &float, &quantized, ActivationBounds::ALL), [-2.25]);
}

#[test]
fn a_mean_that_the_samples_disagree_about_is_not_corrected() {
    let channels = OutChannels { n_out: 1, planes: false };
    let float: Vec<Value> = (0..8).map(|_| Value::from_f32(&[1, 1], vec![0.0]).unwrap()).collect();
    let errors = [1.0f32, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -0.9];
    let quantized: Vec<Value> = errors.iter().map(|&e| Value::from_f32(&[1, 1], vec![e]).unwrap()).collect();
    assert_eq!(correction_of(&channels, &float, &quantized, ActivationBounds::ALL), [0.0]);
}

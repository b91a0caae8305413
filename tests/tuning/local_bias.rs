//! Biases corrected for each layer's own error.

use crate::support::{GraphBuilder, noise, silent, value_info};
use mqq::backends;
use mqq::engine::Value;
use mqq::observers::by_spelling;
use mqq::onnx::edit::ModelEdit;
use mqq::onnx::tensor;
use mqq::place::{Selection, place};
use mqq::plan::{Observers, decide};
use mqq::simulate::{OutputOptions, PreparedNodes, Samples};
use mqq::statistics::TensorStatistics;
use mqq::tune::{PlannedModel, Tuning, WeightScheme, methods, tune};

const WIDTH: usize = 32;
const OUT: usize = 32;
const TOKENS: usize = 12;
/// Tokens that are no padding.
const KEPT: usize = 5;
const SAMPLES: u32 = 12;
const TUNE: u32 = 8;

/// The tokens of a sample: near one point, and padding by `seed` behind them.
fn tokens(sample: u32, seed: u32) -> Vec<f32> {
    let (point, near) = (noise(WIDTH, 99), noise(KEPT * WIDTH, sample));
    let kept = near.iter().enumerate().map(|(i, x)| point[i % WIDTH] + 0.05 * x);
    kept.chain(noise((TOKENS - KEPT) * WIDTH, 1000 * seed + sample)).collect()
}

/// The bias that `local-bias` gives a linear layer, and the one that it should; the second input is called `mask`.
fn corrected(mask: &str, seed: u32) -> [Vec<f32>; 2] {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, TOKENS as i64, WIDTH as i64]);
    g.input(mask, &[1, TOKENS as i64]);
    let (weight, bias) = (g.weight("w", &[WIDTH, OUT]), g.weight("b", &[OUT]));
    g.ops(&format!("product = MatMul x {weight}; z = Add product {bias}"));
    g.tensor(tensor::from_i64("last", &[1], &[2]).unwrap());
    g.ops(&format!("column = Unsqueeze {mask} last; y = Mul z column"));
    let model = g.output("y").build();
    let scheme = backends::resolve("tensorrt").unwrap();
    let info = value_info(&model);
    let graph = model.graph.as_ref().unwrap();
    let placement = place(graph, &info, &scheme, &Selection::default());
    let mut statistics = TensorStatistics::default();
    statistics.observe(&[-2.0, 2.0]);
    let observer = by_spelling("max").unwrap();
    let observers = Observers { activation: &observer, weight: &observer };
    let statistics = vec![statistics; placement.activations.len()];
    let (plan, _) = decide(graph, &placement, &statistics, None, &scheme, observers).unwrap();

    let params = plan.activations.iter().find(|planned| planned.quantizer.tensor == "x").unwrap().params;
    let (float, quantized) = (tensor::f32_values(&graph.initializer[0]).unwrap(), plan.weights[0].dequantized());
    let mut expected: Vec<f64> =
        tensor::f32_values(&graph.initializer[1]).unwrap().into_iter().map(f64::from).collect();
    for sample in 0..TUNE {
        for (i, x) in tokens(sample, seed)[..KEPT * WIDTH].iter().enumerate() {
            let at = |o: usize| i % WIDTH * OUT + o;
            for (o, b) in expected.iter_mut().enumerate() {
                let error = x * float[at(o)] - params.fake_quantize(*x) * quantized[at(o)];
                *b += f64::from(error) / (KEPT as u32 * TUNE) as f64;
            }
        }
    }

    let kept = |token: usize| if token < KEPT { 1.0 } else { 0.0 };
    let mask_values: Vec<f32> = (0..TOKENS).map(kept).collect();
    let values = |sample: u32| {
        let x = Value::from_f32(&[1, TOKENS, WIDTH], tokens(sample, seed)).unwrap();
        vec![x, Value::from_f32(&[1, TOKENS], mask_values.clone()).unwrap()]
    };
    let (names, values) = (["x".to_string(), mask.to_string()], (0..SAMPLES).map(values).collect::<Vec<_>>());
    let tuning = Tuning {
        table: WeightScheme { scheme: &scheme, observer: &observer },
        samples: Samples { names: &names, values: &values },
        n_tune: TUNE as usize,
        methods: &methods::named(&["local-bias"]),
        known: None,
        outputs: OutputOptions::default(),
        prepared: &PreparedNodes::default(),
        progress: &silent,
    };
    let mut planned = PlannedModel::new(model, placement, plan);
    let tuned = tune(&mut planned, tuning).unwrap().unwrap();
    assert!(tuned.methods[0].accepted, "{:?}", tuned.methods);
    let [ModelEdit::ReplaceBias(bias)] = &planned.edits[..] else { panic!("{:?}", planned.edits) };
    [bias.values.clone(), expected.into_iter().map(|b| b as f32).collect()]
}

#[test]
fn a_bias_takes_up_the_error_of_its_layer_on_tokens_that_are_no_padding() {
    let [found, expected] = corrected("attention_mask", 1);
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
    assert_eq!(corrected("attention_mask", 2)[0], found);
    // By another name it is no mask.
    assert_ne!(corrected("scale", 2)[0], corrected("scale", 1)[0]);
}

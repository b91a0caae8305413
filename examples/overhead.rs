//! What watching costs: `overhead MODEL.onnx IMAGES PRESET [BACKEND]` runs the same images through the
//! engine, bare and with the statistics of every tensor that the backend quantizes, in turns, on one
//! thread, and prints the median ratio.

use anyhow::{Context, Result, bail};
use mqq::backends;
use mqq::data::{Dataset, Preprocessing, Sample};
use mqq::engine::Engine;
use mqq::onnx::inputs::Shapes;
use mqq::place::{Selection, place};
use mqq::prepare::prepare_file;
use mqq::statistics::TensorStatistics;
use std::path::Path;
use std::time::Instant;

const N_IMAGES: usize = 30;
const N_ROUNDS: usize = 7;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, images, preset, backend) = match arguments.as_slice() {
        [model, images, preset] => (model, images, preset, "tensorrt"),
        [model, images, preset, backend] => (model, images, preset, backend.as_str()),
        _ => bail!("expected MODEL.onnx IMAGES PRESET [BACKEND]"),
    };
    let scheme = backends::resolve(backend)?;
    let engine = |watch: bool| -> Result<(Engine, usize)> {
        let prepared = prepare_file(Path::new(model), &scheme, &[], &Shapes::new())?;
        let graph = prepared.model.graph.as_ref().context("model has no graph")?;
        let placement = place(graph, &prepared.value_info, &scheme, &Selection::default());
        let names = placement.activations.into_iter().map(|quantizer| quantizer.tensor);
        let watched: Vec<String> = names.filter(|_| watch).collect();
        Ok((prepared.parsed?.build(&watched)?, watched.len()))
    };
    let (bare, _) = engine(false)?;
    let (watching, n_watched) = engine(true)?;
    let preprocessing = Preprocessing::named(preset)?;
    let dataset = Dataset::open(std::slice::from_ref(images), bare.inputs(), &preprocessing, Some(N_IMAGES))?;
    let start = Instant::now();
    let samples: Vec<Sample> = (0..dataset.len()).map(|i| dataset.load(i)).collect::<Result<_>>()?;
    let decoding = start.elapsed().as_secs_f64() / samples.len() as f64;

    let pass = |engine: &Engine, statistics: &mut [TensorStatistics]| -> Result<f64> {
        let mut session = engine.session()?;
        let start = Instant::now();
        for sample in &samples {
            session.run(sample, &mut |watched, _, values| {
                statistics[watched].observe(values);
                Ok(())
            })?;
        }
        Ok(start.elapsed().as_secs_f64() / samples.len() as f64)
    };
    let mut statistics = vec![TensorStatistics::default(); n_watched];
    pass(&bare, &mut [])?;
    pass(&watching, &mut statistics)?;
    let mut rounds = Vec::with_capacity(N_ROUNDS);
    for _ in 0..N_ROUNDS {
        rounds.push((pass(&bare, &mut [])?, pass(&watching, &mut statistics)?));
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let bare_ms = 1e3 * median(rounds.iter().map(|round| round.0).collect());
    let watching_ms = 1e3 * median(rounds.iter().map(|round| round.1).collect());
    let ratio = median(rounds.iter().map(|round| round.1 / round.0).collect());
    println!(
        "{model}: bare {bare_ms:.2} ms per image, watching {n_watched} tensors {watching_ms:.2} ms, ratio {ratio:.3}; decoding and preprocessing {:.2} ms",
        1e3 * decoding
    );
    Ok(())
}

//! What mqq's kernels save: `inference MODEL.onnx SAMPLE.npz SECONDS [INPUT=1x3x8x8 ...]` runs one sample through the engine
//! with them and without, in turns, on one thread. Prints the shortest run of both in milliseconds.

use anyhow::{Context, Result, ensure};
use mqq::backends;
use mqq::data::{Dataset, Preprocessing};
use mqq::engine::Session;
use mqq::engine::kernels::{KERNELS, OpKernel};
use mqq::onnx::inputs::Shapes;
use mqq::prepare::prepare_file;
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs of a turn.
const N_RUNS: usize = 3;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    ensure!(arguments.len() >= 3, "expected MODEL.onnx SAMPLE.npz SECONDS [INPUT=1x3x8x8 ...]");
    let mut shapes = Shapes::new();
    for shape in &arguments[3..] {
        let (name, dims) = shape.split_once('=').context("a shape is INPUT=1x3x8x8")?;
        shapes.insert(name.to_string(), dims.split('x').map(str::parse).collect::<Result<_, _>>()?);
    }
    let scheme = backends::resolve("onnxruntime")?;
    let engine = |kernels: &'static [OpKernel]| {
        prepare_file(Path::new(&arguments[0]), &scheme, &[], &shapes)?.parsed?.with_kernels(kernels).build(&[])
    };
    let (with, without) = (engine(KERNELS)?, engine(&[])?);
    let dataset = Dataset::open(&arguments[1..2], with.inputs(), &Preprocessing::default(), Some(1))?;
    let sample = dataset.load(0)?;
    let mut sessions = [with.session()?, without.session()?];
    let mut shortest = [Duration::MAX; 2];
    let run = |session: &mut Session| -> Result<Duration> {
        let start = Instant::now();
        session.run(&sample, &mut |_, _, _| Ok(()))?;
        Ok(start.elapsed())
    };
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < arguments[2].parse()? {
        for (session, shortest) in sessions.iter_mut().zip(&mut shortest) {
            for _ in 0..N_RUNS {
                *shortest = run(session)?.min(*shortest);
            }
        }
    }
    let [with, without] = shortest.map(|time| 1e3 * time.as_secs_f64());
    println!("{with:.4} {without:.4}");
    Ok(())
}

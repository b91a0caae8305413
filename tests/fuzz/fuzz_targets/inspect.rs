//! A model's file through preparation and placement with the engine, as in `mqq inspect --backend`.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use mqq::onnx::inputs::Shapes;
use mqq::place::{Selection, place};
use mqq::prepare::prepare_file;
use mqq::report;
use mqq_fuzz::{holds, mutate, number_of, table, with_file};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| { mutate::model(data, size, max_size, seed) });

fuzz_target!(|data: &[u8]| holds(|| with_file("model.onnx", data, |path| {
    let scheme = table(number_of(data));
    let prepared = prepare_file(path, scheme, &[], &Shapes::new())?;
    let graph = prepared.model.graph()?;
    let placement = place(graph, &prepared.value_info, scheme, &Selection::default());
    drop(report::placement(graph, &placement, |_| false).lines(true));
    prepared.parsed.map(drop)
})));

//! A user's head, on outputs of several shapes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::heads::{HeadRequest, OutputView, TaskHead, resolve};
use mqq_fuzz::{holds, with_file};

/// Shapes of the outputs of a network.
const OUTPUTS: &[&[&[usize]]] = &[
    &[&[1, 10]],
    &[&[1, 6, 9], &[1, 6, 4]],
    &[&[1, 84, 6]],
    &[&[1, 4, 6, 6]],
    &[&[1, 12, 2, 2], &[1, 12, 4, 4], &[1, 12, 8, 8]],
    &[&[1, 5, 4], &[1, 5], &[1, 5], &[1]],
    &[&[6], &[]],
    &[&[1, 0, 6]],
];

fuzz_target!(|data: &[u8]| holds(|| with_file("head.yaml", data, |path| {
    let head = resolve(&path.display().to_string())?;
    let values: Vec<f32> = (0..1024u16).map(|i| (f32::from(i) * 0.37).sin() * f32::from(i % 9)).collect();
    for shapes in OUTPUTS {
        let n = |shape: &[usize]| shape.iter().product::<usize>();
        let view = |(i, shape): (usize, &&'static [usize])| {
            OutputView::of_image(["a", "b", "c", "d"][i], shape, &values[..n(shape)], (1, 0))
        };
        let views: Vec<OutputView> = shapes.iter().enumerate().map(view).collect();
        for input in [None, Some([64, 64])] {
            _ = TaskHead { head: head.clone(), input, reason: None }.check_fit(&views);
            let request = HeadRequest { task: Some(head.task()), head: Some(head.clone()) };
            _ = request.resolve(&[views.clone(), views.clone()], input);
        }
    }
    Ok(())
})));

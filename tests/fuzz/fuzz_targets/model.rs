//! A model's file through reading, writing, the rules of ONNX, preparation and placement, without the engine.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use mqq::onnx::value_info::ValueInfos;
use mqq::place::{Selection, place};
use mqq::prepare::{check_float, default_opset, multiply_and_add, prepare};
use mqq::{check, difference, onnx, report};
use mqq_fuzz::{holds, mutate, number_of, table, with_file};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| { mutate::model(data, size, max_size, seed) });

fuzz_target!(|data: &[u8]| holds(|| with_file("model.onnx", data, |path| {
    let scheme = table(number_of(data));
    let mut model = onnx::load_whole(path)?.model;
    let bytes = onnx::encode_any(&model);
    with_file("again.onnx", &bytes, |again| {
        assert_eq!(onnx::model_sha256(&model), onnx::sha256(again)?, "written in pieces");
        let read = onnx::load(again)?;
        assert!(bytes == onnx::encode_any(&read), "read and written again");
        Ok(())
    })?;
    drop(report::findings(&check::findings(&model, scheme), report::Verbosity::Verbose));
    drop(difference::of_model(model.clone()));
    check_float(&model)?;
    let opset = default_opset(&model)?;
    onnx::check_valid(&model)?;
    let is_sound = onnx::check_topology(&model);
    prepare(&mut model, scheme.min_opset)?;
    if scheme.multiply_and_add {
        multiply_and_add(&mut model)?;
    }
    // The rules do not know an operator that is later than the model's operator set: after an upgrade they do.
    let is_valid = onnx::check_valid(&model);
    assert!(is_valid.is_ok() || default_opset(&model)? > opset, "a valid model stays valid: {is_valid:?}");
    is_valid?;
    is_sound?;
    onnx::check_topology(&model).expect("a sound graph stays sound");
    let placement = place(model.graph()?, &ValueInfos::of_model(&model), scheme, &Selection::default());
    drop(report::placement(model.graph()?, &placement, |_| false).lines(true));
    Ok(())
})));

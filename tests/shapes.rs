//! Samples of several shapes in the engine and in the simulation.

use crate::support::{Attr, GraphBuilder, noise};
use mqq::data::{Array, Values};
use mqq::diag::{explain, is_of};
use mqq::engine::{Parsed, ShapedEngines, Value};
use mqq::onnx::inputs::{OpenShape, Shapes, close_given, resolve_inputs};
use mqq::onnx::proto::ModelProto;
use mqq::onnx::tensor;
use mqq::plan::QuantPlan;
use mqq::simulate::{CachedNetwork, CachedSamples, Samples, simulate};

/// A product over `[1, length, 8]`, in two heads by a Reshape to the length, plus its sum over the length.
fn heads() -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, -1, 8]);
    g.weight("w", &[8, 6]);
    for (name, value) in [("one", &[1i64][..]), ("two", &[2]), ("heads", &[2, 3])] {
        g.tensor(tensor::from_i64(name, &[value.len()], value).unwrap());
    }
    g.ops("y = MatMul x w; shape = Shape x; length = Slice shape one two");
    g.op_with("Concat", &["one", "length", "heads"], "split", &[("axis", Attr::Int(0))]);
    g.ops("in_heads = Reshape y split; sums = ReduceSum in_heads one; z = Add in_heads sums");
    g.output("z").build()
}

const LENGTHS: [usize; 6] = [5, 3, 5, 9, 3, 1];

fn array(sample: usize) -> Array {
    let n = LENGTHS[sample];
    Array { shape: vec![1, n, 8], values: Values::F32(noise(8 * n, sample as u32)) }
}

fn shapes(length: usize) -> Shapes {
    Shapes::from([("x".to_string(), vec![1, length, 8])])
}

/// The outputs for each sample, of an engine built for it alone.
fn expected(model: &ModelProto) -> Vec<(Vec<usize>, Vec<f32>)> {
    let of_sample = |sample: usize| {
        let engine = Parsed::new(model, &shapes(LENGTHS[sample])).unwrap().build(&[]).unwrap();
        let output = engine.session().unwrap().run(&[array(sample)], &mut |_, _, _| Ok(())).unwrap().remove(0);
        let Values::F32(values) = output.values else { panic!("not float") };
        (output.shape, values)
    };
    (0..LENGTHS.len()).map(of_sample).collect()
}

#[test]
fn an_engine_is_built_for_each_shape() {
    let model = heads();
    let engines = ShapedEngines::new(Parsed::new(&model, &shapes(9)).unwrap(), &["y".to_string()]).unwrap();
    let mut session = engines.session().unwrap();
    for (sample, (shape, values)) in expected(&model).into_iter().enumerate() {
        let mut seen = Vec::new();
        let mut visit = |_: usize, shape: &[usize], _: &[f32]| {
            seen.push(shape.to_vec());
            Ok(())
        };
        let outputs = session.run(&[array(sample)], &mut visit).unwrap();
        assert_eq!(outputs[0], Array { shape, values: Values::F32(values) });
        assert_eq!(seen, [vec![1, LENGTHS[sample], 6]]);
    }
    let wrong = Array { shape: vec![1, 2, 4], values: Values::F32(noise(8, 1)) };
    assert!(session.run(&[wrong], &mut |_, _, _| Ok(())).is_err());
    assert!(session.run(&[array(0)], &mut |_, _, _| Ok(())).is_ok());
}

#[test]
fn both_drivers_simulate_samples_of_several_shapes() {
    let model = heads();
    let expected = expected(&model);
    let names = vec!["x".to_string()];
    let input = resolve_inputs(&model, &shapes(9)).unwrap().remove(0);
    let values: Vec<Vec<Value>> =
        (0..LENGTHS.len()).map(|sample| vec![Value::of_array(&array(sample), &input).unwrap()]).collect();
    let samples = Samples { names: &names, values: &values };
    let check = |found: &[Value], first: usize| {
        for (found, (shape, values)) in found.iter().zip(&expected[first..]) {
            assert_eq!(found.shape(), shape);
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(found.f32s().unwrap().iter().zip(values).all(near));
        }
    };
    let plan = QuantPlan::default();
    check(&simulate(&model, &plan, samples).unwrap().outputs[0], 0);
    // Shapes that the network meets later are prepared then.
    let mut network = CachedNetwork::new(&model, Samples { values: &values[..1], ..samples }, None).unwrap();
    for first in [0, 3, 2] {
        let mut cached = CachedSamples::new(Samples { values: &values[first..], ..samples }, 1 << 20);
        check(&network.run(&plan, &mut cached, true, None).unwrap()[0], first);
        check(&network.run(&plan, &mut cached, true, None).unwrap()[0], first);
    }
}

#[test]
fn a_given_shape_closes_all_axes_of_its_names() {
    let mut model = heads();
    let graph = model.graph.as_mut().unwrap();
    let named = |value: &mut mqq::onnx::proto::ValueInfoProto, axis: usize, name: &str| {
        let tensor = value.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        let dim = &mut tensor.shape.as_mut().unwrap().dim[axis];
        (dim.dim_value, dim.dim_param) = (None, Some(name.into()));
    };
    named(&mut graph.input[0], 1, "length");
    graph.input.push(graph.input[0].clone());
    graph.input[1].name = Some("mask".into());
    named(&mut graph.input[1], 2, "width");
    let shapes = Shapes::from([("x".into(), vec![1, 5, 8]), ("mask".into(), vec![1, 5, 2])]);
    let open = |given: &[&str]| -> Vec<[bool; 3]> {
        let given = shapes.iter().filter(|(name, _)| given.contains(&name.as_str()));
        let mut inputs = resolve_inputs(&model, &shapes).unwrap();
        close_given(&mut inputs, &given.map(|(name, shape)| (name.clone(), shape.clone())).collect());
        inputs.iter().map(|input| [0, 1, 2].map(|axis| input.is_open(axis))).collect()
    };
    assert_eq!(open(&[]), [[false, true, false], [false, true, true]]);
    assert_eq!(open(&["x"]), [[false, false, false], [false, false, true]]);
    assert_eq!(open(&["mask"]), [[false; 3]; 2]);
}

/// As ONNX and ONNX Runtime read them: -1 is open, and 0 is the number of values along the axis.
#[test]
fn a_dimension_of_zero_is_empty_and_not_open() {
    let of = |dim: i64, shapes: &Shapes| {
        let mut graph = GraphBuilder::new(17);
        graph.input("x", &[1, 3, 8, 8]);
        graph.output("x");
        let mut model = graph.build();
        let input = &mut model.graph.as_mut().unwrap().input[0];
        let tensor = input.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        tensor.shape.as_mut().unwrap().dim[2].dim_value = Some(dim);
        resolve_inputs(&model, shapes)
    };
    let given = Shapes::from([("x".to_string(), vec![1, 3, 8, 8])]);
    assert_eq!(of(-1, &given).unwrap()[0].shape, [1, 3, 8, 8]);
    assert!(is_of::<OpenShape>(&of(-1, &Shapes::new()).unwrap_err()));
    let empty = of(0, &Shapes::new()).unwrap_err();
    assert!(!is_of::<OpenShape>(&empty));
    assert_eq!(
        explain(&empty),
        "input `x` has the shape [1, 3, 0, 8]: axis 2 has no values, expected 1 or more\n\
         hint: export the dimension as open (-1 or a name), or with its size"
    );
    assert!(of(0, &given).unwrap_err().to_string().contains("--shape gives [1, 3, 8, 8], expected [1, 3, 0, 8]"));
}

//! mqq's own operators in the engine: against their definition in f64, and against the engine's own operators.

use crate::support::{Attr, GraphBuilder, noise};
use mqq::data::{Array, Values};
use mqq::engine::Parsed;
use mqq::engine::kernels::{KERNELS, OpKernel};
use mqq::onnx::inputs::Shapes;
use mqq::onnx::proto::{AttributeProto, ModelProto, TensorProto};
use mqq::onnx::tensor;
use proptest::prelude::*;

const CONV: &str = "mqq.Conv";
const CONV_BY_TILES: &str = "mqq.ConvByTiles";
const BROADCAST: &str = "mqq.Broadcast";
const MAX_POOL: &str = "mqq.MaxPool";
const GRID_SAMPLE: &str = "mqq.GridSample";
const SOFTMAX: &str = "mqq.Softmax";
const RESIZE: &str = "mqq.Resize";
const TOP_K: &str = "mqq.TopK";
const IF: &str = "mqq.If";

/// Operators of the engine's graph, the shape of its output and the values.
fn run(model: &ModelProto, x: &[f32], kernels: &'static [OpKernel]) -> (Vec<String>, Vec<usize>, Vec<f32>) {
    let engine = Parsed::new(model, &Shapes::new()).unwrap().with_kernels(kernels).build(&[]).unwrap();
    let x = Array { shape: engine.inputs()[0].shape.clone(), values: Values::F32(x.to_vec()) };
    let output = engine.session().unwrap().run(&[x], &mut |_, _, _| Ok(())).unwrap().remove(0);
    let Values::F32(values) = output.values else { panic!("expected float32") };
    (engine.operators(), output.shape, values)
}

#[test]
fn an_if_computes_the_branch_of_its_condition() {
    let branch = |build: &dyn Fn(&mut GraphBuilder)| {
        let mut g = GraphBuilder::new(17);
        build(&mut g);
        g.output("chosen").build().graph
    };
    let convolved = branch(&|g| drop(g.conv("x", 3, 3, 3, 1, "chosen")));
    let doubled = branch(&|g| drop(g.op("Add", &["x", "x"], "chosen")));
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 6, 6]);
    g.values("zero", &[], &[0.0]);
    g.op_with("ReduceSum", &["x"], "sum", &[("keepdims", Attr::Int(0))]);
    g.ops("positive = Greater sum zero; y = If positive");
    let mut model = g.output("y").build();
    let graph = model.graph.as_mut().unwrap();
    let node = graph.node.iter_mut().find(|node| node.op_type() == "If").unwrap();
    for (name, branch) in [("then_branch", convolved), ("else_branch", doubled)] {
        node.attribute.push(AttributeProto {
            name: Some(name.into()),
            r#type: Some(5),
            g: branch,
            ..Default::default()
        });
    }
    for sign in [1.0, -1.0] {
        let x: Vec<f32> = noise(108, 3).iter().map(|x| sign * x.abs()).collect();
        let (operators, shape, found) = run(&model, &x, KERNELS);
        let (_, _, expected) = run(&model, &x, &[]);
        assert!(operators.iter().any(|name| name == IF), "{operators:?}");
        assert_eq!(shape, [1, 3, 6, 6]);
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
        assert_eq!(found.iter().zip(&x).all(|(y, x)| *y == 2.0 * x), sign < 0.0);
    }
}

/// A window that slides over an image `[n, c, height, width]`; numbers of two are for rows and columns.
#[derive(Debug, Clone)]
struct Sliding {
    image: [usize; 4],
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    before: [usize; 2],
    after: [usize; 2],
}

impl Sliding {
    fn of(image: [usize; 4], kernel: usize, stride: usize, pad: usize) -> Sliding {
        let [kernel, strides, before] = [[kernel; 2], [stride; 2], [pad; 2]];
        Sliding { image, kernel, strides, dilations: [1; 2], before, after: before }
    }

    fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilations[axis] + 1
    }

    fn out(&self, axis: usize) -> usize {
        let padded = self.image[2 + axis] + self.before[axis] + self.after[axis];
        (padded - self.reach(axis)) / self.strides[axis] + 1
    }

    /// For each output of a plane, row by row, the taps inside of the plane: (tap, place in the plane).
    fn windows(&self) -> Vec<Vec<(usize, usize)>> {
        let [height, width] = [self.image[2], self.image[3]];
        let at = |axis: usize, out: usize, tap: usize| {
            (out * self.strides[axis] + tap * self.dilations[axis]).checked_sub(self.before[axis])
        };
        let window = |y: usize, x: usize| {
            let taps = (0..self.kernel[0]).flat_map(|i| (0..self.kernel[1]).map(move |j| (i, j)));
            taps.filter_map(|(i, j)| {
                let (y, x) = (at(0, y, i)?, at(1, x, j)?);
                (y < height && x < width).then_some((i * self.kernel[1] + j, y * width + x))
            })
            .collect()
        };
        (0..self.out(0)).flat_map(|y| (0..self.out(1)).map(move |x| window(y, x))).collect()
    }

    /// Without windows whose taps are all in the padding, which ONNX does not define.
    fn meets_image(&self) -> bool {
        self.windows().iter().all(|window| !window.is_empty())
    }

    fn is_3x3_in_steps_of_one(&self) -> bool {
        (self.kernel, self.strides, self.dilations) == ([3; 2], [1; 2], [1; 2])
    }

    fn attributes(&self) -> Vec<(&'static str, Attr)> {
        let ints = |values: &[usize]| Attr::Ints(values.iter().map(|&n| n as i64).collect());
        vec![
            ("kernel_shape", ints(&self.kernel)),
            ("strides", ints(&self.strides)),
            ("dilations", ints(&self.dilations)),
            ("pads", ints(&[self.before, self.after].concat())),
        ]
    }

    fn dims(&self) -> [i64; 4] {
        self.image.map(|n| n as i64)
    }

    /// Values of the image; every `odd`-th is not a finite number.
    fn values(&self, seed: u32, odd: usize) -> Vec<f32> {
        let mut x = noise(self.image.iter().product(), seed);
        let others = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        x.iter_mut().step_by(odd).zip(others.into_iter().cycle()).for_each(|(x, other)| *x = other);
        x
    }
}

fn sliding() -> impl Strategy<Value = Sliding> {
    let two = |range: std::ops::Range<usize>| prop::array::uniform2(range);
    let image = (1usize..3, 2usize..4, 1usize..14, prop_oneof![1usize..14, 14usize..90]);
    let image = image.prop_map(|(n, c, height, width)| [n, c, height, width]);
    let kernel = prop_oneof![Just([3, 3]), Just([5, 5]), two(1..6)];
    let windows = (image, kernel, two(1..4), two(1..4), two(0..4), two(0..4));
    let windows = windows.prop_map(|(image, kernel, strides, dilations, before, after)| Sliding {
        image,
        kernel,
        strides,
        dilations,
        before,
        after,
    });
    windows.prop_filter("the window is larger than the padded image", |s| {
        (0..2).all(|axis| s.reach(axis) <= s.image[2 + axis] + s.before[axis] + s.after[axis])
    })
}

/// A convolution of groups, each with `each` output channels.
fn convolution(sliding: &Sliding, groups: usize, each: usize, weights: &[f32], bias: &[f32]) -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &sliding.dims());
    let [height, width] = sliding.kernel;
    g.values("w", &[groups * each, sliding.image[1] / groups, height, width], weights);
    g.values("b", &[groups * each], bias);
    let mut attributes = sliding.attributes();
    attributes.push(("group", Attr::Int(groups as i64)));
    g.op_with("Conv", &["x", "w", "b"], "y", &attributes);
    g.output("y");
    g.build()
}

/// Equal but for rounding of sums of this size; what is no finite number is the same.
fn near(found: f32, expected: f64, size: f64) -> bool {
    if !expected.is_finite() {
        return (found.is_nan() && expected.is_nan()) || f64::from(found) == expected;
    }
    (f64::from(found) - expected).abs() <= 1e-6 * size + 1e-30
}

fn check_convolution(sliding: &Sliding, groups: usize, each: usize, odd: usize) {
    let [n, channels, height, width] = sliding.image;
    let (area, planes, outputs) = (sliding.kernel[0] * sliding.kernel[1], channels / groups, groups * each);
    let taps = planes * area;
    let weights = noise(outputs * taps, 1);
    let bias = noise(outputs, 2);
    let x = sliding.values(3, odd);
    let model = convolution(sliding, groups, each, &weights, &bias);
    let windows = sliding.windows();
    let (operators, shape, found) = run(&model, &x, KERNELS);
    let is_direct = planes == 1 && groups > 1 || area > 1 && taps <= 576 && windows.len() >= 16;
    let is_tiled = sliding.is_3x3_in_steps_of_one()
        && planes.min(each) >= 16
        && windows.len() >= 36
        && planes * each * windows.len() >= 100_000;
    assert_eq!(operators.iter().any(|name| name == CONV_BY_TILES), is_tiled, "{operators:?}");
    assert_eq!(operators.iter().any(|name| name == CONV), is_direct && !is_tiled, "{operators:?}");
    let (operators, shape_of_engine, of_engine) = run(&model, &x, &[]);
    assert!(operators.iter().all(|name| ![CONV, CONV_BY_TILES].contains(&name.as_str())), "{operators:?}");
    assert_eq!(shape, [n, outputs, sliding.out(0), sliding.out(1)]);
    assert_eq!(shape, shape_of_engine);
    for (i, (found, of_engine)) in found.into_iter().zip(of_engine).enumerate() {
        let (plane, window) = (i / windows.len(), &windows[i % windows.len()]);
        let (sample, channel) = (plane / outputs, plane % outputs);
        let x = &x[(sample * channels + channel / each * planes) * height * width..];
        let weights = &weights[channel * taps..];
        let products = (0..planes).flat_map(|plane| window.iter().map(move |&(tap, at)| (plane, tap, at)));
        let products = products
            .map(|(plane, tap, at)| f64::from(weights[plane * area + tap]) * f64::from(x[plane * height * width + at]));
        let products: Vec<f64> = products.collect();
        let expected = products.iter().sum::<f64>() + f64::from(bias[channel]);
        let size = products.iter().map(|product| product.abs()).sum::<f64>() + 1.0;
        assert!(near(found, expected, size), "value {i}: found {found}, expected {expected}");
        assert!(near(of_engine, found.into(), size), "value {i}: found {found}, the engine's own {of_engine}");
    }
}

fn check_max_pool(sliding: &Sliding, odd: usize, ceil: bool) {
    let mut g = GraphBuilder::new(17);
    g.input("x", &sliding.dims());
    let mut attributes = sliding.attributes();
    attributes.push(("ceil_mode", Attr::Int(ceil.into())));
    g.op_with("MaxPool", &["x"], "y", &attributes);
    g.output("y");
    let (model, x) = (g.build(), sliding.values(4, odd));
    let (operators, shape, found) = run(&model, &x, KERNELS);
    let is_dense = (sliding.kernel, sliding.strides, sliding.dilations) == ([2; 2], [1; 2], [1; 2]);
    assert_eq!(operators.iter().any(|name| name == MAX_POOL), !is_dense, "{operators:?}");
    let (operators, shape_of_engine, of_engine) = run(&model, &x, &[]);
    assert!(operators.iter().all(|name| name != MAX_POOL), "{operators:?}");
    assert_eq!(shape, shape_of_engine);
    if is_dense {
        return;
    }
    assert!(found == of_engine, "{sliding:?}: found {found:?}, the engine's own {of_engine:?}");
    if ceil {
        return;
    }
    let windows = sliding.windows();
    for (i, found) in found.into_iter().enumerate() {
        let x = &x[i / windows.len() * sliding.image[2] * sliding.image[3]..];
        let expected = windows[i % windows.len()].iter().map(|&(_, at)| x[at]).fold(f32::MIN, f32::max);
        assert_eq!(found, expected, "value {i}");
    }
}

/// A coordinate in pixels, of one from -1 to 1.
fn in_pixels(position: f64, size: usize, aligned: bool) -> f64 {
    match aligned {
        true => (position + 1.0) / 2.0 * (size as f64 - 1.0),
        false => ((position + 1.0) * size as f64 - 1.0) / 2.0,
    }
}

/// The value of a plane at a position by ONNX's definition, linear along each axis; `padding` is one of ONNX's.
fn sampled(plane: &[f32], sizes: &[usize], position: &[f64], padding: &str, aligned: bool) -> f64 {
    let [size, inner @ ..] = sizes else { return plane[0].into() };
    let (first, last) = if aligned { (0.0, *size as f64 - 1.0) } else { (-0.5, *size as f64 - 0.5) };
    let reflected = |mut at: f64| {
        while last > first && (at < first || at > last) {
            at = if at < first { 2.0 * first - at } else { 2.0 * last - at };
        }
        at
    };
    let at = in_pixels(position[0], *size, aligned);
    let at = match padding {
        "border" => at.clamp(0.0, *size as f64 - 1.0),
        "reflection" => reflected(at),
        _ => at,
    };
    let low = at.floor();
    let step: usize = inner.iter().product();
    let of = |pixel: f64, weight: f64| {
        let pixel = match padding {
            "zeros" if pixel < 0.0 || pixel > *size as f64 - 1.0 => return 0.0,
            "reflection" => reflected(pixel),
            _ => pixel,
        };
        let pixel = pixel.clamp(0.0, *size as f64 - 1.0) as usize;
        weight * sampled(&plane[pixel * step..][..step], inner, &position[1..], padding, aligned)
    };
    of(low, low + 1.0 - at) + of(low + 1.0, at - low)
}

/// Against the definition where the mode is linear, and against the engine's own operator.
fn check_grid_sample(
    sizes: &[usize],
    mode: &'static str,
    padding: &'static str,
    aligned: bool,
    reach: f32,
    n_positions: usize,
) {
    let (n, channels, n_axes) = (2, 3, sizes.len());
    let n_pixels: usize = sizes.iter().product();
    let x = noise(n * channels * n_pixels, 7);
    let grid: Vec<f32> = noise(n * n_positions * n_axes, 8).iter().map(|value| reach * value).collect();
    let mut g = GraphBuilder::new(if n_axes == 2 { 16 } else { 20 });
    let dims = |shape: &[usize]| [&[n, channels], shape].concat().iter().map(|&n| n as i64).collect::<Vec<i64>>();
    g.input("x", &dims(sizes));
    let mut shape = vec![n, n_positions];
    shape.resize(n_axes + 1, 1);
    shape.push(n_axes);
    g.values("grid", &shape, &grid);
    let attributes = [
        ("mode", Attr::Text(mode)),
        ("padding_mode", Attr::Text(padding)),
        ("align_corners", Attr::Int(aligned.into())),
    ];
    g.op_with("GridSample", &["x", "grid"], "y", &attributes);
    g.output("y");
    let model = g.build();
    let (operators, shape, found) = run(&model, &x, KERNELS);
    assert_eq!(operators.iter().any(|name| name == GRID_SAMPLE), mode != "cubic", "{operators:?}");
    let (operators, shape_of_engine, of_engine) = run(&model, &x, &[]);
    assert!(operators.iter().all(|name| name != GRID_SAMPLE), "{operators:?}");
    assert_eq!(shape, shape_of_engine);
    assert!(found == of_engine, "{sizes:?} {mode} {padding}: found {found:?}, the engine's own {of_engine:?}");
    if !matches!(mode, "linear" | "bilinear") {
        return;
    }
    for (i, found) in found.into_iter().enumerate() {
        let plane = &x[i / n_positions * n_pixels..][..n_pixels];
        let at = (i / (channels * n_positions) * n_positions + i % n_positions) * n_axes;
        let position: Vec<f64> = grid[at..at + n_axes].iter().rev().map(|&value| value.into()).collect();
        let expected = sampled(plane, sizes, &position, padding, aligned);
        assert!(near(found, expected, 8.0 * f64::from(reach)), "value {i}: found {found}, expected {expected}");
    }
}

/// Against the definition and the engine's own operators: the same bits but for quotients by a constant, where the engine
/// multiplies. Others read the input, too, where it is `shared`.
fn check_broadcast(op: &str, shape: &[usize], axes: [usize; 2], is_first: bool, shared: bool) {
    let [start, end] = axes;
    let part: Vec<usize> =
        (0..shape.len()).map(|axis| if (start..end).contains(&axis) { shape[axis] } else { 1 }).collect();
    let (x, others) = (noise(shape.iter().product(), 6), noise(part.iter().product(), 7));
    let mut g = GraphBuilder::new(17);
    g.input("x", &shape.iter().map(|&dim| dim as i64).collect::<Vec<i64>>());
    g.values("others", &part, &others);
    g.op_with("Relu", &["x"], "relu", &[]);
    g.op_with(op, if is_first { &["relu", "others"] } else { &["others", "relu"] }, "made", &[]);
    match shared {
        true => g.op_with("Add", &["made", "relu"], "y", &[]),
        false => g.op_with("Neg", &["made"], "y", &[]),
    };
    g.output("y");
    let [(operators, found_shape, found), (_, _, of_engine)] =
        [KERNELS, &[]].map(|kernels| run(&g.build(), &x, kernels));
    let is_number = part.iter().all(|&dim| dim == 1);
    assert!(is_number || operators.iter().any(|name| name == BROADCAST), "{operators:?}");
    assert_eq!(found_shape, shape);
    let inner: usize = shape[end..].iter().product();
    for (i, (found, of_engine)) in found.into_iter().zip(of_engine).enumerate() {
        let (relu, other) = (x[i].max(0.0), others[i / inner % others.len()]);
        let (a, b) = if is_first { (relu, other) } else { (other, relu) };
        let made = match op {
            "Add" => a + b,
            "Sub" => a - b,
            "Mul" => a * b,
            _ => a / b,
        };
        let expected = if shared { made + relu } else { -made };
        let (is_quotient, size) = (op == "Div", 2.0 * f64::from(expected.abs()) + 1.0);
        let is_right =
            |value: f32| value.to_bits() == expected.to_bits() || is_quotient && near(value, expected.into(), size);
        assert!(is_right(found), "{op} {shape:?} {axes:?}, value {i}: found {found}, expected {expected}");
        assert!(is_right(of_engine), "{op} {shape:?} {axes:?}, value {i}: the engine {of_engine}, expected {expected}");
    }
}

fn int64(name: &str, values: &[usize]) -> TensorProto {
    let values: Vec<i64> = values.iter().map(|&n| n as i64).collect();
    tensor::from_i64(name, &[values.len()], &values).unwrap()
}

/// Where the value at `at` of a resized axis comes from, by ONNX's definition.
fn source(at: usize, [from, to]: [usize; 2], scale: f64, transformation: &str) -> f64 {
    let at = at as f64;
    match transformation {
        "align_corners" if to == 1 => 0.0,
        "align_corners" => at * (from as f64 - 1.0) / (to as f64 - 1.0),
        "asymmetric" => at / scale,
        "pytorch_half_pixel" if to == 1 => 0.0,
        _ => (at + 0.5) / scale - 0.5,
    }
}

/// Against the engine's own operator, and against the definition where it is linear.
fn check_resize(image: [usize; 4], to: [usize; 2], by_scale: bool, mode: &'static str, transformation: &'static str) {
    let [n, channels, height, width] = image;
    let mut g = GraphBuilder::new(17);
    g.input("x", &image.map(|n| n as i64));
    let scales = [to[0] as f32 / height as f32, to[1] as f32 / width as f32];
    g.values("scales", &[4], &[1.0, 1.0, scales[0], scales[1]]);
    g.tensor(int64("sizes", &[n, channels, to[0], to[1]]));
    let attributes = [
        ("mode", Attr::Text(mode)),
        ("coordinate_transformation_mode", Attr::Text(transformation)),
        ("nearest_mode", Attr::Text("floor")),
    ];
    let inputs: &[&str] = if by_scale { &["x", "", "scales"] } else { &["x", "", "", "sizes"] };
    g.op_with("Resize", inputs, "y", &attributes);
    g.output("y");
    let (model, mut x) = (g.build(), noise(image.iter().product(), 9));
    x[0] = f32::INFINITY;
    let (operators, shape, found) = run(&model, &x, KERNELS);
    let (of_engine, shape_of_engine, expected) = run(&model, &x, &[]);
    let is_taken = |operators: &[String]| operators.iter().any(|name| name == RESIZE);
    assert_eq!(is_taken(&operators), of_engine.iter().any(|name| name == "Resize"), "{operators:?}, {of_engine:?}");
    assert!(is_taken(&operators) || mode == "nearest" || to == [height, width], "{operators:?}");
    assert_eq!(shape, shape_of_engine);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    assert_eq!(bits(&found), bits(&expected), "{image:?} to {to:?}, {mode}, {transformation}");
    let [rows, columns] = [shape[2], shape[3]];
    if mode != "linear" || [rows, columns] != to {
        return;
    }
    let weighted =
        |from: usize, at: f64, pixel: f64| (pixel.clamp(0.0, from as f64 - 1.0) as usize, 1.0 - (at - pixel).abs());
    let taps = |at: f64, from: usize| [at.floor(), at.floor() + 1.0].map(|pixel| weighted(from, at, pixel));
    for (i, found) in found.into_iter().enumerate() {
        let plane = &x[i / (rows * columns) * height * width..][..height * width];
        let down = source(i / columns % rows, [height, rows], scales[0].into(), transformation);
        let along = source(i % columns, [width, columns], scales[1].into(), transformation);
        let taps = taps(down, height).into_iter().flat_map(|row| taps(along, width).map(|column| (row, column)));
        let taps = taps.map(|((y, a), (x, b))| (y * width + x, a * b)).filter(|(_, weight)| weight.abs() > 1e-4);
        let expected: f64 = taps.map(|(at, weight)| weight * f64::from(plane[at])).sum();
        // Beside an infinite value, rounding decides whether it takes part.
        if expected.is_finite() && found.is_finite() {
            assert!((f64::from(found) - expected).abs() <= 1e-3, "value {i}: found {found}, expected {expected}");
        }
    }
}

/// Of values among which many are equal: against a stable sort of all, and against the engine's own operator.
fn check_top_k(shape: &[usize], axis: usize, k: usize, largest: bool, x: &[f32]) {
    for values in [true, false] {
        let mut g = GraphBuilder::new(17);
        g.input("x", &shape.iter().map(|&dim| dim as i64).collect::<Vec<i64>>());
        g.tensor(int64("k", &[k]));
        let attributes = [("axis", Attr::Int(axis as i64)), ("largest", Attr::Int(largest.into()))];
        g.op_with("TopK", &["x", "k"], "values", &attributes);
        g.also_makes("positions");
        let position = g.op_with("Cast", &["positions"], "as_float", &[("to", Attr::Int(1))]);
        g.output(if values { "values" } else { &position });
        let (operators, shape_of_y, found) = run(&g.build(), x, KERNELS);
        assert!(operators.iter().any(|name| name == TOP_K), "{operators:?}");
        let (_, shape_of_engine, of_engine) = run(&g.build(), x, &[]);
        assert_eq!(shape_of_y, shape_of_engine);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        assert_eq!(bits(&found), bits(&of_engine), "{shape:?}, axis {axis}, {k}, {largest}");
        if x.iter().any(|value| value.is_nan()) {
            continue;
        }
        let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        for (i, found) in found.into_iter().enumerate() {
            let first = i / (k * inner) * n * inner + i % inner;
            let mut lane: Vec<(usize, f32)> = (0..n).map(|at| (at, x[first + at * inner])).collect();
            lane.sort_by(|a, b| if largest { b.1.total_cmp(&a.1) } else { a.1.total_cmp(&b.1) });
            let (at, value) = lane[i / inner % k];
            assert!(
                found == if values { value } else { at as f32 },
                "value {i}: found {found}, expected {value} at {at}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_resizing_has_the_values_of_its_definition(
        image in (1usize..3, 1usize..3, 1usize..9, 1usize..9).prop_map(|(n, c, height, width)| [n, c, height, width]),
        to in prop_oneof![prop::array::uniform2(1usize..20), Just([0, 0])],
        by_scale in any::<bool>(),
        mode in prop_oneof![3 => Just("linear"), 1 => Just("nearest"), 1 => Just("cubic")],
        transformation in prop_oneof![
            Just("half_pixel"), Just("pytorch_half_pixel"), Just("align_corners"), Just("asymmetric"),
        ],
    ) {
        let to = if to == [0, 0] { [2 * image[2], 2 * image[3]] } else { to };
        check_resize(image, to, by_scale, mode, transformation);
    }

    #[test]
    fn arithmetic_with_a_part_of_the_axes_has_the_values_of_its_definition(
        shape in prop::collection::vec(prop_oneof![4 => 1usize..9, 1 => 60usize..90], 1..4),
        ends in prop::array::uniform2(0usize..4),
        op in prop_oneof![Just("Add"), Just("Sub"), Just("Mul"), Just("Div")],
        (is_first, shared) in (any::<bool>(), any::<bool>()),
    ) {
        let [a, b] = ends.map(|end| end.min(shape.len()));
        check_broadcast(op, &shape, [a.min(b), a.max(b)], is_first, shared);
    }

    #[test]
    fn the_top_k_are_those_of_its_definition(
        shape in prop::collection::vec(1usize..8, 1..4),
        (axis, k) in (0usize..3, 0usize..8),
        largest in any::<bool>(),
        seed in 0u32..100,
    ) {
        let axis = axis % shape.len();
        let x: Vec<f32> = noise(shape.iter().product(), seed).iter().map(|value| (4.0 * value).round() + 0.5).collect();
        check_top_k(&shape, axis, 1 + k % shape[axis], largest, &x);
    }

    #[test]
    fn a_max_pooling_has_the_values_of_its_definition(
        sliding in sliding().prop_filter("windows of padding alone", Sliding::meets_image),
        odd in prop_oneof![Just(usize::MAX), 5usize..200],
        ceil in any::<bool>(),
    ) {
        check_max_pool(&sliding, odd, ceil);
    }

    #[test]
    fn a_grid_sampling_has_the_values_of_its_definition(
        sizes in prop::collection::vec(1usize..6, 1..4),
        is_linear in any::<bool>(),
        padding in prop_oneof![Just("zeros"), Just("border"), Just("reflection")],
        aligned in any::<bool>(),
        reach in prop_oneof![Just(0.9f32), Just(1.5), Just(5.0)],
        n_positions in 1usize..9,
    ) {
        let mode = match (is_linear, sizes.len()) {
            (true, 2) => "bilinear",
            (true, _) => "linear",
            (false, _) => "nearest",
        };
        check_grid_sample(&sizes, mode, padding, aligned, reach, n_positions);
    }

    #[test]
    fn a_softmax_has_the_values_of_its_definition(
        shape in prop::collection::vec(1usize..7, 1..5),
        axis in 0usize..4,
        is_log in any::<bool>(),
    ) {
        let axis = axis % shape.len();
        let mut g = GraphBuilder::new(17);
        g.input("x", &shape.iter().map(|&dim| dim as i64).collect::<Vec<i64>>());
        let op = if is_log { "LogSoftmax" } else { "Softmax" };
        g.op_with(op, &["x"], "y", &[("axis", Attr::Int(axis as i64))]);
        g.output("y");
        let x: Vec<f32> = noise(shape.iter().product(), 5).iter().map(|value| 20.0 * value).collect();
        let (operators, shape_of_y, found) = run(&g.build(), &x, KERNELS);
        prop_assert_eq!(operators.iter().any(|name| name == SOFTMAX), axis + 1 < shape.len(), "{:?}", operators);
        prop_assert_eq!(shape_of_y, shape.clone());
        let inner: usize = shape[axis + 1..].iter().product();
        let n = shape[axis];
        for (i, found) in found.into_iter().enumerate() {
            let first = i / (n * inner) * n * inner + i % inner;
            let values: Vec<f64> = (0..n).map(|k| f64::from(x[first + k * inner])).collect();
            let largest = values.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = values.iter().map(|value| (value - largest).exp()).sum();
            let log = f64::from(x[i]) - largest - sum.ln();
            let expected = if is_log { log } else { log.exp() };
            prop_assert!(near(found, expected, 1.0 + expected.abs()), "value {}: {}, {}", i, found, expected);
        }
    }

    #[test]
    fn a_convolution_has_the_values_of_its_definition(
        sliding in sliding(),
        [groups, planes, each] in prop_oneof![
            (2usize..4, Just(1usize), 1usize..4).prop_map(|(groups, planes, each)| [groups, planes, each]),
            (1usize..3, 1usize..4, 1usize..10).prop_map(|(groups, planes, each)| [groups, planes, each]),
        ],
        odd in prop_oneof![Just(usize::MAX), 5usize..200],
    ) {
        let [n, _, height, width] = sliding.image;
        check_convolution(&Sliding { image: [n, groups * planes, height, width], ..sliding }, groups, each, odd);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_convolution_by_tiles_has_the_values_of_its_definition(
        (n, groups) in (1usize..3, 1usize..3),
        [planes, each] in prop::array::uniform2(16usize..24),
        [height, width] in prop::array::uniform2(5usize..30),
        (before, after) in (prop::array::uniform2(0usize..3), prop::array::uniform2(0usize..3)),
        odd in prop_oneof![3 => Just(usize::MAX), 1 => 50usize..5000],
    ) {
        let image = [n, groups * planes, height, width];
        check_convolution(&Sliding { before, after, ..Sliding::of(image, 3, 1, 0) }, groups, each, odd);
    }
}

/// Zeros of both signs are equal; what is no number is where the engine has it.
#[test]
fn odd_values_are_ordered_as_by_the_engine() {
    let x = [0.0, -0.0, f32::INFINITY, 1.0, -0.0, f32::NEG_INFINITY, 0.0, f32::MIN_POSITIVE, -1e-40];
    let with_nan = [1.0, f32::NAN, 3.0, -2.0, f32::NAN, 5.0, 0.0];
    for largest in [true, false] {
        let zeros_equal: Vec<f32> = x.iter().map(|value| value + 0.0).collect();
        check_top_k(&[9], 0, 9, largest, &zeros_equal);
        check_top_k(&[7], 0, 3, largest, &with_nan);
        let mut g = GraphBuilder::new(17);
        g.input("x", &[9]);
        g.tensor(int64("k", &[9]));
        g.op_with("TopK", &["x", "k"], "values", &[("largest", Attr::Int(largest.into()))]);
        g.also_makes("positions");
        g.output("values");
        let [(_, _, found), (_, _, of_engine)] = [KERNELS, &[]].map(|kernels| run(&g.build(), &x, kernels));
        assert!(found.iter().zip(&of_engine).all(|(a, b)| a.to_bits() == b.to_bits()), "{found:?}, {of_engine:?}");
    }
}

#[test]
fn planes_of_many_lines_are_convolved() {
    for (height, width, kernel, stride) in [(70, 90, 3, 1), (71, 133, 5, 2), (9, 2500, 3, 2), (3, 3, 7, 1)] {
        let sliding = |channels| Sliding::of([1, channels, height, width], kernel, stride, kernel / 2);
        check_convolution(&sliding(2), 2, 1, usize::MAX);
        check_convolution(&sliding(11), 1, 7, usize::MAX);
        check_convolution(&sliding(30), 1, 16, usize::MAX);
    }
    check_convolution(&Sliding::of([1, 150, 20, 21], 3, 1, 1), 1, 17, usize::MAX);
}

#[test]
fn planes_of_many_lines_are_pooled() {
    for (height, width, kernel, stride) in
        [(70, 90, 3, 2), (71, 133, 2, 2), (9, 2500, 5, 1), (3, 3, 3, 1), (8, 8, 2, 1)]
    {
        check_max_pool(&Sliding::of([1, 2, height, width], kernel, stride, kernel / 2), usize::MAX, false);
    }
}

#[test]
fn a_max_pooling_with_indices_stays_with_the_engine() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 1, 4, 4]);
    g.op_with("MaxPool", &["x"], "y", &[("kernel_shape", Attr::Ints(vec![3, 3]))]);
    g.also_makes("indices");
    g.output("y");
    g.output("indices");
    let (operators, _, y) = run(&g.build(), &noise(16, 1), KERNELS);
    assert!(!operators.contains(&MAX_POOL.to_string()), "{operators:?}");
    assert_eq!(y.len(), 4);
}

#[test]
fn a_cubic_grid_sampling_stays_with_the_engine() {
    check_grid_sample(&[4, 5], "cubic", "zeros", false, 1.5, 7);
}

/// The coordinates are not limited, only the pixels: beyond the border the value still changes.
#[test]
fn a_cubic_grid_sampling_with_a_border_has_the_values_of_onnx_runtime() {
    let (sizes, x) = ([4, 5], noise(20, 7));
    let grid = [-1.25f32, 0.4, 1.1, -1.3, 0.2, 0.9];
    let mut g = GraphBuilder::new(20);
    g.input("x", &[1, 1, 4, 5]);
    g.values("grid", &[1, 3, 1, 2], &grid);
    g.op_with(
        "GridSample",
        &["x", "grid"],
        "y",
        &[("mode", Attr::Text("cubic")), ("padding_mode", Attr::Text("border"))],
    );
    g.output("y");
    let (operators, _, found) = run(&g.build(), &x, KERNELS);
    assert!(operators.iter().any(|name| name == GRID_SAMPLE), "{operators:?}");
    // Keys' kernel with a = -0.75.
    let weight = |distance: f64| match distance.abs() {
        near if near < 1.0 => 1.25 * near.powi(3) - 2.25 * near.powi(2) + 1.0,
        far if far < 2.0 => -0.75 * (far.powi(3) - 5.0 * far.powi(2) + 8.0 * far - 4.0),
        _ => 0.0,
    };
    for (position, found) in grid.chunks(2).zip(found) {
        let [row, column] =
            [(1, sizes[0]), (0, sizes[1])].map(|(axis, size)| in_pixels(position[axis].into(), size, false));
        let mut expected = 0.0;
        for (i, j) in (-4..10).flat_map(|i| (-4..10).map(move |j| (i, j))) {
            let at = [(i, sizes[0]), (j, sizes[1])].map(|(pixel, size)| pixel.clamp(0, size as i64 - 1) as usize);
            expected += weight(row - i as f64) * weight(column - j as f64) * f64::from(x[at[0] * sizes[1] + at[1]]);
        }
        assert!(near(found, expected, 8.0), "{position:?}: found {found}, expected {expected}");
    }
}

/// Positions that are no number or far away are no error, as they are for the engine with reflection.
#[test]
fn a_grid_sampling_takes_any_position() {
    for padding in ["zeros", "border", "reflection"] {
        for reach in [f32::NAN, f32::INFINITY, f32::MAX, 1e18] {
            let mut g = GraphBuilder::new(16);
            g.input("x", &[1, 1, 2, 2]);
            g.values("grid", &[1, 2, 1, 2], &[reach, -reach, 0.0, reach]);
            g.op_with("GridSample", &["x", "grid"], "y", &[("padding_mode", Attr::Text(padding))]);
            g.output("y");
            let (_, _, found) = run(&g.build(), &[1.0, 2.0, 3.0, 4.0], KERNELS);
            if padding == "reflection" {
                continue;
            }
            let (_, _, of_engine) = run(&g.build(), &[1.0, 2.0, 3.0, 4.0], &[]);
            let same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
            assert!(found.iter().zip(&of_engine).all(same), "{padding} {reach}: {found:?}, {of_engine:?}");
        }
    }
}

#[test]
fn a_convolution_along_one_axis_is_taken_over() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 2, 5]);
    g.values("w", &[2, 1, 3], &[1.0, 2.0, 3.0, 0.0, 1.0, 0.0]);
    g.op_with("Conv", &["x", "w"], "y", &[("group", Attr::Int(2)), ("pads", Attr::Ints(vec![1, 0]))]);
    g.output("y");
    let x = [1.0, 0.0, 0.0, 2.0, 1.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    let (operators, shape, y) = run(&g.build(), &x, KERNELS);
    assert!(operators.contains(&CONV.to_string()), "{operators:?}");
    assert_eq!((shape, y), (vec![1, 2, 4], vec![2.0, 1.0, 6.0, 7.0, 5.0, 6.0, 7.0, 8.0]));
}

/// The engine multiplies weights with what is inside of the image only.
#[test]
fn weights_without_a_finite_value_stay_with_the_engine() {
    let model = convolution(&Sliding::of([1, 2, 2, 2], 3, 1, 1), 2, 1, &[f32::INFINITY; 18], &[0.0; 2]);
    let (operators, _, y) = run(&model, &[1.0; 8], KERNELS);
    assert!(!operators.contains(&CONV.to_string()), "{operators:?}");
    assert_eq!(y, [f32::INFINITY; 8]);
}

#[test]
fn padding_of_much_more_than_the_image_stays_with_the_engine() {
    let sliding = Sliding { dilations: [30_000; 2], ..Sliding::of([1, 2, 3, 3], 3, 1, 30_000) };
    let (operators, shape, _) = run(&convolution(&sliding, 2, 1, &[1.0; 18], &[0.0; 2]), &[1.0; 18], KERNELS);
    assert!(!operators.contains(&CONV.to_string()), "{operators:?}");
    assert_eq!(shape, [1, 2, 3, 3]);
}

#[test]
fn convolutions_that_are_faster_as_products_of_matrices_stay_with_the_engine() {
    for (channels, size, kernel, pad) in [(65, 8, 3, 1), (2, 3, 3, 1), (4, 8, 1, 0), (4, 8, 1, 1)] {
        check_convolution(&Sliding::of([1, channels, size, size], kernel, 1, pad), 1, 2, usize::MAX);
    }
}

/// Also where all tensors are kept apart, and in graphs that are optimized in pieces.
#[test]
fn kernels_work_in_graphs_of_any_size() {
    for n in [2, 300] {
        let mut g = GraphBuilder::new(17);
        let mut last = g.input("x", &[1, 2, 4, 4]);
        for i in 0..n {
            let conv = g.conv(&last, 2, 2, 3, 2, &format!("conv{i}"));
            last = g.op("Relu", &[&conv], &format!("y{i}"));
        }
        g.output(&last);
        let observed = [last];
        let engine = Parsed::new(&g.build(), &Shapes::new()).unwrap().build(&observed).unwrap();
        let taken_over = engine.operators().iter().filter(|name| *name == CONV).count();
        assert_eq!(taken_over, n);
    }
}

#[test]
fn documents_name_each_kernel() {
    let document = std::fs::read_to_string(crate::support::repository("docs/design/engine.md")).unwrap();
    for kernel in KERNELS {
        assert!(
            document.contains(&format!("| {} |", kernel.name)),
            "docs/design/engine.md: no row for {}",
            kernel.name
        );
    }
}

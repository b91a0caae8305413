//! The document of a run, from its sidecar.

use super::error_chart::error_chart;
use super::form::{
    Body, Chart, ChartMark, Document, DocumentColumn, Fact, Graph, GraphNode, NamedRange, Point, Section, Series,
    TableCell, TensorHistogram, columns, columns_in,
};
use super::node_facts::{NodeFacts, alone_quantized};
use crate::metrics::{self, Better, SQNR};
use crate::mixed::CurvePoint;
use crate::observers;
use crate::report::{count, title};
use crate::sidecar::{Encoding, NodeRecord, Sidecar};
use crate::tune::MethodOutcome;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Number of samples below which more are advised.
const FEW_SAMPLES: usize = 32;
/// The name of the float precision in a table.
const FLOAT: &str = "float";

/// Returns the document. Sections without contents are left out.
pub fn of_sidecar(sidecar: &Sidecar) -> Document {
    let network = NodeFacts::new(sidecar);
    let sections = [
        summary(sidecar, &network),
        warnings(sidecar),
        advice(&network),
        methods(sidecar),
        errors(&network),
        trade_off(sidecar),
        sensitivity(sidecar),
        nodes(&network),
        graph(&network),
        ranges(sidecar),
        histograms(sidecar),
        activations(sidecar),
        weight_scales(sidecar),
        weights(sidecar),
    ];
    let title = format!("{} for {}", sidecar.model.file, sidecar.scheme.backend);
    Document { title, sections: sections.into_iter().flatten().collect() }
}

fn table(columns: Vec<DocumentColumn>, rows: Vec<Vec<TableCell>>) -> Option<Body> {
    (!rows.is_empty()).then_some(Body::Table { columns, rows })
}

fn summary(sidecar: &Sidecar, network: &NodeFacts) -> Option<Section> {
    let calibration = &sidecar.calibration;
    let mut facts = Vec::new();
    let mut add = |name: &'static str, value: String| facts.push(Fact { name, value });
    add("Model", sidecar.model.file.clone());
    add("Backend", sidecar.scheme.backend.clone());
    match sidecar.tuning.as_ref().and_then(|tuning| tuning.judged.as_ref()) {
        Some(judged) => {
            let n = count(judged.n_samples, "held-out sample");
            let of_task = judged.task.iter().map(|task| (metrics::by_name(&task.metric), task.figures[1]));
            let figures = of_task.chain([(metrics::by_name(&judged.metric), judged.figures[1])]);
            let sqnr = (judged.metric != SQNR.name).then_some((Ok(SQNR), judged.sqnr_db[1]));
            for (metric, figure) in figures.chain(sqnr) {
                if let Ok(metric) = metric {
                    let better = if metric.scale.better == Better::Higher { "higher" } else { "lower" };
                    let about = format!("{}; {better} is better", metric.about);
                    add(metric.title, format!("{} on {n} ({about})", metric.with_unit(figure)));
                }
            }
        }
        None if calibration.n_samples > 0 => add("Accuracy", "not measured: use `mqq compare`".to_string()),
        None => (),
    }
    if let Some(task) = &sidecar.task {
        add("Task", task.describe());
    }
    add("Calibration", count(calibration.n_samples, "sample"));
    calibration.preprocessing.iter().for_each(|applied| add("Preprocessing", applied.clone()));
    let [integer, fused, float] = ["integer", "fused", "float"].map(|how| network.n_computed(how));
    add("Nodes", format!("{integer} on integers, {fused} fused or constant, {float} float"));
    let [activations, weights] = [&sidecar.activation_encodings, &sidecar.param_encodings].map(Vec::len);
    add("Quantized tensors", format!("{activations} activations, {weights} weights and biases"));
    add(
        "Observers",
        format!("activations {}, weights {}", calibration.activation_observer, calibration.weight_observer),
    );
    add("Warnings", sidecar.warnings.len().to_string());
    add("Written by", format!("{} {}", sidecar.producer.name, sidecar.producer.version));
    add("SHA-256 of the float model", sidecar.model.sha256.clone());
    Some(Section {
        id: "summary",
        title: "Summary",
        about: "The quantized model beside its float model, on samples that tuning did not learn from.",
        body: Body::Facts(facts),
    })
}

fn warnings(sidecar: &Sidecar) -> Option<Section> {
    (!sidecar.warnings.is_empty()).then(|| Section {
        id: "warnings",
        title: "Warnings",
        about: "Each warning names the next thing to try, if there is one.",
        body: Body::Lines(sidecar.warnings.clone()),
    })
}

/// Returns the options to try next. Which ones depends on the run; their order is that of their cost.
fn advice(network: &NodeFacts) -> Option<Section> {
    let sidecar = network.sidecar;
    let n_samples = sidecar.calibration.n_samples;
    let mut lines = Vec::new();
    if n_samples < FEW_SAMPLES {
        let had = count(n_samples, "sample");
        lines.push(format!("{FEW_SAMPLES} to 300 samples of all kinds that occur in use: this run had {had}."));
    }
    let effort = match sidecar.methods.is_empty() {
        true => "--effort 1: this run tried no method.",
        false => "--effort 2, then --effort 3, if this run had a lower effort: 2 takes 2 to 3 times as long as 1.",
    };
    lines.push(effort.to_string());
    let precisions = sidecar.scheme.resolved.get("mixed").and_then(Value::as_object);
    if precisions.is_some_and(|precisions| !precisions.is_empty()) && sidecar.mixed_precision.is_none() {
        lines.push("--target overlap=0.95: as few layers as needed get a higher precision.".to_string());
    }
    if precisions.is_some_and(|precisions| precisions.contains_key(FLOAT)) {
        let worst = network.worst_layers();
        lines.extend(worst.map(|worst| format!("--keep-float N, or --exclude NODE: {worst}.")));
    }
    if let Some(wider) = sidecar.scheme.resolved.get("wider").and_then(Value::as_str) {
        lines.push(format!("--backend {wider}: 16-bit activations."));
    }
    (n_samples > 0).then_some(Section {
        id: "advice",
        title: "To try where accuracy falls short",
        about: "Options of mqq calibrate, after the hints of the warnings. Try them in this order, and compare after each.",
        body: Body::Lines(lines),
    })
}

fn methods(sidecar: &Sidecar) -> Option<Section> {
    let row = |outcome: &MethodOutcome| -> Vec<TableCell> {
        let variant = outcome.variant.as_ref().map(|variant| format!(" {variant}")).unwrap_or_default();
        let mut row: Vec<TableCell> =
            vec![format!("{}{variant}", title(&outcome.method)).into(), outcome.verdict().into()];
        match &outcome.judged {
            Some(judged) => {
                let task = judged.task.as_ref();
                row.extend([
                    judged.metric.as_str().into(),
                    TableCell::number(Some(judged.figures[0])),
                    TableCell::number(Some(judged.figures[1])),
                    TableCell::number(Some(judged.deviation)),
                    task.map_or(TableCell::Empty, |task| task.metric.as_str().into()),
                    TableCell::number(task.map(|task| task.figures[0])),
                    TableCell::number(task.map(|task| task.figures[1])),
                    TableCell::number(Some(judged.sqnr_db[0])),
                    TableCell::number(Some(judged.sqnr_db[1])),
                ]);
            }
            None => row.extend(vec![TableCell::Empty; 9]),
        }
        let details = outcome.reason.iter().chain(&outcome.details).cloned().collect::<Vec<_>>().join("; ");
        row.push(details.into());
        row
    };
    let columns = [
        columns(["Method", "Result", "Metric", "Before", "After", "Deviation", "Task metric", "Before", "After"]),
        columns_in("dB", ["SQNR before", "SQNR after"]),
        columns(["Details"]),
    ]
    .concat();
    Some(Section {
        id: "methods",
        title: "Methods",
        about: "Changes in the order in which they were tried, each on top of those accepted before. A change is accepted \
                where its gain on held-out samples is beyond chance; the deviation is that of the difference.",
        body: table(columns, sidecar.methods.iter().map(row).collect())?,
    })
}

/// Returns the chart of the error along the network.
fn errors(network: &NodeFacts) -> Option<Section> {
    let points = |error: &dyn Fn(usize) -> Option<f64>| -> Vec<Point> {
        let nodes = network.sidecar.graph.nodes.iter().enumerate();
        // The axis cannot show the infinite SQNR of tensors without error.
        let measured = nodes.filter_map(|(node_idx, node)| {
            let y = error(node_idx).filter(|db| db.abs() < metrics::MAX_DB)?;
            let name = format!("{} {} ({})", node.op_type, node.name, network.computed[node_idx].0);
            Some(Point { x: node_idx as f64, y, y_low: None, name })
        });
        measured.collect()
    };
    let all = points(&|node_idx| network.error(node_idx));
    let alone = points(&|node_idx| network.added_error(node_idx));
    Some(Section {
        id: "errors",
        title: "Error along the network",
        about: "SQNR of each node's output in the quantized network, against the float network: all errors in front of \
                the node are included. A node alone reads the tensors of the float network, quantized: its error is what \
                the node adds. A point above 60 dB is drawn at 60 dB; equal values have no point.",
        body: error_chart("node, in order of execution", all, alone)?,
    })
}

fn trade_off(sidecar: &Sidecar) -> Option<Section> {
    let mixed = sidecar.mixed_precision.as_ref()?;
    let point = |point: &CurvePoint| Point {
        x: point.n_layers as f64,
        y: point.sqnr_db,
        y_low: None,
        name: point.describe().trim().to_string(),
    };
    (mixed.curve.len() > 1).then(|| Section {
        id: "trade-off",
        title: "Accuracy against layers in higher precision",
        about: "Lowest SQNR of an output on held-out samples, after each layer that got a higher precision.",
        body: Body::Chart(Chart::of_lines(
            "layers in higher precision",
            "SQNR (dB)",
            vec![Series { name: "SQNR", points: mixed.curve.iter().map(point).collect() }],
        )),
    })
}

fn sensitivity(sidecar: &Sidecar) -> Option<Section> {
    let rows = alone_quantized(sidecar).iter().map(|layer| {
        vec![layer.layer.as_str().into(), layer.op_type.as_str().into(), TableCell::number(Some(layer.sqnr_db))]
    });
    Some(Section {
        id: "sensitivity",
        title: "Sensitivity of layers",
        about: "SQNR of the outputs where this layer alone is quantized: the lowest costs most.",
        body: table([columns(["Layer", "Operator"]), columns_in("dB", ["SQNR"])].concat(), rows.collect())?,
    })
}

fn nodes(network: &NodeFacts) -> Option<Section> {
    let row = |(node_idx, node): (usize, &NodeRecord)| {
        let (how, why) = network.computed[node_idx];
        vec![
            TableCell::Integer(node_idx as i64),
            node.name.as_str().into(),
            node.op_type.as_str().into(),
            how.into(),
            TableCell::number(network.error(node_idx)),
            TableCell::number(network.added_error(node_idx)),
            why.into(),
        ]
    };
    let columns = [
        columns(["Position", "Node", "Operator", "Computed"]),
        columns_in("dB", ["SQNR", "SQNR of the node alone"]),
        columns(["Type or reason"]),
    ]
    .concat();
    Some(Section {
        id: "nodes",
        title: "Nodes",
        about: "How each node of the prepared model is computed, the SQNR of its output, and why it stays float. An SQNR \
                of 200 dB stands for equal values, -200 dB for values that are NaN or infinite.",
        body: table(columns, network.sidecar.graph.nodes.iter().enumerate().map(row).collect())?,
    })
}

fn graph(network: &NodeFacts) -> Option<Section> {
    let nodes = &network.sidecar.graph.nodes;
    let mut makers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut edges: BTreeSet<[usize; 2]> = BTreeSet::new();
    for (node_idx, node) in nodes.iter().enumerate() {
        let inputs = node.inputs.iter().filter_map(|input| makers.get(input.as_str()));
        edges.extend(inputs.map(|&maker| [maker, node_idx]));
        node.outputs.iter().for_each(|output| {
            makers.insert(output, node_idx);
        });
    }
    let node = |(node_idx, node): (usize, &NodeRecord)| GraphNode {
        name: node.name.clone(),
        op_type: node.op_type.clone(),
        computed: network.computed[node_idx].0,
        sqnr_db: network.error(node_idx),
    };
    (!nodes.is_empty()).then(|| Section {
        id: "graph",
        title: "Graph",
        about: "The prepared model. Color shows the type or the error; above 60 dB it stays the same. Hover over a node for \
                its name.",
        body: Body::Graph(Graph {
            nodes: nodes.iter().enumerate().map(node).collect(),
            edges: edges.into_iter().collect(),
        }),
    })
}

/// Returns the chart of the chosen and the observed range of each activation.
fn ranges(sidecar: &Sidecar) -> Option<Section> {
    let reach = |[low, high]: [f64; 2]| high.max(-low);
    let (mut observed, mut chosen) = (Vec::new(), Vec::new());
    for (position, encoding) in sidecar.activation_encodings.iter().enumerate() {
        let point = |y: f64| Point { x: position as f64, y, y_low: None, name: encoding.name.clone() };
        let of_observed = encoding.observed.map(|[low, high]| reach([f64::from(low), f64::from(high)]));
        observed.extend(of_observed.filter(|y| *y > 0.0).map(point));
        chosen.extend(encoding.range.map(reach).filter(|y| *y > 0.0).map(point));
    }
    (!chosen.is_empty()).then(|| Section {
        id: "ranges",
        title: "Ranges of activations",
        about: "Largest absolute value of each activation's range, and of the values that were seen. Where the range is \
                lower, values beyond it saturate.",
        body: Body::Chart(Chart {
            y_log: true,
            ..Chart::of_lines(
                "activation, in the order of the graph",
                "largest absolute value",
                vec![Series { name: "range", points: chosen }, Series { name: "seen", points: observed }],
            )
        }),
    })
}

/// Returns the observer of an activation, with its option where it is the observer of the run.
fn spelled_observer(sidecar: &Sidecar, encoding: &Encoding) -> String {
    let name = encoding.observer.as_deref().unwrap_or_default();
    let of_run = observers::by_spelling(&sidecar.calibration.activation_observer).ok();
    let spelled = of_run.filter(|observer| observer.name == name).map(|observer| observer.spelled());
    spelled.unwrap_or_else(|| name.to_string())
}

/// Returns histograms of the activations with the ranges of observers. The tensor whose range cuts off most comes
/// first.
fn histograms(sidecar: &Sidecar) -> Option<Section> {
    let mut tensors: Vec<(f64, TensorHistogram)> = Vec::new();
    for encoding in &sidecar.activation_encodings {
        let (Some(histogram), Some(ends), Some(range)) = (&encoding.histogram, encoding.observed, encoding.range)
        else {
            continue;
        };
        let used = NamedRange { name: format!("used ({})", spelled_observer(sidecar, encoding)), ends: range };
        let others = histogram.ranges.iter().map(|(name, &ends)| NamedRange { name: name.clone(), ends });
        let [low, high] = ends.map(f64::from);
        let beyond = (range[0] - low).max(0.0) + (high - range[1]).max(0.0);
        let cut = beyond / (high - low).max(f64::MIN_POSITIVE);
        let (name, shares) = (encoding.name.clone(), histogram.shares.clone());
        tensors.push((cut, TensorHistogram { name, ends, shares, ranges: [used].into_iter().chain(others).collect() }));
    }
    tensors.sort_by(|a, b| b.0.total_cmp(&a.0));
    (!tensors.is_empty()).then(|| Section {
        id: "histograms",
        title: "Histograms of activations",
        about: "The values of a tensor over the calibration data, and the ranges that observers choose for it: values beyond \
                the range that is used saturate. The tensor whose range cuts off most comes first. Bars are as high as the \
                square root of their share.",
        body: Body::Histograms(tensors.into_iter().map(|(_, tensor)| tensor).collect()),
    })
}

fn activations(sidecar: &Sidecar) -> Option<Section> {
    let row = |encoding: &Encoding| {
        let end = |ends: Option<[f64; 2]>, k: usize| TableCell::number(ends.map(|ends| ends[k]));
        let observed = encoding.observed.map(|ends| ends.map(f64::from));
        vec![
            encoding.name.as_str().into(),
            encoding.output_dtype.as_str().into(),
            TableCell::number(encoding.y_scale.as_slice().first().map(|scale| f64::from(*scale))),
            encoding
                .y_zero_point
                .as_slice()
                .first()
                .map_or(TableCell::Empty, |zero| TableCell::Integer(i64::from(*zero))),
            end(encoding.range, 0),
            end(encoding.range, 1),
            end(observed, 0),
            end(observed, 1),
            spelled_observer(sidecar, encoding).into(),
            encoding.reason.as_str().into(),
        ]
    };
    let columns =
        columns(["Tensor", "Type", "Scale", "Zero point", "Range from", "to", "Seen from", "to", "Observer", "Reason"]);
    Some(Section {
        id: "activations",
        title: "Activations",
        about: "Quantization parameters of the activations, in the order of the graph.",
        body: table(columns, sidecar.activation_encodings.iter().map(row).collect())?,
    })
}

/// Returns the chart of the lowest and the highest scale of each weight with a scale per channel.
fn weight_scales(sidecar: &Sidecar) -> Option<Section> {
    let of_weight = |(position, encoding): (usize, &Encoding)| {
        let scales = encoding.y_scale.as_slice().iter().map(|scale| f64::from(*scale)).filter(|scale| *scale > 0.0);
        let (low, high) = scales.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), s| (low.min(s), high.max(s)));
        let name = format!("{} (lowest {low:.3e})", encoding.name);
        (high > 0.0).then_some(Point { x: position as f64, y: high, y_low: Some(low), name })
    };
    let weights = sidecar.param_encodings.iter().filter(|encoding| encoding.axis.is_some());
    let points: Vec<Point> = weights.enumerate().filter_map(of_weight).collect();
    (!points.is_empty()).then(|| Section {
        id: "weight-scales",
        title: "Scales of weights per channel",
        about: "From the lowest to the highest scale of each weight with a scale per channel. A long line is a weight whose \
                channels have very different ranges: one scale for all of them would lose the small ones.",
        body: Body::Chart(Chart {
            mark: ChartMark::Span,
            y_log: true,
            ..Chart::of_lines("weight, in the order of the graph", "scale", vec![Series { name: "scales", points }])
        }),
    })
}

fn weights(sidecar: &Sidecar) -> Option<Section> {
    let row = |encoding: &Encoding| {
        let mut scales: Vec<f64> = encoding.y_scale.as_slice().iter().map(|scale| f64::from(*scale)).collect();
        scales.sort_by(f64::total_cmp);
        let shape = encoding.shape.iter().flatten().map(usize::to_string).collect::<Vec<_>>().join("x");
        vec![
            encoding.name.as_str().into(),
            shape.into(),
            encoding.output_dtype.as_str().into(),
            TableCell::Integer(scales.len() as i64),
            TableCell::number(scales.first().copied()),
            TableCell::number(scales.get(scales.len() / 2).copied()),
            TableCell::number(scales.last().copied()),
            TableCell::number(scales.first().zip(scales.last()).map(|(low, high)| high / low)),
            encoding.consumers.join(", ").into(),
        ]
    };
    let columns = columns([
        "Tensor", "Shape", "Type", "Scales", "Lowest scale", "Median", "Highest", "Highest over lowest", "Read by",
    ]);
    Some(Section {
        id: "weights",
        title: "Weights and biases",
        about: "Scales of each weight over its channels.",
        body: table(columns, sidecar.param_encodings.iter().map(row).collect())?,
    })
}

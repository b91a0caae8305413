//! `mqq compare`: a quantized model against its float model.

use super::misused;
use super::options::{PreprocessArgs, ShapeArgs, threads};
use crate::data::{Labels, parse_number};
use crate::diag::Exit;
use crate::metrics::{Figures, NonFinite};
use crate::pipeline::compare;
use crate::progress;
use anyhow::Result;
use std::path::PathBuf;

/// Arguments of `mqq compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The float model
    #[arg(value_name = "FLOAT.onnx")]
    float: PathBuf,
    /// The quantized model
    #[arg(value_name = "QUANTIZED.onnx")]
    quantized: PathBuf,
    /// Evaluation data, as for calibrate
    #[arg(long, short, required = true, value_name = "PATH")]
    data: Vec<String>,
    /// Labels: a .csv with the columns `file` (relative to it or to the data) and `class_index`
    #[arg(long, value_name = "FILE.csv")]
    labels: Option<PathBuf>,
    #[command(flatten)]
    preprocess: PreprocessArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Use at most so many samples
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Samples run at the same time [default: the number of cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Fail with exit code 3 where an output's SQNR is lower, in dB, or has values that are NaN or infinite
    #[arg(long, value_name = "DB", value_parser = parse_number)]
    min_sqnr: Option<f64>,
    /// Print one JSON object on stdout
    #[arg(long)]
    json: bool,
    /// No progress bar
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<Exit> {
    let labels = args.labels.as_deref().map(Labels::read).transpose()?;
    let preprocessing = args.preprocess.resolve().map_err(misused)?;
    let shapes = args.shape.resolve().map_err(misused)?;
    let quiet = args.quiet;
    let figures = compare(
        [&args.float, &args.quantized],
        &args.data,
        &preprocessing,
        &shapes,
        labels.as_ref(),
        args.limit,
        threads(args.threads),
        &|n| {
            let bar = progress::bar(n, "compare", quiet);
            Box::new(move || bar.inc(1))
        },
    )?;
    if args.json {
        let report = serde_json::json!({
            "schema_version": super::JSON_VERSION,
            "float": args.float.display().to_string(),
            "quantized": args.quantized.display().to_string(),
            "outputs": figures,
        });
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        figures.iter().for_each(|output| println!("{}", describe(output)));
    }
    let reached = |min: f64| figures.iter().all(|output| output.reaches(min));
    Ok(if args.min_sqnr.is_none_or(reached) { Exit::Done } else { Exit::Quality })
}

/// A line about one output.
fn describe(figures: &Figures) -> String {
    let mut parts = Vec::new();
    let mut count = |non_finite: &Option<NonFinite>, what: &str| {
        if let Some(NonFinite { n_values, first_sample }) = non_finite {
            parts.push(format!(
                "{n_values} values are NaN or infinite {what}, first for `{first_sample}`"
            ));
        }
    };
    count(&figures.non_finite, "where float has numbers");
    count(&figures.float_non_finite, "in the float model");
    parts.push(match figures.sqnr_db {
        _ if !parts.is_empty() => "SQNR not measured".to_string(),
        Some(db) => format!("SQNR {db:.2} dB"),
        None => "equal".to_string(),
    });
    parts.extend(figures.agreement_percent.map(|percent| format!("agreement {percent:.1} %")));
    parts.push(format!("largest difference {:.4}", figures.max_difference));
    parts.push(format!("{} samples", figures.n_samples));
    let top1 = figures.top1_percent.map(|[float, quantized]| {
        format!("; top-1 float {float:.2} %, quantized {quantized:.2} %")
    });
    format!("{}: {}{}", figures.output, parts.join(", "), top1.unwrap_or_default())
}

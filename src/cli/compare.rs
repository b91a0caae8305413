//! `mqq compare`: a quantized model against its float model.

use super::misused;
use super::options::{PreprocessArgs, ShapeArgs, threads};
use crate::diag::Exit;
use crate::pipeline::compare;
use crate::progress;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    /// Labels: a .csv with the columns `file` and `class_index`
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
    /// Fail with exit code 3 where an output's SQNR is lower, in dB
    #[arg(long, value_name = "DB")]
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
    let labels = args.labels.as_deref().map(read_labels).transpose()?;
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
        for output in &figures {
            let sqnr = output.sqnr_db.map_or("equal".to_string(), |db| format!("SQNR {db:.2} dB"));
            print!(
                "{}: {sqnr}, agreement {:.1} %, largest difference {:.4}, {} samples",
                output.output, output.agreement_percent, output.max_difference, output.n_samples
            );
            match output.top1_percent {
                Some([float, quantized]) => {
                    println!("; top-1 float {float:.2} %, quantized {quantized:.2} %");
                }
                None => println!(),
            }
        }
    }
    let too_low = |db: f64| args.min_sqnr.is_some_and(|min| db < min);
    let missed = figures.iter().any(|output| output.sqnr_db.is_some_and(too_low));
    Ok(if missed { Exit::Quality } else { Exit::Done })
}

/// Class by file name.
fn read_labels(path: &Path) -> Result<BTreeMap<String, usize>> {
    let read = || -> Result<BTreeMap<String, usize>> {
        let text = std::fs::read_to_string(path)?;
        let mut lines = text.lines();
        let header = lines.next().unwrap_or("");
        let column = |name: &str| {
            header
                .split(',')
                .position(|cell| cell.trim() == name)
                .with_context(|| format!("the header is `{header}`, expected a column `{name}`"))
        };
        let (file, class) = (column("file")?, column("class_index")?);
        let parse = |line: &str| {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            let class = cells.get(class)?.parse().ok()?;
            Some((cells.get(file)?.rsplit('/').next()?.to_string(), class))
        };
        lines
            .filter(|line| !line.trim().is_empty())
            .map(|line| {
                parse(line)
                    .with_context(|| format!("line `{line}`, expected a file and a class number"))
            })
            .collect()
    };
    read().with_context(|| format!("`{}`", path.display()))
}

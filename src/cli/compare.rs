//! `mqq compare`: a quantized model against its float model.

use super::Failure;
use super::files::{check_models, ensure_readable};
use super::options::{PreprocessArgs, PrintArgs, SampleArgs, ShapeArgs};
use super::print::{Bar, out};
use crate::data;
use crate::diag::Exit;
use crate::pipeline::compare;
use crate::verify::Figures;
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
    shape: ShapeArgs,
    #[command(flatten)]
    samples: SampleArgs,
    /// Fail with exit code 3 where an output's SQNR is lower, in dB
    #[arg(long, value_name = "DB")]
    min_sqnr: Option<f64>,
    #[command(flatten)]
    print: PrintArgs,
    #[command(flatten)]
    preprocess: PreprocessArgs,
}

impl Args {
    pub(super) fn json(&self) -> bool {
        self.print.json
    }
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<Exit, Failure> {
    let models = [&args.float, &args.quantized];
    models.into_iter().try_for_each(|model| check_models([model])).map_err(Failure::Usage)?;
    let shapes = args.shape.resolve().map_err(Failure::Usage)?;
    let preprocessing = args.preprocess.resolve()?;
    models.into_iter().try_for_each(|model| ensure_readable(model))?;
    let labels = args.labels.as_deref().map(read_labels).transpose()?;
    data::ensure_found(&args.data)?;
    let quiet = args.print.quiet;
    let figures = compare(
        [&args.float, &args.quantized],
        &args.data,
        &preprocessing,
        &shapes,
        labels.as_ref(),
        args.samples.limit,
        args.samples.threads(),
        &|n| Bar::new(n, "compare", quiet).tick(),
    )?;
    let too_low = |db: f64| args.min_sqnr.is_some_and(|min| db < min);
    let misses = |output: &Figures| output.sqnr_db.is_some_and(too_low);
    if args.json() {
        let report = serde_json::json!({
            "schema_version": super::JSON_VERSION,
            "float": args.float.display().to_string(),
            "quantized": args.quantized.display().to_string(),
            "outputs": figures,
        });
        out!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        for output in figures.iter().filter(|output| !quiet || misses(output)) {
            let sqnr = output.sqnr_db.map_or("equal".to_string(), |db| format!("SQNR {db:.2} dB"));
            let top1 = output.top1_percent.map_or(String::new(), |[float, quantized]| {
                format!("; top-1 float {float:.2} %, quantized {quantized:.2} %")
            });
            out!(
                "{}: {sqnr}, agreement {:.1} %, largest difference {:.4}, {} samples{top1}",
                output.output,
                output.agreement_percent,
                output.max_difference,
                output.n_samples
            );
        }
    }
    Ok(if figures.iter().any(misses) { Exit::Quality } else { Exit::Done })
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

//! `mqq check`: checks quantized models against the rules of a backend.

use super::files::{DataOption, check_models, ensure_readable};
use super::options::{BackendArgs, PrintArgs};
use super::print::{self, out};
use super::{ErrorReport, Failure, JsonReport};
use crate::check::{self, Finding, Severity};
use crate::diag::{Exit, count};
use crate::onnx::{self, RunFile, Staged, check_outputs};
use crate::report::{self, CheckedFile, Verbosity};
use crate::scheme::Scheme;
use crate::sidecar::Sidecar;
use anyhow::Result;
use clap::ValueHint;
use serde::Serialize;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  mqq check resnet50.tensorrt.onnx --backend tensorrt
  mqq check quantized/*.onnx --backend onnxruntime --keep-going --json
  mqq check quantized/*.onnx --backend onnxruntime --sarif check.sarif";

/// Arguments of `mqq check`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// Quantized ONNX models, from mqq or another tool
    #[arg(required = true, value_name = "MODEL.onnx")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
    /// Print all findings of each rule, not only the first five
    #[arg(long, short)]
    verbose: bool,
    /// Continue after a model that cannot be read; the exit code is still 1
    #[arg(long)]
    keep_going: bool,
    /// Also write the findings as SARIF
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    sarif: Option<PathBuf>,
    #[command(flatten)]
    print: PrintArgs,
}

#[derive(Debug, Default, Serialize)]
struct CheckedModel {
    model: String,
    /// `ok`, `broken` (breaks a rule) or `failed` (could not be read).
    status: &'static str,
    #[serde(flatten)]
    error: Option<ErrorReport>,
    /// The table of wider types, if the model keeps its rules and not those of the backend's own table.
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    n_quantize: usize,
    n_dequantize: usize,
    n_errors: usize,
    n_warnings: usize,
    findings: Vec<Finding>,
}

/// Runs the command.
pub(super) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let (scheme, wider) = args.backend.tables()?;
    check_models(&args.models, DataOption::HasNot).map_err(Failure::Usage)?;
    if !args.keep_going {
        args.models.iter().try_for_each(|model| ensure_readable(model))?;
    }
    let written: Vec<RunFile> = args.sarif.iter().map(|path| RunFile::new("SARIF file", path)).collect();
    let read = |visit: &mut dyn FnMut(RunFile)| {
        let models = args.models.iter().flat_map(|model| RunFile::read_model("quantized model", model));
        let sidecars = args.models.iter().filter(|model| Sidecar::beside(model).is_some());
        let sidecars = sidecars.map(|model| RunFile::new("sidecar", &model.with_extension("json")));
        models.chain(sidecars).chain(args.backend.files()).for_each(visit);
    };
    let _made = check_outputs(&written, read).map_err(Failure::Usage)?;
    let mut reports = JsonReport { backend: scheme.name.clone(), results: Vec::new() };
    let mut exit = Exit::Done;
    for path in &args.models {
        let result = one(path, &scheme, wider.as_ref());
        match &result {
            Ok(report) => {
                if report.n_errors > 0 && exit == Exit::Done {
                    exit = Exit::BackendRule;
                }
                if !args.print.json {
                    print(report, &scheme, args);
                }
            }
            Err(error) => {
                print::error(error);
                exit = Exit::Failed;
            }
        }
        let failed = result.is_err();
        reports.results.push(result.unwrap_or_else(|error| CheckedModel {
            model: path.display().to_string(),
            status: "failed",
            error: Some(ErrorReport::of(&error)),
            ..CheckedModel::default()
        }));
        if failed && !args.keep_going {
            break;
        }
    }
    // A run that ends at its first unreadable model leaves no file.
    if let Some(path) = args.sarif.as_ref().filter(|_| exit != Exit::Failed || args.keep_going) {
        write_sarif(&reports.results, path)?;
    }
    if args.print.json {
        print::object(&reports)?;
    }
    Ok(exit)
}

fn write_sarif(results: &[CheckedModel], path: &Path) -> Result<()> {
    let models = results.iter().map(|checked| CheckedFile {
        path: &checked.model,
        findings: &checked.findings,
        error: checked.error.as_ref().map(|error| error.error.as_str()),
    });
    let text = serde_json::to_string_pretty(&report::sarif(&models.collect::<Vec<_>>()))?;
    Staged::write(format!("{text}\n").as_bytes(), path)?;
    Ok(())
}

/// Checks a model by a backend's table. If the model breaks a rule of that table and none of the table of wider types,
/// returns the findings of the latter.
fn one(path: &Path, scheme: &Scheme, wider: Option<&Scheme>) -> Result<CheckedModel> {
    let model = onnx::load_whole(path)?.model;
    let graph = model.graph()?;
    let count = |op: &str| graph.node.iter().filter(|node| node.op_type() == op).count();
    let n_of = |findings: &[Finding], severity| findings.iter().filter(|f| f.severity == severity).count();
    let (mut findings, mut table) = (check::findings(&model, scheme), None);
    if let Some(other) = wider.filter(|_| n_of(&findings, Severity::Error) > 0) {
        let of_other = check::findings(&model, other);
        if n_of(&of_other, Severity::Error) == 0 {
            (findings, table) = (of_other, Some(other.name.clone()));
        }
    }
    if Sidecar::beside(path).is_some_and(|sidecar| !sidecar.is_sidecar_of(path)) {
        let sidecar = path.with_extension("json");
        let found = format!("that of another model (`{}`)", sidecar.display());
        findings.push(Finding {
            severity: Severity::Warning,
            rule: "sidecar",
            ..Finding::new("sidecar", found, "that of this file: calibrate again, or delete it")
        });
    }
    let (n_errors, n_warnings) = (n_of(&findings, Severity::Error), n_of(&findings, Severity::Warning));
    Ok(CheckedModel {
        model: path.display().to_string(),
        table,
        status: if n_errors > 0 { "broken" } else { "ok" },
        error: None,
        n_quantize: count("QuantizeLinear"),
        n_dequantize: count("DequantizeLinear"),
        n_errors,
        n_warnings,
        findings,
    })
}

/// Prints the verdict, and one line per finding, grouped by rule.
fn print(report: &CheckedModel, scheme: &Scheme, args: &CheckArgs) {
    if args.print.quiet && report.n_errors == 0 {
        return;
    }
    let verdict = match (report.n_errors, &report.table) {
        (0, None) => format!("passes the rules of {}", scheme.name),
        (0, Some(table)) => format!("passes the rules of {table}, the table of wider types of {}", scheme.name),
        _ => format!("violates the rules of {}", scheme.name),
    };
    out!(
        "{}: {verdict}: {}, {}; {} Q, {} DQ",
        report.model,
        count(report.n_errors, "error"),
        count(report.n_warnings, "warning"),
        report.n_quantize,
        report.n_dequantize
    );
    let verbosity = Verbosity::of(args.print.quiet, args.verbose);
    report::findings(&report.findings, verbosity).iter().for_each(|line| out!("  {line}"));
}

//! Options that several commands share.
//!
//! Groups with their own heading come last in a command's arguments: the help lists later options under that heading.

use super::{Failure, complete};
use crate::backends;
use crate::data::{Color, Crop, Filter, Layout, PRESETS, Preprocessing, Resize, parse_number, parse_option};
use crate::diag::{self, WithHint};
use crate::heads::{self, HeadRequest, TaskName};
use crate::metrics::ChannelAxes;
use crate::onnx::RunFile;
use crate::onnx::inputs::Shapes;
use crate::place::Selection;
use crate::scheme::{self, Scheme};
use crate::sidecar::Sidecar;
use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Display order in the help of options that few users need: after all others.
pub const RARE: usize = 100;

/// Options of image preprocessing.
#[derive(Debug, Args)]
#[command(next_help_heading = "Preprocessing of images")]
pub struct PreprocessArgs {
    /// Preprocessing: a preset (see `mqq presets`) or a YAML file
    #[arg(long, value_name = "NAME|FILE", add = complete::presets())]
    preprocess: Option<String>,
    /// none, exact[=HxW], short_side[=N], letterbox or letterbox_centered
    #[arg(long, value_name = "HOW", value_parser = option::<Resize>)]
    resize: Option<Resize>,
    /// bilinear, bicubic, nearest or lanczos
    #[arg(long, value_parser = option::<Filter>)]
    filter: Option<Filter>,
    /// center or none
    #[arg(long, value_parser = option::<Crop>)]
    crop: Option<Crop>,
    /// Value of padding pixels, 0 to 255
    #[arg(long, value_name = "N", value_parser = pixel, allow_negative_numbers = true)]
    pad_value: Option<u8>,
    /// rgb, bgr, gray or y
    #[arg(long, value_parser = option::<Color>)]
    color: Option<Color>,
    /// Factor of pixel values (0..255), such as 1/255
    #[arg(long, value_name = "X", value_parser = parse_number, allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Mean, subtracted after scaling: one number, or one per channel
    #[arg(long, value_name = "X,…", value_delimiter = ',', allow_hyphen_values = true, value_parser = parse_number)]
    mean: Option<Vec<f64>>,
    /// Standard deviation, the last divisor: one number, or one per channel
    #[arg(long, value_name = "X,…", value_delimiter = ',', allow_hyphen_values = true, value_parser = parse_number)]
    std: Option<Vec<f64>>,
    /// nchw or nhwc, if the input's shape leaves it open
    #[arg(long, value_parser = option::<Layout>)]
    layout: Option<Layout>,
}

/// Calls [`parse_option`] for clap. The hint becomes a part of the error's text, because clap prints only the text.
fn option<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    parse_option(text).map_err(|error| diag::explain(&error))
}

impl PreprocessArgs {
    /// Returns the preprocessing file; `None` for a preset.
    pub fn file(&self) -> Option<RunFile> {
        let is_preset = |name: &&str| PRESETS.iter().any(|preset| preset.name.eq_ignore_ascii_case(name));
        let file = self.preprocess.as_deref().filter(|name| !is_preset(name));
        file.map(|file| RunFile::new("preprocessing", Path::new(file)))
    }

    /// Returns the preset or file, overridden by the single options.
    pub(super) fn resolve(&self) -> Result<Preprocessing, Failure> {
        let base = match &self.preprocess {
            Some(name) => Preprocessing::named(name).map_err(|error| {
                let is_file = scheme::is_path(name) || Path::new(name).is_file();
                let keys = "docs/guide.md lists the keys of preprocessing";
                if is_file { Failure::Failed(diag::or_hint(error, keys)) } else { Failure::Usage(error) }
            })?,
            None => Preprocessing::default(),
        };
        let preprocessing = base.overlaid(Preprocessing {
            preset: None,
            resize: self.resize,
            filter: self.filter,
            crop: self.crop,
            pad_value: self.pad_value,
            color: self.color,
            scale: self.scale,
            mean: self.mean.clone(),
            std: self.std.clone(),
            layout: self.layout,
        });
        preprocessing.check_numbers().map_err(Failure::Usage)?;
        Ok(preprocessing)
    }

    /// Returns the given preprocessing or, if no option is given, that of the calibration of `quantized` by its
    /// sidecar, with the path of the sidecar. Fails if the options or the sidecar's preprocessing are invalid.
    pub(super) fn resolve_for(&self, quantized: &Path) -> Result<(Preprocessing, Option<PathBuf>), Failure> {
        let given = self.resolve()?;
        if given != Preprocessing::default() {
            return Ok((given, None));
        }
        let sidecar = Sidecar::beside(quantized).filter(|sidecar| sidecar.is_sidecar_of(quantized));
        let options = sidecar.and_then(|sidecar| sidecar.calibration.preprocessing_options);
        let Some(options) = options else { return Ok((given, None)) };
        let path = quantized.with_extension("json");
        let of_sidecar = serde_json::from_value(options).with_context(|| {
            format!("`{}`: `calibration.preprocessing_options` is not a preprocessing", path.display())
        });
        Ok((of_sidecar.map_err(|error| error.hint("give the options of preprocessing"))?, Some(path)))
    }
}

/// Changes of a backend's table.
#[derive(Debug, Default, Args)]
pub struct TableArgs {
    /// Turn on a switch of the backend (see `mqq backends`); repeatable
    #[arg(long = "switch", value_name = "NAME", display_order = RARE)]
    switches: Vec<String>,
    /// Override a key of the backend's table: min_opset=17; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", display_order = RARE)]
    sets: Vec<String>,
}

impl TableArgs {
    /// Returns the table of `backend`, changed.
    pub(super) fn table(&self, backend: &str) -> Result<Scheme, Failure> {
        let with_hint = |error| diag::or_hint(error, "docs/backends.md lists the keys of tables");
        if scheme::is_path(backend) {
            backends::resolve(backend).map_err(with_hint)?;
        }
        backends::resolve_with(backend, &self.switches, &self.sets).map_err(|error| Failure::Usage(with_hint(error)))
    }

    /// Returns the table of `backend` and the table of wider types that may replace it, both changed.
    pub(super) fn tables(&self, backend: &str) -> Result<(Scheme, Option<Scheme>), Failure> {
        let scheme = self.table(backend)?;
        let wider = backends::resolve_wider(&scheme, &self.switches, &self.sets).map_err(Failure::Usage)?;
        Ok((scheme, wider))
    }
}

/// Returns the files of the tables of `backends`.
fn table_files<'a>(backends: impl IntoIterator<Item = &'a String>) -> Vec<RunFile> {
    let files = backends.into_iter().flat_map(|name| backends::files(name));
    files.map(|path| RunFile::new("backend's table", &path)).collect()
}

/// The backend, and changes of its table.
#[derive(Debug, Args)]
pub struct BackendArgs {
    /// Target: a backend (see `mqq backends`) or a YAML table
    #[arg(long, short, value_name = "NAME|FILE", add = complete::backends())]
    backend: String,
    #[command(flatten)]
    changes: TableArgs,
}

impl BackendArgs {
    /// Returns the files of the backend's table.
    pub fn files(&self) -> Vec<RunFile> {
        table_files([&self.backend])
    }

    /// Returns the backend's table.
    pub(super) fn table(&self) -> Result<Scheme, Failure> {
        self.changes.table(&self.backend)
    }

    /// Returns the backend's table and the table of wider types that may replace it.
    pub(super) fn tables(&self) -> Result<(Scheme, Option<Scheme>), Failure> {
        self.changes.tables(&self.backend)
    }
}

/// The table that is used to prepare a model if no backend is given.
const ANY_BACKEND: &str = "onnxruntime";

/// The backend and changes of its table, for commands that also work without a backend.
#[derive(Debug, Args)]
#[command(mut_arg("switches", |arg| arg.requires("backend")), mut_arg("sets", |arg| arg.requires("backend")))]
pub struct OptionalBackendArgs {
    /// Target: a backend (see `mqq backends`) or a YAML table
    #[arg(long, short, value_name = "NAME|FILE", add = complete::backends())]
    pub backend: Option<String>,
    #[command(flatten)]
    changes: TableArgs,
}

impl OptionalBackendArgs {
    /// Returns the files of the backend's table; none without a backend.
    pub fn files(&self) -> Vec<RunFile> {
        table_files(&self.backend)
    }

    /// Returns the backend's table and the table of wider types that may replace it. Without a backend, the first is
    /// [`ANY_BACKEND`]'s table.
    pub(super) fn tables(&self) -> Result<(Scheme, Option<Scheme>), Failure> {
        self.changes.tables(self.backend.as_deref().unwrap_or(ANY_BACKEND))
    }
}

/// The backends, and changes of their tables.
#[derive(Debug, Args)]
pub struct TargetsArgs {
    /// Targets: backends (see `mqq backends`) or YAML tables
    #[arg(long = "backend", short = 'b', value_name = "NAME|FILE,…", value_delimiter = ',', value_parser = trimmed, group = "for_backends", add = complete::backends())]
    pub names: Vec<String>,
    #[command(flatten)]
    changes: TableArgs,
}

impl TargetsArgs {
    /// Returns the files of the backends' tables.
    pub fn files(&self) -> Vec<RunFile> {
        table_files(&self.names)
    }

    /// Returns the tables, each with the table of wider types that may replace it.
    pub(super) fn resolve(&self, fixed: &StaticArgs) -> Result<Vec<(Scheme, Option<Scheme>)>, Failure> {
        let resolved = |name: &String| self.changes.tables(name).map(|tables| fixed.apply_to_both(tables));
        let tables: Vec<(Scheme, Option<Scheme>)> = self.names.iter().map(resolved).collect::<Result<_, Failure>>()?;
        let mut seen = BTreeSet::new();
        match tables.iter().find(|(scheme, _)| !seen.insert(&scheme.name)) {
            Some((twice, _)) => {
                Err(Failure::Usage(anyhow!("--backend names `{}` twice, expected different backends", twice.name)))
            }
            None => Ok(tables),
        }
    }
}

/// Patterns that select the nodes to quantize.
#[derive(Debug, Args)]
pub struct SelectArgs {
    /// Keep nodes float: node name, glob or operator type; repeatable
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Quantize only these nodes; patterns as for --exclude; repeatable
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
}

impl SelectArgs {
    /// Compiles the patterns.
    pub fn resolve(&self) -> Result<Selection> {
        Selection::new(&self.exclude, &self.only)
    }
}

/// Shapes of inputs with open dimensions.
#[derive(Debug, Args)]
pub struct ShapeArgs {
    /// Shape of an input in all samples: x=1x3x224x224; repeatable
    #[arg(long = "shape", value_name = "INPUT=DIMS")]
    shapes: Vec<String>,
}

impl ShapeArgs {
    /// Returns the shapes by input name.
    pub fn resolve(&self) -> Result<Shapes> {
        // ONNX writes a size in 63 bits.
        let size = |dim: &str| dim.parse().ok().filter(|&n: &i64| n > 0).and_then(|n| usize::try_from(n).ok());
        let dims = |text: &str| text.split('x').map(size).collect::<Option<Vec<usize>>>();
        by_name("--shape", &self.shapes, dims, ("an input", "input=1x3x224x224"))
    }
}

/// Parses the values `NAME=VALUE` of an option, which are given once per `named` (`an input`).
fn by_name<T>(
    option: &str,
    values: &[String],
    parse: impl Fn(&str) -> Option<T>,
    (named, example): (&str, &str),
) -> Result<BTreeMap<String, T>> {
    let mut all = BTreeMap::new();
    for text in values {
        let parsed = text.rsplit_once('=').and_then(|(name, value)| Some((name.to_string(), parse(value)?)));
        let (name, value) = parsed.with_context(|| format!("{option} is `{text}`, expected for instance {example}"))?;
        ensure!(all.insert(name, value).is_none(), "{option} names {named} twice: `{text}`");
    }
    Ok(all)
}

fn task_help() -> String {
    let names: Vec<&str> = TaskName::ALL.iter().map(|(_, name)| *name).collect();
    format!("Task: {}", names.join(", "))
}

/// The task of the network, and the decoding of its outputs.
#[derive(Debug, Args)]
pub struct TaskArgs {
    #[arg(long, value_name = "NAME", display_order = RARE, help = task_help(), add = complete::tasks())]
    task: Option<String>,
    /// Decoding of the outputs, such as yolox (docs/tasks.md)
    #[arg(long, value_name = "NAME|FILE", display_order = RARE, add = complete::heads())]
    head: Option<String>,
}

impl TaskArgs {
    /// Returns the head's file; `None` for a built-in head.
    pub fn file(&self) -> Option<RunFile> {
        let file = self.head.as_deref().filter(|head| heads::is_path(head));
        file.map(|file| RunFile::new("head", Path::new(file)))
    }

    /// Returns the task and the head, each if given.
    pub(super) fn resolve(&self) -> Result<HeadRequest, Failure> {
        let task = self.task.as_deref().map(|task| TaskName::parse(task).context("--task"));
        let task = task.transpose().map_err(Failure::Usage)?;
        let resolved = |head: &str| {
            heads::resolve(head).map_err(|error| match heads::is_path(head) {
                true => Failure::Failed(diag::or_hint(error, "docs/tasks.md lists the keys of heads")),
                false => Failure::Usage(error.context("--head")),
            })
        };
        let head = self.head.as_deref().map(resolved).transpose()?;
        if let (Some(task), Some(head)) = (task, &head)
            && task != head.task()
        {
            let (task, head, of_head) = (task.name(), &head.name, head.task().name());
            return Err(Failure::Usage(anyhow!("--task is {task}, but head `{head}` is of task {of_head}")));
        }
        Ok(HeadRequest { task, head })
    }
}

/// The channel axes of outputs.
#[derive(Debug, Args)]
pub struct AxisArgs {
    /// Channel axis of an output if -v has it wrong: y=1; repeatable
    #[arg(long = "channel-axis", value_name = "OUTPUT=AXIS", display_order = RARE)]
    axes: Vec<String>,
}

impl AxisArgs {
    /// Returns the axes by output name.
    pub fn resolve(&self) -> Result<ChannelAxes> {
        by_name("--channel-axis", &self.axes, |axis| axis.parse().ok(), ("an output", "boxes=1"))
    }
}

/// Whether the written model has fixed shapes: those of the calibration.
#[derive(Debug, Args)]
pub struct StaticArgs {
    /// Write a model with static shapes; an open batch becomes 1
    #[arg(long)]
    static_shapes: bool,
}

impl StaticArgs {
    /// Returns the table with the option applied.
    pub fn apply(&self, scheme: Scheme) -> Scheme {
        Scheme { static_shapes: scheme.static_shapes || self.static_shapes, ..scheme }
    }

    /// Returns a table and the table of wider types that may replace it, with the option applied.
    pub fn apply_to_both(&self, (scheme, wider): (Scheme, Option<Scheme>)) -> (Scheme, Option<Scheme>) {
        (self.apply(scheme), wider.map(|wider| self.apply(wider)))
    }
}

/// The number of samples, in all and in parallel.
#[derive(Debug, Args)]
pub struct SampleArgs {
    /// Maximum number of samples
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub limit: Option<usize>,
    #[command(flatten)]
    pub threads: ThreadArgs,
}

/// The number of samples that run in parallel.
#[derive(Debug, Args)]
pub struct ThreadArgs {
    /// Number of threads [default and maximum: all cores]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, display_order = RARE)]
    threads: Option<usize>,
}

impl ThreadArgs {
    /// Returns the number of samples that run in parallel: the option's, at most the number of cores, which is the
    /// default.
    pub fn n(&self) -> usize {
        self.threads.unwrap_or(usize::MAX).min(n_cores())
    }

    /// Returns a warning if the option is above the number of cores.
    pub fn warning(&self) -> Option<String> {
        let asked = self.threads.filter(|&asked| asked > n_cores())?;
        Some(format!("--threads is {asked}, but there are {n} cores: {n} threads are used", n = n_cores()))
    }
}

fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Parses a count of at least 1.
fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "expected a whole number, 1 or more".to_string())
}

/// Parses the value of a pixel, 0 to 255.
fn pixel(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "expected a whole number from 0 to 255".to_string())
}

/// Parses a whole number, 0 or more.
pub(super) fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number, 0 or more".to_string())
}

/// Removes the spaces around a name of a list.
fn trimmed(text: &str) -> Result<String, String> {
    Ok(text.trim().to_string())
}

/// Options of the printed output.
#[derive(Debug, Args)]
pub struct PrintArgs {
    /// Print one JSON object on stdout
    #[arg(long, display_order = RARE)]
    pub json: bool,
    /// Print errors only, and the object of --json
    #[arg(long, short, display_order = RARE)]
    pub quiet: bool,
}

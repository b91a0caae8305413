//! `mqq calibrate --zoo`: quantizes many models, each with its own options, several at a time.
//!
//! Each model is quantized by its own process, so that no model can end the others. The results are the same as without
//! --zoo. A process starts when its estimated memory is free; it is not stopped if it takes more.

use super::given_options::{Options, arguments, given_options};
use super::options::PrintArgs;
use super::print::{self, err, out};
use super::quantize::size_of;
use super::zoo_file::{Entry, ZooFile};
use super::zoo_gates::gates;
use super::zoo_process::{exit_of, program};
use super::{ErrorReport, Failure, junit};
use crate::data;
use crate::diag::{Exit, WithHint, count, explain_with_hint, file_name, text_of};
use crate::guard;
use crate::onnx::{RunFile, Staged, check_outputs};
use crate::report;
use anyhow::{Result, anyhow};
use clap::Args;
use clap::ValueHint;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Options of runs on many models.
#[derive(Debug, Args)]
#[command(next_help_heading = "Many models")]
pub struct ZooArgs {
    /// YAML file with the options of each model; models run side by side
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "for_backends", conflicts_with_all = ["save_stats", "output", "report", "verbose"])]
    zoo: Option<PathBuf>,
    /// Memory of the running models, such as 8G [default: 80 % of the free memory]
    #[arg(long, value_name = "SIZE", requires = "zoo", value_parser = size)]
    memory: Option<u64>,
    /// Also write the results as JUnit XML
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "zoo")]
    junit: Option<PathBuf>,
}

impl ZooArgs {
    /// Returns the file with the options of each model.
    pub fn file(&self) -> Option<&Path> {
        self.zoo.as_deref()
    }
}

/// Options that are not passed on: they concern the whole zoo, or each model's process gets its own value.
const OWN: &[&str] = &["zoo", "memory", "junit", "json", "quiet", "threads", "keep-going"];

/// Parses a size such as `800M` or `8G`, and returns it in bytes.
fn size(text: &str) -> Result<u64, String> {
    let (number, factor) = match text.strip_suffix(['M', 'm']) {
        Some(number) => (number, 1 << 20),
        None => (text.strip_suffix(['G', 'g']).unwrap_or_default(), 1 << 30),
    };
    let size = number.parse::<f64>().ok().filter(|size| *size > 0.0);
    size.map(|size| (size * f64::from(factor)) as u64).ok_or_else(|| "expected a size such as 800M or 8G".to_string())
}

/// Returns the estimated memory of a model's process in bytes. It is the program, a multiple of the model's files and,
/// by effort, the samples that methods keep with their intermediate values (docs/guide.md).
fn reserved(entry: &Entry) -> u64 {
    const MIB: u64 = 1 << 20;
    const OF_FILES: u64 = 8;
    let of_samples = match entry.options.get("effort").and_then(|values| values.first()).map(String::as_str) {
        Some("0") => 0,
        None | Some("1") => 1536,
        Some(_) => 4 * 1024,
    };
    (256 + of_samples) * MIB + OF_FILES * size_of(&RunFile::read_model("", &entry.model))
}

/// Returns four fifths of the free memory in bytes, or of the rest of the container's limit if that is less; `None` if
/// the system does not tell the free memory.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let of_group = guard::free_of_group(Path::new(guard::CONTROL_GROUP)).unwrap_or(u64::MAX);
    kilobytes(&text, "MemAvailable:").map(|free| free.min(of_group) / 5 * 4)
}

/// Returns the value of `key`, given in kB in a file of /proc, in bytes.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|n| n << 10)
}

/// A running process for one model.
struct Job {
    /// ID of the process; 0 before it starts and after it ends.
    process: Arc<AtomicU32>,
    threads: usize,
    /// Estimated memory, in bytes.
    reserved: u64,
    /// Peak memory so far, in bytes.
    peak: u64,
}

/// The results of a model, and its exit code.
struct FinishedJob {
    at: usize,
    results: Vec<Value>,
    exit: Exit,
    /// The stderr of its processes.
    messages: String,
    seconds: f64,
    /// Peak memory of its process, in bytes; 0 if the system does not tell it.
    peak: u64,
}

/// The resources and running jobs of a zoo.
struct Zoo {
    n_threads: usize,
    memory: Option<u64>,
    jobs: Vec<(usize, Job)>,
    /// Peak memory of all jobs together, in bytes.
    peak: u64,
}

impl Zoo {
    /// Reads the memory of the running jobs and updates the peaks.
    fn update_memory(&mut self) {
        let mut now = 0;
        for (_, job) in &mut self.jobs {
            let process = job.process.load(Ordering::Relaxed);
            let Ok(text) = std::fs::read_to_string(format!("/proc/{process}/status")) else { continue };
            job.peak = job.peak.max(kilobytes(&text, "VmHWM:").unwrap_or(0));
            now += kilobytes(&text, "VmRSS:").unwrap_or(0);
        }
        self.peak = self.peak.max(now);
    }

    /// Returns whether a model of `reserved` bytes may start. Without running jobs, it always may.
    fn has_room(&self, reserved: u64) -> bool {
        let used: u64 = self.jobs.iter().map(|(_, job)| job.reserved.max(job.peak)).sum();
        self.jobs.is_empty() || self.memory.is_none_or(|memory| used + reserved <= memory)
    }

    /// Returns the number of threads for the next of `n_left` models: 0 if none is free, more than 1 if there are fewer
    /// models than free threads.
    fn threads_for(&self, n_left: usize) -> usize {
        let used: usize = self.jobs.iter().map(|(_, job)| job.threads).sum();
        let free = self.n_threads.saturating_sub(used);
        if free == 0 { 0 } else { (free / n_left.clamp(1, free)).max(1) }
    }
}

/// Runs the command.
pub(super) fn run(
    zoo: &ZooArgs,
    path: &Path,
    models: &[PathBuf],
    n_threads: usize,
    print: &PrintArgs,
) -> Result<Exit, Failure> {
    let start = Instant::now();
    let mut given: Options = given_options();
    OWN.iter().for_each(|name| drop(given.remove(*name)));
    let file = ZooFile::read(path)?;
    let entries = models.iter().map(|model| file.entry(model, &given).map(Arc::new));
    let entries = entries.collect::<Result<Vec<Arc<Entry>>>>()?;
    ensure_apart(&entries).map_err(Failure::Usage)?;
    let written: Vec<RunFile> = zoo.junit.iter().map(|path| RunFile::new("JUnit report", path)).collect();
    let of_zoo = |visit: &mut dyn FnMut(RunFile)| {
        let models = models.iter().flat_map(|model| RunFile::read_model("float model", model));
        models.chain([RunFile::new("options of models", path)]).for_each(&mut *visit);
        let named: BTreeSet<String> = entries.iter().flat_map(|entry| entry.named()).cloned().collect();
        let role = "data of models, or a file of their options";
        data::files(&Vec::from_iter(named), &mut |path| visit(RunFile::new(role, path)));
    };
    let _made = check_outputs(&written, of_zoo).map_err(Failure::Usage)?;
    let quiet = print.quiet;
    for pattern in file.unmatched(models).iter().filter(|_| !quiet) {
        err!("warning: `{}`: `{pattern}` matches no model", path.display());
    }
    let memory = zoo.memory.or_else(free_memory);
    let mut zoo_run = Zoo { n_threads, memory, jobs: Vec::new(), peak: 0 };
    let (sender, receiver) = channel();
    // Large models start first, so that none runs alone at the end.
    let mut left: Vec<usize> = (0..entries.len()).collect();
    let reserved: Vec<u64> = entries.iter().map(|entry| reserved(entry)).collect();
    left.sort_by_key(|&at| reserved[at]);
    let (mut done, mut n_done): (Vec<Option<Vec<Value>>>, usize) = (vec![None; entries.len()], 0);
    let mut exit = Exit::Done;
    while n_done < entries.len() {
        start_jobs(&mut zoo_run, &mut left, &entries, &reserved, &sender);
        let Some(FinishedJob { at, mut results, exit: of_model, messages, seconds, peak }) =
            next(&mut zoo_run, &receiver)?
        else {
            continue;
        };
        n_done += 1;
        exit = worse(exit, of_model);
        zoo_run.jobs.retain(|(of, _)| *of != at);
        zoo_run.peak = zoo_run.peak.max(peak);
        for result in &mut results {
            result["peak_bytes"] = json!((peak > 0).then_some(peak));
        }
        if !messages.trim().is_empty() {
            print::STDERR.lines(messages.trim_end());
        }
        if !quiet {
            warnings(&results);
            let states: Vec<&str> = results.iter().filter_map(|result| result["status"].as_str()).collect();
            let model = file_name(&entries[at].model);
            err!("[{n_done}/{}] {model}: {} ({seconds:.1} s)", entries.len(), states.join(", "));
        }
        done[at] = Some(results);
    }
    let results: Vec<Value> = done.into_iter().flatten().flatten().collect();
    if let Some(path) = &zoo.junit {
        Staged::write(junit::text(&results).as_bytes(), path)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    if print.json {
        let (threads, peak) = (zoo_run.n_threads, zoo_run.peak);
        let about = json!({ "seconds": seconds, "threads": threads, "peak_bytes": peak, "memory_bytes": memory });
        print::object(json!({ "zoo": about, "results": results }))?;
    } else if !quiet {
        report::table(&results, true).iter().for_each(|line| out!("{line}"));
        out!("{}", summary(&results, entries.len(), &zoo_run, seconds));
    }
    Ok(exit)
}

/// Returns the last line: the number of models, results by status, and the time, threads and memory of the run.
fn summary(results: &[Value], n_models: usize, zoo: &Zoo, seconds: f64) -> String {
    let of = |status: &str| results.iter().filter(|result| result["status"] == status).count();
    let states = ["ok", "missed", "failed", "skipped"].map(|status| format!("{} {status}", of(status)));
    let megabytes = |bytes: u64| format!("{} MB", bytes / 1_000_000);
    let budget = zoo.memory.map_or(String::new(), |memory| format!(" of {}", megabytes(memory)));
    let used = format!("{}, {}{budget}", count(zoo.n_threads, "thread"), megabytes(zoo.peak));
    format!("{}: {}; {seconds:.1} s, {used}", count(n_models, "model"), states.join(", "))
}

/// Returns an error if two models would write the same results.
fn ensure_apart(entries: &[Arc<Entry>]) -> Result<()> {
    let mut names = BTreeMap::new();
    for entry in entries {
        let Entry { model, options, .. } = &**entry;
        let backends = options.get("backend").into_iter().flatten().flat_map(|names| names.split(',')).map(str::trim);
        let out_dir = options.get("out-dir").and_then(|values| values.first()).map(Path::new);
        let folder = Path::new(".").join(out_dir.or(model.parent()).unwrap_or(Path::new("")));
        let folder = folder.canonicalize().unwrap_or(folder);
        for backend in backends {
            let name = (folder.clone(), model.file_stem(), backend);
            if let Some(other) = names.insert(name, model).filter(|other| *other != model) {
                return Err(anyhow!(
                    "`{}`: its results for {backend} would have the names of those of `{}`, expected different names",
                    model.display(),
                    other.display()
                )
                .hint("use different names, or run them separately"));
            }
        }
    }
    Ok(())
}

/// Starts models of `left`, from its end, while threads and memory are free. `reserved` has the estimated memory of each
/// model, in bytes.
fn start_jobs(
    zoo: &mut Zoo,
    left: &mut Vec<usize>,
    entries: &[Arc<Entry>],
    reserved: &[u64],
    sender: &Sender<FinishedJob>,
) {
    while let Some(&at) = left.last() {
        let (entry, threads, reserved) = (entries[at].clone(), zoo.threads_for(left.len()), reserved[at]);
        if threads == 0 || !zoo.has_room(reserved) {
            return;
        }
        left.pop();
        let process = Arc::new(AtomicU32::new(0));
        let job = Job { process: process.clone(), threads, reserved, peak: 0 };
        zoo.jobs.push((at, job));
        let sender = sender.clone();
        std::thread::spawn(move || {
            // The receiver lives until all models are done.
            _ = sender.send(one(at, &entry, threads, &process));
        });
    }
}

/// Waits a moment and returns a finished model, if any. Updates the memory of the running jobs first.
fn next(zoo: &mut Zoo, receiver: &Receiver<FinishedJob>) -> Result<Option<FinishedJob>> {
    const INTERVAL: Duration = Duration::from_millis(20);
    zoo.update_memory();
    match receiver.recv_timeout(INTERVAL) {
        Ok(done) => Ok(Some(done)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(RecvTimeoutError::Disconnected.into()),
    }
}

fn warnings(results: &[Value]) {
    for result in results {
        let (model, backend) = (&result["model"], &result["backend"]);
        let of_result = result["summary"]["warnings"].as_array().into_iter().flatten();
        for warning in of_result.filter_map(Value::as_str) {
            let [model, backend] = [model, backend].map(|text| text.as_str().unwrap_or_default());
            err!("warning: `{model}` for {backend}: {warning}");
        }
    }
}

/// Runs the program on the model `at`, then checks its gates.
fn one(at: usize, entry: &Entry, threads: usize, process: &AtomicU32) -> FinishedJob {
    let start = Instant::now();
    let model = entry.model.display().to_string();
    let finished = |results, exit, messages, peak| {
        let seconds = start.elapsed().as_secs_f64();
        FinishedJob { at, results, exit, messages, seconds, peak }
    };
    if let Err(error) = entry.ensure_evaluable() {
        let of_error = serde_json::to_value(ErrorReport::of(&error)).unwrap_or_default();
        let message = format!("error: {}\n", explain_with_hint(&error));
        return finished(vec![with_model(of_error, &model)], Exit::Failed, message, 0);
    }
    let threads = format!("--threads={threads}");
    let mut command = vec!["calibrate".to_string(), model.clone(), threads.clone()];
    command.extend(arguments(&entry.options));
    let failed = |error: String| json!({ "model": model, "status": "failed", "error": error });
    let (mut messages, mut exit, mut peak) = (String::new(), Exit::Failed, 0);
    let mut results = match program(&command, process) {
        Ok(ran) => {
            messages += &ran.stderr;
            exit = exit_of(ran.status);
            peak = ran.peak;
            match ran.json {
                Some(mut object) if object["results"].is_array() => {
                    object["results"].as_array_mut().map(std::mem::take).unwrap_or_default()
                }
                Some(object) => {
                    if !messages.contains(&model) {
                        messages = messages.replacen("error: ", &format!("error: `{model}`: "), 1);
                    }
                    vec![with_model(object, &model)]
                }
                None => {
                    messages += &format!("error: `{model}`: its run ended early: {}\n", ran.status);
                    vec![failed(format!("`{model}`: its run ended early: {}", ran.status))]
                }
            }
        }
        Err(error) => {
            messages += &format!("error: {}\n", text_of(&error));
            vec![failed(text_of(&error))]
        }
    };
    for result in results.iter_mut().filter(|_| !entry.gates.is_empty()) {
        let start = Instant::now();
        let of_gates = gates(entry, result, &threads, process, &mut messages);
        result["gates_seconds"] = json!(start.elapsed().as_secs_f64());
        exit = worse(exit, of_gates);
    }
    finished(results, exit, messages, peak)
}

/// Returns `object`, the error of a failed process, as the result of `model`.
fn with_model(mut object: Value, model: &str) -> Value {
    if let Some(object) = object.as_object_mut() {
        object.remove("schema_version");
    }
    object["model"] = json!(model);
    object["status"] = json!("failed");
    object
}

/// Returns the exit code of two processes together: a failure outranks a missed gate.
fn worse(one: Exit, other: Exit) -> Exit {
    match (one, other) {
        (Exit::Done, exit) | (exit, Exit::Done) => exit,
        (Exit::Quality, Exit::Quality) => Exit::Quality,
        _ => Exit::Failed,
    }
}

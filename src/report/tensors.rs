//! The report of `mqq compare --tensors` on the inner tensors of the models.

use super::count;
use super::table::aligned;
use crate::matching::MatchKind;
use crate::metrics::{MAX_DB, SQNR};
use crate::pipeline::{ComparedTensor, ComparedTensors};
use serde::Serialize;
use serde_with::skip_serializing_none;

/// Number of tensors to look at first.
const N_FIRST: usize = 5;
/// SQNR of a layer alone, in dB, below which an option is advised.
const ADVICE_DB: f64 = 30.0;
/// SQNR of a tensor in the quantized network, in dB, below which a higher effort is advised if each layer alone is
/// good.
const TOGETHER_DB: f64 = 20.0;
/// Share of saturated values above which a range is too narrow, in percent.
const SATURATED_PERCENT: f64 = 0.1;
/// Ratio of the largest absolute value to the root mean square above which a range is too wide for its values.
const HIGH_CREST: f64 = 20.0;

/// Ratio of a range to the largest value above which calibration saw other data: three of eight bits are lost.
const WIDE_RANGE: f64 = 8.0;
/// Difference in dB by which a layer alone must be worse than all others so that `--exclude` of it is advised.
const CLEARLY_WORST_DB: f64 = 6.0;

/// The report on all tensors.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct TensorsReport {
    /// Number of samples.
    pub n_samples: usize,
    /// Tensors to look at first: their layers add the most error.
    pub look_first: Vec<String>,
    /// The option of `mqq calibrate` to try.
    pub advice: Option<SwitchAdvice>,
    /// Figures by tensor, in the order of the float model.
    pub rows: Vec<TensorFigures>,
    /// Tensors of the float model without a counterpart.
    pub unmatched: Vec<String>,
    /// The reason that no `added_sqnr_db` is known.
    pub added_failed: Option<String>,
}

/// An option to try.
#[derive(Debug, Clone, Serialize)]
pub struct SwitchAdvice {
    /// The option, as `--observer`.
    pub option: &'static str,
    /// Its value.
    pub value: String,
    /// The reason, with the figures.
    pub reason: String,
}

/// Figures of a tensor.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct TensorFigures {
    /// Name in the float model.
    pub tensor: String,
    /// Name of the compared tensor in the quantized model.
    pub quantized_tensor: String,
    /// How the pair was found.
    pub matched_by: MatchKind,
    /// First node of the layer that computes the tensor; absent for an input of the graph.
    pub layer: Option<String>,
    /// Operators of the layer.
    pub operators: Vec<String>,
    /// SQNR in the quantized network, in dB, with the errors of all layers before; absent for equal values.
    pub sqnr_db: Option<f64>,
    /// SQNR of the layer alone, in dB: it reads the tensors of the float model. Absent for equal values, or if not
    /// known.
    pub added_sqnr_db: Option<f64>,
    /// Mean cosine over the samples.
    pub cosine: f64,
    /// Largest absolute difference; absent if a value is NaN or infinite.
    pub max_difference: Option<f64>,
    /// Share of saturated values, in percent; absent without one constant scale.
    pub saturated_percent: Option<f64>,
    /// Number of channels that are constant only in the quantized network.
    pub dead_channels: Option<usize>,
    /// Number of channels; absent if they are not known or have few values.
    pub n_channels: Option<usize>,
}

/// The options that are of use for a quantized model, by the table and the run of its sidecar.
#[derive(Debug, Clone)]
pub struct UsefulOptions {
    /// Whether the target runs float operators, for `--exclude`.
    pub exclude: bool,
    /// Whether the table has the precision `float`, for `--keep-float`.
    pub keep_float: bool,
    /// The backend with wider types.
    pub wider: Option<String>,
    /// Whether the run tried no percentile, for `--observer percentile`.
    pub percentile: bool,
}

/// Returns the report. Its advice is one of the `useful` options.
pub fn tensors(compared: &ComparedTensors, useful: &UsefulOptions) -> TensorsReport {
    let figures = |tensor: &ComparedTensor| {
        let dead = tensor.dead_channels();
        let differs = |db: &f64| *db < MAX_DB;
        TensorFigures {
            tensor: tensor.about.tensor.clone(),
            quantized_tensor: tensor.about.read.clone(),
            matched_by: tensor.about.kind,
            layer: tensor.about.layer.clone(),
            operators: tensor.about.operators.clone(),
            sqnr_db: Some(tensor.sqnr_db()).filter(differs),
            added_sqnr_db: tensor.added_sqnr_db().filter(differs),
            cosine: tensor.cosine(),
            max_difference: tensor.max_difference(),
            saturated_percent: tensor.saturated_percent(),
            dead_channels: dead.map(|[n, _]| n),
            n_channels: dead.map(|[_, n]| n),
        }
    };
    let first = first(compared);
    TensorsReport {
        n_samples: compared.n_samples,
        look_first: first.iter().map(|tensor| tensor.about.tensor.clone()).collect(),
        advice: first
            .iter()
            .enumerate()
            .find_map(|(i, tensor)| advice((compared, useful), tensor, first.get(i + 1).copied())),
        rows: compared.tensors.iter().map(figures).collect(),
        unmatched: compared.unmatched.clone(),
        added_failed: compared.alone_failed.clone(),
    }
}

/// Returns the tensors whose layers add the most error. If layers could not be run alone, the tensors with the most
/// error.
fn first(compared: &ComparedTensors) -> Vec<&ComparedTensor> {
    let db = |tensor: &ComparedTensor| match compared.alone_failed {
        Some(_) => Some(tensor.sqnr_db()),
        None => tensor.added_sqnr_db(),
    };
    let mut tensors: Vec<(f64, &ComparedTensor)> = compared
        .tensors
        .iter()
        .filter_map(|tensor| Some((db(tensor)?, tensor)))
        .filter(|(db, _)| *db < MAX_DB)
        .collect();
    tensors.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    tensors.into_iter().take(N_FIRST).map(|(_, tensor)| tensor).collect()
}

/// Returns the option that the tensor's figures suggest, if any. `next` is the tensor whose layer adds the next most
/// error.
fn advice(
    (compared, useful): (&ComparedTensors, &UsefulOptions),
    tensor: &ComparedTensor,
    next: Option<&ComparedTensor>,
) -> Option<SwitchAdvice> {
    let added = tensor.added_sqnr_db().filter(|db| *db < ADVICE_DB)?;
    let name = &tensor.about.tensor;
    let saturated = tensor.saturated_percent().unwrap_or_default();
    let (is_of_range, crest) = (tensor.is_of_range(), tensor.crest());
    let ratio = tensor.range_over_values().filter(|ratio| ratio.is_finite()).unwrap_or_default();
    let advice = |option, value: &str, reason| Some(SwitchAdvice { option, value: value.to_string(), reason });
    match &tensor.about.layer {
        _ if is_of_range && saturated > SATURATED_PERCENT => {
            let reason = format!("{saturated:.2} % of the values of `{name}` lie beyond its range");
            advice("--observer", "max", reason)
        }
        // A tensor that shares its range has that of the largest one.
        _ if is_of_range && ratio > WIDE_RANGE && !compared.shares_grid(tensor) => {
            let reason = format!(
                "the range of `{name}` is {ratio:.0} times as large as its values here: calibration saw other data or \
                 another preprocessing"
            );
            advice("--data", "DATA", reason)
        }
        _ if is_of_range && crest > HIGH_CREST && useful.percentile => {
            let reason = format!("the largest value of `{name}` is {crest:.0} times its root mean square");
            advice("--observer", "percentile", reason)
        }
        Some(layer) if !tensor.is_of_float_layer() => {
            let reason = format!("the layer of `{name}` alone leaves {}", SQNR.with_unit(added));
            let next = next.and_then(ComparedTensor::added_sqnr_db).unwrap_or(MAX_DB);
            match &useful.wider {
                _ if useful.exclude && (next - added >= CLEARLY_WORST_DB || !useful.keep_float) => {
                    advice("--exclude", layer, reason)
                }
                _ if useful.keep_float => advice(
                    "--keep-float",
                    "4",
                    format!("{reason}, others little more; it takes the layers with most effect on the outputs"),
                ),
                Some(wider) => advice("--backend", wider, format!("{reason}; it has 16 bits")),
                None => None,
            }
        }
        _ => None,
    }
}

/// Returns a word for a shell, in quotation marks where it has characters with a meaning there.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:,=@%+".contains(c);
    match word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns the lines for the terminal: the number of tensors, a table of those to look at first, and the option to try.
pub fn tensor_lines(report: &TensorsReport) -> Vec<String> {
    let n = report.rows.len();
    let by_structure = report.rows.iter().filter(|row| row.matched_by == MatchKind::Structure).count();
    let structure = if by_structure > 0 { format!(", {by_structure} by structure") } else { String::new() };
    let total = count(n + report.unmatched.len(), "float tensor");
    let mut lines =
        vec![format!("inside: {n} of {total} compared on {}{structure}", count(report.n_samples, "sample"))];
    let db = |db: Option<f64>| db.map_or("equal".to_string(), |db| format!("{db:.1} dB"));
    let row = |name: &String| {
        let row = report.rows.iter().find(|row| row.tensor == *name)?;
        let dead = row.dead_channels.zip(row.n_channels).map_or("-".to_string(), |(n, of)| format!("{n} of {of}"));
        let layer =
            row.layer.as_ref().map_or("input".to_string(), |layer| format!("{layer} ({})", row.operators.join(", ")));
        let added = if report.added_failed.is_some() { "-".to_string() } else { db(row.added_sqnr_db) };
        let saturated = row.saturated_percent.map_or("-".to_string(), |percent| format!("{percent:.2} %"));
        Some(vec![row.tensor.clone(), db(row.sqnr_db), added, saturated, dead, layer])
    };
    let titles = ["look at first", "SQNR", "of its layer", "saturated", "dead channels", "layer"].map(str::to_string);
    let rows: Vec<Vec<String>> =
        std::iter::once(titles.to_vec()).chain(report.look_first.iter().filter_map(row)).collect();
    if rows.len() > 1 {
        lines.extend(aligned(&rows, |column| (1..5).contains(&column)).into_iter().map(|line| format!("  {line}")));
    }
    lines.extend(report.added_failed.iter().map(|reason| format!("layers could not be run alone: {reason}")));
    if let Some(SwitchAdvice { option, value, reason }) = &report.advice {
        lines.push(format!("try: mqq calibrate {option} {} ({reason})", shell_word(value)));
    }
    let lowest = |db: fn(&TensorFigures) -> Option<f64>| report.rows.iter().filter_map(db).reduce(f64::min);
    if let (Some(together), Some(alone)) = (lowest(|row| row.sqnr_db), lowest(|row| row.added_sqnr_db))
        && together < TOGETHER_DB
        && alone >= ADVICE_DB
    {
        let [together, alone] = [together, alone].map(|db| SQNR.with_unit(db));
        lines.push(format!(
            "try: mqq calibrate --effort 2 (each layer alone leaves {alone} or more, all together leave {together})"
        ));
    }
    lines
}

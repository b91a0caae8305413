//! The report of `mqq doctor`.

use super::{Verbosity, count, findings, percent_of_multiply_adds};
use crate::check::{Finding, Severity};
use crate::doctor::{ENOUGH_SHARE, Examined, RangeAgreement};
use crate::pipeline::Diagnosis;
use crate::statistics::UntilStable;
use serde::Serialize;
use serde_with::skip_serializing_none;

/// The report on a model and its data.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    pub(super) model: String,
    pub(super) backend: Option<String>,
    pub(super) preprocessing: Option<String>,
    /// Number of samples in the data.
    pub(super) n_listed: Option<usize>,
    /// Number of samples that were run.
    pub(super) n_samples: Option<usize>,
    /// Share of the multiply-adds on integers, 0 to 1.
    pub(super) integer_share: Option<f64>,
    pub(super) n_errors: usize,
    pub(super) n_warnings: usize,
    pub(super) findings: Vec<Finding>,
    pub(super) examined: Vec<ExaminedReport>,
    /// The share of the ranges by number of samples.
    pub(super) ranges_by_samples: Vec<RangeAgreement>,
    /// The rounds of samples until the backend's ranges are stable.
    pub(super) until_stable: Option<UntilStable>,
}

/// The report on one examination.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct ExaminedReport {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// `findings`, `nothing` or `unknown`.
    pub(super) result: &'static str,
    /// The reason that the result is unknown.
    pub(super) reason: Option<String>,
    /// A possible answer, although the result is unknown; or information where nothing is found.
    pub(super) hint: Option<String>,
}

impl DoctorReport {
    /// Returns the report on a model, for a backend if one is given.
    pub fn new(model: &str, backend: Option<&str>, diagnosis: &Diagnosis) -> DoctorReport {
        let findings = diagnosis.examined.iter().flat_map(|(_, examined)| match examined {
            Examined::Found(findings) => findings.clone(),
            Examined::Information(_) | Examined::Unknown(_) | Examined::Hint { .. } => Vec::new(),
        });
        let mut findings: Vec<Finding> = findings.collect();
        findings.sort_by_key(|finding| finding.severity == Severity::Warning);
        let n_of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        let examined = diagnosis.examined.iter().map(|(examination, examined)| ExaminedReport {
            name: examination.name,
            about: examination.about,
            result: match examined {
                Examined::Found(findings) if findings.is_empty() => "nothing",
                Examined::Found(_) => "findings",
                Examined::Information(_) => "nothing",
                Examined::Unknown(_) | Examined::Hint { .. } => "unknown",
            },
            reason: match examined {
                Examined::Unknown(reason) | Examined::Hint { reason, .. } => Some(reason.clone()),
                Examined::Found(_) | Examined::Information(_) => None,
            },
            hint: match examined {
                Examined::Information(hint) | Examined::Hint { hint, .. } => Some(hint.clone()),
                Examined::Found(_) | Examined::Unknown(_) => None,
            },
        });
        DoctorReport {
            model: model.to_string(),
            backend: backend.map(str::to_string),
            preprocessing: diagnosis.preprocessing.clone(),
            n_listed: diagnosis.data.as_ref().map(|data| data.n_listed),
            n_samples: diagnosis.data.as_ref().map(|data| data.samples.len()),
            integer_share: diagnosis.integer_share,
            n_errors: n_of(Severity::Error),
            n_warnings: n_of(Severity::Warning),
            examined: examined.collect(),
            findings,
            ranges_by_samples: diagnosis.ranges.clone(),
            until_stable: diagnosis.until_stable.clone(),
        }
    }

    /// Returns the number of errors: findings that make results wrong.
    pub fn n_errors(&self) -> usize {
        self.n_errors
    }

    /// Returns text such as `1 error, 2 warnings`.
    pub(super) fn summary(&self) -> String {
        format!("{}, {}", count(self.n_errors, "error"), count(self.n_warnings, "warning"))
    }

    /// Returns the names of the examinations that found nothing and give no information.
    fn fine(&self) -> Vec<&'static str> {
        let fine = self.examined.iter().filter(|examined| examined.result == "nothing" && examined.hint.is_none());
        fine.map(|examined| examined.name).collect()
    }

    /// Returns a sentence about the number of samples that is enough: with --until-stable for the backend's ranges,
    /// else the smallest number that gives 9 of 10 ranges. `None` if that number is above half of the samples.
    pub(super) fn enough(&self) -> Option<String> {
        if let Some(until_stable) = &self.until_stable {
            return Some(until_stable.sentence());
        }
        let all = self.ranges_by_samples.last()?;
        let enough = self.ranges_by_samples.iter().find(|ranges| ranges.share >= ENOUGH_SHARE)?;
        let half = 2 * enough.n_samples <= all.n_samples;
        half.then(|| {
            let share = 100.0 * enough.share;
            format!(
                "{} of {} samples give {share:.0} % of the tensors nearly the same ranges as all samples",
                enough.n_samples, all.n_samples
            )
        })
    }

    /// Returns the lines for the terminal.
    pub fn lines(&self, verbosity: Verbosity) -> Vec<String> {
        let mut lines = vec![format!("{}: {}", self.model, self.summary())];
        let mut add = |name: &str, value: String| lines.push(format!("  {name:<17} {value}"));
        if let (Some(n), Some(listed)) = (self.n_samples, self.n_listed) {
            let of = if n == listed { String::new() } else { format!(" of {listed}") };
            add("data", format!("{n}{of} samples"));
        }
        self.preprocessing.iter().for_each(|text| add("preprocessing", text.clone()));
        if let (Some(backend), Some(share)) = (&self.backend, self.integer_share) {
            add("backend", format!("{backend}: {} of the multiply-adds on integers", percent_of_multiply_adds(share)));
        }
        self.enough().into_iter().for_each(|text| add("samples", text));
        lines.extend(findings(&self.findings, verbosity).into_iter().map(|line| format!("  {line}")));
        let hints = self.examined.iter().filter_map(|examined| Some((examined, examined.hint.as_ref()?)));
        let (unknown_hints, information): (Vec<_>, Vec<_>) = hints.partition(|(examined, _)| examined.reason.is_some());
        if verbosity != Verbosity::Quiet {
            lines
                .extend(information.iter().map(|(examined, text)| format!("  information [{}] {text}", examined.name)));
        }
        let fine = self.fine();
        if !fine.is_empty() {
            lines.push(format!("  nothing found for {}", fine.join(", ")));
        }
        let unknown = self.examined.iter().filter_map(|examined| Some((examined.name, examined.reason.as_ref()?)));
        let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
        for (name, reason) in unknown {
            match by_reason.iter_mut().find(|(known, _)| known == reason) {
                Some((_, names)) => names.push(name),
                None => by_reason.push((reason, vec![name])),
            }
        }
        for (reason, names) in by_reason {
            lines.push(format!("  unknown: {}: {reason}", names.join(", ")));
        }
        if verbosity == Verbosity::Verbose {
            lines.extend(unknown_hints.iter().map(|(examined, hint)| format!("  hint: {}: {hint}", examined.name)));
        }
        lines
    }
}

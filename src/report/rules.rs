//! Lines about findings, for `mqq check` and `mqq doctor`.

use crate::check::{Finding, Severity};

/// Number of findings per rule that are printed by default.
const N_PRINTED: usize = 5;

/// Amount of printed findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// The first findings of each rule.
    Normal,
    /// Every finding.
    Verbose,
}

impl Verbosity {
    /// Returns the verbosity of `--quiet` and `--verbose`; `--quiet` outranks `--verbose`.
    pub fn of(quiet: bool, verbose: bool) -> Verbosity {
        match (quiet, verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }
}

/// Returns one line per finding, grouped by rule. A hint that consecutive findings share follows the last of them.
pub fn findings(findings: &[Finding], verbosity: Verbosity) -> Vec<String> {
    let mut lines = Vec::new();
    let same_rule = |a: &Finding, b: &Finding| (a.rule, a.severity) == (b.rule, b.severity);
    for group in findings.chunk_by(same_rule) {
        let Finding { rule, severity, .. } = &group[0];
        if *severity == Severity::Warning && verbosity == Verbosity::Quiet {
            continue;
        }
        let severity = severity.name();
        let n_printed = match verbosity {
            Verbosity::Verbose => group.len(),
            _ => N_PRINTED.min(group.len()),
        };
        for (i, finding) in group.iter().take(n_printed).enumerate() {
            lines.push(format!("{severity} [{rule}] {finding}"));
            let last_with_it = group.get(i + 1).is_none_or(|next| next.hint != finding.hint);
            if !finding.hint.is_empty() && (last_with_it || i + 1 == n_printed) {
                lines.push(format!("  hint: {}", finding.hint));
            }
        }
        if group.len() > n_printed {
            let n = group.len() - n_printed;
            lines.push(format!("… {n} more of [{rule}] (--verbose prints all)"));
        }
    }
    lines
}

//! The document of an examination.

use super::form::{Body, Chart, Document, Fact, Point, Section, Series, TableCell, columns};
use crate::check::Finding;
use crate::doctor::RangeAgreement;
use crate::report::doctor::ExaminedReport;
use crate::report::{DoctorReport, count, percent_of_multiply_adds};

/// Returns the document. Sections without contents are left out.
pub fn of_diagnosis(report: &DoctorReport) -> Document {
    let sections = [Some(summary(report)), findings(report), Some(examinations(report)), ranges(report)];
    Document { title: format!("Examination of {}", report.model), sections: sections.into_iter().flatten().collect() }
}

fn summary(report: &DoctorReport) -> Section {
    let mut facts = vec![Fact { name: "Model", value: report.model.clone() }];
    let mut add = |name, value: Option<String>| facts.extend(value.map(|value| Fact { name, value }));
    add("Backend", report.backend.clone());
    add("Multiply-adds on integers", report.integer_share.map(percent_of_multiply_adds));
    add("Samples", report.n_samples.map(|n| n.to_string()));
    add("Preprocessing", report.preprocessing.clone());
    add("Findings", Some(report.summary()));
    add("Ranges", report.enough());
    let about = "A float model and its calibration data before any run.";
    Section { id: "summary", title: "Summary", about, body: Body::Facts(facts) }
}

fn findings(report: &DoctorReport) -> Option<Section> {
    let row = |finding: &Finding| {
        let cells = [finding.severity.name(), finding.rule, &finding.to_string(), &finding.hint];
        cells.map(TableCell::from).into()
    };
    (!report.findings.is_empty()).then(|| Section {
        id: "findings",
        title: "Findings",
        about: "With an error the results would be wrong; with a warning they are worse or slower than they could be.",
        body: Body::Table {
            columns: columns(["Severity", "Examination", "Finding", "Hint"]),
            rows: report.findings.iter().map(row).collect(),
        },
    })
}

fn examinations(report: &DoctorReport) -> Section {
    let row = |examined: &ExaminedReport| {
        let reason = [examined.reason.as_deref(), examined.hint.as_deref()].into_iter().flatten().collect::<Vec<_>>();
        [examined.name, examined.about, examined.result, &reason.join("; ")].map(TableCell::from).into()
    };
    Section {
        id: "examinations",
        title: "Examinations",
        about: "All examinations. Unknown: the model and the data do not tell.",
        body: Body::Table {
            columns: columns(["Examination", "About", "Result", "Reason"]),
            rows: report.examined.iter().map(row).collect(),
        },
    }
}

fn ranges(report: &DoctorReport) -> Option<Section> {
    let point = |ranges: &RangeAgreement| Point {
        x: ranges.n_samples as f64,
        y: 100.0 * ranges.share,
        y_low: None,
        name: count(ranges.n_samples, "sample"),
    };
    let points: Vec<Point> = report.ranges_by_samples.iter().map(point).collect();
    (points.len() > 1).then(|| Section {
        id: "ranges",
        title: "Ranges by number of samples",
        about: "Share of the tensors whose range from some samples is at least 80 % of the range from all.",
        body: Body::Chart(Chart::of_lines("Samples", "Tensors (%)", vec![Series { name: "tensors", points }])),
    })
}

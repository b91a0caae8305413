//! Columns of a CSV file.

use crate::diag::WithHint;
use crate::foreign;
use anyhow::{Result, anyhow};
use std::path::Path;

/// One row of a CSV file.
pub struct Row {
    /// Line number in the file, from 1.
    pub line: u64,
    /// Cells of the requested columns, trimmed; empty where the row is too short.
    pub cells: Vec<String>,
}

/// Visits the rows of a CSV file in order. The file's first line names the columns. `columns` are the requested ones.
/// Empty lines and lines that begin with `#` are skipped. Fails if the file cannot be read or lacks a column, or
/// `visit` fails. The message does not name the file.
pub fn read(path: &Path, columns: &[&str], mut visit: impl FnMut(Row) -> Result<()>) -> Result<()> {
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(foreign::open(path)?);
    let header = reader.headers().map_err(explained)?.clone();
    let position = |column: &&str| {
        header.iter().position(|cell| cell == *column).ok_or_else(|| {
            let found = header.iter().collect::<Vec<_>>().join(",");
            anyhow!("the first line is `{found}`, expected column names, `{column}` among them")
                .hint(format!("write `{}` as the first line; commas separate columns", columns.join(",")))
        })
    };
    let positions: Vec<usize> = columns.iter().map(position).collect::<Result<_>>()?;
    for record in reader.records() {
        let record = record.map_err(explained)?;
        if record.iter().all(str::is_empty) {
            continue;
        }
        let cell = |&position: &usize| record.get(position).unwrap_or_default().to_string();
        let line = record.position().map_or(0, csv::Position::line);
        visit(Row { line, cells: positions.iter().map(cell).collect() })?;
    }
    Ok(())
}

/// Returns an error of the reader in plain words.
fn explained(error: csv::Error) -> anyhow::Error {
    match error.kind() {
        csv::ErrorKind::Utf8 { pos, .. } => {
            let line = pos.as_ref().map_or(String::new(), |pos| format!("line {}: ", pos.line()));
            anyhow!("{line}is not UTF-8 text")
        }
        _ => error.into(),
    }
}

//! The parts of a document.

use serde::Serialize;

/// A report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    /// Its title.
    pub title: String,
    /// Sections, in the order of reading.
    pub sections: Vec<Section>,
}

/// A part of a document.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Section {
    /// Name for links and programs.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Sentences that explain its contents; may be empty.
    pub about: &'static str,
    /// Its contents.
    #[serde(flatten)]
    pub body: Body,
}

/// The contents of a section.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Names with values.
    Facts(Vec<Fact>),
    /// Sentences.
    Lines(Vec<String>),
    /// Rows of cells.
    Table {
        /// The columns.
        columns: Vec<DocumentColumn>,
        /// The rows, each with a cell per column.
        rows: Vec<Vec<TableCell>>,
    },
    /// A chart.
    Chart(Chart),
    /// A graph of nodes.
    Graph(Graph),
    /// Distributions of tensors.
    Histograms(Vec<TensorHistogram>),
}

/// A name with a value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fact {
    /// The name.
    pub name: &'static str,
    /// The value, with its unit.
    pub value: String,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DocumentColumn {
    /// Its title.
    pub title: &'static str,
    /// Unit of its numbers; empty for text and for numbers without a unit.
    pub unit: &'static str,
}

/// Returns columns with these titles and one unit; an empty unit for text and for numbers without one.
pub fn columns_in<const N: usize>(unit: &'static str, titles: [&'static str; N]) -> Vec<DocumentColumn> {
    titles.map(|title| DocumentColumn { title, unit }).into()
}

/// Returns columns of text, or of numbers without a unit.
pub fn columns<const N: usize>(titles: [&'static str; N]) -> Vec<DocumentColumn> {
    columns_in("", titles)
}

impl DocumentColumn {
    /// Returns the title, with the unit if there is one.
    pub fn spelled(&self) -> String {
        match self.unit {
            "" => self.title.to_string(),
            unit => format!("{} ({unit})", self.title),
        }
    }
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TableCell {
    /// Text.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A number.
    Number(f64),
    /// No value.
    Empty,
}

impl TableCell {
    /// Returns a cell with the number; empty without a finite number.
    pub fn number(value: Option<f64>) -> TableCell {
        value.filter(|value| value.is_finite()).map_or(TableCell::Empty, TableCell::Number)
    }

    /// Returns the text of the cell; numbers have four significant digits.
    pub fn spelled(&self) -> String {
        match self {
            TableCell::Text(text) => text.clone(),
            TableCell::Integer(value) => value.to_string(),
            TableCell::Number(value) => spelled(*value),
            TableCell::Empty => String::new(),
        }
    }

    /// Returns whether the cell is a number.
    pub fn is_number(&self) -> bool {
        matches!(self, TableCell::Integer(_) | TableCell::Number(_))
    }
}

impl From<&str> for TableCell {
    fn from(text: &str) -> TableCell {
        TableCell::Text(text.to_string())
    }
}

impl From<String> for TableCell {
    fn from(text: String) -> TableCell {
        TableCell::Text(text)
    }
}

/// Returns a number with four significant digits, or all digits of a longer integer part below 1e7.
fn spelled(value: f64) -> String {
    if value == 0.0 {
        return "0".to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if (-4..7).contains(&magnitude) {
        let decimals = (3 - magnitude).clamp(0, 7) as usize;
        let text = format!("{value:.decimals$}");
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
            false => text,
        }
    } else {
        format!("{value:.3e}")
    }
}

/// A chart of one or more series over the same axes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// The drawing of the points.
    pub mark: ChartMark,
    /// Title and unit of the horizontal axis.
    pub x: String,
    /// Title and unit of the vertical axis.
    pub y: String,
    /// Whether the vertical axis is logarithmic.
    pub y_log: bool,
    /// Upper end of the vertical axis: higher points are drawn there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y_top: Option<f64>,
    /// The series.
    pub series: Vec<Series>,
}

impl Chart {
    /// Returns a chart of lines. `x` and `y` are the titles and units of its linear axes.
    pub fn of_lines(x: &str, y: &str, series: Vec<Series>) -> Chart {
        let (x, y) = (x.to_string(), y.to_string());
        Chart { mark: ChartMark::Line, x, y, y_log: false, y_top: None, series }
    }
}

/// The drawing of a chart's points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChartMark {
    /// A line through the points.
    Line,
    /// A vertical line from `y_low` to `y` at each point.
    Span,
}

/// Named points of a chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// The name.
    pub name: &'static str,
    /// The points, in ascending order of `x`.
    pub points: Vec<Point>,
}

/// A point of a chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Position on the horizontal axis.
    pub x: f64,
    /// Position on the vertical axis.
    pub y: f64,
    /// Lower end of a [`ChartMark::Span`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y_low: Option<f64>,
    /// Name of the measured node, tensor or layer.
    pub name: String,
}

/// A graph of nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Graph {
    /// The nodes, in order of execution.
    pub nodes: Vec<GraphNode>,
    /// Positions in `nodes` of a producer and of a node that reads its output.
    pub edges: Vec<[usize; 2]>,
}

/// A node of a graph.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GraphNode {
    /// Its name.
    pub name: String,
    /// Its operator.
    pub op_type: String,
    /// Computation of the node: `integer`, `float` or `fused`.
    pub computed: &'static str,
    /// SQNR of its output, in dB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqnr_db: Option<f64>,
}

/// The distribution of a tensor's values, and possible ranges.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorHistogram {
    /// The tensor.
    pub name: String,
    /// Lowest and highest value.
    pub ends: [f32; 2],
    /// Shares of the values in intervals of the same width from the lowest to the highest value.
    pub shares: Vec<f32>,
    /// Ranges of observers; the range that is used comes first.
    pub ranges: Vec<NamedRange>,
}

/// A range with a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamedRange {
    /// The name.
    pub name: String,
    /// Its ends.
    pub ends: [f64; 2],
}

impl NamedRange {
    /// Returns the ends as text, with four significant digits.
    pub fn spelled(&self) -> String {
        format!("{} to {}", spelled(self.ends[0]), spelled(self.ends[1]))
    }
}

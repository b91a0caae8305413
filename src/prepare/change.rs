//! Changes by passes, as values with a fixed wording.

use std::fmt;

/// A change to a float model. Its text is part of the sidecar's schema, and [`Change::parse`] reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The graph was cut at tensors, which are its outputs now.
    Cut(Vec<String>),
    /// Open dimensions of an input were fixed.
    FixedShape {
        /// ONNX name.
        input: String,
        /// The shape before, such as `[N, 3, ?]`.
        before: String,
        /// The fixed shape.
        after: String,
    },
    /// The default operator set was upgraded.
    UpgradedOpset {
        /// Version before the upgrade.
        from: i64,
        /// Version after the upgrade.
        to: i64,
    },
    /// Constant nodes became initializers.
    LiftedConstants(usize),
    /// Initializers are no longer inputs of the graph.
    TakenOffInputs(usize),
    /// Identity and Cast nodes of initializers are bypassed.
    BypassedNodes(usize),
    /// Transpose nodes of initializers became initializers.
    FoldedTransposes(usize),
    /// BatchNormalization nodes were folded into the layers before them.
    FoldedBatchNorms(usize),
    /// Div, Sub and Pow nodes became Mul and Add.
    MultipliedAndAdded(usize),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Cut(outputs) => write!(f, "cut at `{}`", outputs.join("`, `")),
            Change::FixedShape { input, before, after } => {
                write!(f, "input `{input}`: shape {before} is now {after}")
            }
            Change::UpgradedOpset { from, to } => write!(f, "opset {from} was upgraded to {to}"),
            Change::LiftedConstants(1) => f.write_str("1 Constant node became an initializer"),
            Change::TakenOffInputs(1) => f.write_str("1 initializer is no longer an input of the graph"),
            Change::BypassedNodes(1) => f.write_str("1 Identity or Cast node of an initializer was bypassed"),
            Change::FoldedTransposes(1) => f.write_str("1 Transpose node of an initializer was folded"),
            Change::FoldedBatchNorms(1) => f.write_str("1 BatchNormalization node was folded"),
            Change::MultipliedAndAdded(1) => f.write_str("1 Div, Sub or Pow node with a constant became Mul or Add"),
            Change::TakenOffInputs(n) => write!(f, "{n} initializers are no longer inputs of the graph"),
            several => write!(f, "{}", several.before_3()),
        }
    }
}

impl Change {
    /// The text up to schema 2.0 of the sidecar.
    fn before_3(&self) -> String {
        match self {
            Change::LiftedConstants(n) => format!("{n} Constant nodes became initializers"),
            Change::TakenOffInputs(n) => format!("{n} initializers are no inputs of the graph any more"),
            Change::BypassedNodes(n) => format!("{n} Identity and Cast nodes of initializers were bypassed"),
            Change::FoldedTransposes(n) => format!("{n} Transpose nodes of initializers were folded"),
            Change::FoldedBatchNorms(n) => format!("{n} BatchNormalization nodes were folded"),
            Change::MultipliedAndAdded(n) => format!("{n} Div, Sub and Pow nodes with a constant became Mul and Add"),
            other => other.to_string(),
        }
    }

    /// The change with this text; `None` where no change of this version has it.
    pub fn parse(text: &str) -> Option<Change> {
        const COUNTED: [fn(usize) -> Change; 6] = [
            Change::LiftedConstants,
            Change::TakenOffInputs,
            Change::BypassedNodes,
            Change::FoldedTransposes,
            Change::FoldedBatchNorms,
            Change::MultipliedAndAdded,
        ];
        let (first, rest) = text.split_once(' ')?;
        match first {
            "cut" => {
                let names = rest.strip_prefix("at `")?.strip_suffix('`')?;
                Some(Change::Cut(names.split("`, `").map(str::to_string).collect()))
            }
            "input" => {
                let (input, shapes) = rest.strip_prefix('`')?.rsplit_once("`: shape ")?;
                let (before, after) = shapes.split_once(" is now ")?;
                let [input, before, after] = [input, before, after].map(str::to_string);
                Some(Change::FixedShape { input, before, after })
            }
            "opset" => {
                let (from, to) = rest.split_once(" was upgraded to ")?;
                Some(Change::UpgradedOpset { from: from.parse().ok()?, to: to.parse().ok()? })
            }
            count => {
                let n = count.parse().ok()?;
                COUNTED
                    .map(|of| of(n))
                    .into_iter()
                    .find(|change| change.to_string() == text || change.before_3() == text)
            }
        }
    }
}

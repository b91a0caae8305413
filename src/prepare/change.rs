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
    /// Nodes that only pass on their input are bypassed.
    BypassedNodes(usize),
    /// Nodes whose inputs are initializers became initializers.
    FoldedConstants(usize),
    /// Transpose nodes that undo each other were removed.
    CancelledTransposes(usize),
    /// BatchNormalization nodes were folded into the layers before them.
    FoldedBatchNorms(usize),
    /// Add, Sub, Mul and Div nodes with constants were folded into the layers before them.
    FoldedArithmetic(usize),
    /// Pad nodes were folded into the convolutions behind them.
    FoldedPads(usize),
    /// ReduceMean nodes over all positions became GlobalAveragePool.
    PooledMeans(usize),
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
            Change::BypassedNodes(1) => f.write_str("1 node that only copies its input was bypassed"),
            Change::BypassedNodes(n) => write!(f, "{n} nodes that only copy their input were bypassed"),
            Change::FoldedConstants(1) => f.write_str("1 node with constant inputs was folded"),
            Change::FoldedConstants(n) => write!(f, "{n} nodes with constant inputs were folded"),
            Change::CancelledTransposes(1) => f.write_str("1 Transpose node that others undo was removed"),
            Change::CancelledTransposes(n) => write!(f, "{n} Transpose nodes that undo each other were removed"),
            Change::FoldedBatchNorms(1) => f.write_str("1 BatchNormalization node was folded"),
            Change::FoldedArithmetic(1) => {
                f.write_str("1 Add, Sub, Mul or Div node with a constant was folded into the layer before it")
            }
            Change::FoldedArithmetic(n) => {
                write!(f, "{n} Add, Sub, Mul and Div nodes with constants were folded into the layers before them")
            }
            Change::FoldedPads(1) => f.write_str("1 Pad node was folded into the convolutions behind it"),
            Change::FoldedPads(n) => write!(f, "{n} Pad nodes were folded into the convolutions behind them"),
            Change::PooledMeans(1) => f.write_str("1 ReduceMean node over all positions became GlobalAveragePool"),
            Change::PooledMeans(n) => write!(f, "{n} ReduceMean nodes over all positions became GlobalAveragePool"),
            Change::MultipliedAndAdded(1) => f.write_str("1 Div, Sub or Pow node with a constant became Mul or Add"),
            Change::TakenOffInputs(n) => write!(f, "{n} initializers are no longer inputs of the graph"),
            Change::LiftedConstants(n) => write!(f, "{n} Constant nodes became initializers"),
            Change::FoldedBatchNorms(n) => write!(f, "{n} BatchNormalization nodes were folded"),
            Change::MultipliedAndAdded(n) => write!(f, "{n} Div, Sub and Pow nodes with a constant became Mul and Add"),
        }
    }
}

impl Change {
    /// Texts of earlier versions.
    fn earlier_texts(&self) -> Vec<String> {
        match self {
            Change::LiftedConstants(n) => vec![format!("{n} Constant nodes became initializers")],
            Change::TakenOffInputs(n) => vec![format!("{n} initializers are no inputs of the graph any more")],
            Change::BypassedNodes(n) => vec![
                format!("{n} Identity and Cast nodes of initializers were bypassed"),
                format!("{n} Identity or Cast node of an initializer was bypassed"),
            ],
            Change::FoldedConstants(n) => vec![
                format!("{n} Transpose nodes of initializers were folded"),
                format!("{n} Transpose node of an initializer was folded"),
            ],
            Change::FoldedBatchNorms(n) => vec![format!("{n} BatchNormalization nodes were folded")],
            Change::MultipliedAndAdded(n) => {
                vec![format!("{n} Div, Sub and Pow nodes with a constant became Mul and Add")]
            }
            _ => Vec::new(),
        }
    }

    /// The change with this text; `None` where no change of this version has it.
    pub fn parse(text: &str) -> Option<Change> {
        const COUNTED: [fn(usize) -> Change; 10] = [
            Change::LiftedConstants,
            Change::TakenOffInputs,
            Change::BypassedNodes,
            Change::FoldedConstants,
            Change::CancelledTransposes,
            Change::FoldedBatchNorms,
            Change::FoldedArithmetic,
            Change::FoldedPads,
            Change::PooledMeans,
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
                COUNTED.map(|of| of(n)).into_iter().find(|change| {
                    change.to_string() == text || change.earlier_texts().iter().any(|earlier| earlier == text)
                })
            }
        }
    }
}

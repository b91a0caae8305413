//! Changes to a float model during preparation, as values with a fixed wording.

use std::fmt;

/// A change to a float model. Its text is part of the sidecar's schema, and [`Change::parse`] reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The graph was cut at tensors, which are now its outputs.
    Cut(Vec<String>),
    /// Open dimensions of an input were fixed.
    FixedShape {
        /// ONNX name of the input.
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
    /// If nodes whose conditions are known were replaced by the branches that run.
    InlinedBranches(usize),
    /// Constant nodes became initializers.
    LiftedConstants(usize),
    /// Initializers are no longer inputs of the graph.
    TakenOffInputs(usize),
    /// Nodes that only copy their input were bypassed.
    BypassedNodes(usize),
    /// Einsum nodes became MatMul.
    TurnedEinsums(usize),
    /// Nodes whose inputs are initializers were computed; their outputs became initializers.
    FoldedConstants(usize),
    /// Outputs of Shape nodes became initializers.
    StoredShapes(usize),
    /// GatherND nodes that take all rows became Reshape.
    ReshapedGathers(usize),
    /// Chains of Relu, Clip, Min and Max became one Relu or Clip.
    MergedBounds(usize),
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
    /// Operators that spell out a GELU or an L2 normalization became one.
    FusedOperators(usize),
    /// Guards of Softmax against NaN were removed.
    RemovedGuards(usize),
    /// Reciprocal nodes became Div nodes of 1.
    DividedOnes(usize),
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
            counted => {
                let Some((n, Wording { one, several, .. })) = counted.wording() else { return Ok(()) };
                write!(f, "{n} {}", if n == 1 { one } else { several })
            }
        }
    }
}

/// Makes a change of its count.
type OfCount = fn(usize) -> Change;

/// The text of a change after its count.
struct Wording {
    one: &'static str,
    several: &'static str,
    /// Texts of earlier versions, for any count.
    earlier: &'static [&'static str],
}

impl Change {
    /// Returns the changes whose count is not 0.
    pub(super) fn counted<const N: usize>(counts: [(usize, OfCount); N]) -> Vec<Change> {
        counts.into_iter().filter(|(n, _)| *n > 0).map(|(n, of)| of(n)).collect()
    }

    /// Returns the count and the wording of a change; `None` if the change has no count.
    fn wording(&self) -> Option<(usize, Wording)> {
        let (&n, one, several, earlier): (_, _, _, &[_]) = match self {
            Change::Cut(_) | Change::FixedShape { .. } | Change::UpgradedOpset { .. } => return None,
            Change::InlinedBranches(n) => (
                n,
                "If node with a known condition became the branch that runs",
                "If nodes with known conditions became the branches that run",
                &[],
            ),
            Change::LiftedConstants(n) => (
                n,
                "Constant node became an initializer",
                "Constant nodes became initializers",
                &["Constant nodes became initializers"],
            ),
            Change::TakenOffInputs(n) => (
                n,
                "initializer is no longer an input of the graph",
                "initializers are no longer inputs of the graph",
                &["initializers are no inputs of the graph any more"],
            ),
            Change::BypassedNodes(n) => (
                n,
                "node that only copies its input was bypassed",
                "nodes that only copy their input were bypassed",
                &[
                    "Identity and Cast nodes of initializers were bypassed",
                    "Identity or Cast node of an initializer was bypassed",
                ],
            ),
            Change::TurnedEinsums(n) => (n, "Einsum node became a MatMul", "Einsum nodes became MatMul", &[]),
            Change::FoldedConstants(n) => (
                n,
                "node with constant inputs was folded",
                "nodes with constant inputs were folded",
                &["Transpose nodes of initializers were folded", "Transpose node of an initializer was folded"],
            ),
            Change::StoredShapes(n) => (n, "Shape node became an initializer", "Shape nodes became initializers", &[]),
            Change::ReshapedGathers(n) => (
                n,
                "GatherND node that takes all rows became a Reshape",
                "GatherND nodes that take all rows became Reshapes",
                &[],
            ),
            Change::MergedBounds(n) => (
                n,
                "chain of Relu, Clip, Min and Max became one node",
                "chains of Relu, Clip, Min and Max became one node each",
                &[],
            ),
            Change::CancelledTransposes(n) => (
                n,
                "Transpose node that others undo was removed",
                "Transpose nodes that undo each other were removed",
                &[],
            ),
            Change::FoldedBatchNorms(n) => (
                n,
                "BatchNormalization node was folded",
                "BatchNormalization nodes were folded",
                &["BatchNormalization nodes were folded"],
            ),
            Change::FoldedArithmetic(n) => (
                n,
                "Add, Sub, Mul or Div node with a constant was folded into the layer before it",
                "Add, Sub, Mul and Div nodes with constants were folded into the layers before them",
                &[],
            ),
            Change::FoldedPads(n) => (
                n,
                "Pad node was folded into the convolutions behind it",
                "Pad nodes were folded into the convolutions behind them",
                &[],
            ),
            Change::PooledMeans(n) => (
                n,
                "ReduceMean node over all positions became GlobalAveragePool",
                "ReduceMean nodes over all positions became GlobalAveragePool",
                &[],
            ),
            Change::FusedOperators(n) => (
                n,
                "spelled-out GELU or L2 normalization became one node",
                "spelled-out GELUs and L2 normalizations became one node each",
                &[],
            ),
            Change::RemovedGuards(n) => {
                (n, "guard of a Softmax against NaN was removed", "guards of Softmax against NaN were removed", &[])
            }
            Change::DividedOnes(n) => {
                (n, "Reciprocal node became a Div of 1", "Reciprocal nodes became Divs of 1", &[])
            }
            Change::MultipliedAndAdded(n) => (
                n,
                "Div, Sub or Pow node with a constant became Mul or Add",
                "Div, Sub and Pow nodes with a constant became Mul and Add",
                &["Div, Sub and Pow nodes with a constant became Mul and Add"],
            ),
        };
        Some((n, Wording { one, several, earlier }))
    }

    /// Returns the change with this text, also in a wording of earlier versions; `None` for other texts.
    pub fn parse(text: &str) -> Option<Change> {
        const COUNTED: [OfCount; 18] = [
            Change::InlinedBranches,
            Change::LiftedConstants,
            Change::TakenOffInputs,
            Change::BypassedNodes,
            Change::TurnedEinsums,
            Change::FoldedConstants,
            Change::StoredShapes,
            Change::ReshapedGathers,
            Change::MergedBounds,
            Change::CancelledTransposes,
            Change::FoldedBatchNorms,
            Change::FoldedArithmetic,
            Change::FoldedPads,
            Change::PooledMeans,
            Change::FusedOperators,
            Change::RemovedGuards,
            Change::DividedOnes,
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
                    let is_earlier = |(n, wording): (usize, Wording)| {
                        wording.earlier.iter().any(|earlier| format!("{n} {earlier}") == text)
                    };
                    change.to_string() == text || change.wording().is_some_and(is_earlier)
                })
            }
        }
    }
}

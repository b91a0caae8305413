//! Texts of the changes that passes make to a model, and models that are refused.

use crate::support::GraphBuilder;
use mqq::prepare::{Change, check_float};

#[test]
fn a_text_is_read_as_what_it_was_written_for() {
    let [input, before, after] = ["a `b`", "[N, 3, ?]", "[1, 3, 8]"].map(str::to_string);
    let changes = [
        Change::FixedShape { input, before, after },
        Change::UpgradedOpset { from: 9, to: 13 },
        Change::InlinedBranches(1),
        Change::LiftedConstants(3),
        Change::TakenOffInputs(1),
        Change::BypassedNodes(2),
        Change::FoldedConstants(3),
        Change::StoredShapes(5),
        Change::ReshapedGathers(2),
        Change::MergedBounds(2),
        Change::CancelledTransposes(8),
        Change::FoldedBatchNorms(20),
        Change::FoldedArithmetic(4),
        Change::FoldedPads(1),
        Change::PooledMeans(2),
        Change::TurnedEinsums(2),
        Change::FusedOperators(3),
        Change::RemovedGuards(2),
        Change::DividedOnes(1),
        Change::MultipliedAndAdded(7),
    ];
    for change in changes {
        assert_eq!(Change::parse(&change.to_string()), Some(change));
    }
    // As schema 2.0 of the sidecar spelled them.
    let earlier = [
        ("1 Constant nodes became initializers", Change::LiftedConstants(1)),
        ("2 initializers are no inputs of the graph any more", Change::TakenOffInputs(2)),
        ("2 Identity and Cast nodes of initializers were bypassed", Change::BypassedNodes(2)),
        ("3 Transpose nodes of initializers were folded", Change::FoldedConstants(3)),
        ("1 BatchNormalization nodes were folded", Change::FoldedBatchNorms(1)),
    ];
    for (text, change) in earlier {
        assert_eq!(Change::parse(text), Some(change));
    }
    assert_eq!(Change::LiftedConstants(1).to_string(), "1 Constant node became an initializer");
    for other in ["", "3 nodes were changed", "opset 9 was upgraded", "input `x`: is open"] {
        assert_eq!(Change::parse(other), None, "{other}");
    }
}

#[test]
fn quantized_models_are_refused() {
    for op in ["QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "MatMulInteger", "MatMulNBits", "QGemm"] {
        let mut g = GraphBuilder::new(17);
        g.input("x", &[1, 16]);
        g.op(op, &["x"], "y");
        let error = check_float(&g.output("y").build()).unwrap_err();
        assert!(format!("{error:#}").contains(&format!("is already quantized (1 {op}), expected")), "{error:#}");
    }
}

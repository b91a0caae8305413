//! Texts of the changes that passes make to a model.

use mqq::prepare::Change;

#[test]
fn a_text_is_read_as_what_it_was_written_for() {
    let [input, before, after] = ["a `b`", "[N, 3, ?]", "[1, 3, 8]"].map(str::to_string);
    let changes = [
        Change::FixedShape { input, before, after },
        Change::UpgradedOpset { from: 9, to: 13 },
        Change::LiftedConstants(3),
        Change::TakenOffInputs(1),
        Change::BypassedNodes(2),
        Change::FoldedTransposes(3),
        Change::FoldedBatchNorms(20),
        Change::MultipliedAndAdded(7),
    ];
    for change in changes {
        assert_eq!(Change::parse(&change.to_string()), Some(change));
    }
    for other in ["", "3 nodes were changed", "opset 9 was upgraded", "input `x`: is open"] {
        assert_eq!(Change::parse(other), None, "{other}");
    }
}

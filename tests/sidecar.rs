//! The sidecar's text of many integers.

use mqq::sidecar::packed::{pack, unpack};
use proptest::prelude::*;

proptest! {
    #[test]
    fn unpacking_gives_what_was_packed(integers in prop::collection::vec(any::<i32>(), 0..50)) {
        let text = pack(&integers).unwrap();
        prop_assert_eq!(unpack(&text, integers.len()).unwrap(), integers.clone());
        prop_assert!(unpack(&text, integers.len() + 1).is_err());
    }

    #[test]
    fn other_texts_are_errors(text in "[A-Za-z0-9+/]{0,40}") {
        prop_assert!(unpack(&text, 3).is_err());
    }
}

#[test]
fn differences_of_learned_rounding_take_less_than_two_bits() {
    let integers: Vec<i32> = (0..10_000i32).map(|i| (i * i / 7 % 5 == 0) as i32).collect();
    assert!(8 * pack(&integers).unwrap().len() < 2 * integers.len());
}

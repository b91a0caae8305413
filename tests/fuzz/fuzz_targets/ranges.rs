//! Ranges of activations in the formats of other tools, and a run with them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::import;
use mqq_fuzz::quantize::{TINY, quantize_with};
use mqq_fuzz::{holds, number_of, table, with_file};

fuzz_target!(|data: &[u8]| holds(|| with_file("ranges", data, |path| {
    let ranges = import::read(path)?;
    let scheme = table(number_of(data)).clone();
    quantize_with(&TINY, scheme, &[], |request| request.ranges = Some(ranges)).map(drop)
})));

//! A user's table of a backend, and a run with it where it is accepted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::backends;
use mqq_fuzz::quantize::{TINY, quantize};
use mqq_fuzz::{holds, with_file};

fuzz_target!(|data: &[u8]| holds(|| with_file("table.yaml", data, |path| {
    let path = path.display().to_string();
    drop(backends::files(&path));
    let scheme = backends::resolve(&path)?;
    let set = backends::resolve_with(&path, &[], &["min_opset=17".to_string()])?;
    assert_eq!(set.name, scheme.name);
    // A table whose types contradict its rules is the user's: the error says so.
    _ = quantize(&TINY, scheme, None);
    Ok(())
})));

//! A sidecar, read back and used in each way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::difference::{differences, of_sidecar};
use mqq::sidecar::Sidecar;
use mqq::{export, report};
use mqq_fuzz::holds;
use mqq_fuzz::quantize::TINY;

fuzz_target!(|data: &[u8]| holds(|| {
    let sidecar = Sidecar::from_json(&String::from_utf8_lossy(data))?;
    let again = Sidecar::from_json(&sidecar.to_json())?;
    assert_eq!(again.to_json(), sidecar.to_json(), "read and written again");
    assert!(differences(&of_sidecar(&sidecar), &of_sidecar(&again)).is_empty(), "differs from itself");
    let document = report::of_sidecar(&sidecar);
    for format in report::FORMATS {
        format.render(&document)?;
    }
    for format in export::FORMATS {
        _ = format.bytes(&sidecar, format.needs_model.then_some(&*TINY));
    }
    drop((sidecar.model_edits(), sidecar.learned_weights(TINY.graph()?)));
    Ok(())
}));

//! What the user is told when something is off: suggestions, warnings, exit codes.

/// `\nhint: did you mean …?` for the candidate nearest to `found`, or nothing where none is near.
pub fn did_you_mean<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let near = candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(found, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 3)
        .min();
    near.map_or(String::new(), |(_, candidate)| format!("\nhint: did you mean `{candidate}`?"))
}

/// Exit codes: a contract with scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Done = 0,
    /// Something failed; a message says what.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A quality gate was not met.
    Quality = 3,
    /// The model breaks a rule of the backend.
    BackendRule = 4,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_only_what_is_near() {
        let names = ["tensorrt", "onnxruntime"];
        assert_eq!(did_you_mean("tensort", names), "\nhint: did you mean `tensorrt`?");
        assert_eq!(did_you_mean("openvino", names), "");
    }
}

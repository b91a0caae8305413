//! The binary, as scripts run it.

use assert_cmd::Command;

pub fn mqq() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("mqq"))
}

/// The result of a run.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The same; fails unless the exit code is 0.
    #[track_caller]
    pub fn done(self) -> Ran {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// The object of `--json`.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

pub fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

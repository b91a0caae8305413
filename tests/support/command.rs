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

pub fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

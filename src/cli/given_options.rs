//! The options of the command line as text, to pass them to other processes or to hash them.

use super::Cli;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory};
use std::collections::BTreeMap;

/// Options by long name, each with its values. A flag has no values.
pub type Options = BTreeMap<String, Vec<String>>;

/// Returns the options that are given on the command line, without defaults.
pub fn given_options() -> Options {
    let mut program = Cli::command();
    program.build();
    let matches = program.clone().get_matches();
    let Some((name, matches)) = matches.subcommand() else { return Options::new() };
    program.find_subcommand(name).map_or_else(Options::new, |command| of_command(command, matches))
}

fn of_command(command: &Command, matches: &ArgMatches) -> Options {
    let mut options = Options::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let Some(name) = argument.get_long() else { continue };
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let values = matches.get_raw(id).filter(|_| argument.get_action().takes_values()).into_iter().flatten();
        options.insert(name.to_string(), values.map(|value| value.to_string_lossy().into_owned()).collect());
    }
    options
}

/// Returns the options as arguments, one for each value.
pub fn arguments(options: &Options) -> Vec<String> {
    let of_option = |(name, values): (&String, &Vec<String>)| match values.is_empty() {
        true => vec![format!("--{name}")],
        false => values.iter().map(|value| format!("--{name}={value}")).collect(),
    };
    options.iter().flat_map(of_option).collect()
}

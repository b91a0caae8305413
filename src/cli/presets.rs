//! `mqq presets`: lists the presets of image preprocessing, or prints one as YAML.

use super::print::{self, out};
use super::{Failure, complete};
use crate::data::{PRESETS, Preset};
use crate::diag::Exit;

/// Arguments of `mqq presets`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mqq presets\n  mqq presets imagenet\n  mqq presets --json")]
pub struct PresetsArgs {
    /// Print the options of this preset, as a YAML file for --preprocess
    #[arg(value_name = "NAME", conflicts_with = "json", add = complete::presets())]
    name: Option<String>,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &PresetsArgs) -> Result<Exit, Failure> {
    if let Some(name) = &args.name {
        let preset = Preset::named(name).map_err(Failure::Usage)?;
        print::STDOUT.lines(preset.yaml()?.trim_end());
    } else if args.json {
        let entry = |preset: &Preset| serde_json::json!({ "name": preset.name, "description": preset.description });
        let list: Vec<_> = PRESETS.iter().map(entry).collect();
        print::object(serde_json::json!({ "presets": list }))?;
    } else {
        let width = PRESETS.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
        PRESETS.iter().for_each(|preset| out!("{:<width$}  {}", preset.name, preset.description));
    }
    Ok(Exit::Done)
}

//! `mqq presets`: lists the presets of image preprocessing.

use super::Failure;
use super::print::{self, out};
use crate::data::PRESETS;
use crate::diag::Exit;

/// Arguments of `mqq presets`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mqq presets\n  mqq presets --json")]
pub struct PresetsArgs {
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub(super) fn run(args: &PresetsArgs) -> Result<Exit, Failure> {
    if args.json {
        let entry = |preset: &crate::data::Preset| serde_json::json!({ "name": preset.name, "description": preset.description });
        let list: Vec<_> = PRESETS.iter().map(entry).collect();
        print::object(serde_json::json!({ "presets": list }))?;
    } else {
        let width = PRESETS.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
        PRESETS.iter().for_each(|preset| out!("{:<width$}  {}", preset.name, preset.description));
    }
    Ok(Exit::Done)
}

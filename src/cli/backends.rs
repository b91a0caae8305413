//! `mqq backends`: which targets there are, and what their tables say.

use super::misused;
use crate::diag::Exit;
use crate::scheme::{BUILT_IN, resolve, resolve_with};
use anyhow::Result;

/// Arguments of `mqq backends`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print this backend's resolved table
    #[arg(value_name = "NAME|FILE")]
    name: Option<String>,
    /// Turn on a switch of the table; repeatable
    #[arg(long = "switch", value_name = "NAME", requires = "name")]
    switches: Vec<String>,
    /// Change a value of the table, such as types.act8.bits=4; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "name")]
    sets: Vec<String>,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<Exit> {
    match &args.name {
        Some(name) => {
            let scheme = resolve_with(name, &args.switches, &args.sets).map_err(misused)?;
            match args.json {
                true => println!("{}", serde_json::to_string_pretty(&scheme)?),
                false => print!("{}", serde_yaml::to_string(&scheme)?),
            }
        }
        None => {
            let schemes: Result<Vec<_>> = BUILT_IN.iter().map(|(name, _)| resolve(name)).collect();
            let schemes = schemes?;
            if args.json {
                let list: Vec<_> = schemes
                    .iter()
                    .map(|s| serde_json::json!({ "name": s.name, "aliases": s.aliases, "description": s.description }))
                    .collect();
                println!("{}", serde_json::to_string_pretty(&list)?);
            } else {
                let width = schemes.iter().map(|scheme| scheme.name.len()).max().unwrap_or(0);
                for scheme in schemes {
                    println!("{:<width$} {}", scheme.name, scheme.description);
                    if !scheme.aliases.is_empty() {
                        println!("{:<width$}   also: {}", "", scheme.aliases.join(", "));
                    }
                    for (switch, what) in &scheme.switches {
                        println!("{:<width$}   --switch {switch}: {}", "", what.description);
                    }
                }
            }
        }
    }
    Ok(Exit::Done)
}

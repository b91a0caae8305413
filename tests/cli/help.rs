//! Texts of `--help`.

use super::*;

/// The options under each heading of a command's help.
fn sections(command: &str) -> Vec<(String, Vec<String>)> {
    let help = run(mqq().args([command, "--help"])).stdout;
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for line in help.lines() {
        if !line.starts_with(' ') && line.ends_with(':') {
            sections.push((line.trim_end_matches(':').to_string(), Vec::new()));
        }
        let line = line.trim_start();
        let option = line.split_whitespace().find(|word| word.starts_with("--"));
        if let (true, Some(option), Some((_, options))) = (line.starts_with('-'), option, sections.last_mut()) {
            options.push(option.trim_end_matches(',').to_string());
        }
    }
    sections
}

#[test]
fn help_has_every_option_under_its_heading() {
    let preprocessing = "Preprocessing of images";
    let precision = "Mixed precision (one goal)";
    for command in ["calibrate", "compare"] {
        for (heading, options) in sections(command) {
            let expected: &[&str] = match heading.as_str() {
                heading if heading == preprocessing => &[
                    "--preprocess", "--resize", "--filter", "--crop", "--pad-value", "--color", "--scale", "--mean",
                    "--std", "--layout",
                ],
                heading if heading == precision => {
                    &["--keep-float", "--target-sqnr", "--target", "--max-drop", "--bits-budget", "--raise-to"]
                }
                _ => continue,
            };
            assert_eq!(options, expected, "{command}: {heading}");
        }
        assert!(sections(command).iter().any(|(heading, _)| heading == preprocessing));
    }
    let help = run(mqq().args(["calibrate", "--help"])).stdout;
    let of = |option: &str| {
        let (_, rest) = help.split_once(&format!("{option} <")).unwrap();
        rest.split("\n  -").next().unwrap().split("\n      --").next().unwrap().to_string()
    };
    for name in ["max", "ema", "percentile", "shrink", "entropy", "mse", "auto"] {
        assert!(of("--observer").contains(name), "{name}: {}", of("--observer"));
    }
    for line in [
        "\n  0  range observers only\n",
        "\n  1  equalization, ",
        "\n  3  as 1, ",
        "\n  keep-first        first layers\n",
    ] {
        assert!(help.contains(line), "{help}");
    }
    let quiet = |command: &str| {
        let help = run(mqq().args([command, "--help"])).stdout;
        let (_, rest) = help.split_once("--quiet").unwrap();
        rest.split("\n  -").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for command in ["calibrate", "compare", "check"] {
        assert!(quiet(command).starts_with("Print errors only, and the object of --json"), "{}", quiet(command));
    }
}

/// The lines of a command's help from `begin` on, up to the next line without an indent.
fn help_block<'a>(help: &'a str, begin: &str) -> Vec<&'a str> {
    let lines = help.lines().skip_while(|line| *line != begin).skip(1);
    lines.take_while(|line| line.is_empty() || line.starts_with(' ')).filter(|line| !line.is_empty()).collect()
}

const COMMANDS: [&str; 16] = [
    "calibrate", "solve", "stats show", "stats diff", "stats merge", "inspect", "doctor", "backends", "presets",
    "prepare", "export", "compare", "eval", "diff", "check", "completions",
];

#[test]
fn help_has_one_line_per_option() {
    for command in COMMANDS.into_iter().filter(|command| *command != "compare") {
        let help = run(mqq().args(command.split(' ')).arg("--help")).stdout;
        let headings = [
            "Options:",
            "Preprocessing of images:",
            "Statistics of the data, for mqq solve:",
            "Many models:",
            "Mixed precision (one goal):",
        ];
        for line in headings.into_iter().flat_map(|heading| help_block(&help, heading)) {
            assert!(line.trim_start().starts_with('-'), "{command}: {line}");
        }
        assert!(help_block(&help, "Examples:").iter().all(|line| line.starts_with("  mqq ")), "{help}");
    }
}

#[test]
fn the_examples_of_the_help_run() {
    let folder = TempDir::new().unwrap();
    for name in ["resnet50.onnx", "bert.onnx"] {
        fs::copy(repository("fixtures/digits_cnn.onnx"), folder.path().join(name)).unwrap();
    }
    fs::create_dir(folder.path().join("images")).unwrap();
    for entry in fs::read_dir(repository("calib_data/calib")).unwrap().take(48) {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join("images").join(entry.file_name())).unwrap();
    }
    let binary = assert_cmd::cargo::cargo_bin!("mqq");
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let helps = COMMANDS.map(|command| command.split(' ').chain(["--help"]).collect::<Vec<&str>>());
    let helps = [vec!["--help"]].into_iter().chain(helps);
    for args in helps {
        let help = run(mqq().args(&args)).stdout;
        let begin = if args.len() == 1 { "First steps:" } else { "Examples:" };
        let examples = help_block(&help, begin);
        assert!(!examples.is_empty(), "{args:?}: {help}");
        for example in examples {
            let mut shell = std::process::Command::new("sh");
            let output = shell.arg("-c").arg(example).env("PATH", &path).current_dir(folder.path()).output().unwrap();
            // Here are no photographs: `doctor` says so.
            let finds = example.contains("mqq doctor") && output.status.code() == Some(3);
            assert!(output.status.success() || finds, "{example}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

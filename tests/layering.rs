//! The floors of `src`: a room uses lower floors only, never its own; floor 0 is open to all.
//! And a rule for the words of comments.
//!
//! Reads the paths of every source file (`use` lines, `crate::x::y` and `super::x` in expressions), not the library.
//! `MQQ_PRINT_ROOMS=1 cargo test --test layering -- --nocapture` prints lines per room, who uses whom, and what is not
//! as it should be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A part of `src` and what it may use besides floor 0.
struct Room {
    floor: u8,
    /// Modules of `src` that are this room; the first names it. One that does not exist holds nothing.
    modules: &'static [&'static str],
    may_use: MayUse,
}

enum MayUse {
    LowerFloors,
    LowerFloorsBut(&'static [&'static str]),
    Only(&'static [&'static str]),
}
use MayUse::{LowerFloors, LowerFloorsBut, Only};

const ROOMS: &[Room] = &[
    Room { floor: 11, modules: &["cli", "main", "unused"], may_use: LowerFloors },
    Room {
        floor: 10,
        modules: &["report"],
        may_use: Only(&[
            "pipeline", "difference", "matching", "sidecar", "mixed", "tune", "doctor", "check", "place", "metrics",
            "heads", "observers",
        ]),
    },
    Room { floor: 9, modules: &["pipeline"], may_use: LowerFloors },
    Room { floor: 9, modules: &["backends"], may_use: Only(&["scheme", "observers", "place", "check", "export"]) },
    Room { floor: 8, modules: &["export"], may_use: Only(&["sidecar", "equalize", "prepare", "scheme"]) },
    Room { floor: 8, modules: &["difference"], may_use: Only(&["sidecar", "matching", "check"]) },
    Room { floor: 8, modules: &["import"], may_use: Only(&["sidecar"]) },
    Room {
        floor: 7,
        modules: &["sidecar"],
        may_use: Only(&["metrics", "mixed", "tune", "plan", "prepare", "place", "scheme"]),
    },
    Room {
        floor: 6,
        modules: &["doctor"],
        may_use: Only(&["check", "calibrate", "preprocessing", "place", "engine", "metrics", "data", "scheme"]),
    },
    Room { floor: 6, modules: &["mixed"], may_use: LowerFloorsBut(&["equalize", "rewrite", "check"]) },
    Room { floor: 5, modules: &["tune"], may_use: LowerFloorsBut(&["rewrite"]) },
    Room { floor: 5, modules: &["check"], may_use: Only(&["rewrite", "scheme"]) },
    Room { floor: 6, modules: &["matching"], may_use: Only(&["check"]) },
    Room { floor: 4, modules: &["calibrate"], may_use: Only(&["prepare", "place", "engine", "data"]) },
    Room { floor: 4, modules: &["preprocessing"], may_use: Only(&["prepare", "engine", "metrics", "data"]) },
    Room { floor: 4, modules: &["simulate"], may_use: Only(&["plan", "engine", "metrics", "heads"]) },
    Room { floor: 4, modules: &["rewrite"], may_use: Only(&["plan", "scheme"]) },
    Room { floor: 3, modules: &["prepare"], may_use: Only(&["engine", "scheme"]) },
    Room { floor: 3, modules: &["plan"], may_use: Only(&["place", "observers", "scheme"]) },
    Room { floor: 3, modules: &["equalize"], may_use: Only(&["place", "scheme"]) },
    Room { floor: 2, modules: &["place"], may_use: Only(&["scheme"]) },
    Room { floor: 2, modules: &["engine"], may_use: Only(&["data"]) },
    Room { floor: 1, modules: &["scheme"], may_use: Only(&[]) },
    Room { floor: 1, modules: &["data"], may_use: Only(&[]) },
    Room { floor: 2, modules: &["metrics"], may_use: Only(&["data", "heads"]) },
    Room { floor: 1, modules: &["heads"], may_use: Only(&[]) },
    Room { floor: 1, modules: &["observers"], may_use: Only(&[]) },
    Room { floor: 0, modules: &["onnx"], may_use: Only(&[]) },
    Room { floor: 0, modules: &["quant"], may_use: Only(&[]) },
    Room { floor: 0, modules: &["statistics"], may_use: Only(&[]) },
    Room { floor: 0, modules: &["diag", "progress"], may_use: Only(&[]) },
    Room { floor: 0, modules: &["aligned", "guard"], may_use: Only(&[]) },
    Room { floor: 0, modules: &["foreign"], may_use: Only(&[]) },
    // A crate of its own.
    Room { floor: 0, modules: &["concrete"], may_use: Only(&[]) },
];

/// The folder of src that is a crate of its own.
const CRATE: &str = "concrete";

/// Packages that one room alone names.
const PACKAGES: &[(&str, &str)] = &[
    ("tract_onnx", "engine"),
    ("pulp", "engine"),
    ("prost", "onnx"),
    ("safetensors", "statistics"),
    ("ndarray", "concrete"),
    ("fast_image_resize", "concrete"),
    ("clap", "cli"),
    ("clap_complete", "cli"),
    ("clap_mangen", "cli"),
    ("indicatif", "cli"),
];

/// Macros and functions that only `cli::print` may call, or hand to a package that prints.
const PRINTING: &[&str] = &["print!", "println!", "eprint!", "eprintln!", "dbg!", "stdout()", "stderr()"];

/// A word or a sign of the source, and its line.
#[derive(Clone)]
struct Token {
    text: String,
    line: usize,
}

/// A source file: `a::b` is src/a/b.rs or src/a/b/mod.rs.
struct Source {
    file: String,
    module: Vec<String>,
    n_lines: usize,
    tokens: Vec<Token>,
}

/// A path in a source file.
struct Named {
    segments: Vec<String>,
    line: usize,
    /// The name that a `use` gives it.
    alias: Option<String>,
}

/// Words and signs; comments, texts, characters and lifetimes left out.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut line, mut i) = (Vec::new(), 1, 0);
    // Past the text that begins with the quote at `i`, between `n` number signs; raw where there is no escape.
    let past_text = |mut i: usize, n: usize, raw: bool| {
        i += 1;
        while i < chars.len() {
            match at(i) {
                '\\' if !raw => i += 2,
                '"' if (1..=n).all(|k| at(i + k) == '#') => return i + 1 + n,
                _ => i += 1,
            }
        }
        i
    };
    while i < chars.len() {
        let start = i;
        let c = at(i);
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= chars.len() {
                    break;
                }
            }
        } else if c == '"' {
            i = past_text(i, 0, false);
        } else if c == '\'' {
            // 'a' and '\n' are characters, 'a without a quote behind it is a lifetime.
            i = match at(i + 1) {
                '\\' => (i + 3..chars.len()).find(|&k| at(k) == '\'').unwrap_or(i) + 1,
                _ if at(i + 2) == '\'' => i + 3,
                _ => (i + 1..chars.len()).find(|&k| !is_word(at(k))).unwrap_or(i + 1),
            };
        } else if is_word(c) {
            while is_word(at(i)) {
                i += 1;
            }
            let word: String = chars[start..i].iter().collect();
            let signs = (i..).take_while(|&k| at(k) == '#').count();
            let raw = matches!(word.as_str(), "r" | "br" | "cr");
            if (raw && at(i + signs) == '"') || (matches!(word.as_str(), "b" | "c") && at(i) == '"') {
                i = past_text(i + signs, signs, raw);
            } else {
                found.push(Token { text: word, line });
            }
        } else {
            i += if c == ':' && at(i + 1) == ':' { 2 } else { 1 };
            if !c.is_whitespace() {
                found.push(Token { text: chars[start..i].iter().collect(), line });
            }
        }
        line += chars[start..i.min(chars.len())].iter().filter(|&&c| c == '\n').count();
    }
    found
}

/// Every file of src, in order.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    files.sort();
    let source = |path: &PathBuf| {
        let within = path.strip_prefix(&root).unwrap();
        let mut module: Vec<String> =
            within.with_extension("").iter().map(|part| part.to_str().unwrap().into()).collect();
        if module.last().is_some_and(|last| last == "mod" || last == "lib") {
            module.pop();
        }
        let text = fs::read_to_string(path).unwrap();
        let file = format!("src/{}", within.to_str().unwrap());
        let tokens = tokens(&text);
        let nested = tokens.windows(3).find(|t| t[0].text == "mod" && t[2].text == "{");
        assert!(
            nested.is_none(),
            "{file}:{}: a module within a file, expected a file of its own",
            nested.unwrap()[0].line
        );
        Source { file, module, n_lines: text.lines().count(), tokens }
    };
    files.iter().map(source).collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

impl Source {
    /// The module of src that it is in; none for lib.rs.
    fn top(&self) -> Option<&str> {
        self.module.first().map(String::as_str)
    }

    /// Every path, with the branches of `use a::{b, c}` apart.
    fn paths(&self) -> Vec<Named> {
        let mut paths = Vec::new();
        let mut i = 0;
        while i < self.tokens.len() {
            let before = i.checked_sub(1).map_or("", |k| self.tokens[k].text.as_str());
            if self.tokens[i].text == "use" {
                let start = paths.len();
                i = self.tree(i + 1, Vec::new(), &mut paths);
                for path in &mut paths[start..] {
                    let last = path.segments.iter().rev().find(|part| *part != "self").cloned();
                    path.alias = path.alias.take().or(last);
                }
            } else if is_name(&self.tokens[i].text) && before != "." && before != "::" {
                i = self.tree(i, Vec::new(), &mut paths);
            } else {
                i += 1;
            }
        }
        paths
    }

    /// Reads the path at `i`, which continues `segments`; the position behind it.
    fn tree(&self, mut i: usize, mut segments: Vec<String>, paths: &mut Vec<Named>) -> usize {
        let text = |i: usize| self.tokens.get(i).map_or("", |token| token.text.as_str());
        let line = self.tokens.get(i).map_or(0, |token| token.line);
        loop {
            match text(i) {
                "::" => i += 1,
                "{" => {
                    i += 1;
                    while !matches!(text(i), "}" | "") {
                        i = self.tree(i, segments.clone(), paths);
                        i += usize::from(text(i) != "}");
                    }
                    return i + 1;
                }
                word if is_name(word) || word == "*" => {
                    segments.push(word.to_string());
                    i += 1;
                    if text(i) != "::" {
                        let renamed = text(i) == "as";
                        paths.push(Named { segments, line, alias: renamed.then(|| text(i + 1).to_string()) });
                        return if renamed { i + 2 } else { i };
                    }
                }
                // `::<T>` behind a name, or `use<'a>` without one.
                _ => {
                    if !segments.is_empty() {
                        paths.push(Named { segments, line, alias: None });
                    }
                    return i;
                }
            }
        }
    }

    /// The path from the root of the library; nothing where it leads elsewhere.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        let n_up = path.iter().take_while(|part| *part == "super").count();
        match first {
            "crate" if self.top() == Some(CRATE) => Some([&self.module[..1], &path[1..]].concat()),
            "mqq_concrete" => Some([&[CRATE.to_string()], &path[1..]].concat()),
            "crate" | "mqq" => Some(path[1..].to_vec()),
            "self" => Some([&self.module, &path[1..]].concat()),
            "super" => {
                let up = self.module.len().saturating_sub(n_up);
                Some([&self.module[..up], &path[n_up..]].concat())
            }
            _ => None,
        }
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

impl Room {
    fn name(&self) -> &'static str {
        self.modules[0]
    }

    /// Why it may not use `other`, if so.
    fn refuses(&self, other: &Room) -> Option<String> {
        let listed = |names: &[&str]| names.contains(&other.name());
        if std::ptr::eq(self, other) || other.floor == 0 {
            return None;
        }
        if other.floor >= self.floor {
            return Some("a room uses lower floors only, never its own".to_string());
        }
        match self.may_use {
            LowerFloors => None,
            LowerFloorsBut(names) if !listed(names) => None,
            LowerFloorsBut(names) => Some(format!("it may use lower floors but {}", names.join(", "))),
            Only(names) if listed(names) => None,
            Only([]) => Some("it may use nothing but floor 0".to_string()),
            Only(names) => Some(format!("it may use {} and floor 0", names.join(", "))),
        }
    }
}

fn room_of(module: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.modules.contains(&module))
}

/// Who uses whom: user, used, and where.
type Edges = BTreeMap<(String, String), BTreeSet<String>>;

/// Uses between modules of src.
fn edges(sources: &[Source]) -> Edges {
    let mut edges = Edges::new();
    for source in sources {
        for path in source.paths() {
            let to = source.resolve(&path.segments).and_then(|to| to.first().cloned());
            if let (Some(from), Some(to)) = (source.top(), to)
                && from != to
            {
                let place = format!("{}:{}: {}", source.file, path.line, path.segments.join("::"));
                edges.entry((from.to_string(), to)).or_default().insert(place);
            }
        }
    }
    edges
}

/// The files of src by their modules, and what the names stand for that each brings in by `use`.
struct Names<'s> {
    imported: BTreeMap<&'s [String], BTreeMap<String, Vec<String>>>,
}

impl<'s> Names<'s> {
    fn of(sources: &'s [Source]) -> Names<'s> {
        let mut names = Names { imported: sources.iter().map(|s| (s.module.as_slice(), BTreeMap::new())).collect() };
        for source in sources {
            let uses = source.paths().into_iter().filter_map(|path| Some((path.alias?, path.segments)));
            let uses = uses.filter_map(|(alias, path)| Some((alias, names.absolute(source, &path)?)));
            let uses = uses.collect();
            names.imported.insert(&source.module, uses);
        }
        names
    }

    /// The path from the root of the library; nothing where it leads elsewhere.
    fn absolute(&self, source: &Source, path: &[String]) -> Option<Vec<String>> {
        let is_self = path.len() > 1 && path.last().is_some_and(|last| last == "self");
        let path = &path[..path.len() - usize::from(is_self)];
        let within = [&source.module, path].concat();
        let is_module = self.imported.contains_key(&within[..source.module.len() + 1]);
        let known = self.imported[source.module.as_slice()].get(&path[0]);
        let imported = known.map(|known| [known, &path[1..]].concat());
        source.resolve(path).or(is_module.then_some(within)).or(imported)
    }

    /// How much of a path from the root of the library is a file.
    fn n_file(&self, path: &[String]) -> usize {
        (0..=path.len()).rev().find(|&n| self.imported.contains_key(&path[..n])).unwrap_or_default()
    }

    /// The path by the file that defines what it names, however many modules hand it on.
    fn defined(&self, mut path: Vec<String>) -> Vec<String> {
        loop {
            let n = self.n_file(&path);
            let imported = path.get(n).and_then(|name| self.imported.get(&path[..n])?.get(name));
            match imported.map(|imported| [imported, &path[n + 1..]].concat()) {
                Some(next) if next != path => path = next,
                _ => return path,
            }
        }
    }
}

/// Uses between files of one room, by their modules. A module uses those within it; what these use of it is left out,
/// as lists of what there is stand in `mod.rs`.
fn edges_of_files(sources: &[Source]) -> Edges {
    let names = Names::of(sources);
    let mut edges = Edges::new();
    let mut add = |from: &[String], to: &[String], place: String| {
        edges.entry((from.join("::"), to.join("::"))).or_default().insert(place);
    };
    for source in sources {
        let from = source.module.as_slice();
        if let Some((_, parent @ [_, ..])) = from.split_last() {
            add(parent, from, source.file.clone());
        }
        for path in source.paths() {
            let Some(to) = names.absolute(source, &path.segments).map(|to| names.defined(to)) else { continue };
            let n = names.n_file(&to);
            // A module that is brought in whole is used where its name stands.
            if n == 0 || n == to.len() && path.alias.is_some() {
                continue;
            }
            let to = &to[..n];
            if from.first() == to.first() && !from.starts_with(to) && !to.starts_with(from) {
                add(from, to, format!("{}:{}: {}", source.file, path.line, path.segments.join("::")));
            }
        }
    }
    edges
}

/// All that can be reached from each.
fn reached(edges: &Edges) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        reached.entry(from).or_default().insert(to);
    }
    loop {
        let mut next = reached.clone();
        for (from, to) in &reached {
            let further = to.iter().filter_map(|name| reached.get(name)).flatten();
            next.get_mut(from).unwrap().extend(further);
        }
        if next == reached {
            return reached;
        }
        reached = next;
    }
}

/// Those that use themselves by way of others, with what they use on that way.
fn in_circles(edges: &Edges) -> BTreeMap<&str, BTreeSet<String>> {
    let reached = reached(edges);
    let reaches = |a: &str, b: &str| reached.get(a).is_some_and(|others| others.contains(b));
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for ((from, to), places) in edges.iter().filter(|((from, to), _)| reaches(to, from)) {
        let place = places.first().unwrap();
        found.entry(from).or_default().insert(format!("{from} -> {to}: {place}"));
    }
    found
}

/// Those that use each other in circles, circle by circle.
fn circles(edges: &Edges) -> BTreeSet<Vec<&str>> {
    let reached = reached(edges);
    let reaches = |a: &str, b: &str| reached.get(a).is_some_and(|others| others.contains(b));
    let circle = |at: &str| reached.keys().copied().filter(|other| reaches(at, other) && reaches(other, at)).collect();
    reached.keys().filter(|at| reaches(at, at)).map(|at| circle(at)).collect()
}

/// Fails where something breaks a rule, with the place of each.
fn hold<K: Ord>(rule: &str, found: &BTreeMap<K, BTreeSet<String>>) {
    let places: Vec<&str> = found.values().flatten().map(String::as_str).collect();
    assert!(places.is_empty(), "{rule}\n{}", places.join("\n"));
}

#[test]
fn every_module_is_in_one_room() {
    let listed: Vec<&str> = ROOMS.iter().flat_map(|room| room.modules).copied().collect();
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), listed.len(), "a module in two rooms");
    for source in sources() {
        let module = source.top().unwrap_or("main");
        assert!(listed.contains(&module), "{}: `{module}` is no room, expected a line in ROOMS", source.file);
    }
    let is_room = |name: &&str| ROOMS.iter().any(|room| room.name() == *name);
    for room in ROOMS {
        if let LowerFloorsBut(names) | Only(names) = room.may_use {
            assert!(names.iter().all(is_room), "`{}` may use a room that is none", room.name());
        }
    }
}

#[test]
fn a_room_uses_lower_floors_only() {
    let mut found: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    let sources = sources();
    let edges = edges(&sources);
    for ((from, to), places) in &edges {
        let from = room_of(from).unwrap();
        let Some(to) = room_of(to) else { panic!("`{to}` is no room: {places:?}") };
        let Some(why) = from.refuses(to) else { continue };
        for place in places {
            let file = place.split(':').next().unwrap();
            let floors = format!("{} (floor {}) -> {} (floor {})", from.name(), from.floor, to.name(), to.floor);
            found.entry((file, to.name())).or_default().insert(format!("{place}: {floors}: {why}"));
        }
    }
    hold("a room uses lower floors only, and of these what ROOMS lists:", &found);
}

#[test]
fn a_package_is_named_in_one_room() {
    let sources = sources();
    let mut found: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for source in &sources {
        let room = room_of(source.top().unwrap_or("main")).unwrap().name();
        for path in source.paths() {
            let Some((package, home)) = PACKAGES.iter().find(|p| p.0 == path.segments[0]) else {
                continue;
            };
            if room != *home {
                let place = format!("{}:{}: {package} is named in `{home}` only", source.file, path.line);
                found.entry((&source.file, package)).or_default().insert(place);
            }
        }
    }
    hold("a package is named in one room:", &found);
}

#[test]
fn one_file_prints() {
    let sources = sources();
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in &sources {
        let prints = source.module == ["cli", "print"];
        for (i, token) in source.tokens.iter().enumerate().filter(|_| !prints) {
            let next: String = source.tokens[i..].iter().take(3).map(|t| t.text.as_str()).collect();
            if let Some(call) = PRINTING.iter().find(|call| next.starts_with(**call)) {
                let place = format!("{}:{}: {call} outside of `cli::print`", source.file, token.line);
                found.entry(&source.file).or_default().insert(place);
            }
        }
    }
    hold("only `cli::print` prints:", &found);
}

#[test]
fn tests_are_in_their_folder() {
    for source in sources() {
        let words: Vec<&str> = source.tokens.iter().map(|token| token.text.as_str()).collect();
        let at = words.windows(3).position(|words| matches!(words, ["[", "test", "]"] | ["cfg", "(", "test"]));
        assert!(at.is_none(), "{}:{}: a test, expected in tests/", source.file, source.tokens[at.unwrap()].line);
    }
}

#[test]
fn no_circle_between_modules() {
    let sources = sources();
    hold("no circle between modules of src:", &in_circles(&edges(&sources)));
    hold("no circle between files of a module:", &in_circles(&edges_of_files(&sources)));
}

/// Types of a module, by name, with the files that hold them; types within an `impl` or a function left out.
fn types() -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    let mut types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        for line in fs::read_to_string(&file).unwrap().lines().filter(|line| !line.starts_with(char::is_whitespace)) {
            let mut words = line
                .split(|c: char| !is_name(&c.to_string()))
                .skip_while(|word| ["pub", "crate", "super", "in", ""].contains(word));
            let is_type = words.next().is_some_and(|word| ["struct", "enum", "trait", "type"].contains(&word));
            if let (true, Some(name)) = (is_type, words.next()) {
                types.entry(name.to_string()).or_default().insert(file.display().to_string());
            }
        }
    }
    types
}

#[test]
fn no_two_types_have_one_name() {
    let types = types();
    assert!(types.len() > 100, "{} types", types.len());
    let twice: Vec<_> = types.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "one name for one type, found {twice:#?}");
}

#[test]
fn sources_are_read() {
    let text = r###"
        // crate::comment
        /* crate::a /* crate::b */ crate::c */
        use crate::{one, two::{self, Three as Four}, five::*};
        fn f<'a>(x: &'a str) -> char { let y = "crate::text \" crate::more"; '"' }
        const RAW: &str = r#"crate::raw " crate::raw"#;
        fn last() { super::super::up::call::<crate::inner::T>(crate::six::seven, b'\''); a.crate_::b; }
    "###;
    let module = ["a", "b"].map(String::from).to_vec();
    let tokens = tokens(text);
    let source = Source { file: String::new(), module, n_lines: 0, tokens };
    let resolved = source.paths().into_iter().filter_map(|p| source.resolve(&p.segments));
    let found: Vec<String> = resolved.map(|path| path.join("::")).collect();
    let expected = ["one", "two::self", "two::Three", "five::*", "up::call", "inner::T", "six::seven"];
    assert_eq!(found, expected);
    assert_eq!(source.tokens.last().unwrap().line, 7);
}

#[test]
fn names_are_followed_to_the_file_that_defines_them() {
    let source = |module: &str, text: &str| {
        let module: Vec<String> = module.split("::").map(String::from).collect();
        Source { file: module.join("/"), module, n_lines: 0, tokens: tokens(text) }
    };
    let sources = [
        source("a", "pub use list::{One, make as made}; pub use deep::Two; mod list; mod deep; mod user; mod known;"),
        source("a::deep", "pub use inner::Two;"),
        source("a::deep::inner", "pub struct Two;"),
        source("a::known", "use super::Own; use super::user;"),
        source("a::list", "pub struct One; pub fn make() { super::user::f() }"),
        source("a::user", "use super::{One, deep}; use crate::a::made; fn f() { deep::Two; made(); }"),
    ];
    let edges = edges_of_files(&sources);
    let used: Vec<&str> = edges.keys().filter(|(from, _)| from == "a::user").map(|(_, to)| to.as_str()).collect();
    assert_eq!(used, ["a::deep::inner", "a::list"]);
    assert!(!edges.keys().any(|(from, _)| from == "a::known"));
    assert_eq!(circles(&edges), BTreeSet::from([vec!["a::list", "a::user"]]));
}

/// Sentences of comments by their lines: neighbouring lines with the same marker are one text.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (i, line) in text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//");
        let words = comment.map(|comment| comment.trim_start_matches(['/', '!']).trim()).unwrap_or_default();
        match blocks.last_mut().filter(|_| is_open) {
            Some((_, block)) if !words.is_empty() => *block += &format!(" {words}"),
            _ if !words.is_empty() => blocks.push((i + 1, words.to_string())),
            _ => {}
        }
        is_open = !words.is_empty();
    }
    let split = |(line, block): (usize, String)| {
        let ends = |c: char| matches!(c, '.' | '?' | '!' | ':');
        block.split_inclusive(ends).map(|part| (line, part.trim().to_string())).collect::<Vec<_>>()
    };
    blocks.into_iter().flat_map(split).collect()
}

/// Whether a sentence does not name its subject: "What ..." that is no question.
fn is_unclear(sentence: &str) -> bool {
    ["What ", "Whether what "].iter().any(|start| sentence.starts_with(start)) && !sentence.ends_with('?')
}

#[test]
fn comments_name_their_subject() {
    let of = |text: &str| sentences(text).iter().filter(|(_, sentence)| is_unclear(sentence)).count();
    assert_eq!(of("/// What is\n/// printed."), 1);
    assert_eq!(of("    //! Ranges. What they cover.\n"), 1);
    assert_eq!(of("// Whether what it reads is float."), 1);
    assert_eq!(of("// What is it?\nlet text = \"What it is.\"; // Whatever it is."), 0);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "tests", "benches"].iter().for_each(|folder| walk(&root.join(folder), &mut files));
    let mut found: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        for (line, sentence) in sentences(&fs::read_to_string(&file).unwrap()) {
            if is_unclear(&sentence) {
                let place = format!("{}:{line}: {sentence}", file.display());
                found.entry(file.clone()).or_default().insert(place);
            }
        }
    }
    hold("a comment begins with its subject, not with \"What\":", &found);
}

/// Lines per room and who uses whom, where `MQQ_PRINT_ROOMS` is set.
#[test]
fn print_rooms() {
    if std::env::var_os("MQQ_PRINT_ROOMS").is_none() {
        return;
    }
    let sources = sources();
    let edges = edges(&sources);
    println!("floor  room         lines files  uses (number of names)");
    for room in ROOMS {
        let own = |module: &str| room.modules.contains(&module);
        let files = || sources.iter().filter(|s| own(s.top().unwrap_or("main")));
        let lines: usize = files().map(|source| source.n_lines).sum();
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for ((_, to), places) in edges.iter().filter(|((from, to), _)| own(from) && !own(to)) {
            let to = room_of(to).map_or("?", Room::name);
            *uses.entry(to).or_default() += places.len();
        }
        let refused = |to: &str| ROOMS.iter().any(|r| r.name() == to && room.refuses(r).is_some());
        let uses = uses.iter().map(|(to, n)| format!("{}{to} {n}", if refused(to) { "!" } else { "" }));
        let uses: Vec<String> = uses.collect();
        println!("{:>5}  {:<11} {lines:>6} {:>5}  {}", room.floor, room.name(), files().count(), uses.join(", "));
    }
    println!("{} lines in all; ! marks what the floors refuse", sources.iter().map(|s| s.n_lines).sum::<usize>());
    let files = edges_of_files(&sources);
    for (what, edges) in [("modules", &edges), ("files of a module", &files)] {
        println!("\nin circles between {what}:");
        in_circles(edges).values().flatten().for_each(|place| println!("  {place}"));
    }
}

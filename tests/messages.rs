//! Every message that the library can give is in `src/questions.md`, word for word, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Types whose text is a value and no message.
const VALUES: [&str; 7] = ["Who", "TaskId", "CpuId", "Features", "Hints", "Decision", "Report"];

/// Calls whose literal is a sentence for a panic.
const PANICS: [&str; 3] = ["assert!(", "panic!(", ".expect("];

/// The sources without tests and comments.
fn sources() -> Vec<(PathBuf, String)> {
    fn visit(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).expect("src can be read") {
            let path = entry.expect("src can be read").path();
            if path.is_dir() {
                visit(&path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).expect("src can be read");
                let code: Vec<&str> = text
                    .lines()
                    .take_while(|line| !(line.starts_with("#[cfg(") && line.contains("test")))
                    // What `const _` asserts is settled before anybody sees the crate.
                    .filter(|line| !line.trim_start().starts_with("//") && !line.starts_with("const _"))
                    .collect();
                found.push((path, code.join("\n")));
            }
        }
    }
    let mut found = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found
}

/// The string literals of `code`, with `…` for what is filled in.
fn literals(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find('"') {
        let mut text = String::new();
        let mut end = start + 1;
        let mut chars = rest[end..].chars();
        let mut depth = 0;
        while let Some(c) = chars.next() {
            end += c.len_utf8();
            match c {
                '"' => break,
                '\\' => {
                    let escaped = chars.next().expect("an escape is two characters");
                    end += escaped.len_utf8();
                    if escaped == '\n' {
                        let blank = chars.as_str().len() - chars.as_str().trim_start().len();
                        end += blank;
                        chars = rest[end..].chars();
                    } else {
                        text.push(escaped);
                    }
                }
                '{' => depth += 1,
                '}' => {
                    depth -= 1;
                    text.push('…');
                }
                c if depth == 0 => text.push(c),
                _ => {}
            }
        }
        found.push(text);
        rest = &rest[end..];
    }
    found
}

/// Each piece of `code` that begins after `from` and ends before `to`.
fn pieces<'a>(code: &'a str, from: &'a str, to: &'a str) -> impl Iterator<Item = &'a str> {
    code.split(from).skip(1).map(move |rest| rest.split(to).next().unwrap_or(rest))
}

/// What the panics about misuse are made of: see `lock/misuse.rs` and `lock/mutex/mod.rs`.
const SPINNING: &str = "… … the … at … that …";
const SLEEPING: &str = "task … on CPU … … the mutex at … that … (owner: task …)";

/// All messages in the sources.
fn given() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (path, code) in sources() {
        for body in pieces(&code, "fmt::Display for ", "\n}") {
            let name = body.split(' ').next().unwrap_or_default();
            if !VALUES.contains(&name) && !name.contains('<') {
                found.extend(literals(body));
            }
        }
        // Not the locks' own checks, which end in `misuse::report`.
        let code = code.replace("self.expect(", "");
        for call in PANICS.iter().flat_map(|call| pieces(&code, call, ";")) {
            found.extend(literals(call));
        }
        let not_held = pieces(&code, "const NOT_HELD: &str = ", ";").flat_map(literals).next();
        for call in pieces(&code, "misuse::report::<C>(", ");") {
            let [does, kind, that] = &literals(call)[..] else { panic!("{}: {call}", path.display()) };
            let that = if call.contains("{NOT_HELD}") { not_held.as_ref().expect("it is in this file") } else { that };
            found.insert(format!("… {does} the {kind} at … that {that}"));
        }
        for call in pieces(&code, " misused(self", ");") {
            let [does, what] = &literals(call)[..] else { panic!("{}: {call}", path.display()) };
            found.insert(format!("task … on CPU … {does} the mutex at … that {what} (owner: task …)"));
        }
    }
    for frame in [SPINNING, SLEEPING] {
        assert!(found.remove(frame), "messages about misuse are no longer built as this test thinks: {frame}");
    }
    found
}

/// All messages in the tables of the page.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../src/questions.md");
    let (_, tables) = page.split_once("\n# Messages\n").expect("the page has a section Messages");
    tables
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(text, _)| text.to_owned())
        .collect()
}

#[test]
fn the_page_has_every_message_and_no_other() {
    let (given, documented) = (given(), documented());
    let list = |set: BTreeSet<&String>| set.iter().map(|text| format!("\n  {text}")).collect::<String>();
    let (missing, stale) = (given.difference(&documented).collect(), documented.difference(&given).collect());
    let (missing, stale) = (list(missing), list(stale));
    assert!(
        missing.is_empty() && stale.is_empty(),
        "src/questions.md does not say what to do about:{missing}\nand has what the sources do not:{stale}"
    );
}

#[test]
fn literals_are_read_as_the_compiler_does() {
    let code = "f.write_str(\"a \\\n      b\"), write!(f, \"{x:#x} \\\"c\\\" {}\")";
    assert_eq!(literals(code), ["a b", "… \"c\" …"]);
}

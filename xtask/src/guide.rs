//! The steps of `src/guide.md`, taken from its text: code for the kernel in `examples/guide`, and what that must print then.

use anyhow::{Context, Result, bail, ensure};

/// Before a fenced block: `<!-- in FILE at PLACE -->`, `<!-- prints -->`, `<!-- prints under kvm -->`.
const COMMENT: (&str, &str) = ("<!-- ", " -->");
const FENCE: &str = "```";
/// In the kernel, before a place's name, or before `end`.
const MARK: &str = "// guide: ";
/// The same in `Cargo.toml`.
const MARK_TOML: &str = "# guide: ";
const END: &str = "end";

/// Code, and where it goes.
#[derive(Debug, PartialEq, Eq)]
pub struct Fragment {
    pub file: String,
    pub place: String,
    pub code: String,
}

/// One numbered step.
#[derive(Debug, Default)]
pub struct Step {
    /// As in the heading, with the number.
    pub title: String,
    pub fragments: Vec<Fragment>,
    /// Lines that the kernel prints from this step on, without KVM.
    pub prints: Vec<String>,
    /// The same under KVM.
    pub prints_under_kvm: Vec<String>,
}

/// Reads the steps. Every step must be numbered in order and have code.
pub fn steps(guide: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = guide.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            steps.push(Step { title: title.to_owned(), ..Step::default() });
            ensure!(title.starts_with(&format!("{}. ", steps.len())), "the step `{title}` is out of order");
        }
        let comment = line.trim().strip_prefix(COMMENT.0).and_then(|rest| rest.strip_suffix(COMMENT.1));
        let Some(comment) = comment else { continue };
        let step = steps.last_mut().with_context(|| format!("`{comment}` stands before the first step"))?;
        let fence = lines.next().unwrap_or_default();
        ensure!(fence.trim().starts_with(FENCE), "no fenced block follows `{comment}`");
        let indent = &fence[..fence.len() - fence.trim_start().len()];
        let block: Vec<&str> = lines
            .by_ref()
            .map(|line| line.strip_prefix(indent).unwrap_or(line))
            .take_while(|line| !line.starts_with(FENCE))
            .collect();
        let text = || block.iter().map(|&line| line.to_owned());
        match comment.split(' ').collect::<Vec<_>>()[..] {
            ["in", file, "at", place] => step.fragments.push(Fragment {
                file: file.to_owned(),
                place: place.to_owned(),
                code: block.iter().filter_map(|line| shown(line)).collect(),
            }),
            ["prints"] => step.prints.extend(text()),
            ["prints", "under", "kvm"] => step.prints_under_kvm.extend(text()),
            _ => bail!("cannot tell what `{comment}` means"),
        }
    }
    ensure!(!steps.is_empty(), "the guide has no steps");
    for step in &steps {
        ensure!(!step.fragments.is_empty(), "step {} has no code", step.title);
    }
    Ok(steps)
}

/// The line as a reader sees it. Lines that rustdoc hides are not for the kernel, but for places that later steps name.
fn shown(line: &str) -> Option<String> {
    let code = match line.trim_start().strip_prefix("# ") {
        Some(hidden) if hidden.starts_with(MARK) => hidden,
        Some(_) => return None,
        None => line,
    };
    Some(format!("{code}\n"))
}

/// The place that `line` marks.
fn mark(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix(MARK).or_else(|| line.strip_prefix(MARK_TOML))
}

/// All places of `source` that no step has filled.
pub fn open_places(source: &str) -> Vec<&str> {
    source.lines().filter_map(mark).filter(|&place| place != END).collect()
}

/// Puts the code at its place: in place of the mark, and of what follows it up to an end mark, if that comes before another place.
pub fn apply(source: &str, fragment: &Fragment) -> Result<String> {
    let lines: Vec<&str> = source.lines().collect();
    let marks = || lines.iter().enumerate().filter_map(|(at, line)| Some((at, mark(line)?)));
    let mut places = marks().filter(|&(_, place)| place == fragment.place);
    let (Some((at, _)), None) = (places.next(), places.next()) else {
        bail!("{} must have exactly one place `{}`", fragment.file, fragment.place);
    };
    let end = match marks().find(|&(other, _)| other > at) {
        Some((end, END)) => end,
        _ => at,
    };
    let join = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    Ok(join(&lines[..at]) + &fragment.code + &join(&lines[end + 1..]))
}

/// The first of `expected` that `printed` does not have, in this order. `…` at the end of a line stands for anything.
pub fn missing<'a>(expected: &'a [String], printed: &[&str]) -> Option<&'a str> {
    let mut printed = printed.iter();
    let fits = |expected: &str, line: &str| match expected.strip_suffix('…') {
        Some(beginning) => line.starts_with(beginning),
        None => line == expected,
    };
    expected.iter().map(String::as_str).find(|expected| !printed.any(|line| fits(expected, line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDE: &str = "Text.\n\n## 1. First\n\n- item:\n\n  <!-- in src/main.rs at here -->\n  ```rust,no_run\n  # hidden();\n  # // guide: later\n  \
                         shown();\n  ```\n\n<!-- prints -->\n```text\none …\ntwo\n```\n";

    #[test]
    fn fragments_and_output_are_read_without_what_rustdoc_hides() {
        let steps = steps(GUIDE).unwrap();
        let code = "// guide: later\nshown();\n".to_owned();
        let fragment = Fragment { file: "src/main.rs".to_owned(), place: "here".to_owned(), code };
        assert_eq!((steps.len(), steps[0].title.as_str()), (1, "1. First"));
        assert_eq!(steps[0].fragments, [fragment]);
        assert_eq!(steps[0].prints, ["one …", "two"]);
    }

    #[test]
    fn steps_that_say_nothing_are_errors() {
        assert!(steps("no steps").is_err());
        assert!(steps("## 1. Only words\n").is_err());
        assert!(steps(&GUIDE.replace("## 1.", "## 2.")).is_err());
        assert!(steps(&GUIDE.replace(" at here", "")).is_err());
    }

    #[test]
    fn code_replaces_its_place_up_to_an_end() {
        let fragment = &steps(GUIDE).unwrap()[0].fragments[0];
        let new = "// guide: later\nshown();\n";
        assert_eq!(apply("a\n    // guide: here\nb\n", fragment).unwrap(), format!("a\n{new}b\n"));
        assert_eq!(apply("// guide: here\nold\n// guide: end\nb\n", fragment).unwrap(), format!("{new}b\n"));
        let other = "// guide: here\nb\n// guide: other\nold\n// guide: end\n";
        assert_eq!(apply(other, fragment).unwrap(), other.replace("// guide: here\n", new));
        assert_eq!(open_places(other), ["here", "other"]);
        assert!(apply("nothing\n", fragment).is_err());
        assert!(apply("// guide: here\n// guide: here\n", fragment).is_err());
    }

    #[test]
    fn printed_lines_are_looked_for_in_order() {
        let expected = ["one …".to_owned(), "two".to_owned()];
        assert_eq!(missing(&expected, &["zero", "one more", "x", "two"]), None);
        assert_eq!(missing(&expected, &["two", "one more"]), Some("two"));
        assert_eq!(missing(&expected, &["one ", "two three"]), Some("two"));
    }
}

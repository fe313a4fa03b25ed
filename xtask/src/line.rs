//! The guests' line protocol: `# ` lines for people, `KIND key=value key="quoted value"` lines for machines.

use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Prefix of the lines that are meant for people.
const FOR_PEOPLE: &str = "# ";

/// One machine line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub kind: String,
    pub fields: Vec<(String, String)>,
}

/// The text of a line for people, without its prefix.
pub fn for_people(text: &str) -> Option<&str> {
    text.strip_prefix(FOR_PEOPLE).or_else(|| (text == FOR_PEOPLE.trim_end()).then_some(""))
}

impl Record {
    /// Reads a machine line. `None` when the text is something else: a line for people, or firmware talking.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, mut rest) = text.split_once(' ')?;
        if kind.is_empty()
            || !kind.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
        {
            return None;
        }
        let mut fields = Vec::new();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                return Some(Self { kind: kind.to_owned(), fields });
            }
            // `mark start`: a word without a value is a field of its own.
            let end = rest.find(['=', ' ']).unwrap_or(rest.len());
            let key = &rest[..end];
            let Some(value) = rest[end..].strip_prefix('=') else {
                fields.push((key.to_owned(), String::new()));
                rest = &rest[end..];
                continue;
            };
            let (value, after) = match value.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => value.split_at(value.find(' ').unwrap_or(value.len())),
            };
            fields.push((key.to_owned(), value.to_owned()));
            rest = after;
        }
    }

    /// The value of `key`, if the line has it.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Whether the line has the word `word` without a value.
    pub fn has_word(&self, word: &str) -> bool {
        self.get(word) == Some("")
    }

    /// The value of `key`, which must be there.
    pub fn text(&self, key: &str) -> Result<&str> {
        self.get(key).with_context(|| format!("the guest's `{}` line has no `{key}=`", self.kind))
    }

    /// The value of `key` as a number, decimal or with `0x`.
    pub fn number(&self, key: &str) -> Result<u64> {
        parse_number(self.text(key)?)
            .ok_or_else(|| anyhow!("`{key}=` in the guest's `{}` line is not a number", self.kind))
    }
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => u64::from_str(text).ok(),
    }
}

/// Machine-readable again: decimal numbers as numbers, everything else as text, words as `true`.
impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len() + 1))?;
        map.serialize_entry("kind", &self.kind)?;
        for (key, value) in &self.fields {
            match u64::from_str(value) {
                _ if value.is_empty() => map.serialize_entry(key, &true)?,
                Ok(number) => map.serialize_entry(key, &number)?,
                Err(_) => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_be_quoted_numbers_hexadecimal_and_words_stand_alone() {
        let mark = Record::parse("mark start round=2 lock=pvlock tsc=0x10").unwrap();
        assert_eq!(mark.kind, "mark");
        assert!(mark.has_word("start") && !mark.has_word("round") && !mark.has_word("stop"));
        assert_eq!(mark.number("tsc").unwrap(), 16);
        let error = Record::parse("error message=\"no lock is called foo\" code=1").unwrap();
        assert_eq!(error.get("message"), Some("no lock is called foo"));
        assert_eq!(error.number("code").unwrap(), 1);
        assert!(error.number("message").is_err() && error.number("absent").is_err());
    }

    #[test]
    fn other_text_is_not_a_machine_line() {
        for text in ["# 4 vCPUs", "", "SeaBIOS (version 1.16)", "error message=\"cut o", "[    1.0] reboot: x"] {
            assert_eq!(Record::parse(text), None, "{text:?}");
        }
        assert_eq!(for_people("# four vCPUs"), Some("four vCPUs"));
        assert_eq!(for_people("#"), Some(""));
        assert_eq!(for_people("result sum=ok"), None);
    }

    #[test]
    fn json_keeps_numbers_as_numbers() {
        let record = Record::parse("result round=1 lock=spin sum=ok").unwrap();
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(json, r#"{"kind":"result","round":1,"lock":"spin","sum":"ok"}"#);
    }
}

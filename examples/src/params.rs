//! The `key=value` words of a guest's command line.

use core::fmt;
use core::ops::RangeInclusive;

use crate::locks::LockName;

/// Keys that every guest understands.
const COMMON: [&str; 1] = ["linger_ms"];

/// A command line whose keys are all known and appear once.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    line: &'static str,
}

/// What is wrong with a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParamError {
    /// A word without `=`.
    NotKeyValue(&'static str),
    /// A key that this guest does not know, and those that it knows.
    UnknownKey(&'static str, &'static [&'static str]),
    /// A key that appears more than once.
    GivenTwice(&'static str),
    /// A value that is no number in the range.
    BadNumber(&'static str, &'static str, RangeInclusive<u64>),
    /// A name in `locks` that is none of [`LockName::ALL`].
    UnknownLock(&'static str),
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotKeyValue(word) => write!(f, "the parameter '{word}' has no value: write key=value"),
            Self::UnknownKey(key, known) => {
                write!(f, "this guest has no parameter '{key}', only")?;
                COMMON.iter().chain(*known).try_for_each(|key| write!(f, " {key}"))
            }
            Self::GivenTwice(key) => write!(f, "the parameter '{key}' is given twice: keep one"),
            Self::BadNumber(key, value, range) => {
                write!(f, "{key}='{value}' must be a whole number from {} to {}", range.start(), range.end())
            }
            Self::UnknownLock(name) => {
                write!(f, "there is no lock '{name}', only")?;
                LockName::ALL.iter().try_for_each(|lock| write!(f, " {lock}"))
            }
        }
    }
}

impl core::error::Error for ParamError {}

impl Params {
    /// Takes a command line apart; `keys` are those that this guest knows, apart from `linger_ms`.
    ///
    /// # Errors
    /// For a word that is no `key=value`, an unknown key, and a key given twice.
    pub fn parse(line: &'static str, keys: &'static [&'static str]) -> Result<Self, ParamError> {
        for (position, word) in line.split_ascii_whitespace().enumerate() {
            let (key, _) = word.split_once('=').ok_or(ParamError::NotKeyValue(word))?;
            if !keys.contains(&key) && !COMMON.contains(&key) {
                return Err(ParamError::UnknownKey(key, keys));
            }
            let mut before = line.split_ascii_whitespace().take(position);
            if before.any(|word| word.split_once('=').is_some_and(|(other, _)| other == key)) {
                return Err(ParamError::GivenTwice(key));
            }
        }
        Ok(Self { line })
    }

    /// The value of `key`, if it is given.
    pub fn text(&self, key: &str) -> Option<&'static str> {
        self.line
            .split_ascii_whitespace()
            .filter_map(|word| word.split_once('='))
            .find(|(k, _)| *k == key)
            .map(|kv| kv.1)
    }

    /// The value of `key` as a number, or `default` where it is not given.
    ///
    /// # Errors
    /// When the value is no number in `range`.
    pub fn number(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> Result<u64, ParamError> {
        let Some(value) = self.text(key) else { return Ok(default) };
        value.parse().ok().filter(|n| range.contains(n)).ok_or(ParamError::BadNumber(key, value, range))
    }

    /// The locks named by `locks`, comma-separated, or all.
    ///
    /// # Errors
    /// When a name is unknown.
    pub fn locks(&self) -> Result<alloc::vec::Vec<LockName>, ParamError> {
        let Some(names) = self.text("locks") else { return Ok(LockName::ALL.to_vec()) };
        names.split(',').map(|name| LockName::from_name(name).ok_or(ParamError::UnknownLock(name))).collect()
    }
}

//! Finding a routine in an ELF program, an object file or a Rust library archive.

use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use object::read::archive::ArchiveFile;
use object::{File, Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind};
use std::collections::BTreeMap;
use std::fmt;

/// A routine, decoded.
#[derive(Clone, Debug)]
pub struct Routine {
    /// Its instructions in order.
    pub lines: Vec<Line>,
    /// Its size in bytes, as the symbol says.
    pub size: u64,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Line {
    /// Distance from the start of the routine.
    pub offset: u64,
    /// Its machine code.
    pub bytes: Vec<u8>,
    /// The instruction, for [`facts`](crate::facts).
    pub instruction: Instruction,
    /// In Intel syntax.
    pub text: String,
    /// The symbol it refers to outside of the routine, where there is one.
    pub refers_to: Option<String>,
}

/// Why a routine could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The file is not one that can be read.
    Format(object::Error),
    /// No such symbol is defined in it.
    Missing {
        /// The symbol.
        symbol: String,
    },
    /// The symbol has no size, so unwinders and this crate cannot tell where it ends.
    NoSize {
        /// The symbol.
        symbol: String,
    },
    /// The symbol is not marked as a function.
    NotAFunction {
        /// The symbol.
        symbol: String,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(error) => write!(f, "not a readable ELF file or archive: {error}"),
            Self::Missing { symbol } => write!(f, "{symbol} is not in the file: was it dropped, or the file stripped?"),
            Self::NoSize { symbol } => write!(f, "{symbol} has size 0: the assembly lacks a .size directive"),
            Self::NotAFunction { symbol } => write!(f, "{symbol} is no function: the assembly lacks a .type directive"),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<object::Error> for ReadError {
    fn from(error: object::Error) -> Self {
        Self::Format(error)
    }
}

impl Routine {
    /// Reads `symbol` out of `file`: an ELF program, shared object or object file, or an archive of object files.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(file: &[u8], symbol: &str) -> Result<Self, ReadError> {
        let missing = || ReadError::Missing { symbol: symbol.to_owned() };
        if !file.starts_with(b"!<arch>\n") {
            return Self::read_object(&File::parse(file)?, symbol)?.ok_or_else(missing);
        }
        for member in ArchiveFile::parse(file)?.members() {
            // A Rust library holds its metadata beside the object files.
            let Ok(object) = File::parse(member?.data(file)?) else { continue };
            if let Some(routine) = Self::read_object(&object, symbol)? {
                return Ok(routine);
            }
        }
        Err(missing())
    }

    fn read_object(object: &File<'_>, symbol: &str) -> Result<Option<Self>, ReadError> {
        let Some(found) = object.symbols().find(|s| s.is_definition() && s.name() == Ok(symbol)) else {
            return Ok(None);
        };
        if found.kind() != SymbolKind::Text {
            return Err(ReadError::NotAFunction { symbol: symbol.to_owned() });
        }
        if found.size() == 0 {
            return Err(ReadError::NoSize { symbol: symbol.to_owned() });
        }
        let index = found.section_index().ok_or_else(|| ReadError::Missing { symbol: symbol.to_owned() })?;
        let section = object.section_by_index(index)?;
        let code = section
            .data_range(found.address(), found.size())?
            .ok_or_else(|| ReadError::Missing { symbol: symbol.to_owned() })?;
        let relocations = relocations(object, &section);
        Ok(Some(Self::decode(code, found.address(), |line| {
            let range = line.instruction.ip()..line.instruction.next_ip();
            relocations.range(range).next().map(|(_, name)| name.clone()).or_else(|| symbol_at(object, line))
        })))
    }

    /// Decodes bare machine code, as if it lay at `address`.
    pub fn from_code(code: &[u8], address: u64) -> Self {
        Self::decode(code, address, |_| None)
    }

    fn decode(code: &[u8], address: u64, refers_to: impl Fn(&Line) -> Option<String>) -> Self {
        let mut formatter = IntelFormatter::new();
        let style = formatter.options_mut();
        style.set_space_after_operand_separator(true);
        style.set_rip_relative_addresses(true);
        style.set_branch_leading_zeros(false);
        style.set_hex_prefix("0x");
        style.set_hex_suffix("");
        style.set_uppercase_hex(false);
        let lines = Decoder::with_ip(64, code, address, DecoderOptions::NONE)
            .into_iter()
            .map(|instruction| {
                let offset = instruction.ip() - address;
                let bytes = code[offset as usize..][..instruction.len()].to_vec();
                let mut text = String::new();
                formatter.format(&instruction, &mut text);
                let mut line = Line { offset, bytes, instruction, text, refers_to: None };
                line.refers_to = refers_to(&line);
                line
            })
            .collect();
        Self { lines, size: code.len() as u64 }
    }
}

/// Places in `section` that the linker fills in, with the symbol that goes there. None in a linked program.
fn relocations(object: &File<'_>, section: &object::Section<'_, '_>) -> BTreeMap<u64, String> {
    let name = |target| match target {
        RelocationTarget::Symbol(index) => Some(demangled(object.symbol_by_index(index).ok()?.name().ok()?)),
        _ => None,
    };
    section.relocations().filter_map(|(at, relocation)| Some((at, name(relocation.target())?))).collect()
}

/// In a linked program, the symbol that the instruction's address lies in.
fn symbol_at(object: &File<'_>, line: &Line) -> Option<String> {
    let address = if line.instruction.is_ip_rel_memory_operand() {
        line.instruction.ip_rel_memory_address()
    } else if line.instruction.near_branch_target() != 0 {
        line.instruction.near_branch_target()
    } else {
        return None;
    };
    let routine = line.instruction.ip() - line.offset;
    object
        .symbols()
        .filter(|s| s.is_definition() && s.address() != routine)
        .find(|s| (s.address()..s.address() + s.size().max(1)).contains(&address))
        .map(|s| demangled(s.name().unwrap_or_default()))
}

fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

//! Whether an image uses the red zone, the bytes below the stack pointer that leaf functions may use where no interrupt comes.

use crate::image::ReadError;
use iced_x86::{Decoder, DecoderOptions, OpKind, Register};
use object::{File, Object, ObjectSection, SectionKind};

/// Addresses of the instructions in `file`, a linked ELF program, that access memory below `rsp`.
///
/// Accesses with an index register are not counted: they go into arrays above it. Calls and pushes are none: they move `rsp` first.
///
/// # Errors
/// When the file is not a readable ELF file.
pub fn red_zone_accesses(file: &[u8]) -> Result<Vec<u64>, ReadError> {
    let object = File::parse(file)?;
    let mut found = Vec::new();
    for section in object.sections().filter(|section| section.kind() == SectionKind::Text) {
        let code = section.data()?;
        for instruction in Decoder::with_ip(64, code, section.address(), DecoderOptions::NONE).into_iter() {
            let has_memory = (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory);
            let below = (instruction.memory_displacement64() as i64) < 0;
            if has_memory
                && instruction.memory_base() == Register::RSP
                && instruction.memory_index() == Register::None
                && below
            {
                found.push(instruction.ip());
            }
        }
    }
    Ok(found)
}

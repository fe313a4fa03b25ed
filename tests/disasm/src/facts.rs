//! What a routine does, and what of it breaks the contract of a routine that is called from inline assembly.

use crate::image::{Line, Routine};
use iced_x86::{FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, Register};
use std::collections::BTreeSet;

/// Where a kernel with return thunks has its routines jump in place of `ret`.
const RETURN_THUNK: &str = "__x86_return_thunk";

/// What a routine does.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Instructions, without the padding behind a return.
    pub instructions: usize,
    /// Bytes read from memory, one entry per access, in the words of the instruction.
    pub reads: Vec<(usize, String)>,
    /// General and vector registers written, by their full name.
    pub written: BTreeSet<String>,
    /// Each way in which the routine breaks its contract, as a sentence.
    pub faults: Vec<String>,
}

/// States what `routine` does, and judges it: a leaf that begins with `endbr64`, returns by `ret` or the return thunk, leaves
/// the stack alone, writes no memory, reads exactly one byte, and writes no register but those in `declared`.
pub fn facts(routine: &Routine, declared: &[&str]) -> Facts {
    let mut facts = Facts::default();
    let mut info = InstructionInfoFactory::new();
    let mut returned = false;
    for line in &routine.lines {
        // Behind a return only padding stands until the next branch target; it stops straight-line speculation.
        if returned && line.instruction.mnemonic() == Mnemonic::Int3 {
            continue;
        }
        facts.instructions += 1;
        returned = facts.judge_flow(routine, line);
        if !returned {
            facts.judge_operands(line, &mut info, declared);
        }
    }
    if routine.lines.first().is_none_or(|line| line.instruction.mnemonic() != Mnemonic::Endbr64) {
        facts.faults.push("does not begin with endbr64".to_owned());
    }
    if !returned {
        facts.faults.push("runs past its end".to_owned());
    }
    if facts.reads.len() != 1 || facts.reads[0].0 != 1 {
        facts.faults.push(format!("reads {:?} (bytes, operand): one byte expected", facts.reads));
    }
    facts
}

impl Facts {
    /// Judges where `line` goes; true when it leaves the routine for good.
    fn judge_flow(&mut self, routine: &Routine, line: &Line) -> bool {
        let instruction = &line.instruction;
        let start = instruction.ip() - line.offset;
        let stays = (start..start + routine.size).contains(&instruction.near_branch_target());
        // The target of a branch that the linker has yet to fill in reads as the next instruction.
        let stays = stays && line.refers_to.is_none();
        match instruction.flow_control() {
            FlowControl::Next => false,
            FlowControl::Return => true,
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch if stays => false,
            FlowControl::UnconditionalBranch if line.refers_to.as_deref() == Some(RETURN_THUNK) => true,
            FlowControl::Call | FlowControl::IndirectCall => {
                self.faults.push(format!("calls: {}", line.text));
                false
            }
            _ => {
                self.faults.push(format!("goes elsewhere: {}", line.text));
                false
            }
        }
    }

    fn judge_operands(&mut self, line: &Line, info: &mut InstructionInfoFactory, declared: &[&str]) {
        let info = info.info(&line.instruction);
        let mut stack = line.instruction.is_stack_instruction();
        for memory in info.used_memory() {
            stack |= memory.base() == Register::RSP || memory.index() == Register::RSP;
            match memory.access() {
                OpAccess::NoMemAccess | OpAccess::None => {}
                OpAccess::Read | OpAccess::CondRead => {
                    self.reads.push((memory.memory_size().size(), line.text.clone()))
                }
                _ => self.faults.push(format!("writes memory: {}", line.text)),
            }
        }
        for register in info.used_registers() {
            let full = register.register().full_register();
            stack |= full == Register::RSP;
            if matches!(register.access(), OpAccess::Read | OpAccess::CondRead) {
                continue;
            }
            let name = format!("{full:?}").to_lowercase();
            if !declared.contains(&name.as_str()) {
                self.faults.push(format!("writes {name}, which is not declared: {}", line.text));
            }
            self.written.insert(name);
        }
        if stack {
            self.faults.push(format!("touches the stack: {}", line.text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// endbr64; test byte ptr [rdi], 1; setne al
    const BODY: [u8; 10] = [0xf3, 0x0f, 0x1e, 0xfa, 0xf6, 0x07, 0x01, 0x0f, 0x95, 0xc0];
    const RET: u8 = 0xc3;
    const INT3: u8 = 0xcc;

    fn judged(code: &[u8]) -> Facts {
        facts(&Routine::from_code(code, 0x1000), &["rax", "rdi"])
    }

    /// The faults of `extra` between body and return.
    fn faults(extra: &[u8]) -> Vec<String> {
        judged(&[&BODY[..], extra, &[RET, INT3]].concat()).faults
    }

    #[test]
    fn a_leaf_that_reads_one_byte_is_good() {
        let facts = judged(&[&BODY[..], &[RET, INT3]].concat());
        assert!(facts.faults.is_empty(), "{:?}", facts.faults);
        assert_eq!(facts.instructions, 4);
        assert_eq!(facts.written, BTreeSet::from(["rax".to_owned()]));
    }

    #[test]
    fn every_touch_of_the_stack_is_a_fault() {
        // push rax; pop rax / mov eax, [rsp - 8] / lea rax, [rsp]
        for code in [&[0x50, 0x58][..], &[0x8b, 0x44, 0x24, 0xf8], &[0x48, 0x8d, 0x04, 0x24]] {
            assert!(faults(code).iter().any(|fault| fault.starts_with("touches the stack")), "{code:x?}");
        }
    }

    #[test]
    fn undeclared_registers_are_faults() {
        // xor ecx, ecx / mov r11b, 1 / pxor xmm3, xmm3
        for (code, name) in
            [(&[0x31, 0xc9][..], "rcx"), (&[0x41, 0xb3, 0x01], "r11"), (&[0x66, 0x0f, 0xef, 0xdb], "zmm3")]
        {
            let faults = faults(code);
            assert!(faults.iter().any(|fault| fault.contains(&format!("writes {name},"))), "{faults:?}");
        }
    }

    #[test]
    fn calls_and_jumps_out_are_faults() {
        assert!(faults(&[0xe8, 0, 1, 0, 0]).iter().any(|fault| fault.starts_with("calls")));
        assert!(faults(&[0xff, 0xd0]).iter().any(|fault| fault.starts_with("calls")));
        assert!(faults(&[0xe9, 0, 1, 0, 0]).iter().any(|fault| fault.starts_with("goes elsewhere")));
        assert!(faults(&[0x0f, 0x05]).iter().any(|fault| fault.contains("goes elsewhere") || fault.contains("calls")));
    }

    #[test]
    fn a_second_or_wider_read_and_any_write_are_faults() {
        // cmp byte ptr [rdi], 0 / mov byte ptr [rdi], al
        assert!(faults(&[0x80, 0x3f, 0x00]).iter().any(|fault| fault.contains("one byte expected")));
        assert!(faults(&[0x88, 0x07]).iter().any(|fault| fault.starts_with("writes memory")));
    }

    #[test]
    fn a_missing_landing_pad_or_return_is_a_fault() {
        assert_eq!(judged(&[&BODY[4..], &[RET]].concat()).faults, ["does not begin with endbr64"]);
        assert_eq!(judged(&BODY).faults, ["runs past its end"]);
    }
}

//! Counting what one round of a loop executes, from the machine code as built.

use disasm::{Line, Routine};
use iced_x86::{FlowControl, InstructionInfoFactory, OpAccess, Register};

use crate::Error;

/// What one round executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) instructions: u64,
    /// Besides the return addresses that calls and returns move.
    pub(super) stack_accesses: u64,
}

/// Counts one round of the loop in the routine `symbol` of the program `file`, with all that it calls, on the way where no
/// branch forward is taken: the way of a CPU that is not preempted.
pub(super) fn round(file: &[u8], symbol: &str) -> Result<Round, Error> {
    let routine = Routine::read(file, symbol)?;
    let body = loop_body(&routine).ok_or_else(|| format!("{symbol} has no loop"))?;
    let mut round = Round::default();
    round.add(file, body)?;
    Ok(round)
}

/// The lines of the last loop: from the target of a branch backward to that branch.
fn loop_body(routine: &Routine) -> Option<&[Line]> {
    let start = routine.lines.first()?.instruction.ip();
    let (end, target) = routine.lines.iter().enumerate().rev().find_map(|(at, line)| {
        let target = line.instruction.near_branch_target();
        let jumps = matches!(
            line.instruction.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        (jumps && (start..line.instruction.ip()).contains(&target)).then_some((at, target))
    })?;
    let begin = routine.lines.iter().position(|line| line.instruction.ip() == target)?;
    routine.lines.get(begin..=end)
}

impl Round {
    /// Adds `lines`, up to a return.
    fn add(&mut self, file: &[u8], lines: &[Line]) -> Result<(), Error> {
        let mut info = InstructionInfoFactory::new();
        for line in lines {
            self.instructions += 1;
            match line.instruction.flow_control() {
                FlowControl::Return => return Ok(()),
                FlowControl::Call => {
                    let callee = line.refers_to.as_deref().ok_or_else(|| format!("who is called? {}", line.text))?;
                    self.add(file, &Routine::read(file, callee)?.lines)?;
                }
                _ => self.stack_accesses += stack_accesses(line, &mut info),
            }
        }
        Ok(())
    }
}

fn stack_accesses(line: &Line, info: &mut InstructionInfoFactory) -> u64 {
    let memory = info.info(&line.instruction).used_memory();
    let of_stack = memory.iter().filter(|memory| {
        memory.base() == Register::RSP && !matches!(memory.access(), OpAccess::None | OpAccess::NoMemAccess)
    });
    of_stack.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_goes_from_its_target_to_its_branch() {
        // push rbx; again: mov [rsp + 8], rax; inc eax; cmp eax, edi; jne again; pop rbx; ret
        let code = [0x53, 0x48, 0x89, 0x44, 0x24, 0x08, 0xff, 0xc0, 0x39, 0xf8, 0x75, 0xf5, 0x5b, 0xc3];
        let routine = Routine::from_code(&code, 0x1000);
        let body = loop_body(&routine).unwrap();
        let mut round = Round::default();
        round.add(&[], body).unwrap();
        assert_eq!(round, Round { instructions: 4, stack_accesses: 1 });
        assert!(loop_body(&Routine::from_code(&code[12..], 0x1000)).is_none());
    }
}

//! What one round of a probe executes.

use anyhow::{Context, Result, ensure};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use serde::Serialize;

use crate::cpu;
use crate::load::Loaded;
use crate::table::{BEGIN, END, HELD};

/// What was executed between two markers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    /// All of them, those of called functions included.
    pub instructions: usize,
    /// Those of them that own the cache line while they read and write: by a prefix, or an exchange with memory.
    pub locked: usize,
    /// Those of them that only a kernel may execute.
    pub privileged: usize,
    /// The functions that were called, in order.
    pub calls: Vec<String>,
}

/// One round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Round {
    /// Taking the lock.
    pub take: Part,
    /// Releasing it.
    pub release: Part,
}

impl Round {
    /// Instructions of both parts that only a kernel may execute.
    pub fn privileged(&self) -> usize {
        self.take.privileged + self.release.privileged
    }
}

/// Counts what `once`, of `image`, which was entered, executes.
pub(crate) fn round(image: &Loaded, once: extern "C" fn()) -> Result<Round> {
    let count = || {
        let decode = |at: u64| Decoder::with_ip(64, image.code(at), at, DecoderOptions::NONE).decode();
        let executed: Vec<Instruction> = cpu::trace(once)?.into_iter().map(decode).collect();
        only_round(&executed, |address| image.function(address))
    };
    let (first, second) = (count()?, count()?);
    ensure!(first == second, "a round is not like the one before: {first:?}, {second:?}");
    Ok(first)
}

/// The round in a trace.
fn only_round(executed: &[Instruction], name: impl Fn(u64) -> String) -> Result<Round> {
    let mut round = Round::default();
    let mut markers = Vec::new();
    for (index, instruction) in executed.iter().enumerate() {
        if let Some(marker) = marker_in(instruction) {
            markers.push(marker);
            continue;
        }
        let part = match markers.last() {
            Some(&BEGIN) => &mut round.take,
            Some(&HELD) => &mut round.release,
            _ => continue,
        };
        part.add(instruction);
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            let target = executed.get(index + 1).context("the trace ends at a call")?;
            part.calls.push(name(target.ip()));
        }
    }
    ensure!(markers == [BEGIN, HELD, END], "the markers come as {markers:#x?}");
    Ok(round)
}

/// Which marker `instruction` is.
fn marker_in(instruction: &Instruction) -> Option<i32> {
    let displacement = instruction.memory_displacement64() as i32;
    (instruction.mnemonic() == Mnemonic::Nop && [BEGIN, HELD, END].contains(&displacement)).then_some(displacement)
}

impl Part {
    fn add(&mut self, instruction: &Instruction) {
        let memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
        self.instructions += 1;
        self.locked += usize::from(instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg && memory);
        self.privileged += usize::from(matches!(instruction.mnemonic(), Mnemonic::Cli | Mnemonic::Sti));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::arch::global_asm;

    global_asm!(
        ".globl cost_host_test_round, cost_host_test_callee, cost_host_test_end",
        "cost_host_test_round:",
        "push rax",
        "nop dword ptr [rax + {begin}]",
        "pushfq",
        "lock inc qword ptr [rsp]",
        "call cost_host_test_callee",
        "cli",
        "nop dword ptr [rax + {held}]",
        "sti",
        "xchg qword ptr [rsp], rcx",
        "xchg rcx, rcx",
        "pop rcx",
        "nop dword ptr [rax + {end}]",
        "pop rax",
        "ret",
        "cost_host_test_callee:",
        "ret",
        "cost_host_test_end:",
        begin = const BEGIN,
        held = const HELD,
        end = const END,
    );

    unsafe extern "C" {
        safe fn cost_host_test_round();
        safe fn cost_host_test_callee();
        safe fn cost_host_test_end();
    }

    extern "C" fn once() {
        cost_host_test_round();
    }

    fn decode(at: u64) -> Instruction {
        // SAFETY: `at` is in the routine above; what follows it is code of this program too, longer than one instruction.
        let code = unsafe { core::slice::from_raw_parts(at as *const u8, 15) };
        Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode()
    }

    #[test]
    fn what_is_executed_is_counted_what_is_forbidden_is_skipped() {
        let _handlers = cpu::Handlers::install().unwrap();
        cpu::watch(&(cost_host_test_round as *const () as u64..cost_host_test_end as *const () as u64));
        let executed: Vec<_> = cpu::trace(once).unwrap().into_iter().map(decode).collect();
        // Both ends and the markers are in the trace too.
        assert_eq!(executed.len(), 15);
        let callee = cost_host_test_callee as *const () as u64;
        let round = only_round(&executed, |at| (at == callee).to_string()).unwrap();
        let take = Part { instructions: 5, locked: 1, privileged: 1, calls: vec!["true".to_owned()] };
        let release = Part { instructions: 4, locked: 1, privileged: 1, calls: vec![] };
        assert_eq!(round, Round { take, release });
    }

    #[test]
    fn markers_out_of_order_are_no_round() {
        let marker = |number: i32| {
            let code = [&[0x0f, 0x1f, 0x80], number.to_le_bytes().as_slice()].concat();
            Decoder::with_ip(64, &code, 0, DecoderOptions::NONE).decode()
        };
        let name = |_| String::new();
        assert_eq!(only_round(&[BEGIN, HELD, END].map(marker), name).unwrap(), Round::default());
        for wrong in [&[BEGIN, END][..], &[HELD, BEGIN, END], &[BEGIN, HELD, END, BEGIN, HELD, END]] {
            let trace: Vec<_> = wrong.iter().copied().map(marker).collect();
            assert!(only_round(&trace, name).is_err(), "{wrong:x?}");
        }
    }
}

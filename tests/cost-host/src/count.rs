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

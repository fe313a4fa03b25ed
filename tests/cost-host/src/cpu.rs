//! The processor as the image sees it: instruction by instruction where that is wanted, with answers to what user space may not execute.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use libc::{REG_EFL, REG_RAX, REG_RBX, REG_RCX, REG_RDX, REG_RIP, c_int, c_void, siginfo_t, ucontext_t};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// The trap flag: a trap after each instruction.
const TRAP: i64 = 1 << 8;

/// CLI and STI.
const CLI: u8 = 0xfa;
const STI: u8 = 0xfb;
/// Two-byte instructions.
const WRMSR: [u8; 2] = [0x0f, 0x30];
pub(crate) const CPUID: [u8; 2] = [0x0f, 0xa2];
/// What stands in an image in the place of CPUID, which user space may execute: INVD, which it may not.
pub(crate) const CPUID_REPLACED: [u8; 2] = [0x0f, 0x08];

/// Addresses at which instructions were executed, in order.
static TRACE: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];
static TRACED: AtomicUsize = AtomicUsize::new(0);
/// Where the code lies that is traced and helped.
static BEGIN: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
/// Whether CPUID shows a host that can wake halted waiters, or no hypervisor at all.
static HOST_WAKES: AtomicBool = AtomicBool::new(false);
/// One measurement at a time.
static ONE: Mutex<()> = Mutex::new(());

/// The signals by which the processor asks for help, and who handled them before.
pub(crate) struct Handlers {
    before: Vec<(Signal, SigAction)>,
    _one: MutexGuard<'static, ()>,
}

impl Handlers {
    /// Handles them as long as this lives. Waits until no other measurement of this process does.
    pub(crate) fn install() -> Result<Self> {
        let mut handlers = Self { before: Vec::new(), _one: ONE.lock().unwrap_or_else(PoisonError::into_inner) };
        let action = SigAction::new(SigHandler::SigAction(on_signal), SaFlags::SA_SIGINFO, SigSet::empty());
        for signal in [Signal::SIGTRAP, Signal::SIGSEGV] {
            // SAFETY: the handler uses atomics and the interrupted registers only.
            let before = unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot handle {signal}"))?;
            handlers.before.push((signal, before));
        }
        Ok(handlers)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // SAFETY: it was the handler before.
            let _ = unsafe { sigaction(*signal, before) };
        }
    }
}

extern "C" fn on_signal(signal: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the interrupted thread's context, which is ours until we return.
    let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
    let at = registers[REG_RIP as usize] as u64;
    let ours = (BEGIN.load(Relaxed)..END.load(Relaxed)).contains(&at);
    if signal == libc::SIGTRAP {
        if ours {
            note(at);
        }
        return;
    }
    let Some(length) = ours.then(|| assist(at, registers)).flatten() else {
        // SAFETY: the default action. The instruction is tried again, and ends the process as it would have without us.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    };
    registers[REG_RIP as usize] += length;
    if registers[REG_EFL as usize] & TRAP != 0 {
        // No trap comes between an instruction that failed and the next one.
        note(at + length as u64);
    }
}

fn note(at: u64) {
    let index = TRACED.fetch_add(1, Relaxed);
    if let Some(place) = TRACE.get(index) {
        place.store(at, Relaxed);
    }
}

/// Does what the privileged instruction at `at` is to do; its length, or `None` when it is another.
fn assist(at: u64, registers: &mut [i64; 23]) -> Option<i64> {
    // SAFETY: the processor has just tried to execute what is there, inside a loaded image.
    let first = unsafe { (at as *const u8).read() };
    if first == CLI || first == STI {
        return Some(1);
    }
    // SAFETY: as above; all others are longer.
    let two = unsafe { (at as *const [u8; 2]).read() };
    if two == CPUID_REPLACED {
        let (leaf, subleaf) = (registers[REG_RAX as usize] as u32, registers[REG_RCX as usize] as u32);
        let answer = cpuid(leaf, subleaf, HOST_WAKES.load(Relaxed));
        registers[REG_RAX as usize] = answer[0].into();
        registers[REG_RBX as usize] = answer[1].into();
        registers[REG_RCX as usize] = answer[2].into();
        registers[REG_RDX as usize] = answer[3].into();
        return Some(2);
    }
    (two == WRMSR).then_some(2)
}

/// EAX to EDX of a KVM host that tells preempted vCPUs and wakes halted ones; or of a processor without a hypervisor.
fn cpuid(leaf: u32, subleaf: u32, host_wakes: bool) -> [u32; 4] {
    const MONITOR: u32 = 1 << 3;
    const HYPERVISOR: u32 = 1 << 31;
    const STEAL_TIME: u32 = 1 << 5;
    const PV_UNHALT: u32 = 1 << 7;
    let real = __cpuid_count(leaf, subleaf);
    match leaf {
        1 => {
            let ecx = real.ecx & !(MONITOR | HYPERVISOR) | if host_wakes { HYPERVISOR } else { 0 };
            [real.eax, real.ebx, ecx, real.edx]
        }
        // No TDX: its guests decide otherwise.
        0x21 => [0; 4],
        0x4000_0000 if host_wakes => [0x4000_0001, 0x4b4d_564b, 0x564b_4d56, 0x4d],
        0x4000_0001 if host_wakes => [STEAL_TIME | PV_UNHALT, 0, 0, 0],
        0x4000_0000..=0x4fff_ffff => [0; 4],
        // No more leaves than up to the next, which says how long addresses may be: here all that programs have.
        0x8000_0000 => [0x8000_0008, 0, 0, 0],
        0x8000_0008 => [52, 0, 0, 0],
        _ => [real.eax, real.ebx, real.ecx, real.edx],
    }
}

/// From now on code in `range` is traced and helped.
pub(crate) fn watch(range: &Range<u64>) {
    BEGIN.store(range.start, Relaxed);
    END.store(range.end, Relaxed);
}

/// Whether the host that code sees wakes halted waiters.
pub(crate) fn set_host_wakes(wakes: bool) {
    HOST_WAKES.store(wakes, Relaxed);
}

/// Calls `once` instruction by instruction. The addresses at which it executed instructions in the watched range, in order.
pub(crate) fn trace(once: extern "C" fn()) -> Result<Vec<u64>> {
    TRACED.store(0, Relaxed);
    // SAFETY: a call by the C convention, with the trap flag set around it, whose traps the handler takes. The probe's image is loaded and
    //   entered. It takes a lock that nobody else knows, and releases it.
    unsafe {
        asm!(
            "pushfq",
            "or dword ptr [rsp], {trap}",
            "popfq",
            "call {once}",
            "pushfq",
            "and dword ptr [rsp], ~{trap}",
            "popfq",
            trap = const TRAP as i32,
            once = in(reg) once,
            clobber_abi("C"),
        );
    }
    let traced = TRACED.load(Relaxed);
    ensure!(traced <= TRACE.len(), "one round takes more than {} instructions", TRACE.len());
    Ok(TRACE[..traced].iter().map(|at| at.load(Relaxed)).collect())
}

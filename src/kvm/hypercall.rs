//! Hypercalls: waking a halted vCPU, yielding to one, sending interrupts to many.
//!
//! Numbers, arguments and errors: Linux `Documentation/virt/kvm/x86/hypercalls.rst` and `include/uapi/linux/kvm_para.h`.
//!
//! The instruction is chosen by the CPU's maker, once; KVM is never left to rewrite the guest's text, which faults where
//! text is read-only. In SEV-ES and SEV-SNP guests `vmmcall` traps to the kernel's #VC handler: that handler has to pass it
//! on, or the kernel hands in a [`HypercallFn`]. In TDX guests only a [`HypercallFn`] will do.

use super::detect::{Detected, Features};
use super::setup::{SETUP, Setup};
use crate::cpu::ApicId;
use core::arch::asm;
use core::fmt;

/// How a kernel makes a hypercall itself: number and four arguments in, the host's answer out (negative: an error).
///
/// # Safety
/// Whoever provides one: it has the effect of KVM's `vmcall` with `number` in RAX and `arguments` in RBX, RCX, RDX, RSI, and
/// no other; it takes no lock and allocates nothing; it may be called on any registered CPU, with interrupts off, and from
/// NMI handlers. Whoever calls one: in ring 0 of a KVM guest, with a number that the host offers.
pub type HypercallFn = unsafe fn(number: u64, arguments: [u64; 4]) -> i64;

/// Wakes a halted vCPU. Arguments: 0, APIC id.
pub(crate) const KICK_CPU: u64 = 5;
/// Sends an interrupt to many vCPUs. Arguments: bitmap low, bitmap high, lowest APIC id, interrupt command.
pub(crate) const SEND_IPI: u64 = 10;
/// Yields to a vCPU. Argument: APIC id.
pub(crate) const SCHED_YIELD: u64 = 11;

/// APIC ids that one SEND_IPI reaches: two bitmap words.
const IPI_WINDOW: u32 = 128;

/// Why a hypercall had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HypercallError {
    /// No CPU has registered yet, so it is not known which instruction calls the host.
    NotSetUp,
    /// There is no KVM, or in a TDX guest no [`HypercallFn`].
    NoHypercalls,
    /// The host does not offer the call: this bit of CPUID is clear.
    NotOffered(Features),
    /// The host does not know the call (-1000), though CPUID offers it.
    UnknownCall,
    /// The host rejects the arguments (-22), as for an APIC id that it has not.
    InvalidArgument,
    /// More was passed than the host takes (-7).
    TooBig,
    /// The host forbids it (-1), as to user space.
    NotPermitted,
    /// Any other error of the host.
    Other(i64),
}

impl HypercallError {
    fn from_code(code: i64) -> Self {
        match code {
            -1000 => Self::UnknownCall,
            -22 => Self::InvalidArgument,
            -7 => Self::TooBig,
            -1 => Self::NotPermitted,
            code => Self::Other(code),
        }
    }
}

impl fmt::Display for HypercallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSetUp => f.write_str("register the boot CPU before making hypercalls"),
            Self::NoHypercalls => {
                f.write_str("no hypercalls here: not a KVM guest, or a TDX guest that set no hypercall function")
            }
            Self::NotOffered(features) => write!(f, "the host does not offer {features}: check CPUID before calling"),
            Self::UnknownCall => {
                f.write_str("the host does not know a call that its CPUID offers: switch the feature off")
            }
            Self::InvalidArgument => {
                f.write_str("the host rejects the arguments: check the APIC ids that were registered")
            }
            Self::TooBig => f.write_str("the host takes less at once: split the call"),
            Self::NotPermitted => f.write_str("the host forbids the call: make it from ring 0"),
            Self::Other(code) => write!(f, "the host answers with the unexpected error {code}: switch the feature off"),
        }
    }
}

impl core::error::Error for HypercallError {}

/// What [`send_ipi`] delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipi {
    /// An interrupt with this vector.
    Vector(u8),
    /// A non-maskable interrupt.
    Nmi,
}

impl Ipi {
    /// The low half of the local APIC's interrupt command register (Intel SDM volume 3, section 11.6.1).
    const fn command(self) -> u64 {
        match self {
            Self::Vector(vector) => vector as u64,
            Self::Nmi => 0b100 << 8,
        }
    }
}

/// Wakes the vCPU with this APIC id from HLT, or lets its next HLT end at once. KVM also tries to run it next.
///
/// # Errors
/// See [`HypercallError`]. Offered as [`Features::PV_UNHALT`].
pub fn kick_cpu(target: ApicId) -> Result<(), HypercallError> {
    SETUP.kick_cpu(target)
}

/// Asks the host to run the vCPU with this APIC id in place of this one. No error does not mean that anything moved.
///
/// # Errors
/// See [`HypercallError`]. Offered as [`Features::PV_SCHED_YIELD`].
pub fn sched_yield(target: ApicId) -> Result<(), HypercallError> {
    SETUP.sched_yield(target)
}

/// Sends `ipi` to all of `targets`, in any order, with one hypercall for each window of 128 APIC ids that has any.
///
/// Returns how many vCPUs the host delivered to. Takes (windows + 1) passes over `targets` and no memory.
///
/// # Errors
/// See [`HypercallError`]. Offered as [`Features::PV_SEND_IPI`]. Windows of lower APIC ids have been served when a later one
/// fails.
///
/// # Safety
/// The handlers of all targets expect this interrupt at any time that it can arrive.
pub unsafe fn send_ipi<I>(targets: I, ipi: Ipi) -> Result<u64, HypercallError>
where
    I: IntoIterator<Item = ApicId, IntoIter: Clone>,
{
    SETUP.send_ipi(targets.into_iter(), ipi).map(|(delivered, _)| delivered)
}

impl Setup {
    pub(crate) fn kick_cpu(&self, target: ApicId) -> Result<(), HypercallError> {
        self.call(Features::PV_UNHALT, KICK_CPU, [0, target.0.into(), 0, 0]).map(drop)
    }

    pub(crate) fn sched_yield(&self, target: ApicId) -> Result<(), HypercallError> {
        self.call(Features::PV_SCHED_YIELD, SCHED_YIELD, [target.0.into(), 0, 0, 0]).map(drop)
    }

    /// Returns to how many the host delivered, and to how many it was to, each counted once.
    pub(crate) fn send_ipi<I: Iterator<Item = ApicId> + Clone>(
        &self,
        targets: I,
        ipi: Ipi,
    ) -> Result<(u64, u64), HypercallError> {
        let (mut delivered, mut wanted) = (0, 0);
        // Ids below `from` are served. 64 bits wide, as it may stand one above the highest id.
        let mut from = 0u64;
        while let Some(base) = targets.clone().map(|id| id.0).filter(|&id| u64::from(id) >= from).min() {
            let bitmap = targets
                .clone()
                .filter_map(|id| id.0.checked_sub(base))
                .filter(|&distance| distance < IPI_WINDOW)
                .fold(0u128, |bitmap, distance| bitmap | 1 << distance);
            let arguments = [bitmap as u64, (bitmap >> 64) as u64, base.into(), ipi.command()];
            // Targets may become fewer from pass to pass.
            if bitmap != 0 {
                delivered += self.call(Features::PV_SEND_IPI, SEND_IPI, arguments)?;
                wanted += u64::from(bitmap.count_ones());
            }
            from = u64::from(base) + u64::from(IPI_WINDOW);
        }
        Ok((delivered, wanted))
    }

    /// What makes a hypercall on this machine.
    fn entry(&self, host: &Detected) -> Result<HypercallFn, HypercallError> {
        match self.hypercall_fn() {
            Some(call) => Ok(call),
            None if host.tdx => Err(HypercallError::NoHypercalls),
            None if host.vendor.uses_vmmcall() => Ok(vmmcall),
            None => Ok(vmcall),
        }
    }

    /// One hypercall, if the host offers it.
    fn call(&self, needs: Features, number: u64, arguments: [u64; 4]) -> Result<u64, HypercallError> {
        if !self.decided() {
            return Err(HypercallError::NotSetUp);
        }
        let host = self.found().ok_or(HypercallError::NoHypercalls)?;
        if !host.features.contains(needs) {
            return Err(HypercallError::NotOffered(needs));
        }
        let call = self.entry(&host)?;
        // SAFETY: a KVM guest whose CPUID offers this number; `entry` chose what this machine takes.
        let answer = unsafe { call(number, arguments) };
        u64::try_from(answer).map_err(|_| HypercallError::from_code(answer))
    }
}

/// Defines a function that makes a hypercall by one instruction.
macro_rules! hypercall_instruction {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for callers of a [`HypercallFn`], on a CPU that has this instruction.
        unsafe fn $name(number: u64, [a0, a1, a2, a3]: [u64; 4]) -> i64 {
            let answer;
            // SAFETY: KVM reads the number and the arguments from these registers and changes RAX only. RBX, which asm
            //   operands cannot name, is put back. Not `nomem`: the target may act on what was written before.
            unsafe {
                asm!(
                    "xchg {a0}, rbx",
                    stringify!($name),
                    "xchg {a0}, rbx",
                    a0 = inout(reg) a0 => _,
                    inlateout("rax") number as i64 => answer,
                    in("rcx") a1,
                    in("rdx") a2,
                    in("rsi") a3,
                    options(nostack),
                );
            }
            answer
        }
    };
}

hypercall_instruction! {
    /// Intel's hypercall instruction, 0f 01 c1.
    vmcall
}
hypercall_instruction! {
    /// AMD's hypercall instruction, 0f 01 d9.
    vmmcall
}

#[cfg(test)]
mod tests;

//! [`Shootdown`]: other CPUs' TLBs are flushed, and nobody waits for one that the host has preempted.
//!
//! Requests have rising numbers. Each CPU has two: the latest request that *asks* it to flush, and the latest up to which its TLB *is*
//! flushed. Both only rise, so requests of many CPUs need no queue and no memory of their own, one flush answers all requests so far,
//! and an interrupt that comes late, twice or for nothing does no harm.
//!
//! Request `n` and one of its targets, `t`:
//!
//! | state | event | next state |
//! |---|---|---|
//! | new | `t` is preempted, and the flush mark is set by compare-exchange | flushed: `t` does it before it runs again |
//! | new | `t` runs, or the host is faster, or has no flush marks | asked: `asked(t) >= n`, then an interrupt |
//! | asked | `t` takes the interrupt, or looks while it waits itself ([`serve`](Shootdown::serve)) | flushed |
//! | asked | `t` is preempted meanwhile, and the flush mark is set | flushed; the interrupt later finds nothing to do |
//! | asked | `t` is preempted, and the host has no flush marks | asked; the requester boosts it ([`wait_acks`](super::wait_acks)) |
//! | flushed: `flushed(t) >= n` | | the request is over for `t` |
//!
//! INVARIANT: `flushed(t) >= n` is seen only when `t` runs no more guest code with an entry of its TLB that is older than request `n`. Its
//! own flush, or the requester's mark, comes first; and a mark serves every request with a lower number too, since all that was written
//! before a lower number was drawn is visible to who draws a higher one.
//!
//! A mark makes the host flush all of the TLB, global entries too. It trusts the host to do so:
//! [`Options::never_mark_flushes`](crate::kvm::Options::never_mark_flushes).

use super::acks::{Answers, wait};
use super::ipi::send_ipis;
use crate::cpu::{Cpu, CpuId, MAX_CPUS};
use crate::hypervisor::Hypervisor;
use crate::kvm::hypercall::Ipi;
use crate::stats::{Counter, count};
use crate::sync::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Flushes of other CPUs' TLBs. One `static` per kernel; 64 bytes for each of [`MAX_CPUS`].
///
/// The kernel brings the set of CPUs (those on which an address space is active, in a [`CpuSet`](super::CpuSet) for instance), the
/// instruction that flushes, the interrupt, and how one is sent:
///
/// ```
/// use pvlock::boost::{CpuSet, Shootdown};
/// use pvlock::kvm::hypercall::Ipi;
/// # use pvlock::{Cpu, CpuId};
/// # struct MyCpu;
/// # impl Cpu for MyCpu {
/// #     type Hypervisor = pvlock::hypervisor::Native;
/// #     fn current() -> Option<CpuId> { CpuId::new(0) }
/// # }
/// # fn flush_all() {}
/// # fn write_icr(_cpu: CpuId, _vector: u8) {}
///
/// const VECTOR: u8 = 0xf0;
/// // SAFETY: all CPUs have a gate for the vector, whose handler calls `serve`.
/// static SHOOTDOWN: Shootdown = unsafe { Shootdown::new(Ipi::Vector(VECTOR)) };
///
/// /// The page tables have been changed; on return no CPU of `active` uses what they said before.
/// fn flush(active: &CpuSet) {
///     flush_all();
///     SHOOTDOWN.flush_others::<MyCpu>(active, |cpu| write_icr(cpu, VECTOR));
/// }
///
/// /// In the interrupt's handler, and in `Cpu::relax`.
/// fn serve(me: CpuId) {
///     SHOOTDOWN.serve(me, flush_all);
/// }
/// # flush(&CpuSet::new());
/// # serve(CpuId::new(3).unwrap());
/// ```
#[derive(Debug)]
pub struct Shootdown {
    ipi: Ipi,
    /// Number of the latest request.
    last: AtomicU64,
    cpus: [Progress; MAX_CPUS],
}

/// How far one CPU is.
#[derive(Debug)]
#[repr(align(64))]
struct Progress {
    /// The latest request that asks this CPU.
    asked: AtomicU64,
    /// The latest request up to which its TLB is flushed.
    flushed: AtomicU64,
}

/// What a request cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flushed {
    /// Targets that were left a flush mark and sent no interrupt.
    pub marked: u32,
    /// Targets that were asked to flush. Each was sent an interrupt, unless it answered before that.
    pub asked: u32,
    /// Of those asked, targets that were preempted before they had answered and were left a flush mark then.
    pub marked_later: u32,
}

impl Shootdown {
    /// No request yet. `ipi` is what targets are sent.
    ///
    /// # Safety
    /// When the first request is made, and from then on, the handlers of all CPUs that may be targets expect this interrupt at any time that
    /// it can arrive, also for no reason.
    #[cfg(not(pvlock_loom))]
    #[must_use]
    pub const unsafe fn new(ipi: Ipi) -> Self {
        Self {
            ipi,
            last: AtomicU64::new(0),
            cpus: [const { Progress { asked: AtomicU64::new(0), flushed: AtomicU64::new(0) } }; MAX_CPUS],
        }
    }

    /// See the shipped one.
    ///
    /// # Safety
    /// As there.
    #[cfg(pvlock_loom)]
    #[must_use]
    pub unsafe fn new(ipi: Ipi) -> Self {
        let progress = |_| Progress { asked: AtomicU64::new(0), flushed: AtomicU64::new(0) };
        Self { ipi, last: AtomicU64::new(0), cpus: core::array::from_fn(progress) }
    }

    /// Has the TLBs of `targets`, but the calling CPU's, flushed of all that was in the page tables before the caller changed them, and waits
    /// until they are or will be before those CPUs run again. The caller flushes its own TLB itself, before or after.
    ///
    /// `send_one` sends the interrupt to one CPU, where that is not done by hypercall: see [`send_ipis`]. CPUs that are added to `targets` in
    /// the meantime may be left out, as they load their page tables after the change.
    ///
    /// On return, what the targets did with the old entries has happened before, so the pages can get another use.
    ///
    /// A target that has halted with interrupts off, in a wait for one of this library's locks, is kicked. Interrupts may be on or off; with interrupts off, and under locks that others take with interrupts off, [`Cpu::relax`] has to call
    /// [`serve`](Self::serve), on this CPU and on those that wait for its locks. The caller does not migrate. A target that never serves is
    /// waited for for ever. A CPU that goes offline first leaves the sets, then flushes its TLB as for a request, since whoever does not find it
    /// there any more does not wait for it, and goes on serving until the requests have ended that may have found it still there.
    pub fn flush_others<C: Cpu>(
        &self,
        targets: impl IntoIterator<Item = CpuId, IntoIter: Clone>,
        send_one: impl FnMut(CpuId),
    ) -> Flushed {
        let me = C::current();
        let targets = targets.into_iter();
        // ORDERING: AcqRel, pair SHOOT-NUMBER (with itself): who draws a higher number sees the page tables of all lower ones, so that a mark
        //   of his flushes those too.
        let number = self.last.fetch_add(1, AcqRel) + 1;
        let mut request =
            Request::<C> { shootdown: self, me, number, done: Flushed::default(), cpu: core::marker::PhantomData };
        for cpu in targets.clone().filter(|&cpu| Some(cpu) != me) {
            if request.mark(cpu) {
                request.done.marked += 1;
            } else {
                self.ask(cpu, number);
                request.done.asked += 1;
                count(me, Counter::FlushAsk);
            }
        }
        if request.done.asked > 0 {
            let unanswered = targets.clone().filter(|&cpu| !self.is_over(cpu, number));
            // SAFETY: promised when this was made.
            unsafe { send_ipis::<C>(unanswered, self.ipi, send_one) };
            wait::<C>(targets, &mut request);
        }
        request.done
    }

    /// Flushes the TLB of `me`, the calling CPU, by `flush` if somebody has asked for it; returns whether that was so.
    ///
    /// One flush answers all requests so far, whatever they unmapped: it covers all address spaces that this CPU may have entries of, and global ones.
    ///
    /// For the interrupt's handler and for [`Cpu::relax`]. When nobody has asked it is two loads of a line that is this CPU's own. The handler
    /// may interrupt the same call in `relax`.
    #[inline]
    pub fn serve(&self, me: CpuId, flush: impl FnOnce()) -> bool {
        let progress = &self.cpus[me.index()];
        // ORDERING: Acquire, pair SHOOT-ASK (Release in `ask`): the page tables of that request and of all lower ones are seen by what
        //   `flush` lets in again.
        let asked = progress.asked.load(Acquire);
        // ORDERING: Relaxed. If another CPU's mark has raised it, the host's flush came before this CPU ran again, so before this load.
        if asked <= progress.flushed.load(Relaxed) {
            return false;
        }
        flush();
        // ORDERING: Release, pair SHOOT-ANSWER (Acquire in `is_over`): what was done with the old entries happened before.
        progress.flushed.fetch_max(asked, Release);
        true
    }

    /// Asks `cpu` to flush for request `number`.
    fn ask(&self, cpu: CpuId, number: u64) {
        // ORDERING: Release, pair SHOOT-ASK (Acquire in `serve`). Not Acquire too: the page tables of lower requests that have asked before
        //   are passed on by this read-modify-write, and those of such as have not yet are seen since SHOOT-NUMBER. A locked instruction, so
        //   also before the interrupt, however that is sent.
        self.cpus[cpu.index()].asked.fetch_max(number, Release);
    }

    /// Whether request `number` need not wait for `cpu`: it has been flushed, or has not been asked at all (it was added to the set later).
    fn is_over(&self, cpu: CpuId, number: u64) -> bool {
        let progress = &self.cpus[cpu.index()];
        // ORDERING: Acquire, pair SHOOT-ANSWER (Release in `serve` and `mark`).
        progress.flushed.load(Acquire) >= number
            // ORDERING: Relaxed. If the requester asked, this is its own write or a later one.
            || progress.asked.load(Relaxed) < number
    }
}

/// One request.
struct Request<'a, C> {
    shootdown: &'a Shootdown,
    me: Option<CpuId>,
    number: u64,
    done: Flushed,
    cpu: core::marker::PhantomData<fn() -> C>,
}

impl<C: Cpu> Request<'_, C> {
    /// Leaves `cpu` a flush mark, if it is preempted and the host sees to such marks.
    fn mark(&self, cpu: CpuId) -> bool {
        if !C::Hypervisor::mark_flush(cpu) {
            return false;
        }
        // After the mark, never before. It answers those requests with lower numbers too that still wait for this CPU.
        // ORDERING: Release, pair SHOOT-ANSWER (Acquire in `is_over`): what `cpu` did before it was preempted, seen by way of the mark, is
        //   seen by those too.
        self.shootdown.cpus[cpu.index()].flushed.fetch_max(self.number, Release);
        count(self.me, Counter::FlushMark);
        true
    }
}

impl<C: Cpu> Answers for Request<'_, C> {
    fn has_answered(&mut self, cpu: CpuId) -> bool {
        self.shootdown.is_over(cpu, self.number)
    }

    fn excuse(&mut self, cpu: CpuId) -> bool {
        let marked = self.mark(cpu);
        self.done.marked_later += u32::from(marked);
        marked
    }
}

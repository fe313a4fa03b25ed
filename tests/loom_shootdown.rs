//! Loom models of the TLB shootdown and of the wait for answers: the target's host is part of its thread, and pages that get another use
//! are cells in which loom finds a use by way of an old TLB entry.
#![cfg(pvlock_loom)]

mod model;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32 as Tally, Ordering::Relaxed as Counting};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use loom::thread;
use model::model;
use pvlock::boost::{Shootdown, wait_acks};
use pvlock::hypervisor::{Hypervisor, Yielded};
use pvlock::kvm::ask_for_flush;
use pvlock::kvm::hypercall::Ipi;
use pvlock::lock::RawSpinLock;
use pvlock::{Cpu, CpuId};

const PREEMPTED: u8 = 1 << 0;
const FLUSH_TLB: u8 = 1 << 1;

/// What the host keeps for one vCPU.
struct Vcpu {
    /// The byte in its steal-time record.
    byte: AtomicU8,
    /// An interrupt that it has not taken yet.
    interrupted: AtomicBool,
}

loom::lazy_static! {
    static ref VCPUS: [Vcpu; 3] = core::array::from_fn(|_| Vcpu { byte: AtomicU8::new(0), interrupted: AtomicBool::new(false) });
    // SAFETY: a model's interrupts are taken by `Running::take_interrupts` only.
    static ref SHOOTDOWN: Shootdown = unsafe { Shootdown::new(Ipi::Vector(0xf0)) };
}

loom::thread_local! {
    static ME: Cell<Option<CpuId>> = Cell::new(None);
    /// Set by a flush that [`Kernel::relax`] did.
    static FLUSHED: Cell<bool> = Cell::new(false);
}

/// The ends that requests have met, over all executions.
static MARKED: Tally = Tally::new(0);
static ASKED: Tally = Tally::new(0);
static MARKED_LATER: Tally = Tally::new(0);

/// A kernel on a host with flush marks (`MARKS`), with directed yields if not.
struct Kernel<const MARKS: bool>;

impl<const MARKS: bool> Cpu for Kernel<MARKS> {
    type Hypervisor = Self;
    fn current() -> Option<CpuId> {
        ME.with(Cell::get)
    }
    /// Answers the requests of others.
    fn relax() {
        SHOOTDOWN.serve(ME.with(Cell::get).unwrap(), || FLUSHED.with(|flushed| flushed.set(true)));
    }
}

impl<const MARKS: bool> Hypervisor for Kernel<MARKS> {
    fn sees_preempted() -> bool {
        true
    }
    fn is_preempted(cpu: CpuId) -> bool {
        VCPUS[cpu.index()].byte.load(Relaxed) & PREEMPTED != 0
    }
    fn can_yield() -> bool {
        !MARKS
    }
    fn yield_to(me: CpuId, target: CpuId) -> Yielded {
        assert_ne!(me, target);
        thread::yield_now();
        Yielded::Moved
    }
    fn can_halt() -> bool {
        false
    }
    fn may_halt(_: CpuId) -> bool {
        false
    }
    fn halt(_: bool) {}
    fn kick(_: CpuId) {}
    fn mark_flush(cpu: CpuId) -> bool {
        MARKS && ask_for_flush(&VCPUS[cpu.index()].byte)
    }
}

fn cpu(index: usize) -> CpuId {
    CpuId::new(index as u32).unwrap()
}

/// A page table of one entry, and the page that it maps first.
struct Mapping {
    maps_old: AtomicU32,
    old: UnsafeCell<u32>,
}

// SAFETY: loom checks every access to the page.
unsafe impl Sync for Mapping {}
// SAFETY: plain numbers.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new() -> Self {
        Self { maps_old: AtomicU32::new(1), old: UnsafeCell::new(0) }
    }

    /// Unmaps the page everywhere and uses it for something else.
    fn unmap<const MARKS: bool>(&self, targets: &[usize]) {
        self.maps_old.store(0, Relaxed);
        let done = SHOOTDOWN.flush_others::<Kernel<MARKS>>(targets.iter().map(|&index| cpu(index)), interrupt);
        MARKED.fetch_add(done.marked, Counting);
        ASKED.fetch_add(done.asked, Counting);
        MARKED_LATER.fetch_add(done.marked_later, Counting);
        // SAFETY: nobody reaches it any more: that is what the model checks.
        self.old.with_mut(|page| unsafe { *page += 1 });
    }
}

fn interrupt(target: CpuId) {
    // ORDERING: Release, pair MODEL-INTERRUPT (Acquire in `take_interrupts`): `send_ipis` asks for it. A handler that saw less than its sender
    //   might find nothing to do. A swap, since loom may order a store after each later swap of the target.
    VCPUS[target.index()].interrupted.swap(true, Release);
}

/// A vCPU that uses `N` mappings, and its TLB.
struct Running<'a, const N: usize> {
    me: usize,
    mappings: [&'a Mapping; N],
    /// What the page table said when it was looked at last.
    tlb: [Option<u32>; N],
}

impl<'a, const N: usize> Running<'a, N> {
    fn new(me: usize, mappings: [&'a Mapping; N]) -> Self {
        ME.with(|cell| cell.set(Some(cpu(me))));
        Self { me, mappings, tlb: [None; N] }
    }

    /// Uses each page that is mapped, as far as the TLB knows.
    fn access(&mut self) {
        for (mapping, entry) in self.mappings.iter().zip(&mut self.tlb) {
            let maps_old = *entry.get_or_insert_with(|| mapping.maps_old.load(Relaxed));
            if maps_old == 1 {
                // SAFETY: mapped, or so the TLB says: that is what the model checks.
                mapping.old.with(|page| unsafe { *page });
            }
        }
    }

    fn take_interrupts(&mut self) {
        // ORDERING: Acquire, pair MODEL-INTERRUPT (Release in `interrupt`).
        if VCPUS[self.me].interrupted.swap(false, Acquire) {
            self.serve();
        }
    }

    fn serve(&mut self) {
        SHOOTDOWN.serve(cpu(self.me), || {
            // Up to the flush an entry may be used: nobody may have taken it for flushed yet.
            for (mapping, entry) in self.mappings.iter().zip(&mut self.tlb) {
                if entry.take() == Some(1) {
                    // SAFETY: mapped, as the TLB says: that is what the model checks.
                    mapping.old.with(|page| unsafe { *page });
                }
            }
        });
    }

    /// The host takes the CPU away, and gives it back.
    fn preempt(&mut self) {
        self.switch_out();
        thread::yield_now();
        self.switch_in();
    }

    fn switch_out(&self) {
        // ORDERING: Release, pair HOST-FLUSH.
        VCPUS[self.me].byte.store(PREEMPTED, Release);
    }

    fn switch_in(&mut self) {
        let byte = &VCPUS[self.me].byte;
        // ORDERING: AcqRel, pair HOST-FLUSH.
        let found = byte.swap(0, AcqRel);
        assert!(found & PREEMPTED != 0, "a mark without the preempted bit");
        if found & FLUSH_TLB != 0 {
            self.tlb = [None; N];
        }
        assert_eq!(byte.load(Relaxed), 0, "a mark on a vCPU that runs");
    }

    /// Takes interrupts until `over`.
    fn serve_until(&mut self, over: &AtomicU32, count: u32) {
        while over.load(Acquire) < count {
            self.take_interrupts();
            thread::yield_now();
        }
    }
}

/// One target that is preempted between two uses of the page, and `requesters` with a page each.
fn shoot<const MARKS: bool>(requesters: usize) {
    shoot_at::<MARKS>(requesters, |target| {
        target.preempt();
        target.take_interrupts();
    });
}

/// One target that does `between` two uses of the page, and `requesters` with a page each.
fn shoot_at<const MARKS: bool>(requesters: usize, between: fn(&mut Running<'_, 2>)) {
    let shared = Arc::new((AtomicU32::new(0), [Mapping::new(), Mapping::new()]));
    let requests: Vec<_> = (0..requesters)
        .map(|index| {
            let shared = shared.clone();
            thread::spawn(move || {
                ME.with(|me| me.set(Some(cpu(index))));
                shared.1[index].unmap::<MARKS>(&[2]);
                shared.0.fetch_add(1, Release);
            })
        })
        .collect();
    let mut target = Running::new(2, [&shared.1[0], &shared.1[1]]);
    target.access();
    between(&mut target);
    target.access();
    target.serve_until(&shared.0, requesters as u32);
    requests.into_iter().for_each(|request| request.join().unwrap());
}

#[test]
fn a_flush_mark_against_a_switch_in() {
    model(4, || shoot::<true>(1));
    assert!(
        MARKED.load(Counting) > 0 && ASKED.load(Counting) > 0 && MARKED_LATER.load(Counting) > 0,
        "an end was not met"
    );
}

#[test]
fn a_mark_serves_the_requests_of_others() {
    model(1, || shoot::<true>(2));
}

#[test]
fn without_marks_all_are_asked() {
    model(2, || shoot::<false>(1));
    model(0, || shoot::<false>(2));
}

/// As in [`Cpu::relax`], with interrupts off: of the page table it knows by the request alone.
#[test]
fn a_target_that_answers_without_its_interrupt_sees_the_page_table() {
    model(2, || shoot_at::<false>(1, |target| target.serve()));
}

/// The earlier request has its number and has not asked yet when the target flushes for the later one, which is why the later one has to
/// have seen the earlier one's page table. One thread is the target (CPU 2) and the later requester (1), whom it trusts.
fn serve_a_later_request<const MARKS: bool>() {
    let shared = Arc::new((AtomicU32::new(0), Mapping::new()));
    let earlier = {
        let shared = shared.clone();
        thread::spawn(move || {
            ME.with(|me| me.set(Some(cpu(0))));
            shared.1.unmap::<MARKS>(&[2]);
            shared.0.fetch_add(1, Release);
        })
    };
    let mut target = Running::new(2, [&shared.1]);
    target.access();
    if MARKS {
        target.switch_out();
    }
    ME.with(|me| me.set(Some(cpu(1))));
    SHOOTDOWN.flush_others::<Kernel<MARKS>>([cpu(2)], |_| target.serve());
    if MARKS {
        target.switch_in();
    }
    target.access();
    target.serve_until(&shared.0, 1);
    earlier.join().unwrap();
}

#[test]
fn a_flush_for_a_later_request_serves_the_earlier_too() {
    model(3, serve_a_later_request::<false>);
}

#[test]
fn a_mark_for_a_later_request_serves_the_earlier_too() {
    model(3, serve_a_later_request::<true>);
}

#[test]
fn two_cpus_that_shoot_at_each_other_answer_while_they_wait() {
    model(3, || {
        let shared = Arc::new([Mapping::new(), Mapping::new()]);
        // Interrupts are off: nobody takes any.
        fn both(me: usize, mappings: &[Mapping; 2]) {
            let mut running = Running::new(me, [&mappings[1 - me]]);
            running.access();
            mappings[me].unmap::<true>(&[1 - me]);
            if FLUSHED.with(Cell::take) {
                running.tlb = [None];
            }
            running.access();
            // The other one may still wait: a kernel turns interrupts on some time.
            SHOOTDOWN.serve(cpu(me), || ());
        }
        let other = shared.clone();
        let other = thread::spawn(move || both(1, &other));
        both(0, &shared);
        other.join().unwrap();
    });
}

#[test]
fn answers_carry_what_was_done_before_them() {
    model(3, || {
        struct Answer(AtomicBool, UnsafeCell<u32>);
        // SAFETY: loom checks every access to the cell.
        unsafe impl Sync for Answer {}
        // SAFETY: plain numbers.
        unsafe impl Send for Answer {}
        let answers = Arc::new([1, 2].map(|_| Answer(AtomicBool::new(false), UnsafeCell::new(0))));
        let targets = [1, 2].map(|index| {
            let answers = answers.clone();
            thread::spawn(move || {
                let byte = &VCPUS[index].byte;
                byte.store(PREEMPTED, Release);
                byte.swap(0, AcqRel);
                // SAFETY: before the answer, this target's alone.
                answers[index - 1].1.with_mut(|work| unsafe { *work = 1 });
                answers[index - 1].0.store(true, Release);
            })
        });
        ME.with(|me| me.set(Some(cpu(0))));
        wait_acks::<Kernel<false>>([cpu(0), cpu(1), cpu(2)], |cpu| answers[cpu.index() - 1].0.load(Acquire));
        for answer in &*answers {
            // SAFETY: after the answer, the waiter's.
            answer.1.with(|work| unsafe { assert_eq!(*work, 1) });
        }
        targets.into_iter().for_each(|target| target.join().unwrap());
    });
}

/// A kernel whose waiters halt, and know nothing of who runs, and answer requests when they wake up.
struct Halting;

impl model::Host for Halting {
    const SEES: bool = false;
    const HALTS: bool = true;
    fn relax() {
        // The caller is a CPU of the model below.
        let me = <model::Model<Self> as Cpu>::current().unwrap();
        SHOOTDOWN.serve(me, || ());
    }
}

/// No interrupt ends a halt with interrupts off, so the waiter is kicked for its answer; and for the lock.
#[test]
fn a_waiter_that_has_halted_answers_the_holder_of_its_lock() {
    type Kernel = model::Model<Halting>;
    model::halts_in(|| {
        model(3, || {
            let lock = Arc::new((RawSpinLock::<Kernel>::new(), AtomicBool::new(false)));
            let waiter = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    let (lock, is_over) = &*lock;
                    model::on_cpu(Some(1), || {
                        lock.lock();
                        // SAFETY: locked above.
                        unsafe { lock.unlock() };
                        // Then it answers as its idle loop would.
                        while !is_over.load(Relaxed) {
                            <Halting as model::Host>::relax();
                            thread::yield_now();
                        }
                    });
                })
            };
            let (lock, is_over) = &*lock;
            model::on_cpu(Some(0), || {
                lock.lock();
                // Long enough for the other to halt: each of its pauses lets this one run.
                (0..3).for_each(|_| thread::yield_now());
                // Its interrupt stays pending: it never has interrupts on.
                let done = SHOOTDOWN.flush_others::<Kernel>([cpu(1)].into_iter(), |_| ());
                assert_eq!(done.asked, 1);
                // SAFETY: locked above.
                unsafe { lock.unlock() };
                is_over.store(true, Relaxed);
            });
            waiter.join().unwrap();
        });
    });
}

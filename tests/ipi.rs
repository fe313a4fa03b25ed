//! Interrupts to many, waits for their answers, and TLB shootdowns, on a host whose every ability a test can take away.
#![cfg(not(pvlock_loom))]

use std::cell::{Cell, RefCell};

use pvlock::boost::{CpuSet, Flushed, Shootdown, idle_begin, idle_end, send_ipis, wait_acks, wait_acks_reporting};
use pvlock::hypervisor::{Hypervisor, Native, Yielded};
use pvlock::kvm::hypercall::Ipi;
use pvlock::{Cpu, CpuId, MAX_CPUS};

const VECTOR: Ipi = Ipi::Vector(0xf0);

/// What a yield does.
type OnYield = Box<dyn FnMut(CpuId) -> Yielded>;

/// What the host offers, and whom it has off a CPU. One per test, as each test is a thread.
#[derive(Default)]
struct Host {
    sees: Cell<bool>,
    yields: Cell<bool>,
    sends: Cell<bool>,
    marks: Cell<bool>,
    me: Cell<Option<CpuId>>,
    preempted: RefCell<Vec<CpuId>>,
    /// What the guest asked for.
    yielded_to: RefCell<Vec<usize>>,
    marked: RefCell<Vec<usize>>,
    sent: RefCell<Vec<Vec<usize>>>,
    relaxed: Cell<u64>,
    /// Called by `relax`, `yield_to`.
    on_relax: RefCell<Option<Box<dyn FnMut()>>>,
    on_yield: RefCell<Option<OnYield>>,
}

thread_local! {
    static HOST: Host = Host::default();
}

fn host<R>(f: impl FnOnce(&Host) -> R) -> R {
    HOST.with(f)
}

/// A host with all abilities, and the caller as CPU `me`. Each test has its own: what a CPU remembers of its yields is shared.
fn offer_all(me: u32) {
    host(|host| {
        [&host.sees, &host.yields, &host.sends, &host.marks].iter().for_each(|ability| ability.set(true));
        host.me.set(Some(cpu(me)));
    });
}

fn preempt(cpus: &[u32]) {
    host(|host| *host.preempted.borrow_mut() = cpus.iter().map(|&index| cpu(index)).collect());
}

/// Runs `handler` in each round of waiting.
fn each_round(handler: impl FnMut() + 'static) {
    host(|host| *host.on_relax.borrow_mut() = Some(Box::new(handler)));
}

/// Runs `handler` in place of a yield.
fn each_yield(handler: impl FnMut(CpuId) -> Yielded + 'static) {
    host(|host| *host.on_yield.borrow_mut() = Some(Box::new(handler)));
}

fn yielded_to() -> Vec<usize> {
    host(|host| host.yielded_to.take())
}

fn marked() -> Vec<usize> {
    host(|host| host.marked.take())
}

fn sent() -> Vec<Vec<usize>> {
    host(|host| host.sent.take())
}

fn cpu(index: u32) -> CpuId {
    CpuId::new(index).unwrap()
}

fn set<const N: usize>(cpus: [u32; N]) -> CpuSet {
    let set = CpuSet::new();
    (&set).extend(cpus.map(cpu));
    set
}

enum Kernel {}

impl Cpu for Kernel {
    type Hypervisor = Kernel;
    fn current() -> Option<CpuId> {
        host(|host| host.me.get())
    }
    fn relax() {
        host(|host| {
            host.relaxed.set(host.relaxed.get() + 1);
            if let Some(handler) = &mut *host.on_relax.borrow_mut() {
                handler();
            }
        });
    }
}

impl Hypervisor for Kernel {
    fn sees_preempted() -> bool {
        host(|host| host.sees.get())
    }
    fn is_preempted(cpu: CpuId) -> bool {
        host(|host| host.sees.get() && host.preempted.borrow().contains(&cpu))
    }
    fn can_yield() -> bool {
        host(|host| host.yields.get())
    }
    fn yield_to(me: CpuId, target: CpuId) -> Yielded {
        assert_ne!(me, target, "yield to self");
        assert!(Self::is_preempted(target), "yield to a CPU that runs");
        host(|host| {
            assert!(host.yields.get(), "a yield that is not offered");
            host.yielded_to.borrow_mut().push(target.index());
            host.on_yield.borrow_mut().as_mut().map_or(Yielded::Nothing, |handler| handler(target))
        })
    }
    fn can_halt() -> bool {
        false
    }
    fn may_halt(_: CpuId) -> bool {
        false
    }
    fn halt(_: bool) {
        panic!("a wait for answers halts");
    }
    fn kick(_: CpuId) {
        panic!("nobody halts");
    }
    fn mark_flush(cpu: CpuId) -> bool {
        host(|host| {
            let marks = host.marks.get() && host.preempted.borrow().contains(&cpu);
            if marks {
                host.marked.borrow_mut().push(cpu.index());
            }
            marks
        })
    }
    unsafe fn send_ipis(targets: impl Iterator<Item = CpuId> + Clone, ipi: Ipi) -> bool {
        assert_eq!(ipi, VECTOR);
        host(|host| {
            if host.sends.get() {
                host.sent.borrow_mut().push(targets.map(CpuId::index).collect());
            }
            host.sends.get()
        })
    }
}

/// Sends, and returns the count and to whom the kernel itself had to.
fn send(targets: &CpuSet) -> (usize, Vec<usize>) {
    let mut one_by_one = Vec::new();
    // SAFETY: nobody is interrupted.
    let count = unsafe { send_ipis::<Kernel>(targets, VECTOR, |cpu| one_by_one.push(cpu.index())) };
    (count, one_by_one)
}

#[test]
fn many_targets_go_by_hypercall_and_one_does_not() {
    offer_all(0);
    assert_eq!(send(&set([3, 70, MAX_CPUS as u32 - 1])), (3, vec![]));
    assert_eq!(sent(), [[3, 70, MAX_CPUS - 1]]);
    assert_eq!(send(&set([70])), (1, vec![70]));
    assert!(sent().is_empty());
}

#[test]
fn an_empty_set_sends_nothing_and_waits_for_nobody() {
    offer_all(0);
    assert_eq!(send(&CpuSet::new()), (0, vec![]));
    wait_acks::<Kernel>(&CpuSet::new(), |_| false);
    assert_eq!(flush(&shootdown(), &CpuSet::new()), (Flushed::default(), vec![]));
    assert!(sent().is_empty() && host(|host| host.relaxed.get()) == 0);
}

#[test]
fn the_caller_is_left_out() {
    offer_all(3);
    assert_eq!(send(&set([3])), (0, vec![]));
    assert_eq!(send(&set([3, 4])), (1, vec![4]));
    assert_eq!(send(&set([2, 3, 4])), (2, vec![]));
    assert_eq!(sent(), [[2, 4]]);
    wait_acks::<Kernel>(&set([3]), |_| panic!("the caller is asked for its own answer"));
    assert_eq!(flush(&shootdown(), &set([3])).0, Flushed::default());
}

#[test]
fn the_same_cpu_twice_is_waited_for_once() {
    offer_all(0);
    // A set cannot hold it twice; another source of targets can.
    let mut one_by_one = Vec::new();
    host(|host| host.sends.set(false));
    // SAFETY: nobody is interrupted.
    unsafe { send_ipis::<Kernel>([cpu(1), cpu(1)], VECTOR, |cpu| one_by_one.push(cpu.index())) };
    assert_eq!(one_by_one, [1, 1]);
    preempt(&[1]);
    let flushed = shootdown().flush_others::<Kernel>([cpu(1), cpu(1)], |_| ());
    assert_eq!((flushed.marked, flushed.asked), (2, 0));
}

#[test]
fn without_the_hypercall_the_kernel_sends_one_by_one() {
    offer_all(0);
    host(|host| host.sends.set(false));
    assert_eq!(send(&set([3, 70])), (2, vec![3, 70]));
}

#[test]
fn a_caller_without_a_number_sends_and_waits_but_boosts_nobody() {
    offer_all(0);
    host(|host| host.me.set(None));
    assert_eq!(send(&set([3, 4])), (2, vec![]));
    preempt(&[3]);
    let rounds = Cell::new(0);
    wait_acks::<Kernel>(&set([3, 4]), |_| rounds.replace(rounds.get() + 1) > 10_000);
    assert!(yielded_to().is_empty());
}

#[test]
fn receivers_that_are_preempted_and_have_not_answered_are_boosted_in_turn_and_no_others() {
    offer_all(10);
    // 1 runs, 2 and 4 are preempted, 3 is preempted and has answered, 5 is no target.
    preempt(&[2, 3, 4, 5]);
    let boosts = std::rc::Rc::new(Cell::new(0));
    let count = boosts.clone();
    each_yield(move |_| {
        count.set(count.get() + 1);
        Yielded::Moved
    });
    wait_acks::<Kernel>(&set([1, 2, 3, 4]), |cpu| cpu.index() == 3 || boosts.get() >= 6);
    assert_eq!(yielded_to(), [2, 4, 2, 4, 2, 4]);
}

#[test]
fn no_hypercall_while_nobody_is_preempted_and_relax_in_every_round() {
    offer_all(11);
    let rounds = Cell::new(0u64);
    wait_acks::<Kernel>(&set([1, 2]), |_| {
        rounds.set(rounds.get() + 1);
        rounds.get() > 100_000
    });
    assert!(yielded_to().is_empty());
    // Two questions end the wait for the two targets.
    assert_eq!(host(|host| host.relaxed.get()), rounds.get() - 2);
}

#[test]
fn three_fruitless_boosts_end_boosting() {
    offer_all(12);
    preempt(&[1]);
    let rounds = Cell::new(0);
    // Less than it takes until the next try is allowed.
    wait_acks::<Kernel>(&set([1]), |_| rounds.replace(rounds.get() + 1) > 10_000);
    assert_eq!(yielded_to(), [1, 1, 1]);
}

#[test]
fn fruitless_boosts_are_ever_further_apart() {
    offer_all(13);
    preempt(&[1]);
    let at = std::rc::Rc::new(RefCell::new(Vec::new()));
    let rounds = std::rc::Rc::new(Cell::new(0u32));
    let (note, now) = (at.clone(), rounds.clone());
    each_yield(move |_| {
        note.borrow_mut().push(now.get());
        Yielded::Nothing
    });
    wait_acks::<Kernel>(&set([1]), |_| {
        rounds.set(rounds.get() + 1);
        at.borrow().len() >= 3
    });
    let at = at.take();
    assert!(at[0] > 100, "the target had no time to answer: {at:?}");
    assert!(at[2] - at[1] >= 2 * (at[1] - at[0]) - 10 && at[1] - at[0] >= 250, "{at:?}");
}

#[test]
fn an_idle_receiver_is_left_to_its_interrupt() {
    offer_all(14);
    preempt(&[15]);
    idle_begin(cpu(15));
    let rounds = Cell::new(0);
    wait_acks::<Kernel>(&set([15]), |_| rounds.replace(rounds.get() + 1) > 10_000);
    idle_end(cpu(15));
    assert!(yielded_to().is_empty());
}

#[test]
fn without_yields_or_the_preempted_flag_it_is_a_spin() {
    for (sees, yields) in [(false, true), (true, false)] {
        offer_all(16);
        host(|host| {
            host.sees.set(sees);
            host.yields.set(yields);
        });
        preempt(&[1]);
        let rounds = Cell::new(0);
        wait_acks::<Kernel>(&set([1]), |_| rounds.replace(rounds.get() + 1) > 10_000);
        assert!(yielded_to().is_empty());
    }
}

#[test]
fn slow_targets_are_reported_with_their_state_and_waited_for_all_the_same() {
    offer_all(17);
    host(|host| host.yields.set(false));
    preempt(&[2]);
    let answered_at = |cpu: CpuId| if cpu.index() == 1 { 2500 } else { 5500 };
    let rounds = Cell::new(0);
    let mut reports = Vec::new();
    wait_acks_reporting::<Kernel>(
        &set([1, 2]),
        |cpu| {
            rounds.set(rounds.get() + 1);
            rounds.get() > answered_at(cpu)
        },
        1000,
        |slow| reports.push((slow.cpu.index(), slow.preempted, slow.rounds)),
    );
    let (one, two) = ((1, false), (2, true));
    let expected = [(one, 1000), (one, 2000), (two, 3000), (two, 4000), (two, 5000)];
    assert_eq!(reports, expected.map(|((cpu, preempted), rounds)| (cpu, preempted, rounds)));
    // A period of nothing is every round.
    rounds.set(0);
    wait_acks_reporting::<Kernel>(
        &set([1]),
        |_| rounds.replace(rounds.get() + 1) > 2,
        0,
        |slow| {
            assert_eq!(slow.cpu, cpu(1));
        },
    );
}

fn shootdown() -> Box<Shootdown> {
    // SAFETY: nobody is interrupted.
    Box::new(unsafe { Shootdown::new(VECTOR) })
}

/// Makes a request; returns what it cost and to whom the kernel itself sent interrupts.
fn flush(shootdown: &Shootdown, targets: &CpuSet) -> (Flushed, Vec<usize>) {
    let mut one_by_one = Vec::new();
    let flushed = shootdown.flush_others::<Kernel>(targets, |cpu| one_by_one.push(cpu.index()));
    (flushed, one_by_one)
}

/// Lets `cpus` take their interrupts in each round; returns how often they flushed.
fn answer(shootdown: &'static Shootdown, cpus: &'static [u32]) -> &'static std::thread::LocalKey<Cell<u32>> {
    thread_local! {
        static FLUSHES: Cell<u32> = const { Cell::new(0) };
    }
    each_round(move || {
        for &index in cpus {
            shootdown.serve(cpu(index), || FLUSHES.set(FLUSHES.get() + 1));
        }
    });
    &FLUSHES
}

#[test]
fn the_preempted_are_marked_and_the_others_asked() {
    offer_all(18);
    preempt(&[2, 4]);
    let shootdown: &Shootdown = Box::leak(shootdown());
    let flushes = answer(shootdown, &[1, 3]);
    let (cost, one_by_one) = flush(shootdown, &set([1, 2, 3, 4, 18]));
    assert_eq!((cost.marked, cost.asked, cost.marked_later), (2, 2, 0));
    assert_eq!((marked(), sent(), one_by_one), (vec![2, 4], vec![vec![1, 3]], vec![]));
    assert_eq!(flushes.get(), 2);
    // Those that were marked have nothing left to do when they run.
    assert!(!shootdown.serve(cpu(2), || panic!("the host has flushed")));
}

#[test]
fn nobody_is_sent_an_interrupt_if_all_are_preempted() {
    offer_all(19);
    preempt(&[1, 2]);
    let (cost, one_by_one) = flush(&shootdown(), &set([1, 2]));
    assert_eq!((cost.marked, cost.asked), (2, 0));
    assert_eq!((sent().len(), one_by_one.len(), host(|host| host.relaxed.get())), (0, 0, 0));
}

#[test]
fn without_flush_marks_the_preempted_are_asked_and_boosted() {
    offer_all(20);
    host(|host| host.marks.set(false));
    preempt(&[2]);
    let shootdown: &Shootdown = Box::leak(shootdown());
    answer(shootdown, &[1]);
    each_yield(|target| {
        shootdown.serve(target, || ());
        Yielded::Moved
    });
    let (cost, _) = flush(shootdown, &set([1, 2]));
    assert_eq!((cost.marked, cost.asked, cost.marked_later), (0, 2, 0));
    assert_eq!((yielded_to(), sent()), (vec![2], vec![vec![1, 2]]));
}

#[test]
fn a_target_that_is_preempted_after_it_was_asked_is_marked_then() {
    offer_all(21);
    let shootdown: &Shootdown = Box::leak(shootdown());
    each_round(|| preempt(&[1]));
    let (cost, one_by_one) = flush(shootdown, &set([1]));
    assert_eq!((cost.marked, cost.asked, cost.marked_later), (0, 1, 1));
    assert_eq!((marked(), one_by_one, yielded_to()), (vec![1], vec![1], vec![]));
    // Its interrupt comes when it runs again.
    assert!(!shootdown.serve(cpu(1), || panic!("the host has flushed")));
}

#[test]
fn a_mark_answers_an_earlier_request_too() {
    offer_all(22);
    let shootdown: &Shootdown = Box::leak(shootdown());
    // While this CPU waits for 1, 1 is preempted and another CPU requests a flush.
    let mut asked = false;
    each_round(move || {
        if !core::mem::replace(&mut asked, true) {
            preempt(&[1]);
            let other = shootdown.flush_others::<OtherCpu>(&set([1]), |_| panic!("marked"));
            assert_eq!((other.marked, other.asked), (1, 0));
            host(|host| host.marks.set(false));
        }
    });
    let (cost, _) = flush(shootdown, &set([1]));
    assert_eq!((cost.asked, cost.marked_later, yielded_to().len()), (1, 0, 0));
}

/// The same kernel on another CPU.
enum OtherCpu {}

impl Cpu for OtherCpu {
    type Hypervisor = Kernel;
    fn current() -> Option<CpuId> {
        Some(cpu(23))
    }
}

#[test]
fn on_bare_metal_all_are_asked() {
    enum Bare {}
    impl Cpu for Bare {
        type Hypervisor = Native;
        fn current() -> Option<CpuId> {
            Some(cpu(0))
        }
    }
    preempt(&[1]);
    let shootdown = shootdown();
    let mut one_by_one = Vec::new();
    let cost = shootdown.flush_others::<Bare>(&set([0, 1, 2]), |cpu| {
        one_by_one.push(cpu.index());
        assert!(shootdown.serve(cpu, || ()));
    });
    assert_eq!((cost.marked, cost.asked, one_by_one), (0, 2, vec![1, 2]));
}

#[test]
fn one_flush_answers_all_requests_so_far_and_a_late_interrupt_nothing() {
    offer_all(24);
    let shootdown = shootdown();
    let flushes = Cell::new(0);
    let flush_once = || flushes.set(flushes.get() + 1);
    assert!(!shootdown.serve(cpu(1), flush_once), "nobody has asked");
    for _ in 0..3 {
        // Delivered twice, as nested hosts do.
        let cost = shootdown.flush_others::<Kernel>([cpu(1)], |target| {
            assert!(shootdown.serve(target, flush_once));
            assert!(!shootdown.serve(target, flush_once));
        });
        assert_eq!(cost.asked, 1);
    }
    assert_eq!(flushes.get(), 3);
}

#[test]
fn a_cpu_that_joins_during_a_request_is_not_waited_for() {
    offer_all(25);
    let shootdown: &Shootdown = Box::leak(shootdown());
    let targets: &CpuSet = Box::leak(Box::new(set([1])));
    answer(shootdown, &[1]);
    let cost = shootdown.flush_others::<Kernel>(targets, |_| targets.insert(cpu(70)));
    assert_eq!(cost.asked, 1);
}

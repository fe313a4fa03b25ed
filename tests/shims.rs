//! The API against the shapes that real kernels force on it: each module is a kernel's lock as that kernel would write it.
//!
//! Compiled and run. What differs from the kernels is only that per-CPU data and interrupt flags are fakes.
#![cfg(not(pvlock_loom))]

mod fake;

use pvlock::{Cpu, CpuId, Guard, SpinMutex};

/// ArceOS: `kspin`'s `BaseSpinLock<G, T>` over `kernel_guard::BaseGuard`; the CPU number is the APIC id.
mod arceos {
    use super::*;
    use kernel_guard::BaseGuard;

    /// A crate below the kernel: its lock types have no parameter for the platform.
    type Platform = super::fake::Fake;

    /// Every `BaseGuard` as a guard of ours.
    pub struct Base<G>(G);

    impl<C: Cpu, G: BaseGuard + 'static> Guard<C> for Base<G> {
        type State = G::State;
        const PINS: bool = true;
        fn enter() -> G::State {
            G::acquire()
        }
        unsafe fn leave(state: G::State) {
            G::release(state);
        }
    }

    pub type BaseSpinLock<G, T> = SpinMutex<T, Platform, Base<G>>;
    pub type SpinNoIrq<T> = BaseSpinLock<kernel_guard::NoPreemptIrqSave, T>;
    pub type SpinRaw<T> = BaseSpinLock<kernel_guard::NoOp, T>;

    static CONSOLE: SpinNoIrq<u32> = SpinNoIrq::new(0);
    static RAW: SpinRaw<u32> = SpinRaw::new(0);

    #[test]
    fn locks_under_a_base_guard() {
        fake::on_cpu(1, || {
            *CONSOLE.lock() += 1;
            *RAW.lock() += 1;
            assert!(CONSOLE.try_lock().is_some() && !CONSOLE.is_locked());
            // A panic handler takes the console by force.
            core::mem::forget(CONSOLE.lock());
            // SAFETY: the holder is forgotten.
            unsafe { CONSOLE.force_unlock() };
            assert_eq!(*CONSOLE.lock(), 1);
        });
    }
}

/// Asterinas: guard behaviours return RAII objects, and `disable_irq` casts a lock to the same lock with another behaviour.
mod asterinas {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static PREEMPT_COUNT: Cell<u32> = const { Cell::new(0) };
        static IRQ_COUNT: Cell<u32> = const { Cell::new(0) };
    }

    pub struct Counted(&'static std::thread::LocalKey<Cell<u32>>);

    impl Counted {
        fn new(key: &'static std::thread::LocalKey<Cell<u32>>) -> Self {
            key.set(key.get() + 1);
            Self(key)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    pub trait SpinGuardian: 'static {
        type Guard;
        fn guard() -> Self::Guard;
    }

    pub enum PreemptDisabled {}
    impl SpinGuardian for PreemptDisabled {
        type Guard = Counted;
        fn guard() -> Counted {
            Counted::new(&PREEMPT_COUNT)
        }
    }

    pub enum LocalIrqDisabled {}
    impl SpinGuardian for LocalIrqDisabled {
        type Guard = Counted;
        fn guard() -> Counted {
            Counted::new(&IRQ_COUNT)
        }
    }

    pub struct Guardian<G>(G);
    impl<C: Cpu, G: SpinGuardian> Guard<C> for Guardian<G> {
        type State = G::Guard;
        const PINS: bool = true;
        fn enter() -> G::Guard {
            G::guard()
        }
        unsafe fn leave(state: G::Guard) {
            drop(state);
        }
    }

    #[repr(transparent)]
    pub struct SpinLock<T: ?Sized, G: SpinGuardian = PreemptDisabled> {
        inner: SpinMutex<T, fake::Fake, Guardian<G>>,
    }

    impl<T, G: SpinGuardian> SpinLock<T, G> {
        pub const fn new(value: T) -> Self {
            Self { inner: SpinMutex::new(value) }
        }
    }

    impl<T: ?Sized> SpinLock<T, PreemptDisabled> {
        pub fn disable_irq(&self) -> &SpinLock<T, LocalIrqDisabled> {
            // SAFETY: `repr(transparent)` over a `SpinMutex`, whose layout does not depend on the guard.
            unsafe { &*(self as *const Self as *const SpinLock<T, LocalIrqDisabled>) }
        }
    }

    #[test]
    fn the_guard_object_lives_as_long_as_the_lock_is_held() {
        fake::on_cpu(1, || {
            static LOCK: SpinLock<[u8; 3]> = SpinLock::new([0; 3]);
            let held = LOCK.inner.lock();
            assert_eq!((PREEMPT_COUNT.get(), IRQ_COUNT.get()), (1, 0));
            drop(held);
            let held = LOCK.disable_irq().inner.lock();
            assert_eq!((PREEMPT_COUNT.get(), IRQ_COUNT.get()), (0, 1));
            assert!(LOCK.inner.try_lock().is_none(), "one lock, seen two ways");
            drop(held);
            assert_eq!((PREEMPT_COUNT.get(), IRQ_COUNT.get()), (0, 0));
        });
    }

    #[test]
    fn the_layout_depends_on_neither_guard_nor_platform() {
        type A = SpinMutex<u16, fake::Fake>;
        type B = SpinMutex<u16, fake::Fake, Guardian<LocalIrqDisabled>>;
        assert_eq!((size_of::<A>(), align_of::<A>()), (size_of::<B>(), align_of::<B>()));
        assert_eq!(size_of::<pvlock::lock::RawSpinLock<fake::Fake>>(), 8);
    }
}

/// Hermit: `hermit-sync` is below the kernel, reaches it by link-time symbols, wraps a raw `lock_api` lock in
/// `interrupt-mutex`, and runs inside the global allocator; the CPU is not known until the gs base is set.
mod hermit {
    use super::*;
    use std::alloc::GlobalAlloc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// `core_id` of the running CPU; `u32::MAX` before its per-CPU data exists.
    static CORE_ID: AtomicU32 = AtomicU32::new(u32::MAX);

    struct Kernel;

    impl Cpu for Kernel {
        type Hypervisor = pvlock::hypervisor::Kvm;
        fn current() -> Option<CpuId> {
            CpuId::new(CORE_ID.load(Ordering::Relaxed))
        }
        fn irqs_enabled() -> bool {
            false
        }
    }

    pvlock::platform!(Kernel);

    pub type RawTicketMutex = pvlock::lock::RawSpinLock<pvlock::platform::Linked>;
    pub type TicketMutex<T> = lock_api::Mutex<RawTicketMutex, T>;
    pub type OnceCell<T> = generic_once_cell::OnceCell<RawTicketMutex, T>;

    static HEAP: talc::TalcLock<RawTicketMutex, talc::source::Manual> = talc::TalcLock::new(talc::source::Manual);

    #[test]
    fn a_lock_taken_before_the_cpu_is_known_is_unlocked_after() {
        static CONSOLE: TicketMutex<u32> = TicketMutex::new(0);
        let mut console = CONSOLE.lock();
        // SAFETY: `console` keeps it held.
        assert_eq!(unsafe { CONSOLE.raw() }.owner(), None, "held, by nobody known");
        assert!(CONSOLE.is_locked());
        // The lazy initialiser installs the per-CPU data while the console is held.
        CORE_ID.store(0, Ordering::Relaxed);
        *console += 1;
        drop(console);
        let console = CONSOLE.lock();
        // SAFETY: `console` keeps it held.
        assert_eq!(unsafe { CONSOLE.raw() }.owner(), CpuId::new(0));
        drop(console);
    }

    #[test]
    fn third_parties_generic_over_lock_api_take_it() {
        static ONCE: OnceCell<u32> = OnceCell::new();
        assert_eq!(*ONCE.get_or_init(|| 5), 5);
        // The allocator runs under our lock, so our lock must not allocate.
        let arena = Box::leak(vec![0u8; 1 << 16].into_boxed_slice());
        // SAFETY: leaked, so it is the heap's for ever.
        unsafe { HEAP.lock().claim(arena.as_mut_ptr(), arena.len()) }.unwrap();
        let layout = std::alloc::Layout::new::<[u64; 8]>();
        // SAFETY: the layout has a size.
        let block = unsafe { HEAP.alloc(layout) };
        assert!(arena.as_ptr_range().contains(&block.cast_const()));
        // SAFETY: from `alloc` with this layout.
        unsafe { HEAP.dealloc(block, layout) };
    }
}

/// COCONUT-SVSM: `IrqLocking` saves its state in the lock's guard; the CPU may not be there yet.
mod svsm {
    use super::*;
    use fake::Fake;

    pub trait IrqLocking {
        fn irqs_disable() -> Self;
    }

    /// Raises the task priority while the lock is held, and restores it when dropped.
    pub struct TprGuard<const TPR: usize>(usize);

    thread_local! {
        static TASK_PRIORITY: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    impl<const TPR: usize> IrqLocking for TprGuard<TPR> {
        fn irqs_disable() -> Self {
            Self(TASK_PRIORITY.replace(TPR))
        }
    }

    impl<const TPR: usize> Drop for TprGuard<TPR> {
        fn drop(&mut self) {
            TASK_PRIORITY.set(self.0);
        }
    }

    pub struct Locking<I>(I);
    impl<C: Cpu, I: IrqLocking + 'static> Guard<C> for Locking<I> {
        type State = I;
        const PINS: bool = true;
        fn enter() -> I {
            I::irqs_disable()
        }
        unsafe fn leave(state: I) {
            drop(state);
        }
    }

    #[test]
    fn the_priority_is_raised_while_held_and_after_a_failure_restored() {
        fake::on_cpu(1, || {
            let lock = SpinMutex::<(), Fake, Locking<TprGuard<4>>>::new(());
            let held = lock.lock();
            assert_eq!(TASK_PRIORITY.get(), 4);
            assert!(lock.try_lock().is_none());
            assert_eq!(TASK_PRIORITY.get(), 4);
            drop(held);
            assert_eq!(TASK_PRIORITY.get(), 0);
        });
    }
}

/// Redox and Twizzler: waiters answer TLB shootdowns.
mod redox {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    #[test]
    fn a_waiter_answers_the_holder() {
        static LOCK: pvlock::lock::RawSpinLock<fake::Fake> = pvlock::lock::RawSpinLock::new();
        static ACKS: AtomicU32 = AtomicU32::new(0);
        fake::on_cpu(1, || LOCK.lock());
        // The holder reads as preempted: without the hook this waiter would halt, and never answer.
        fake::PREEMPTED.fetch_or(1 << 1, Ordering::Relaxed);
        thread::scope(|s| {
            s.spawn(|| {
                fake::on_cpu(2, || {
                    LOCK.lock_polling(|| {
                        ACKS.fetch_add(1, Ordering::Relaxed);
                    });
                    // SAFETY: locked above.
                    unsafe { LOCK.unlock() };
                })
            });
            // The holder waits for the answer before it unlocks.
            while ACKS.load(Ordering::Relaxed) < 1000 {
                thread::yield_now();
            }
            // SAFETY: locked above, by this CPU.
            fake::on_cpu(1, || unsafe { LOCK.unlock() });
        });
    }
}

/// DragonOS and Theseus: wait with interrupts as the caller had them.
mod dragonos {
    use super::*;
    use pvlock::IrqSave;
    use std::thread;

    #[test]
    fn waits_outside_the_guard() {
        static LOCK: SpinMutex<u32, fake::Fake, IrqSave> = SpinMutex::new(0);
        thread::scope(|s| {
            fake::on_cpu(1, || assert!(LOCK.raw().try_lock()));
            s.spawn(|| {
                fake::on_cpu(2, || {
                    fake::interrupt_after(100, || {
                        assert!(fake::IRQS_ON.get(), "interrupts are on while waiting");
                        // SAFETY: locked above on behalf of CPU 1.
                        unsafe { LOCK.raw().unlock() };
                    });
                    *LOCK.lock_irqs_open() += 1;
                })
            });
        });
        fake::on_cpu(1, || assert_eq!(*LOCK.lock(), 1));
    }
}

/// Theseus: a flavour of deadlock prevention is entered and left around each attempt, by an object.
mod theseus {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    pub trait DeadlockPrevention: 'static {
        type Guard;
        const EXPENSIVE: bool;
        fn enter() -> Self::Guard;
    }

    pub enum DisableIrq {}
    pub struct HeldIrq;
    impl Drop for HeldIrq {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }
    impl DeadlockPrevention for DisableIrq {
        type Guard = HeldIrq;
        const EXPENSIVE: bool = true;
        fn enter() -> HeldIrq {
            HELD.set(HELD.get() + 1);
            HeldIrq
        }
    }

    pub struct Flavour<P>(P);
    impl<C: Cpu, P: DeadlockPrevention> Guard<C> for Flavour<P> {
        type State = P::Guard;
        const PINS: bool = true;
        fn enter() -> P::Guard {
            P::enter()
        }
        unsafe fn leave(state: P::Guard) {
            drop(state);
        }
    }

    pub type Mutex<T, P> = SpinMutex<T, fake::Fake, Flavour<P>>;

    /// As theirs: an expensive prevention is not entered while the lock is seen held.
    fn try_lock<T, P: DeadlockPrevention>(
        mutex: &Mutex<T, P>,
    ) -> Option<pvlock::SpinMutexGuard<'_, T, fake::Fake, Flavour<P>>> {
        if P::EXPENSIVE && mutex.is_locked() { None } else { mutex.try_lock() }
    }

    #[test]
    fn the_prevention_lasts_as_long_as_the_lock_is_held() {
        fake::on_cpu(3, || {
            let mutex = Mutex::<u32, DisableIrq>::new(0);
            let held = try_lock(&mutex).expect("free");
            assert!(HELD.get() == 1 && try_lock(&mutex).is_none() && HELD.get() == 1);
            drop(held);
            assert_eq!(HELD.get(), 0);
            // Each attempt by itself, interrupts as they were in between.
            *mutex.lock_irqs_open() += 1;
            assert_eq!(*mutex.lock(), 1);
            assert_eq!(HELD.get(), 0);
        });
    }
}

/// Misuse that can be seen is reported, in debug builds, by CPU and lock; what kernels really do is not misuse.
mod misuse {
    use super::*;
    use pvlock::{IrqSave, NoPreempt};

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "CPU 6 locks the spinlock at 0x")]
    fn locking_twice_under_a_pinning_guard_panics() {
        fake::ME.set(CpuId::new(6));
        let lock = SpinMutex::<(), fake::Fake, NoPreempt>::new(());
        let _held = lock.lock();
        let _again = lock.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "that is not held: unlocked twice")]
    fn unlocking_a_free_lock_panics() {
        let lock = pvlock::lock::RawSpinLock::<fake::Fake>::new();
        // SAFETY: not met, on purpose; the debug check comes before the word is written.
        unsafe { lock.unlock() };
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "CPU 7, task 77, unlocks the spinlock at 0x")]
    fn unlocking_on_another_cpu_under_a_pinning_guard_panics() {
        fake::ME.set(CpuId::new(6));
        let lock = SpinMutex::<(), fake::Fake, NoPreempt>::new(());
        let held = lock.lock();
        // The kernel has moved the task though the guard forbids it.
        fake::ME.set(CpuId::new(7));
        fake::TASK.set(core::num::NonZeroU64::new(77));
        drop(held);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "that is not held: unlocked twice, initialised again while held, or overwritten")]
    fn unlocking_an_overwritten_lock_panics() {
        let lock = pvlock::lock::RawSpinLock::<fake::Fake>::new();
        fake::on_cpu(6, || lock.lock());
        // SAFETY: stands for a stray write: an owner that does not exist. The lock is 8 bytes, aligned to 8.
        unsafe { core::ptr::from_ref(&lock).cast::<u32>().cast_mut().write_volatile(0xabcd) };
        // SAFETY: the lock was held; the debug check comes before the word is written.
        unsafe { lock.unlock() };
    }

    #[test]
    fn another_cpu_may_unlock() {
        let lock = SpinMutex::<u32, fake::Fake>::new(0);
        let held = fake::on_cpu(1, || lock.lock());
        std::thread::scope(|s| {
            s.spawn(move || fake::on_cpu(2, || drop(held)));
        });
        assert!(!lock.is_locked());
    }

    #[test]
    fn guards_go_where_their_state_may() {
        use static_assertions::{assert_impl_all, assert_not_impl_any};
        assert_impl_all!(pvlock::SpinMutexGuard<'static, u32, fake::Fake>: Send, Sync);
        assert_not_impl_any!(pvlock::SpinMutexGuard<'static, u32, fake::Fake, IrqSave>: Send);
        assert_not_impl_any!(pvlock::SpinMutexGuard<'static, u32, fake::Fake, NoPreempt>: Send);
        assert_not_impl_any!(pvlock::SpinMutexGuard<'static, std::cell::Cell<u32>, fake::Fake>: Sync);
        assert_impl_all!(SpinMutex<std::cell::Cell<u32>, fake::Fake>: Send, Sync);
        assert_not_impl_any!(SpinMutex<std::rc::Rc<u32>, fake::Fake>: Send, Sync);
    }
}

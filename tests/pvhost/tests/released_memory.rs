//! The lock is in a page that its last user unmaps right after releasing it: nobody may touch the lock after its release, and
//! neither the one who kicks nor the one who was kicked does.
//!
//! Whoever did would die of a segmentation fault, and this test with it.

use core::hint::spin_loop;
use core::num::NonZeroUsize;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use pvhost::{Config, PvCpu, Slices, Torture, freeze_me, pause_loop_exit, run};
use pvlock::{CpuId, SpinMutex};

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
const VCPUS: usize = 5;

/// What is in the page: a lock around the number of vCPUs that have still to take it.
type Countdown = SpinMutex<usize, PvCpu>;

fn map() -> NonNull<Countdown> {
    // SAFETY: a new anonymous mapping, at an address of the kernel's choice.
    let page =
        unsafe { mmap_anonymous(None, PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE) };
    let page = page.expect("a page").cast();
    // SAFETY: fresh memory, larger than the value and aligned to pages.
    unsafe { page.write(Countdown::new(VCPUS)) };
    page
}

fn unmap(page: NonNull<Countdown>) {
    // SAFETY: the page comes from `map`, and its last user gives it up.
    unsafe { munmap(page.cast(), PAGE.get()) }.expect("a mapped page");
}

/// Takes part in one page; returns whether this vCPU was the last. One owner in ten is frozen, so that its waiters halt.
fn take_part(page: NonNull<Countdown>, rng: &mut fastrand::Rng) -> bool {
    // SAFETY: the page is there until the vCPU that counts down to 0 unmaps it, and this vCPU has not been counted yet.
    let countdown = unsafe { page.as_ref() };
    let mut left = countdown.lock();
    *left -= 1;
    if rng.u8(0..10) == 0 {
        freeze_me(Duration::from_micros(rng.u64(1..200)));
    }
    *left == 0
}

#[test]
fn a_lock_is_not_touched_after_its_release() {
    let current = Arc::new(AtomicPtr::new(map().as_ptr()));
    let rounds = Arc::new(AtomicU64::new(0));
    let guest = {
        let (current, rounds) = (Arc::clone(&current), Arc::clone(&rounds));
        move |me: CpuId| {
            let mut rng = fastrand::Rng::with_seed(me.index() as u64);
            let begun = Instant::now();
            let mut done = null_mut();
            loop {
                // ORDERING: Acquire, pair PAGE-READY (below): the lock in the page is seen.
                let page = current.load(Acquire);
                let Some(page) = NonNull::new(page) else { return };
                if page.as_ptr() == done {
                    (0..100).for_each(|_| spin_loop());
                    pause_loop_exit();
                    continue;
                }
                done = page.as_ptr();
                if take_part(page, &mut rng) {
                    rounds.fetch_add(1, Relaxed);
                    // The next page is mapped before this one is unmapped, so that it is another one.
                    let next = if begun.elapsed() < Duration::from_secs(2) { map().as_ptr() } else { null_mut() };
                    unmap(page);
                    // ORDERING: the release half is of pair PAGE-READY (above).
                    current.swap(next, AcqRel);
                }
            }
        }
    };
    let torture = Torture { seed: 1, freeze_one_in: 50, freeze_max: Duration::from_micros(500), spurious_one_in: 10 };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(2);
    let config =
        Config { quantum: Duration::from_micros(100), slices: Slices::Random(torture), ..Config::new(VCPUS, cpus) };
    let report = run(config, guest).expect("a run without failure");
    let rounds = rounds.load(Relaxed);
    println!("{rounds} locks unmapped after use, {:?}", report.total());
    assert!(rounds > 100 && report.total().kicks_sent > 100, "{report}");
}

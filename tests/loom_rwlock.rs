//! Loom models of the reader-writer lock: exclusion, backing off, the last reader's kick, upgrades, downgrades, reading again.
#![cfg(pvlock_loom)]

mod model;

use loom::sync::Arc;
use loom::thread;
use model::{Halts, Host, Model, Protected, Spins, Spurious, halts_in, model, on_cpu};
use pvlock::lock::RawRwLock;

type Shared<H> = Arc<(RawRwLock<Model<H>>, Protected)>;

/// Writes: alone in the lock, or loom reports the race.
fn write<H: Host>(shared: &Shared<H>) {
    shared.0.write();
    write_locked(shared);
}

fn write_locked<H: Host>(shared: &Shared<H>) {
    shared.1.add_one();
    hold(shared);
    // SAFETY: locked for writing by the caller.
    unsafe { shared.0.unlock_write() };
}

fn read<H: Host>(shared: &Shared<H>) {
    shared.0.read();
    read_locked(shared);
}

fn read_locked<H: Host>(shared: &Shared<H>) {
    shared.1.get();
    hold(shared);
    // SAFETY: a share is held by the caller.
    unsafe { shared.0.unlock_read() };
}

/// Places at which the holder may be stopped, so that waiters find the lock held after their pauses too.
fn hold<H: Host>(shared: &Shared<H>) {
    for _ in 0..3 {
        assert!(shared.0.is_locked());
    }
}

/// Takes the upgradable share, then writes.
fn upgrade<H: Host>(shared: &Shared<H>) {
    shared.0.upgradable_read();
    let before = shared.1.get();
    // SAFETY: the upgradable share is held, and no other by this thread.
    unsafe { shared.0.upgrade() };
    assert_eq!(shared.1.get(), before, "a writer came in between");
    write_locked(shared);
}

fn downgrade<H: Host>(shared: &Shared<H>) {
    shared.0.write();
    shared.1.add_one();
    let written = shared.1.get();
    // SAFETY: locked for writing.
    unsafe { shared.0.downgrade() };
    assert_eq!(shared.1.get(), written, "a writer came in between");
    // SAFETY: downgraded to a share.
    unsafe { shared.0.unlock_read() };
}

/// CPU `i` does the `i`th of `works`, all at once; then the lock is as new and was written `writes` times.
fn all<H: Host>(works: &[fn(&Shared<H>)], writes: u32) {
    let shared: Shared<H> = Arc::new((RawRwLock::new(), Protected::new()));
    let threads: Vec<_> = (1..works.len())
        .map(|i| {
            let (shared, work) = (shared.clone(), works[i]);
            thread::spawn(move || on_cpu(Some(i as u32), || work(&shared)))
        })
        .collect();
    on_cpu(Some(0), || works[0](&shared));
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(shared.1.get(), writes);
    assert!(shared.0.is_quiet(), "the lock is not as new: {:?}", shared.0);
}

#[test]
fn writers_exclude_each_other() {
    model(3, || all::<Spins>(&[write, write], 2));
}

#[test]
fn a_writer_and_a_reader_exclude_each_other() {
    model(3, || all::<Spins>(&[write, read], 1));
}

#[test]
fn two_readers_and_a_writer() {
    model(2, || all::<Spins>(&[read, write, read], 1));
}

#[test]
fn a_reader_that_backs_off_and_a_writer_that_unlocks_leave_each_others_shares() {
    fn try_read<H: Host>(shared: &Shared<H>) {
        for _ in 0..2 {
            if shared.0.try_read() {
                read_locked(shared);
            }
        }
    }
    model(2, || all::<Spins>(&[write, try_read, try_read], 1));
}

#[test]
fn a_reader_that_backs_off_does_not_swallow_the_kick() {
    fn try_read<H: Host>(shared: &Shared<H>) {
        if shared.0.try_read() {
            read_locked(shared);
        }
    }
    halts_in(|| model(2, || all::<Halts>(&[read, write, try_read], 1)));
}

#[test]
fn the_last_reader_kicks_the_halted_writer() {
    halts_in(|| model(3, || all::<Halts>(&[read, write], 1)));
    halts_in(|| model(2, || all::<Halts>(&[read, write, read], 1)));
}

#[test]
fn a_writer_kicks_the_halted_reader_and_writer() {
    halts_in(|| model(3, || all::<Halts>(&[write, read], 1)));
    halts_in(|| model(3, || all::<Halts>(&[write, write], 2)));
    halts_in(|| model(2, || all::<Halts>(&[write, write, read], 2)));
}

#[test]
fn a_halt_that_returns_for_no_reason_is_taken_up_again() {
    halts_in(|| model(3, || all::<Spurious>(&[write, read], 1)));
    halts_in(|| model(3, || all::<Spurious>(&[read, write], 1)));
}

#[test]
fn an_upgrade_lets_no_writer_in_between() {
    model(3, || all::<Spins>(&[upgrade, write], 2));
    model(3, || all::<Spins>(&[upgrade, upgrade], 2));
    halts_in(|| model(3, || all::<Halts>(&[upgrade, write], 2)));
}

#[test]
fn the_last_reader_kicks_the_halted_upgrader() {
    model(3, || all::<Spins>(&[read, upgrade], 1));
    halts_in(|| model(3, || all::<Halts>(&[read, upgrade], 1)));
    halts_in(|| model(2, || all::<Halts>(&[read, upgrade, write], 2)));
}

#[test]
fn a_downgrade_lets_readers_in_and_no_writer() {
    model(3, || all::<Spins>(&[downgrade, write], 2));
    halts_in(|| model(3, || all::<Halts>(&[downgrade, read], 1)));
    halts_in(|| model(2, || all::<Halts>(&[downgrade, read, write], 2)));
}

#[test]
fn a_downgrade_to_upgradable_and_on_to_reader() {
    fn down_twice<H: Host>(shared: &Shared<H>) {
        shared.0.write();
        shared.1.add_one();
        // SAFETY: locked for writing.
        unsafe { shared.0.downgrade_to_upgradable() };
        shared.1.get();
        // SAFETY: downgraded to the upgradable share.
        unsafe { shared.0.downgrade_upgradable() };
        shared.1.get();
        // SAFETY: downgraded to a share.
        unsafe { shared.0.unlock_read() };
    }
    halts_in(|| model(2, || all::<Halts>(&[down_twice, upgrade], 2)));
    halts_in(|| model(2, || all::<Halts>(&[down_twice, write, read], 2)));
}

#[test]
fn who_reads_may_read_again_though_a_writer_waits() {
    fn read_twice<H: Host>(shared: &Shared<H>) {
        shared.0.read();
        shared.0.read_recursive();
        shared.1.get();
        // SAFETY: two shares are held.
        unsafe { shared.0.unlock_read() };
        read_locked(shared);
    }
    model(3, || all::<Spins>(&[read_twice, write], 1));
    halts_in(|| model(3, || all::<Halts>(&[read_twice, write], 1)));
}

//! Loom models of the sleeping mutex and the condition variable: exclusion, announcing, waking, handing over, notifying.
#![cfg(pvlock_loom)]

mod model;

use std::cell::UnsafeCell;

use loom::sync::Arc;
use loom::thread;
use model::{Halts, Host, ModelParker, Protected, RunsAfterParking, Spins, Spurious, model, on_cpu, parks_in};
use pvlock::lock::{Condvar, HaltParker, Mutex, Parker, RawMutex};

type Shared<P> = Arc<(RawMutex<P>, Protected)>;

fn section<P: Parker>(shared: &Shared<P>) {
    shared.0.lock();
    shared.1.add_one();
    for _ in 0..2 {
        assert!(shared.0.is_locked());
    }
    // SAFETY: locked above.
    unsafe { shared.0.unlock() };
}

fn contend<P: Parker>(cpus: &[Option<u32>], each: fn(&Shared<P>), total: u32) {
    let shared: Shared<P> = Arc::new((RawMutex::new(), Protected::new()));
    let threads: Vec<_> = cpus[1..]
        .iter()
        .map(|&cpu| {
            let shared = shared.clone();
            thread::spawn(move || on_cpu(cpu, || each(&shared)))
        })
        .collect();
    on_cpu(cpus[0], || each(&shared));
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(shared.1.get(), total);
    assert!(shared.0.is_quiet(), "the mutex is not as new: {:?}", shared.0);
}

#[test]
fn who_spins_for_a_running_owner_gets_the_mutex() {
    model(3, || contend::<ModelParker<Spins>>(&[Some(0), Some(1)], section, 2));
}

#[test]
fn who_announced_itself_before_the_unlock_is_woken() {
    parks_in(|| model(3, || contend::<ModelParker<Halts>>(&[Some(0), Some(1)], section, 2)));
}

#[test]
fn sleepers_are_woken_in_turn() {
    parks_in(|| model(2, || contend::<ModelParker<Halts>>(&[Some(0), Some(1), Some(2)], section, 3)));
}

#[test]
fn a_sleeper_that_woke_in_vain_gets_the_mutex_handed_over() {
    fn twice<P: Parker>(shared: &Shared<P>) {
        section(shared);
        section(shared);
    }
    parks_in(|| model(2, || contend::<ModelParker<Halts>>(&[Some(0), Some(1)], twice, 4)));
}

#[test]
fn a_sleeper_is_woken_in_vain_at_most_so_often() {
    /// The first task takes the mutex again and again, and lets the other run while it has it.
    fn hog_or_once<P: Parker>(shared: &Shared<P>) {
        let hogs = P::current().is_some_and(|task| task.get() == 1);
        let before = model::PARKED_ON_1.get();
        for _ in 0..if hogs { 5 } else { 1 } {
            shared.0.lock();
            if !hogs {
                // Asleep; woken in vain once, which is the bound in models; woken by an older wake-up; handed over.
                assert!(model::PARKED_ON_1.get() - before <= 3, "passed too often");
            }
            shared.1.add_one();
            thread::yield_now();
            // SAFETY: locked above.
            unsafe { shared.0.unlock() };
        }
    }
    parks_in(|| model(1, || contend::<ModelParker<Halts>>(&[Some(0), Some(1)], hog_or_once, 6)));
}

#[test]
fn a_woken_sleeper_spins_for_an_owner_that_runs() {
    fn twice<P: Parker>(shared: &Shared<P>) {
        section(shared);
        section(shared);
    }
    parks_in(|| model(2, || contend::<ModelParker<RunsAfterParking>>(&[Some(0), Some(1)], twice, 4)));
    parks_in(|| model(1, || contend::<ModelParker<RunsAfterParking>>(&[Some(0), Some(1), Some(2)], section, 3)));
}

#[test]
fn a_woken_sleeper_that_takes_the_mutex_leaves_word_of_the_others() {
    parks_in(|| {
        model(1, || {
            let shared: Shared<ModelParker<RunsAfterParking>> = Arc::new((RawMutex::new(), Protected::new()));
            on_cpu(Some(0), || shared.0.lock());
            let sleeper = |cpu| {
                let shared = shared.clone();
                thread::spawn(move || on_cpu(Some(cpu), || section(&shared)))
            };
            let threads = [sleeper(1), sleeper(2)];
            for _ in 0..3 {
                thread::yield_now();
            }
            // SAFETY: locked above.
            on_cpu(Some(0), || unsafe { shared.0.unlock() });
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(shared.1.get(), 2);
            assert!(shared.0.is_quiet(), "the mutex is not as new: {:?}", shared.0);
        });
    });
}

#[test]
fn a_woken_sleeper_may_be_handed_the_mutex_while_it_spins() {
    /// The first task takes the mutex again and again; the other one spins once it has slept, and asks for the mutex.
    fn hog_or_once<P: Parker>(shared: &Shared<P>) {
        let hogs = P::current().is_some_and(|task| task.get() == 1);
        for _ in 0..if hogs { 4 } else { 1 } {
            section(shared);
        }
    }
    parks_in(|| model(2, || contend::<ModelParker<RunsAfterParking>>(&[Some(0), Some(1)], hog_or_once, 5)));
}

#[test]
fn code_without_a_task_spins() {
    model(2, || contend::<ModelParker<Halts>>(&[Some(0), None], section, 2));
}

#[test]
fn trying_takes_a_free_mutex_past_sleepers_only() {
    fn tries<P: Parker>(shared: &Shared<P>) {
        if shared.0.try_lock() {
            // SAFETY: locked above.
            unsafe { shared.0.unlock() };
        }
        section(shared);
    }
    parks_in(|| model(2, || contend::<ModelParker<Halts>>(&[Some(0), Some(1)], tries, 2)));
}

#[test]
fn a_cpu_sleeps_by_halting_where_there_are_no_tasks() {
    model::halts_in(|| model(2, || contend::<HaltParker<model::Model<Halts>>>(&[Some(0), Some(1)], section, 2)));
}

#[test]
fn a_halt_that_ends_for_no_reason_is_no_wake_up() {
    model::halts_in(|| model(2, || contend::<HaltParker<model::Model<Spurious>>>(&[Some(0), Some(1)], section, 2)));
}

#[test]
fn a_fair_unlock_gives_the_mutex_to_the_first_sleeper_and_no_other() {
    fn fair<P: Parker>(shared: &Shared<P>) {
        shared.0.lock();
        shared.1.add_one();
        // SAFETY: locked above.
        unsafe { shared.0.unlock_fair() };
    }
    parks_in(|| model(3, || contend::<ModelParker<Halts>>(&[Some(0), Some(1)], fair, 2)));
    parks_in(|| model(1, || contend::<ModelParker<Halts>>(&[Some(0), Some(1), Some(2)], fair, 3)));
}

/// The memory is gone as soon as the second owner has unlocked: neither unlocker touches it later.
#[test]
fn the_mutex_may_go_when_its_last_user_has_unlocked_it() {
    type Unlock = fn(&RawMutex<ModelParker<Halts>>);
    // SAFETY: of both, called with the mutex held.
    let (plain, fair): (Unlock, Unlock) = (|mutex| unsafe { mutex.unlock() }, |mutex| unsafe { mutex.unlock_fair() });
    parks_in(|| goes_away([plain, plain]));
    parks_in(|| goes_away([fair, plain]));
}

fn goes_away(unlocks: [fn(&RawMutex<ModelParker<Halts>>); 2]) {
    struct Gone(UnsafeCell<Option<Box<RawMutex<ModelParker<Halts>>>>>, loom::cell::UnsafeCell<u32>);
    // SAFETY: the box is taken by the last user alone, which is what is tested.
    unsafe impl Sync for Gone {}
    // SAFETY: as above.
    unsafe impl Send for Gone {}
    model(2, move || {
        let gone = Arc::new(Gone(UnsafeCell::new(Some(Box::new(RawMutex::new()))), loom::cell::UnsafeCell::new(0)));
        let use_it = |gone: &Gone, unlock: fn(&RawMutex<ModelParker<Halts>>)| {
            // SAFETY: the box is there until both have been here.
            let mutex = unsafe { (*gone.0.get()).as_deref().unwrap() };
            mutex.lock();
            // SAFETY: under the mutex.
            let users = gone.1.with_mut(|users| unsafe {
                *users += 1;
                *users
            });
            unlock(mutex);
            if users == 2 {
                // Loom does not see that memory is freed. Whoever still has something to do with the mutex shows in it.
                assert!(mutex.is_quiet(), "somebody is still busy with a mutex that may go");
                // SAFETY: the other user has unlocked, as the count says.
                drop(unsafe { (*gone.0.get()).take() });
            }
        };
        let other = {
            let gone = gone.clone();
            thread::spawn(move || on_cpu(Some(1), || use_it(&gone, unlocks[1])))
        };
        on_cpu(Some(0), || use_it(&gone, unlocks[0]));
        other.join().unwrap();
    });
}

type Mailbox<H> = Arc<(Mutex<u32, ModelParker<H>>, Condvar<ModelParker<H>>)>;

fn put<H: Host>(mailbox: &Mailbox<H>) {
    *mailbox.0.lock() += 1;
    mailbox.1.notify_one();
}

fn take<H: Host>(mailbox: &Mailbox<H>) {
    let mut full = mailbox.1.wait_while(mailbox.0.lock(), |count| *count == 0);
    *full -= 1;
}

fn exchange<H: Host>(works: &[fn(&Mailbox<H>)]) {
    let mailbox: Mailbox<H> = Arc::new((Mutex::new(0), Condvar::new()));
    let threads: Vec<_> = (1..works.len())
        .map(|i| {
            let (mailbox, work) = (mailbox.clone(), works[i]);
            thread::spawn(move || on_cpu(Some(i as u32), || work(&mailbox)))
        })
        .collect();
    on_cpu(Some(0), || works[0](&mailbox));
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(mailbox.0.raw().is_quiet() && mailbox.1.is_quiet());
}

#[test]
fn a_notification_after_the_mutex_was_released_is_not_lost() {
    parks_in(|| model(2, || exchange::<Spins>(&[put, take])));
    parks_in(|| model(2, || exchange::<Halts>(&[put, take])));
}

#[test]
fn all_waiters_are_notified() {
    fn put_two<H: Host>(mailbox: &Mailbox<H>) {
        *mailbox.0.lock() += 2;
        mailbox.1.notify_all();
    }
    parks_in(|| model(2, || exchange::<Spins>(&[put_two, take, take])));
}

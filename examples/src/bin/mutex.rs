//! Many more tasks than vCPUs, preempted by the timer, with locks that sleep: the mutex against spinning ones, a bounded queue on
//! condition variables, and the reader-writer lock.
//!
//! Expect: `sleeping` burns about the CPU time that its sections take; the spinning locks burn more, since tasks spin for an owner that is
//! not on a CPU (`spin` most, whose owner may be descheduled by the guest too). Every `result` line ends in `sum=ok`.
//!
//! Parameters: `tasks` per vCPU (8), `ops`: acquisitions by each task (200), `cs` and `ncs`: iterations of arithmetic inside and outside
//! the critical section (4000 and 4000), `linger_ms` (0).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pvlock::lock::Mutex;
use pvlock::{Condvar, NoPreempt, RwLock, SpinMutex, stats};
use pvlock_examples::contention::work;
use pvlock_examples::guest::{self, Failure};
use pvlock_examples::host;
use pvlock_examples::params::Params;
use pvlock_rt::task::{self, Body, TaskParker};
use pvlock_rt::{ExitCode, RtCpu, cpu_count, println, tsc, tsc_khz};

pvlock_rt::entry!(main);

fn main() -> ExitCode {
    guest::run(&["tasks", "ops", "cs", "ncs"], mutex)
}

/// What everybody does how often.
#[derive(Clone, Copy)]
struct Load {
    tasks: u64,
    ops: u64,
    cs: u64,
    ncs: u64,
}

/// Two numbers that only agree while nobody else is between them.
type Torn = [u64; 2];

fn enter(torn: &mut Torn, cs: u64) {
    torn[0] += 1;
    work(cs);
    torn[1] += 1;
}

fn mutex(params: &Params) -> Result<(), Failure> {
    let load = Load {
        tasks: params.number("tasks", 8, 1..=64)? * cpu_count() as u64,
        ops: params.number("ops", 200, 1..=1_000_000)?,
        cs: params.number("cs", 4000, 0..=10_000_000)?,
        ncs: params.number("ncs", 4000, 0..=10_000_000)?,
    };
    measure("sleeping", load, |waits| {
        let torn = Arc::new(Mutex::<Torn, TaskParker>::new([0; 2]));
        let body = |torn: Arc<Mutex<Torn, TaskParker>>| move || timed(load, waits, || enter(&mut torn.lock(), load.cs));
        every_task(load, || body(torn.clone()));
        *torn.lock()
    })?;
    measure("spinning", load, |waits| {
        let torn = Arc::new(SpinMutex::<Torn, RtCpu, NoPreempt>::new([0; 2]));
        let body = |torn: Arc<SpinMutex<Torn, RtCpu, NoPreempt>>| {
            move || timed(load, waits, || enter(&mut torn.lock(), load.cs))
        };
        every_task(load, || body(torn.clone()));
        *torn.lock()
    })?;
    measure("spin", load, |waits| {
        let torn = Arc::new(spin::mutex::SpinMutex::<Torn>::new([0; 2]));
        let body =
            |torn: Arc<spin::mutex::SpinMutex<Torn>>| move || timed(load, waits, || enter(&mut torn.lock(), load.cs));
        every_task(load, || body(torn.clone()));
        *torn.lock()
    })?;
    measure("rwlock", load, |waits| {
        let torn = Arc::new(RwLock::<Torn, RtCpu, NoPreempt>::new([0; 2]));
        let reads = Arc::new(AtomicU64::new(0));
        every_task(load, || {
            let (torn, reads) = (torn.clone(), reads.clone());
            move || {
                let mut op = 0;
                timed(load, waits, || {
                    op += 1;
                    if op % 4 == 0 {
                        return enter(&mut torn.write(), load.cs);
                    }
                    let torn = torn.read();
                    work(load.cs);
                    assert!(torn[0] == torn[1], "a reader saw half a write");
                    reads.fetch_add(1, Relaxed);
                });
            }
        });
        let written = *torn.read();
        written.map(|count| count + reads.load(Relaxed))
    })?;
    channel(load)
}

/// The longest time of one acquisition and its section, of all tasks.
type Waits = &'static AtomicU64;

/// Does `op` as often as `load` says.
fn timed(load: Load, longest: Waits, mut op: impl FnMut()) {
    for _ in 0..load.ops {
        let begun = tsc();
        op();
        longest.fetch_max(tsc() - begun, Relaxed);
        work(load.ncs);
    }
}

fn every_task<F: FnOnce() + Send + 'static>(load: Load, mut body: impl FnMut() -> F) {
    task::run((0..load.tasks).map(|_| Box::new(body()) as Body).collect());
}

/// Lets `run` do the load with one lock and prints what it took.
fn measure(lock: &'static str, load: Load, run: impl FnOnce(Waits) -> Torn) -> Result<(), Failure> {
    let longest: Waits = Box::leak(Box::new(AtomicU64::new(0)));
    let total = load.tasks * load.ops;
    let sum = report(lock, load, total, longest, || run(longest))?;
    if sum == [total; 2] { Ok(()) } else { Err(Failure::WrongTasks(lock)) }
}

/// Prints one `result` line: time, CPU time burned in percent of what there was, and what the lock counted.
fn report(lock: &str, load: Load, total: u64, longest: Waits, run: impl FnOnce() -> Torn) -> Result<Torn, Failure> {
    println!("mark start round=0 lock={lock} tsc={}", tsc());
    let (before, idle, stolen, begun) = (stats::total(), task::idle_cycles(), host::steal_ns(), tsc());
    let sum = run();
    let ended = tsc();
    println!("mark stop round=0 lock={lock} tsc={ended}");
    let cycles = (ended - begun).max(1);
    // Stolen and idle time overlap where a vCPU wakes and waits for a CPU, so this is a lower bound.
    let stolen = (host::steal_ns() - stolen) * tsc_khz() / 1_000_000;
    let there_was = cycles * cpu_count() as u64;
    let burned = there_was.saturating_sub(task::idle_cycles() - idle).saturating_sub(stolen);
    let right = if sum == [total; 2] { "ok" } else { "wrong" };
    let after = stats::total();
    println!(
        "result round=0 lock={lock} vcpus={} tasks={} acquisitions={total} max_wait_cycles={} cycles={cycles} burned_cycles={burned} sleeps={} \
         sum={right}",
        cpu_count(),
        load.tasks,
        longest.load(Relaxed),
        after.sleeps - before.sleeps
    );
    println!(
        "# {lock:<9} {total:>6} acquisitions by {} tasks: {:>6} ms, CPU burned {:>6} ms, longest {} ms, slept {} times, spun {}, halted {}",
        load.tasks,
        cycles / tsc_khz(),
        burned / tsc_khz(),
        longest.load(Relaxed) / tsc_khz(),
        after.sleeps - before.sleeps,
        after.optimistic_spins - before.optimistic_spins,
        after.halts - before.halts
    );
    Ok(sum)
}

/// A bounded queue: half of the tasks put numbers in, half take them out.
struct Channel {
    items: Mutex<Vec<u64>, TaskParker>,
    not_full: Condvar<TaskParker>,
    not_empty: Condvar<TaskParker>,
    taken: AtomicU64,
    sum: AtomicU64,
}

/// Items that fit into the queue.
const ROOM: usize = 4;

fn channel(load: Load) -> Result<(), Failure> {
    let pairs = (load.tasks / 2).max(1);
    let channel = Arc::new(Channel {
        items: Mutex::new(Vec::with_capacity(ROOM)),
        not_full: Condvar::new(),
        not_empty: Condvar::new(),
        taken: AtomicU64::new(0),
        sum: AtomicU64::new(0),
    });
    let bodies = |channel: &Arc<Channel>| {
        (0..pairs)
            .flat_map(|_| {
                let (producer, consumer) = (channel.clone(), channel.clone());
                [
                    Box::new(move || (1..=load.ops).for_each(|item| producer.put(item))) as Body,
                    Box::new(move || (0..load.ops).for_each(|_| consumer.take())) as Body,
                ]
            })
            .collect()
    };
    let total = pairs * load.ops;
    let longest: Waits = Box::leak(Box::new(AtomicU64::new(0)));
    report("condvar", load, total, longest, || {
        task::run(bodies(&channel));
        let right = channel.sum.load(Relaxed) == pairs * load.ops * (load.ops + 1) / 2;
        [channel.taken.load(Relaxed), if right { total } else { 0 }]
    })?;
    let right = channel.sum.load(Relaxed) == pairs * load.ops * (load.ops + 1) / 2;
    if right && channel.items.lock().is_empty() { Ok(()) } else { Err(Failure::WrongTasks("condvar")) }
}

impl Channel {
    fn put(&self, item: u64) {
        let mut items = self.not_full.wait_while(self.items.lock(), |items| items.len() == ROOM);
        items.push(item);
        drop(items);
        self.not_empty.notify_one();
    }

    fn take(&self) {
        let mut items = self.not_empty.wait_while(self.items.lock(), |items| items.is_empty());
        let item = items.pop().unwrap_or_default();
        drop(items);
        self.not_full.notify_one();
        self.taken.fetch_add(1, Relaxed);
        self.sum.fetch_add(item, Relaxed);
    }
}

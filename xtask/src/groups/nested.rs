//! Guests under real KVM, in an emulated machine: steal time, the lock, and every partial set of features.

use anyhow::{Context, Result, ensure};

use super::Tally;
use super::guests::{Boot, every_lock_reported};
use crate::agreement;
use crate::backend::{Accel, Backend};
use crate::boot::Outcome;

const VCPUS: usize = 4;

/// A contended run of our lock, short because there are many.
const SHORT: &str = "locks=pvlock rounds=1 ms=300 linger_ms=600";

/// What a guest must see and decide under one set of CPU flags.
struct Features {
    name: &'static str,
    cpu_flags: &'static str,
    /// Fields of the `host` line.
    expected: &'static [(&'static str, &'static str)],
}

/// Keys: steal-time record there; preempted flag, directed yield, halt and kick used.
const MATRIX: [Features; 7] = [
    Features {
        name: "all",
        cpu_flags: "",
        expected: &[
            ("base", "0x40000000"),
            ("steal_time", "yes"),
            ("preempted", "yes"),
            ("yield", "yes"),
            ("halt", "yes"),
        ],
    },
    Features {
        name: "no-kvm",
        cpu_flags: "kvm=off",
        expected: &[("steal_time", "no"), ("preempted", "no"), ("yield", "no"), ("halt", "no")],
    },
    Features {
        name: "no-steal-time",
        cpu_flags: "-kvm-steal-time",
        expected: &[("hypervisor", "kvm"), ("steal_time", "no"), ("preempted", "no"), ("yield", "no"), ("halt", "yes")],
    },
    Features {
        name: "no-unhalt",
        cpu_flags: "kvm-pv-unhalt=off",
        expected: &[("steal_time", "yes"), ("preempted", "yes"), ("yield", "yes"), ("halt", "no")],
    },
    Features {
        name: "no-sched-yield",
        cpu_flags: "kvm-pv-sched-yield=off",
        expected: &[("steal_time", "yes"), ("preempted", "yes"), ("yield", "no"), ("halt", "yes")],
    },
    Features {
        name: "dedicated",
        cpu_flags: "kvm-hint-dedicated=on",
        expected: &[("hints", "0x1"), ("preempted", "yes"), ("yield", "no"), ("halt", "no")],
    },
    Features {
        name: "hyper-v",
        cpu_flags: "hv-relaxed,hv-vapic,hv-time,hv-spinlocks=0x1fff,hv-vpindex,hv-synic,hv-stimer",
        expected: &[("base", "0x40000100"), ("preempted", "yes"), ("yield", "yes"), ("halt", "yes")],
    },
];

pub fn run(tally: &mut Tally) {
    let backend = match Backend::choose(Accel::Nested) {
        Ok(backend) => backend,
        Err(error) => return tally.test("nested", || Err(error)),
    };
    tally.test("nested::steal-time", || steal_time(&backend));
    tally.test("nested::steal-time::not-offered", || not_offered(&backend));
    tally.test("nested::overcommit", || overcommit(&backend));
    tally.test("nested::mutex", || mutex(&backend));
    for features in &MATRIX {
        tally.test(&format!("nested::features::{}", features.name), || matrix_row(&backend, features));
    }
}

/// Every vCPU lost time, and its siblings saw its preempted flag change.
fn steal_time(backend: &Backend) -> Result<()> {
    let outcome =
        Boot { example: "steal-time", vcpus: VCPUS, parameters: "ms=2000", ..Boot::default() }.run(backend)?;
    for cpu in 0..VCPUS as u64 {
        let last =
            outcome.records("steal").filter(|steal| steal.number("cpu").is_ok_and(|number| number == cpu)).last();
        let last = last.with_context(|| format!("no `steal` line for CPU {cpu}"))?;
        ensure!(last.number("steal_ns")? > 0, "CPU {cpu} lost no time, with {VCPUS} vCPUs on fewer CPUs");
        ensure!(last.number("flips")? > 0, "the preempted flag of CPU {cpu} never changed");
    }
    Ok(())
}

fn not_offered(backend: &Backend) -> Result<()> {
    let boot = Boot { example: "steal-time", vcpus: VCPUS, cpu_flags: "-kvm-steal-time", ..Boot::default() };
    let outcome = boot.run(backend)?;
    ensure!(
        outcome.records("steal").any(|steal| steal.get("available") == Some("no")),
        "the guest does not say that the host offers no steal time"
    );
    Ok(())
}

/// All locks count right, ours acted on preempted owners, and KVM saw what ours did.
fn overcommit(backend: &Backend) -> Result<()> {
    let parameters = "rounds=1 ms=700 linger_ms=600";
    let outcome = Boot { example: "overcommit", vcpus: VCPUS, parameters, ..Boot::default() }.run(backend)?;
    every_lock_reported(&outcome, &["pvlock", "spin", "ticket", "hermit"], VCPUS)?;
    let counters = outcome.records("counters").next().context("no `counters` line")?;
    ensure!(counters.number("preempted_seen")? > 0, "no waiter ever saw a preempted owner");
    ensure!(counters.number("yields")? + counters.number("halts")? > 0, "no waiter ever yielded or halted");
    kvm_agrees(&outcome)
}

/// Preempted tasks on preempted vCPUs: the locks that sleep count right, and tasks did sleep.
fn mutex(backend: &Backend) -> Result<()> {
    let outcome = Boot { example: "mutex", vcpus: 8, parameters: "ops=50", ..Boot::default() }.run(backend)?;
    every_lock_reported(&outcome, &["sleeping", "spinning", "spin", "rwlock", "condvar"], 8)?;
    let sleeps: u64 = outcome.records("result").map(|result| result.number("sleeps")).sum::<Result<u64>>()?;
    ensure!(sleeps > 0, "no task ever slept");
    Ok(())
}

fn kvm_agrees(outcome: &Outcome) -> Result<()> {
    let total = outcome.records("total").last().context("no `total` line")?;
    let kvm = outcome.kvm.as_ref().context("KVM's counters could not be read")?;
    for agreement in agreement::compare(&total, kvm)? {
        ensure!(agreement.agree, "KVM's counters differ from the guest's: {agreement}");
    }
    Ok(())
}

fn matrix_row(backend: &Backend, features: &Features) -> Result<()> {
    let boot = Boot { example: "overcommit", vcpus: VCPUS, cpu_flags: features.cpu_flags, parameters: SHORT };
    let outcome = boot.run(backend)?;
    let host = outcome.records("host").next().context("no `host` line")?;
    for (key, expected) in features.expected {
        ensure!(host.text(key)? == *expected, "the guest says {key}={}, not {expected}", host.text(key)?);
    }
    every_lock_reported(&outcome, &["pvlock"], VCPUS)?;
    kvm_agrees(&outcome)
}

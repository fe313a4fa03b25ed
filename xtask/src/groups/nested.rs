//! Guests under real KVM, in an emulated machine: steal time, the lock, and every partial set of features.

use anyhow::{Context, Result, ensure};

use super::guests::{Boot, every_lock_reported, hal_client};
use super::{Tally, guide};
use crate::agreement;
use crate::backend::{Accel, Backend};
use crate::boot::Outcome;
use crate::hal_client::Form;

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

/// Keys: steal-time record there; preempted flag, directed yield, halt and kick, flush marks, interrupts to many used.
const MATRIX: [Features; 9] = [
    Features {
        name: "all",
        cpu_flags: "",
        expected: &[
            ("base", "0x40000000"),
            ("steal_time", "yes"),
            ("preempted", "yes"),
            ("yield", "yes"),
            ("halt", "yes"),
            ("flush_mark", "yes"),
            ("send_ipi", "yes"),
        ],
    },
    Features {
        name: "no-send-ipi",
        cpu_flags: "kvm-pv-ipi=off",
        expected: &[("preempted", "yes"), ("yield", "yes"), ("halt", "yes"), ("flush_mark", "yes"), ("send_ipi", "no")],
    },
    Features {
        name: "no-tlb-flush",
        cpu_flags: "kvm-pv-tlb-flush=off",
        expected: &[("preempted", "yes"), ("yield", "yes"), ("halt", "yes"), ("flush_mark", "no"), ("send_ipi", "yes")],
    },
    Features {
        name: "no-kvm",
        cpu_flags: "kvm=off",
        expected: &[
            ("steal_time", "no"),
            ("preempted", "no"),
            ("yield", "no"),
            ("halt", "no"),
            ("flush_mark", "no"),
            ("send_ipi", "no"),
        ],
    },
    Features {
        name: "no-steal-time",
        cpu_flags: "-kvm-steal-time",
        expected: &[
            ("hypervisor", "kvm"),
            ("steal_time", "no"),
            ("preempted", "no"),
            ("yield", "no"),
            ("halt", "yes"),
            ("flush_mark", "no"),
        ],
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
        expected: &[("hints", "0x1"), ("preempted", "yes"), ("yield", "no"), ("halt", "no"), ("flush_mark", "no")],
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
    guide::under_kvm(tally, &backend);
    tally.test("nested::mutex", || mutex(&backend));
    tally.test("nested::watchdog", || watchdog(&backend));
    tally.test("nested::relax", || relax(&backend));
    tally.test("nested::hal-client", || somebody_elses_kernel(&backend));
    tally.test("nested::shootdown", || flush_marks(&backend));
    tally.test("nested::shootdown::no-send-ipi", || shootdown(&backend, "kvm-pv-ipi=off").map(drop));
    tally.test("nested::shootdown::no-sched-yield", || shootdown(&backend, "kvm-pv-sched-yield=off").map(drop));
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

/// The detector finds foreign spinners that do not pause and boosts somebody; turned off, it does nothing. KVM saw the yields.
fn watchdog(backend: &Backend) -> Result<()> {
    let parameters = "rounds=1 linger_ms=600";
    let outcome = Boot { example: "watchdog", vcpus: 8, parameters, ..Boot::default() }.run(backend)?;
    every_lock_reported(&outcome, &["spin-no-pause"], 8)?;
    let boosts: Vec<u64> = outcome.records("watchdog").map(|line| line.number("boosts")).collect::<Result<_>>()?;
    ensure!(matches!(boosts[..], [0, with] if with > 0), "boosts with the detector off and on: {boosts:?}");
    let kvm = outcome.kvm.as_ref().context("KVM's counters could not be read")?;
    ensure!(kvm.get("directed_yield_successful") > 0, "KVM never yielded: {kvm}");
    kvm_agrees(&outcome)
}

/// A kernel on a published HAL, with the locks that it came with and with ours: KVM counts yields or halts of ours alone.
fn somebody_elses_kernel(backend: &Backend) -> Result<()> {
    let [stock, pvlock] = Form::ALL.map(|form| hal_client(backend, form, VCPUS));
    let (stock, pvlock) = (stock?, pvlock?);
    let registered = pvlock.records("registered").last().context("no `registered` line")?;
    ensure!(registered.number("cpus")? == VCPUS as u64, "{} CPUs are registered", registered.text("cpus")?);
    let hypercalls = |outcome: &Outcome| outcome.kvm.as_ref().map(|kvm| kvm.get("hypercalls"));
    let counted = (hypercalls(&stock), hypercalls(&pvlock));
    ensure!(matches!(counted, (Some(0), Some(1..))), "hypercalls of the stock kernel and of ours: {counted:?}");
    Ok(())
}

/// A foreign lock with our relax strategy makes directed yields, most of which KVM counts as successful; without it, none.
fn relax(backend: &Backend) -> Result<()> {
    let run = |lock: &str| -> Result<(u64, u64)> {
        let parameters = format!("locks={lock} rounds=1 ms=700 linger_ms=600");
        let outcome =
            Boot { example: "overcommit", vcpus: 8, parameters: &parameters, ..Boot::default() }.run(backend)?;
        every_lock_reported(&outcome, &[lock], 8)?;
        kvm_agrees(&outcome)?;
        let total = outcome.records("total").last().context("no `total` line")?;
        let kvm = outcome.kvm.as_ref().context("KVM's counters could not be read")?;
        Ok((total.number("yields")?, kvm.get("directed_yield_successful")))
    };
    let ((plain, _), (yields, successful)) = (run("spin")?, run("spin-relax")?);
    ensure!(plain == 0, "the plain lock made {plain} yields");
    ensure!(yields > 0 && successful > yields / 2, "{yields} yields, of which {successful} were successful");
    Ok(())
}

/// Marks are left where the host sees to them, and KVM flushes for them; elsewhere there are none.
fn flush_marks(backend: &Backend) -> Result<()> {
    let (marked, flushes) = shootdown(backend, "")?;
    let (unmarked, other_flushes) = shootdown(backend, "kvm-pv-tlb-flush=off")?;
    ensure!(marked > 0, "no preempted vCPU was left a flush mark");
    ensure!(unmarked == 0, "{unmarked} flush marks on a host without them");
    // Start-up flushes too. Several marks before a vCPU runs are one flush.
    ensure!(
        flushes > other_flushes,
        "KVM flushed {flushes} times with {marked} marks, {other_flushes} times without any"
    );
    Ok(())
}

/// No old TLB entry was used. Returns how many flush marks were left, and how often KVM flushed a guest's TLB.
fn shootdown(backend: &Backend, cpu_flags: &str) -> Result<(u64, u64)> {
    let parameters = "rounds=1 ms=700 linger_ms=600";
    let outcome = Boot { example: "shootdown", vcpus: 8, cpu_flags, parameters }.run(backend)?;
    every_lock_reported(&outcome, &["plain", "pvlock"], 8)?;
    let ours = outcome.records("result").find(|result| result.get("lock") == Some("pvlock")).context("no result")?;
    ensure!(ours.number("stale")? == 0, "old TLB entries were used");
    ensure!(ours.number("shootdowns")? > 0, "there was no shootdown");
    let kvm = outcome.kvm.as_ref().context("KVM's counters could not be read")?;
    Ok((ours.number("marked")? + ours.number("marked_later")?, kvm.get("tlb_flush")))
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

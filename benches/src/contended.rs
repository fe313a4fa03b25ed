//! Everybody contends for one lock: who gets it how often, and how long the waits are.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::sleep;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use pvhost::contend::{Contest, Sections};
use pvhost::locks::Lock;
use pvlock::stats;
use pvlock_bench_protocol::Reading;

use crate::Error;
use crate::cost::Clock;
use crate::crew::Crew;

/// Lets all of `crew` contend for one `L` for `length`.
pub(crate) fn measure<L: Lock>(crew: &Crew, sections: Sections, length: Duration) -> Result<Reading, Error> {
    stats::reset();
    let contest = Arc::new(Contest::<L>::new(crew.vcpus, sections));
    let work = {
        let contest = Arc::clone(&contest);
        move |contender| contest.join(contender)
    };
    let ((seconds, ns_per_cycle, cpu_s), report) = crew.run(work, || {
        let (clock, cpu_s) = (Clock::start(), own_cpu_s());
        sleep(length);
        let cpu_s = own_cpu_s() - cpu_s;
        contest.stop();
        (clock.elapsed().as_secs_f64(), clock.ns_per_cycle(), cpu_s)
    })?;

    let (per_vcpu, waits) = contest.result(ns_per_cycle);
    let of_lock = stats::total();
    let of_host = report.map(|report| report.total());
    let of_host =
        of_host.iter().flat_map(|counts| counts.entries()).map(|(name, count)| (format!("host_{name}"), count));
    let counters: BTreeMap<String, u64> =
        of_lock.entries().map(|(name, count)| (name.to_owned(), count)).chain(of_host).collect();
    Ok(Reading::Contended {
        per_vcpu,
        seconds,
        wait_buckets: waits.buckets.to_vec(),
        longest_wait_us: waits.longest_ns as f64 / 1e3,
        first_wait_us: waits.first_longest_ns as f64 / 1e3,
        cpu_used: cpu_s / (seconds * crew.cpus as f64),
        counters: counters.into_iter().filter(|&(_, count)| count != 0).collect(),
    })
}

/// CPU time of this process, in s.
fn own_cpu_s() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
    })
}

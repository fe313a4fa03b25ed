//! Every measurement once, for a few milliseconds: it still runs, and reads something that can be true.

use std::time::Duration;

use pvlock_bench::{Block, plan, run};
use pvlock_bench_protocol::{Event, Options, Reading};

#[test]
fn every_job_of_the_plan_gives_a_reading() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(2);
    let (only, locks, runs) = (vec![], vec![], Some(1));
    let options = Options { only, locks, quick: false, runs, quantum_us: 500, cpus, cs: 10, ncs: 10 };
    let mut blocks: Vec<Block> = plan(&options);
    for job in blocks.iter_mut().flat_map(|block| &mut block.jobs) {
        job.length = Duration::from_millis(3);
    }
    let (mut planned, mut measured, mut codes) = (0, Vec::new(), 0);
    run(&options, &blocks, |event| {
        match event {
            Event::Plan { samples, .. } => planned = samples,
            Event::Sample(sample) => measured.push(sample),
            Event::Code(_) => codes += 1,
            Event::Begin { .. } => {}
        }
        Ok(())
    })
    .expect("a run without failure");
    assert!(measured.len() >= planned && planned > 0);
    assert!(codes > 0);
    for sample in measured {
        let sound = match &sample.reading {
            // A release build is not asked for here, so there is no upper bound worth stating.
            Reading::Cost { cycles, ns } => *cycles > 0.0 && *ns > 0.0,
            Reading::Handoff { ops_per_s, handoffs_per_s } => *ops_per_s > 0.0 && handoffs_per_s <= ops_per_s,
            Reading::Contended { per_vcpu, seconds, wait_buckets, .. } => {
                per_vcpu.iter().sum::<u64>() == wait_buckets.iter().sum::<u64>()
                    && per_vcpu.len() == sample.cell.vcpus
                    && *seconds > 0.0
            }
            Reading::Work { units, seconds, .. } => *units > 0 && *seconds > 0.0,
            Reading::FrozenOwner { burned } => *burned >= 0.0,
        };
        assert!(sound, "{sample:?}");
    }
}

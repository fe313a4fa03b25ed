//! `vcpu_is_preempted` against the forms that it replaces: time, instructions, and what it does to a spin loop around it.

use core::hint::black_box;
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use pvlock_bench_protocol::{Code, Form, Metric, Reading};

use crate::Error;
use crate::cost::{Batches, Clock};
use crate::crew::{Crew, Host};

mod code;
mod forms;
mod loops;

/// Measures one round of a loop with `form`, on one CPU, for `length`.
pub(crate) fn measure(metric: Metric, form: Form, length: Duration) -> Result<Reading, Error> {
    let crew = Crew::calm(Host::Threads, 1);
    let found = Arc::new(OnceLock::new());
    let work = {
        let found = Arc::clone(&found);
        move |_| drop(found.set(time(&mut rounds(metric, form), length)))
    };
    crew.run(work, || ())?;
    Ok(found.get().cloned().ok_or("the loop was not measured")?)
}

/// A loop with `form`, to be called with the number of rounds.
pub fn rounds(metric: Metric, form: Form) -> impl FnMut(u64) {
    forms::set_bases();
    let (dependent, live) = (loops::dependent(form).run, loops::live(form).run);
    let mut values = [1; loops::LIVE];
    let mut cpu = 0;
    move |rounds| {
        // Another CPU each time: a batch is long enough for its record to be in the cache.
        cpu = (cpu + 1) % forms::CPUS as u32;
        if metric == Metric::S1LiveRegisters {
            // SAFETY: `cpu` is below CPUS, and the bases were set above.
            unsafe { live(rounds, cpu, black_box(&mut values)) };
        } else {
            // SAFETY: as before.
            black_box(unsafe { dependent(rounds, cpu) });
        }
    }
}

fn time(rounds: &mut impl FnMut(u64), length: Duration) -> Reading {
    /// Some 10 µs.
    const BATCH: u64 = 2048;
    let (clock, mut batches) = (Clock::start(), Batches::new());
    while clock.elapsed() < length {
        batches.time(BATCH, || rounds(BATCH));
    }
    batches.reading(&clock)
}

/// What the loops are made of, read from this program's own file.
pub(crate) fn codes() -> Result<Vec<Code>, Error> {
    let file = std::fs::read(std::env::current_exe()?)?;
    let mut codes = Vec::new();
    for &form in Form::ALL {
        let symbols =
            [(Metric::S1Dependent, loops::dependent(form).symbol), (Metric::S1LiveRegisters, loops::live(form).symbol)];
        for (metric, symbol) in symbols {
            let code::Round { instructions, stack_accesses } = code::round(&file, symbol)?;
            codes.push(Code { metric, form, instructions, stack_accesses });
        }
    }
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::forms::{CFunction, Form as _, Thunk, TwoLoads, set_bases, set_preempted_byte};
    use super::*;

    #[test]
    fn the_other_forms_answer_right_too() {
        set_bases();
        for set in [0, 7, forms::CPUS - 1] {
            set_preempted_byte(set, 1);
            for index in 0..forms::CPUS {
                let answers: [unsafe fn(u32) -> bool; 3] =
                    [TwoLoads::is_preempted, CFunction::is_preempted, Thunk::is_preempted];
                // SAFETY: `index` is below CPUS, and the bases were set above.
                let right = |answer: &unsafe fn(u32) -> bool| unsafe { answer(index as u32) } == (index == set);
                assert!(answers.iter().all(right), "{index}, {set} set");
            }
            set_preempted_byte(set, 0);
        }
    }
}

//! [`TaskParker`]: the scheduler as the library's sleeping locks want it.

use core::sync::atomic::Ordering::Relaxed;

use pvlock::CpuId;
use pvlock::lock::{Parker, TaskId, Whereabouts};

use super::{sched, tasks};
use crate::cpu::RtCpu;

/// Tasks sleep and wake by the runtime's scheduler. Outside tasks there is no current one: locks spin.
#[derive(Debug)]
pub enum TaskParker {}

fn index(task: TaskId) -> usize {
    task.get() as usize - 1
}

impl Parker for TaskParker {
    type Cpu = RtCpu;

    fn current() -> Option<TaskId> {
        TaskId::new(sched::running()? as u64 + 1)
    }

    fn park() {
        sched::park();
    }

    fn unpark(task: TaskId) {
        sched::unpark(index(task));
    }

    fn whereabouts(task: TaskId) -> Whereabouts {
        // Tasks are never freed, so one that has ended only reads as not running.
        let on = tasks().get(index(task)).and_then(|task| task.on.load(Relaxed).checked_sub(1));
        on.and_then(CpuId::new).map_or(Whereabouts::Off, Whereabouts::On)
    }
}

//! Whether KVM counted what the guest says it did.

use std::fmt;

use anyhow::Result;
use serde::Serialize;

use crate::backend::KvmCounters;
use crate::line::Record;

/// Share of the larger count by which the two may differ: the guest goes on between its count and KVM's last sample.
pub const TOLERANCE: f64 = 0.05;

/// Events by which they may always differ: firmware and start-up cause some before anybody counts.
pub const ALLOWANCE: u64 = 64;

/// One kind of event, counted by both sides.
#[derive(Debug, Clone, Serialize)]
pub struct Agreement {
    pub what: &'static str,
    pub guest: u64,
    pub kvm: u64,
    pub agree: bool,
}

impl Agreement {
    fn new(what: &'static str, guest: u64, kvm: u64) -> Self {
        let margin = (guest.max(kvm) as f64 * TOLERANCE) as u64 + ALLOWANCE;
        Self { what, guest, kvm, agree: guest.abs_diff(kvm) <= margin }
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.agree { "agree" } else { "DISAGREE" };
        write!(f, "{}: guest {}, KVM {} ({verdict})", self.what, self.guest, self.kvm)
    }
}

/// Compares the guest's `total` line with KVM's counters. KVM counts a kick as a directed yield too, because it also
/// yields to the vCPU that it wakes.
pub fn compare(total: &Record, kvm: &KvmCounters) -> Result<Vec<Agreement>> {
    let sum = |keys: &[&str]| -> Result<u64> { keys.iter().map(|key| total.number(key)).sum() };
    Ok(vec![
        Agreement::new("yields and kicks", sum(&["yields", "kicks", "rt_kicks"])?, kvm.get("directed_yield_attempted")),
        Agreement::new("halts", sum(&["halts", "rt_halts"])?, kvm.get("halt_exits")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_differences_are_forgiven_and_large_ones_not() {
        let total = Record::parse("total yields=1000 kicks=500 halts=300 fruitless=1 rt_halts=10 rt_kicks=0").unwrap();
        let kvm = |yields, halts| {
            let line = format!("kvm directed_yield_attempted={yields} halt_exits={halts}");
            compare(&total, &KvmCounters::from_record(&Record::parse(&line).unwrap())).unwrap()
        };
        assert!(kvm(1510, 330).iter().all(|agreement| agreement.agree));
        let off = kvm(1800, 310);
        assert!(!off[0].agree && off[1].agree);
        assert_eq!(off[0].to_string(), "yields and kicks: guest 1500, KVM 1800 (DISAGREE)");
    }
}

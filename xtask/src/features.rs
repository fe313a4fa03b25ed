//! A guest's `host` line in words.

use anyhow::Result;
use pvlock::kvm::{Features, Hints};

use crate::line::Record;

/// What a guest saw of its hypervisor, and what it decided to use.
pub fn describe(host: &Record) -> Result<String> {
    let reason = host.get("reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
    if host.text("hypervisor")? != "kvm" {
        return Ok(format!("sees hypervisor={}, no KVM{reason}", host.text("hypervisor")?));
    }
    let mut used = Vec::new();
    for key in ["steal_time", "preempted", "yield", "halt", "flush_mark", "send_ipi"] {
        used.push(format!("{key}={}", host.text(key)?));
    }
    let features = Features::from_bits_retain(host.number("features")? as u32);
    let hints = Hints::from_bits_retain(host.number("hints")? as u32);
    Ok(format!(
        "sees KVM at {}, features {}, hints {}; uses {}{reason}",
        host.text("base")?,
        names(features.iter_names().map(|(name, _)| name)),
        names(hints.iter_names().map(|(name, _)| name)),
        used.join(" ")
    ))
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_named() {
        let line = "host hypervisor=kvm base=0x40000000 features=0xa0 hints=0x0 steal_time=yes preempted=yes yield=no halt=yes flush_mark=no send_ipi=no reason=\"why\"";
        let said = describe(&Record::parse(line).unwrap()).unwrap();
        assert!(said.contains("features STEAL_TIME PV_UNHALT, hints none; uses steal_time=yes"), "{said}");
        assert!(said.ends_with("halt=yes flush_mark=no send_ipi=no (why)"));
        let none = describe(&Record::parse("host hypervisor=none").unwrap()).unwrap();
        assert_eq!(none, "sees hypervisor=none, no KVM");
    }
}

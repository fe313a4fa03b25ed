//! A guest's `host` line in words.

use anyhow::Result;

use crate::line::Record;

/// What a guest saw of its hypervisor, and what it decided to use.
pub fn describe(host: &Record) -> Result<String> {
    let reason = host.get("reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
    if host.text("hypervisor")? != "kvm" {
        return Ok(format!("sees hypervisor={}, no KVM{reason}", host.text("hypervisor")?));
    }
    let mut used = Vec::new();
    for key in ["steal_time", "preempted", "yield", "halt"] {
        used.push(format!("{key}={}", host.text(key)?));
    }
    Ok(format!(
        "sees KVM at {} with features {} and hints {}; uses {}{reason}",
        host.text("base")?,
        host.text("features")?,
        host.text("hints")?,
        used.join(" ")
    ))
}

//! Guests under plain emulation: the runtime, and the locks without any hypervisor.

use super::guests::{Boot, every_lock_reported, hal_client};
use super::{Tally, guide};
use crate::backend::{Accel, Backend};
use crate::hal_client::Form;
use crate::image;

const OVERCOMMIT: &str = "overcommit";

/// Parameters that keep an example short.
fn short(example: &str) -> &'static str {
    match example {
        OVERCOMMIT => "rounds=1 ms=200",
        "steal-time" => "ms=1000",
        "mutex" => "ops=20",
        "shootdown" | "watchdog" => "rounds=1 ms=200",
        _ => "",
    }
}

pub fn run(tally: &mut Tally) {
    let (backend, examples) = match Backend::choose(Accel::Tcg).and_then(|backend| Ok((backend, image::examples()?))) {
        Ok(ready) => ready,
        Err(error) => return tally.test("tcg", || Err(error)),
    };
    for example in examples.iter().filter(|example| *example != OVERCOMMIT) {
        tally.test(&format!("tcg::{example}"), || {
            Boot { example, vcpus: 4, parameters: short(example), ..Boot::default() }.run(&backend).map(drop)
        });
    }
    for vcpus in [1, 4, 8] {
        tally.test(&format!("tcg::{OVERCOMMIT}::{vcpus}-vcpus"), || {
            let boot = Boot { example: OVERCOMMIT, vcpus, parameters: short(OVERCOMMIT), ..Boot::default() };
            every_lock_reported(&boot.run(&backend)?, &["pvlock"], vcpus)
        });
    }
    for (form, vcpus) in Form::ALL.into_iter().flat_map(|form| [(form, 1), (form, 4)]) {
        tally.test(&format!("tcg::hal-client-{}::{vcpus}-vcpus", form.name()), || {
            hal_client(&backend, form, vcpus).map(drop)
        });
    }
    guide::without_kvm(tally, &backend);
}

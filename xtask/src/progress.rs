//! Signs of life for long steps: on a terminal only, so that logs and pipes stay quiet.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Runs `work` while a spinner with `message` turns.
pub fn step<T>(message: impl Into<String>, work: impl FnOnce() -> T) -> T {
    let spinner = spinner(message);
    let result = work();
    spinner.finish_and_clear();
    result
}

/// A spinner with the time gone by, for a step whose message changes; hidden when standard error is no terminal.
pub fn spinner(message: impl Into<String>) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message.into());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}

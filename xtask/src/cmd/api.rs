//! `cargo xtask api`: the public API against the listings in `tests/api`.

use anyhow::{Result, ensure};
use clap::Args as ClapArgs;

use crate::api;

/// Compare the public API of the library and its adapters with the listings in tests/api.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Make the API as it is now the one that is expected.
    #[arg(long)]
    bless: bool,
}

impl Args {
    pub fn run(self) -> Result<()> {
        for package in api::PACKAGES {
            match api::read(package)? {
                Err(reason) => {
                    ensure!(!self.bless, "{reason}");
                    println!("{package}: not compared, {reason}");
                }
                Ok(api) if self.bless => println!("{package}: written to {}", api.bless()?.display()),
                Ok(api) => {
                    api.check()?;
                    println!(
                        "{package}: as listed{}",
                        api.skipped().map(|what| format!(", {what}")).unwrap_or_default()
                    );
                }
            }
        }
        Ok(())
    }
}

//! What the compiler says a package's sources are, once macros are expanded.

use anyhow::{Context, Result, ensure};
use cargo_metadata::Package;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::cargo;

/// The package with exactly these features. Functions have no bodies.
pub fn file(package: &Package, features: &[String]) -> Result<syn::File> {
    let mut command = cargo::cargo();
    command
        // By its id: the published crates have the adapters' names.
        .args(["rustc", "--quiet", "--package", &package.id.repr, "--lib", "--profile", "check"]);
    // Cargo sets features of this workspace's packages only.
    if package.source.is_none() {
        command.args(["--no-default-features", "--features", &features.join(",")]);
    }
    command
        .args(["--", "-Zunpretty=expanded"])
        // Takes unstable options on a stable compiler. A folder of its own, since dependencies are then built anew.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", cargo::target_dir()?.join("api"));
    let output = command.output().context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "{} does not build with the features [{}]: {}",
        package.name,
        features.join(", "),
        String::from_utf8_lossy(&output.stderr)
    );
    let source = String::from_utf8(output.stdout).context("the compiler printed something else than text")?;
    parse(&source).with_context(|| format!("cannot read {} as rustc expands it", package.name))
}

pub fn parse(source: &str) -> syn::Result<syn::File> {
    let tokens: TokenStream = source.parse()?;
    syn::parse2(without_bodies(tokens))
}

/// Empties the bodies of functions: macros of the standard library leave code there that only their compiler takes.
fn without_bodies(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut in_signature = false;
    let mut kept = Vec::with_capacity(tokens.len());
    for (i, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "fn" => {
                // Not of a pointer's type.
                in_signature |= matches!(tokens.get(i + 1), Some(TokenTree::Ident(_)));
            }
            TokenTree::Punct(end) if end.as_char() == ';' => in_signature = false,
            TokenTree::Group(group) => {
                let is_body = in_signature && group.delimiter() == Delimiter::Brace;
                in_signature &= !is_body;
                let inner = if is_body { TokenStream::new() } else { without_bodies(group.stream()) };
                kept.push(TokenTree::Group(Group::new(group.delimiter(), inner)));
                continue;
            }
            _ => {}
        }
        kept.push(token.clone());
    }
    kept.into_iter().collect()
}

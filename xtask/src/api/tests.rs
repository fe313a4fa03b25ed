//! What a listing shows of a small crate, and what it makes of features.

use super::*;

const SOURCE: &str = r#"
    mod inner {
        use crate::Kind;
        pub struct Lock<T: ?Sized> { pub(crate) word: u32, data: T }
        pub struct Unreachable(pub u8);
        #[automatically_derived]
        impl<T: ::core::fmt::Debug + ?Sized> ::core::fmt::Debug for Lock<T> { fn fmt(&self) {} }
        #[automatically_derived]
        impl<T> ::core::marker::StructuralPartialEq for Lock<T> {}
        impl<T> Lock<T> {
            /// Words.
            #[inline] #[must_use = "words"] pub const fn new(data: T) -> Self { super let x = { 1 }; loop {} }
            #[doc(hidden)] pub fn raw(&self) -> &u32 where T: Copy { loop {} }
            fn private(&self) {}
        }
        unsafe impl<T: Send> Sync for Lock<T> {}
        impl Kind for Unreachable { const N: u8 = 1; }
        impl<T> Kind for Lock<T> { const N: u8 = 2; }
    }
    pub mod open { pub use crate::inner::Lock; pub use other::Thing; #[non_exhaustive] pub enum E { A, B { x: u8 } } }
    pub use open::Lock as Short;
    pub trait Kind: 'static { const N: u8; fn f(&self) -> u8 { 1 } }
    const _: () = { impl open::E { pub fn in_block() {} } };
    #[doc(hidden)] pub mod below { pub static S: fn(u8) -> u8 = id; }
    #[macro_export] macro_rules! make { ($x:ty) => {}; () => {}; }
    fn id(x: u8) -> u8 { x }
"#;

fn listed(source: &str) -> Vec<String> {
    listing::lines("k", expanded::parse(source).unwrap()).into_iter().collect()
}

#[test]
fn a_listing_has_all_that_users_can_name_and_nothing_else() {
    let lines = listed(SOURCE);
    let expected = [
        "k::Kind | pub trait Kind: 'static",
        "k::Kind::N | pub trait Kind { const N: u8; }",
        "k::Kind::f | pub trait Kind { fn f(&self) -> u8 { .. } }",
        "k::Short | pub use k::open::Lock",
        "k::below | #[doc(hidden)] pub mod below",
        "k::below::S | #[doc(hidden)] pub static S: fn(u8) -> u8",
        "k::make! | macro make ($ x : ty) or ()",
        "k::open | pub mod open",
        "k::open::E | #[non_exhaustive] pub enum E { A, B { x: u8 } }",
        "k::open::E::in_block | impl open::E { pub fn in_block() { .. } }",
        "k::open::Lock | impl<T: Debug + ?Sized> Debug for Lock<T>",
        "k::open::Lock | impl<T> Kind for Lock<T> { const N: u8; }",
        "k::open::Lock | pub struct Lock<T: ?Sized> { _: _ }",
        "k::open::Lock | unsafe impl<T: Send> Sync for Lock<T>",
        "k::open::Lock::new | impl<T> Lock<T> { #[must_use] pub const fn new(data: T) -> Self { .. } }",
        "k::open::Lock::raw | impl<T> Lock<T> { #[doc(hidden)] pub fn raw(&self) -> &u32 where T: Copy, { .. } }",
        "k::open::Thing | pub use other::Thing",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn every_kind_of_change_is_seen() {
    let changes = [
        ("pub const fn new", "pub fn new"),
        ("T: Send", "T"),
        ("where T: Copy ", ""),
        ("#[doc(hidden)] pub fn", "pub fn"),
        ("#[must_use = \"words\"]", ""),
        ("B { x: u8 }", "B { x: u16 }"),
        ("#[non_exhaustive]", ""),
        ("pub(crate) word", "pub word"),
        ("$x:ty", "$x:expr"),
        ("fn f(&self) -> u8 { 1 }", "fn f(&self) -> u8;"),
        ("as Short", "as Long"),
        ("data: T) -> Self", "_: T) -> Option<Self>"),
    ];
    for (from, to) in changes {
        assert!(SOURCE.contains(from));
        assert_ne!(listed(&SOURCE.replace(from, to)), listed(SOURCE), "{from}");
    }
    let same =
        SOURCE.replace("loop {}", "panic!()").replace("/// Words.", "/// Others.").replace("fn private", "fn other");
    assert_eq!(listed(&same), listed(SOURCE));
}

fn set(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[test]
fn features_stand_behind_what_depends_on_them() {
    let features = ["a".to_owned(), "b".to_owned()];
    let listings = [set(&["x", "y"]), set(&["x", "y", "i"]), set(&["x", "i", "j"]), set(&["x", "i", "j", "k"])];
    let lines = with_conditions(&features, &listings);
    let expected = ["i // with a or b", "j // with b", "k // with all features", "x", "y // without b"];
    assert_eq!(lines, set(&expected));
    let without_b = seen_without(lines.iter().map(String::as_str), &features[1..]);
    assert_eq!(without_b, set(&["i // with a", "x", "y"]));
}

#[test]
fn a_change_names_the_lines_and_the_command() {
    let mut api = Api { package: "kspin", lines: BTreeSet::new(), skipped: Vec::new() };
    let listed = fs::read_to_string(file("kspin")).unwrap();
    api.lines = listed.lines().map(str::to_owned).collect();
    api.check().unwrap();
    api.features_only_add().unwrap();
    let gone = api.lines.pop_first().unwrap();
    api.lines.insert("kspin::new | pub fn new()".to_owned());
    let error = api.check().unwrap_err().to_string();
    for part in [BLESS, "  + kspin::new | pub fn new()", &format!("  - {gone}")] {
        assert!(error.contains(part), "{error}");
    }
    api.lines.insert("kspin::f | pub fn f() // without smp".to_owned());
    assert!(api.features_only_add().is_err());
}

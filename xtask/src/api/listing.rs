//! The public items of a crate, one line each.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Ident, Span};
use syn::{
    Attribute, Expr, Field, Fields, ImplItem, Item, ItemImpl, ItemMacro, ItemTrait, Meta, TraitItem, Type, Visibility,
    parse_quote,
};

use super::tree::{Definition, Path, Tree, declared_public, is_public, name_of};

/// Attributes that are promises to users, or break one.
const KEPT: [&str; 9] =
    ["deprecated", "doc", "export_name", "macro_export", "must_use", "no_mangle", "non_exhaustive", "repr", "unsafe"];

/// What may be derived. Compilers write further impls beside these, each version its own.
const DERIVED: [&str; 9] = ["Clone", "Copy", "Debug", "Default", "Eq", "Hash", "Ord", "PartialEq", "PartialOrd"];

/// What a name in a public module leads to.
enum Export {
    Own(Definition),
    Foreign(Path),
}

struct Listing<'a> {
    tree: &'a Tree,
    krate: &'a str,
    /// Under which name each item is listed.
    homes: BTreeMap<Definition, String>,
    lines: BTreeSet<String>,
}

/// All of the public API of `file`, the expanded source of the crate `krate`.
pub fn lines(krate: &str, file: syn::File) -> BTreeSet<String> {
    let macros: Vec<ItemMacro> = file.items.iter().filter_map(exported_macro).collect();
    let tree = Tree::new(file);
    let mut exports = Vec::new();
    gather(&tree, &Path::new(), krate, false, &mut exports);
    let mut homes = BTreeMap::<Definition, String>::new();
    for (path, export, _) in &exports {
        if let Export::Own(definition) = export {
            // The longest path: what the root only repeats is listed in its module.
            let depth = |path: &str| path.matches("::").count();
            let home = homes.entry(definition.clone()).or_insert_with(|| path.clone());
            if (depth(path), path) > (depth(home), home) {
                home.clone_from(path);
            }
        }
    }
    let mut listing = Listing { tree: &tree, krate, homes, lines: BTreeSet::new() };
    for (path, export, hidden) in exports {
        listing.export(&path, export, hidden);
    }
    for (module, items) in tree.modules() {
        listing.impls(module, items);
    }
    for item in macros {
        listing.exported_macro(&item);
    }
    for (_, items) in tree.modules().filter(|(path, _)| !path.is_empty()) {
        for item in items.iter().filter_map(exported_macro) {
            listing.exported_macro(&item);
        }
    }
    listing.lines
}

/// All names that `module` offers, and those in the public modules below; `true` for those that documentation hides.
fn gather(tree: &Tree, module: &Path, path: &str, hidden: bool, exports: &mut Vec<(String, Export, bool)>) {
    for item in tree.items(module).iter().filter(|item| declared_public(item)) {
        let Some(name) = name_of(item) else { continue };
        let path = format!("{path}::{name}");
        if let Item::Mod(inner) = item {
            let below = module.iter().cloned().chain([name.clone()]).collect();
            gather(tree, &below, &path, hidden || is_hidden(&inner.attrs), exports);
        }
        exports.push((path, Export::Own((module.clone(), name)), hidden));
    }
    for import in tree.imports(module).into_iter().filter(|import| import.public) {
        match (tree.resolve(module, &import.path), import.name) {
            (Some(definition), Some(name)) => {
                exports.push((format!("{path}::{name}"), Export::Own(definition), hidden))
            }
            (None, Some(name)) => exports.push((format!("{path}::{name}"), Export::Foreign(import.path), hidden)),
            (Some((mut inside, name)), None) => {
                inside.push(name);
                gather(tree, &inside, path, hidden, exports);
            }
            (None, None) => exports.push((format!("{path}::*"), Export::Foreign(import.path), hidden)),
        }
    }
}

impl Listing<'_> {
    fn line(&mut self, path: &str, hidden: bool, text: &str) {
        let hidden = if hidden { "#[doc(hidden)] " } else { "" };
        self.lines.insert(format!("{path} | {hidden}{text}"));
    }

    fn export(&mut self, path: &str, export: Export, hidden: bool) {
        let definition = match export {
            Export::Foreign(from) => return self.line(path, hidden, &format!("pub use {}", from.join("::"))),
            Export::Own(definition) => definition,
        };
        if self.homes[&definition] != path {
            let home = format!("pub use {}", self.homes[&definition]);
            return self.line(path, hidden, &home);
        }
        let Some(item) = self.tree.item(&definition) else { return };
        match item.clone() {
            Item::Mod(mut item) => {
                promises(&mut item.attrs);
                item.content = None;
                item.semi = parse_quote!(;);
                self.line(path, hidden, &text(Item::Mod(item)));
            }
            Item::Const(mut item) => {
                promises(&mut item.attrs);
                item.expr = Box::new(nothing());
                self.line(path, hidden, &text(Item::Const(item)));
            }
            Item::Static(mut item) => {
                promises(&mut item.attrs);
                item.expr = Box::new(nothing());
                self.line(path, hidden, &text(Item::Static(item)));
            }
            Item::Fn(mut item) => {
                promises(&mut item.attrs);
                item.block = parse_quote!({});
                self.line(path, hidden, &text(Item::Fn(item)));
            }
            Item::Type(mut item) => {
                promises(&mut item.attrs);
                self.line(path, hidden, &text(Item::Type(item)));
            }
            Item::Struct(mut item) => {
                promises(&mut item.attrs);
                public_fields(&mut item.fields);
                self.line(path, hidden, &text(Item::Struct(item)));
            }
            Item::Union(mut item) => {
                promises(&mut item.attrs);
                let mut fields = Fields::Named(item.fields);
                public_fields(&mut fields);
                if let Fields::Named(fields) = fields {
                    item.fields = fields;
                    self.line(path, hidden, &text(Item::Union(item)));
                }
            }
            Item::Enum(mut item) => {
                promises(&mut item.attrs);
                for variant in &mut item.variants {
                    promises(&mut variant.attrs);
                    variant.fields.iter_mut().for_each(|field| promises(&mut field.attrs));
                }
                self.line(path, hidden, &text(Item::Enum(item)));
            }
            Item::Trait(item) => self.a_trait(path, hidden, item),
            _ => {}
        }
    }

    fn a_trait(&mut self, path: &str, hidden: bool, mut item: ItemTrait) {
        promises(&mut item.attrs);
        let items = std::mem::take(&mut item.items);
        self.line(path, hidden, &text(Item::Trait(item.clone())));
        // The items' lines need not repeat what the trait's own says.
        item.attrs.clear();
        item.supertraits.clear();
        item.generics.where_clause = None;
        for mut inner in items {
            let name = match &mut inner {
                TraitItem::Fn(inner) => {
                    promises(&mut inner.attrs);
                    inner.default = inner.default.take().map(|_| parse_quote!({}));
                    inner.sig.ident.to_string()
                }
                TraitItem::Const(inner) => {
                    promises(&mut inner.attrs);
                    inner.default = inner.default.take().map(|(equals, _)| (equals, nothing()));
                    inner.ident.to_string()
                }
                TraitItem::Type(inner) => {
                    promises(&mut inner.attrs);
                    inner.ident.to_string()
                }
                _ => continue,
            };
            item.items = vec![inner];
            self.line(&format!("{path}::{name}"), hidden, &text(Item::Trait(item.clone())));
        }
    }

    fn impls(&mut self, module: &Path, items: &[Item]) {
        for item in items {
            match item {
                Item::Impl(item) => self.an_impl(module, item.clone()),
                // Macros hide names in the blocks of constants that have none; what they implement is seen.
                Item::Const(item) if item.ident == "_" => {
                    if let Expr::Block(block) = &*item.expr {
                        let inner = block.block.stmts.iter();
                        let inner = inner.filter_map(|statement| match statement {
                            syn::Stmt::Item(item) => Some(item.clone()),
                            _ => None,
                        });
                        self.impls(module, &inner.collect::<Vec<_>>());
                    }
                }
                _ => {}
            }
        }
    }

    fn home(&self, module: &Path, path: &syn::Path) -> Option<Option<String>> {
        let names: Path = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let definition = self.tree.resolve(module, &names)?;
        Some(self.homes.get(&definition).cloned())
    }

    fn an_impl(&mut self, module: &Path, mut item: ItemImpl) {
        let own = match subject(&item.self_ty) {
            Some(path) => self.home(module, path),
            None => None,
        };
        let of = item.trait_.as_ref().and_then(|(path, _)| self.home(module, path));
        // `Some(None)`: an item of this crate that users cannot name.
        let path = match (own, of) {
            (Some(None), _) | (_, Some(None)) | (None, None) => return,
            (Some(Some(path)), _) | (None, Some(Some(path))) => path,
        };
        let derived = item.attrs.iter().any(|attribute| attribute.path().is_ident("automatically_derived"));
        promises(&mut item.attrs);
        let items = std::mem::take(&mut item.items);
        if let Some((of, _)) = &mut item.trait_ {
            if derived {
                let name = of.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
                if !DERIVED.contains(&&*name) {
                    return;
                }
            }
            // Types and constants are for users to see; which functions there are says the trait.
            item.items = items.into_iter().filter_map(assigned).collect();
            let mut line = text(Item::Impl(item));
            if derived {
                for module in ["clone", "cmp", "default", "fmt", "hash", "marker"] {
                    line = line.replace(&format!("::core::{module}::"), "");
                }
            }
            return self.line(&path, false, &line);
        }
        for inner in items {
            let (name, inner) = match inner {
                ImplItem::Fn(mut inner) if is_public(&inner.vis) => {
                    promises(&mut inner.attrs);
                    inner.block = parse_quote!({});
                    (inner.sig.ident.to_string(), ImplItem::Fn(inner))
                }
                ImplItem::Const(mut inner) if is_public(&inner.vis) => {
                    promises(&mut inner.attrs);
                    inner.expr = nothing();
                    (inner.ident.to_string(), ImplItem::Const(inner))
                }
                _ => continue,
            };
            item.items = vec![inner];
            self.line(&format!("{path}::{name}"), false, &text(Item::Impl(item.clone())));
        }
    }

    /// Its name and what its rules take; what they give is code.
    fn exported_macro(&mut self, item: &ItemMacro) {
        let Some(name) = &item.ident else { return };
        let mut attributes = item.attrs.clone();
        promises(&mut attributes);
        let tokens: Vec<_> = item.mac.tokens.clone().into_iter().collect();
        let takes =
            tokens.windows(2).filter(|pair| pair[1].to_string() == "=").map(|pair| one_line(&pair[0].to_string()));
        let takes: Vec<String> = takes.collect();
        let path = format!("{}::{name}!", self.krate);
        self.line(&path, is_hidden(&attributes), &format!("macro {name} {}", takes.join(" or ")));
    }
}

fn exported_macro(item: &Item) -> Option<ItemMacro> {
    match item {
        Item::Macro(item) if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) => {
            Some(item.clone())
        }
        _ => None,
    }
}

/// The type that an impl is about, behind references.
fn subject(own: &Type) -> Option<&syn::Path> {
    match own {
        Type::Path(own) if own.qself.is_none() => Some(&own.path),
        Type::Reference(own) => subject(&own.elem),
        _ => None,
    }
}

fn assigned(item: ImplItem) -> Option<ImplItem> {
    match item {
        ImplItem::Type(mut item) => {
            promises(&mut item.attrs);
            Some(ImplItem::Type(item))
        }
        ImplItem::Const(mut item) => {
            promises(&mut item.attrs);
            item.expr = nothing();
            Some(ImplItem::Const(item))
        }
        _ => None,
    }
}

/// Leaves the fields that users can name, and one sign that there are others.
fn public_fields(fields: &mut Fields) {
    let private = |mut field: Field| {
        field.attrs.clear();
        field.vis = Visibility::Inherited;
        field.ty = Type::Infer(parse_quote!(_));
        field.ident = field.ident.map(|_| Ident::new("_", Span::call_site()));
        field
    };
    fields.iter_mut().for_each(|field| promises(&mut field.attrs));
    match fields {
        Fields::Named(fields) => {
            let all = std::mem::take(&mut fields.named);
            let (public, others): (Vec<Field>, Vec<Field>) = all.into_iter().partition(|field| is_public(&field.vis));
            fields.named = public.into_iter().chain(others.into_iter().next().map(private)).collect();
        }
        Fields::Unnamed(fields) => {
            let all = std::mem::take(&mut fields.unnamed);
            fields.unnamed =
                all.into_iter().map(|field| if is_public(&field.vis) { field } else { private(field) }).collect();
        }
        _ => {}
    }
}

/// Keeps the attributes that users depend on, without words for people.
fn promises(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| {
        let name = attribute.path().get_ident().map(ToString::to_string).unwrap_or_default();
        KEPT.contains(&&*name) && (name != "doc" || is_hidden(std::slice::from_ref(attribute)))
    });
    for attribute in attributes {
        if ["deprecated", "must_use"].iter().any(|name| attribute.path().is_ident(name)) {
            attribute.meta = Meta::Path(attribute.path().clone());
        }
    }
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    let hidden = |attribute: &Attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("doc") && list.tokens.to_string() == "hidden",
        _ => false,
    };
    attributes.iter().any(hidden)
}

/// In the place of an expression that is not part of the API.
fn nothing() -> Expr {
    parse_quote!(_)
}

fn text(item: Item) -> String {
    let file = syn::File { shebang: None, frontmatter: None, attrs: Vec::new(), items: vec![item] };
    one_line(&prettyplease::unparse(&file))
}

/// As rustfmt would write it if lines had no end.
fn one_line(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (from, to) in [("( ", "("), (", )", ")"), (" )", ")"), ("< ", "<"), (", >", ">"), (", }", " }"), (" = _;", ";")]
    {
        line = line.replace(from, to);
    }
    for end in [" {} }", " {}", ";"] {
        if let Some(signature) = line.strip_suffix(end) {
            let brace = if end == " {} }" { " { .. } }" } else { "" };
            return format!("{signature}{brace}");
        }
    }
    line
}

//! A crate's modules, and which item a name in one of them means.

use std::collections::BTreeMap;

use syn::{Item, UseTree, Visibility};

/// A crate after macro expansion, its modules by path; the root's path is empty.
pub struct Tree {
    modules: BTreeMap<Path, Vec<Item>>,
}

pub type Path = Vec<String>;

/// An item of this crate: its module and its name there.
pub type Definition = (Path, String);

/// What a `use` brings into a module.
pub struct Import {
    pub public: bool,
    pub path: Path,
    /// `None`: everything public in `path`.
    pub name: Option<String>,
}

impl Tree {
    pub fn new(file: syn::File) -> Self {
        let mut tree = Self { modules: BTreeMap::new() };
        tree.insert(Path::new(), file.items);
        tree
    }

    fn insert(&mut self, path: Path, mut items: Vec<Item>) {
        for item in &mut items {
            if let Item::Mod(module) = item
                && let Some((_, inner)) = module.content.take()
            {
                let path = path.iter().cloned().chain([module.ident.to_string()]).collect();
                self.insert(path, inner);
            }
        }
        self.modules.insert(path, items);
    }

    pub fn modules(&self) -> impl Iterator<Item = (&Path, &[Item])> {
        self.modules.iter().map(|(path, items)| (path, items.as_slice()))
    }

    pub fn items(&self, module: &[String]) -> &[Item] {
        self.modules.get(module).map_or(&[], Vec::as_slice)
    }

    pub fn item(&self, (module, name): &Definition) -> Option<&Item> {
        self.items(module).iter().find(|item| name_of(item).as_ref() == Some(name))
    }

    pub fn imports(&self, module: &[String]) -> Vec<Import> {
        let mut found = Vec::new();
        for item in self.items(module) {
            if let Item::Use(item) = item {
                let start = item.leading_colon.map(|_| String::new()).into_iter().collect();
                flatten(&item.tree, is_public(&item.vis), start, &mut found);
            }
        }
        found
    }

    /// The item of this crate that `path` means in `module`; `None` for those of other crates.
    pub fn resolve(&self, module: &[String], path: &[String]) -> Option<Definition> {
        self.resolve_within(module, path, 0)
    }

    fn resolve_within(&self, module: &[String], path: &[String], depth: usize) -> Option<Definition> {
        // Globs may go in circles.
        const DEEPEST: usize = 12;
        let (first, rest) = path.split_first().filter(|_| depth < DEEPEST)?;
        let inside = match first.as_str() {
            // The path begins with `::`, so with another crate.
            "" => return None,
            "crate" => Path::new(),
            "self" => module.to_vec(),
            "super" => module.split_last()?.1.to_vec(),
            name => {
                let definition = self.lookup(module, name, depth)?;
                if rest.is_empty() {
                    return Some(definition);
                }
                let (mut module, name) = definition;
                module.push(name);
                module
            }
        };
        self.resolve_within(&inside, rest, depth + 1)
    }

    fn lookup(&self, module: &[String], name: &str, depth: usize) -> Option<Definition> {
        let definition = (module.to_vec(), name.to_owned());
        if self.item(&definition).is_some() {
            return Some(definition);
        }
        let imports = self.imports(module);
        let named = imports.iter().filter(|import| import.name.as_deref() == Some(name));
        // A name that is imported from a crate of that very name leads back here.
        let elsewhere = named.filter(|import| import.path.first().is_some_and(|first| first != name));
        let found = elsewhere.filter_map(|import| self.resolve_within(module, &import.path, depth + 1)).next();
        found.or_else(|| {
            imports.iter().filter(|import| import.name.is_none()).find_map(|import| {
                let whole: Path = import.path.iter().cloned().chain([name.to_owned()]).collect();
                self.resolve_within(module, &whole, depth + 1)
            })
        })
    }
}

fn flatten(tree: &UseTree, public: bool, mut path: Path, found: &mut Vec<Import>) {
    let mut end = |path: Path, name: Option<String>| found.push(Import { public, path, name });
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            flatten(&inner.tree, public, path, found);
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, public, path.clone(), found)),
        UseTree::Glob(_) => end(path, None),
        UseTree::Name(name) if name.ident == "self" => end(path.clone(), path.last().cloned()),
        UseTree::Name(name) => {
            path.push(name.ident.to_string());
            end(path, Some(name.ident.to_string()));
        }
        UseTree::Rename(renamed) => {
            path.push(renamed.ident.to_string());
            end(path, Some(renamed.rename.to_string()));
        }
    }
}

/// What others call the item.
pub fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) if item.ident != "_" => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Mod(item) => item.ident.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// Whether the item says `pub`.
pub fn declared_public(item: &Item) -> bool {
    let visibility = match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Mod(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        _ => return false,
    };
    is_public(visibility)
}

pub fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

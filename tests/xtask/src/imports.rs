//! No circle of imports between the files of a product crate: each file can be read together with only its imports, and
//! a part can be removed without the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// The folders of the product's crates.
const CRATES: [&str; 12] = [
    "guest-state",
    "guest-kernel",
    "vmm",
    "vmm/doctor",
    "probe-engine",
    "proto",
    "spec",
    "arguments",
    "server",
    "client",
    "gdb",
    "cli",
];
/// Where the engine's folders are.
const ENGINE: &str = "probe-engine/src/engine";

/// The segments of a path.
type Names = Vec<String>;

/// A module that isn't only for tests.
#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    /// Its re-exports: the name in this module, and the path that is imported.
    exports: BTreeMap<String, Names>,
    /// Paths in its code, with imports and without re-exports.
    paths: BTreeSet<Names>,
}

/// The modules of a library or a program, by their paths from its root.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Names, Module>);

impl Modules {
    /// Reads all modules from a root's file on.
    fn read(root: &Path) -> Self {
        let mut all = Self::default();
        all.read_file(Names::new(), root, root.parent().unwrap());
        all
    }

    /// Reads a module's file; those of its children are in a folder.
    fn read_file(&mut self, module: Names, file: &Path, folder: &Path) {
        let source = std::fs::read_to_string(file).unwrap();
        let source = syn::parse_file(&source).unwrap();
        self.read_items(module, &source.items, file, folder);
    }

    fn read_items(&mut self, module: Names, items: &[Item], file: &Path, folder: &Path) {
        let mut found = Reader::default();
        for item in items {
            let Item::Mod(child) = item else {
                found.visit_item(item);
                continue;
            };
            if is_for_tests(&child.attrs) {
                continue;
            }
            let name = child.ident.to_string();
            let mut path = module.clone();
            path.push(name.clone());
            let inside = folder.join(&name);
            if let Some((_, items)) = &child.content {
                self.read_items(path, items, file, &inside);
            } else if inside.join("mod.rs").exists() {
                self.read_file(path, &inside.join("mod.rs"), &inside);
            } else {
                self.read_file(path, &inside.with_extension("rs"), &inside);
            }
        }
        found.0.file = file.to_owned();
        self.0.insert(module, found.0);
    }

    /// Returns the file that defines the item at a path in a module, behind all re-exports; `None` for another crate's
    /// item, and for one that is local to the module.
    fn file_of(&self, module: &[String], path: &[String]) -> Option<&Path> {
        let own = self.0.get(module)?;
        let (first, rest) = path.split_first()?;
        let (mut at, mut rest) = match &**first {
            "crate" => (Names::new(), rest),
            "self" => (module.to_vec(), rest),
            "super" => (module[..module.len() - 1].to_vec(), rest),
            // A local variable may have a module's name.
            name if own.exports.contains_key(name) || !rest.is_empty() => (module.to_vec(), path),
            _ => return None,
        };
        if &**first != "crate" && rest.len() == path.len() && !self.has(module, first) {
            return None;
        }
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at.pop();
            } else if self.0.contains_key(&child(&at, name)) {
                at.push(name.clone());
            } else if let Some(export) = self.0[&at].exports.get(name) {
                let whole = [export, after].concat();
                let elsewhere = self.file_of(&at, &whole);
                return elsewhere.or_else(|| Some(&*self.0[&at].file));
            } else {
                break;
            }
            rest = after;
        }
        Some(&self.0[&at].file)
    }

    /// Returns true if a module has a child, or re-exports an item, of this name.
    fn has(&self, module: &[String], name: &str) -> bool {
        self.0.contains_key(&child(module, name)) || self.0[module].exports.contains_key(name)
    }

    /// Returns, for each file, the files of which it names an item, and the paths of these items.
    fn imports(&self) -> Imports<'_> {
        let mut imports = Imports::new();
        for (name, module) in &self.0 {
            let of_file = imports.entry(&*module.file).or_default();
            for path in &module.paths {
                match self.file_of(name, path) {
                    Some(file) if file != module.file => {
                        let paths = of_file.entry(file).or_default();
                        paths.push(path.join("::"));
                    }
                    _ => {}
                }
            }
        }
        imports
    }
}

type Imports<'a> = BTreeMap<&'a Path, BTreeMap<&'a Path, Vec<String>>>;

fn child(module: &[String], name: &str) -> Names {
    let name = name.to_owned();
    module.iter().cloned().chain([name]).collect()
}

/// Returns true if an item is compiled for tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg")
            && list.is_ok_and(|list| list.tokens.to_string().starts_with("test"))
    })
}

/// Collects the paths that a module's items name.
#[derive(Default)]
struct Reader(Module);

impl Reader {
    /// Splits an import into its paths.
    fn import(&mut self, before: &[String], tree: &UseTree, is_export: bool) {
        let (path, named) = match tree {
            UseTree::Path(path) => {
                let before = child(before, &path.ident.to_string());
                return self.import(&before, &path.tree, is_export);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(before, tree, is_export);
                }
                return;
            }
            UseTree::Name(name) if name.ident == "self" => {
                (before.to_vec(), before.last().cloned())
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                (child(before, &name), Some(name))
            }
            UseTree::Rename(name) => (
                child(before, &name.ident.to_string()),
                Some(name.rename.to_string()),
            ),
            UseTree::Glob(_) => (before.to_vec(), None),
        };
        match named {
            Some(named) if is_export => drop(self.0.exports.insert(named, path)),
            _ => drop(self.0.paths.insert(path)),
        }
    }

    /// Collects paths among a macro's arguments.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.0.paths.insert(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.0.paths.insert(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.0.paths.insert(path);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            let is_export = !matches!(item.vis, Visibility::Inherited);
            self.import(&[], &item.tree, is_export);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.0.paths.insert(names.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }

    /// A visibility tells who may use an item, not what the item needs.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// Returns the files in circles, separately for each circle.
fn circles<'a>(imports: &Imports<'a>) -> BTreeSet<BTreeSet<&'a Path>> {
    let reached = |from: &'a Path| {
        let mut seen = BTreeSet::new();
        let mut todo = vec![from];
        while let Some(file) = todo.pop() {
            let next = imports[file].keys().copied();
            todo.extend(next.filter(|file| seen.insert(*file)));
        }
        seen
    };
    let reached: BTreeMap<&Path, _> = imports.keys().map(|file| (*file, reached(file))).collect();
    let circle = |file: &'a Path| {
        let others = reached[file].iter().copied();
        others
            .filter(|other| reached[other].contains(file))
            .collect()
    };
    let circles = reached.keys().map(|file| circle(file));
    circles
        .filter(|circle: &BTreeSet<_>| !circle.is_empty())
        .collect()
}

/// The roots of a crate: its library, and its programs.
fn roots(folder: &Path) -> Vec<PathBuf> {
    let programs = std::fs::read_dir(folder.join("src/bin"));
    let programs = programs.into_iter().flatten();
    let mut roots: Vec<_> = programs
        .map(|program| program.unwrap().path().join("main.rs"))
        .collect();
    let own = ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root));
    roots.extend(own.into_iter().filter(|root| root.exists()));
    roots
}

/// Returns the circles of a crate as a text; empty if it has none.
fn circles_in(folder: &Path) -> String {
    let mut text = String::new();
    for root in roots(folder) {
        let modules = Modules::read(&root);
        let imports = modules.imports();
        for circle in circles(&imports) {
            text += &format!("a circle of {} files:\n", circle.len());
            let edges = circle.iter().flat_map(|from| {
                let to = imports[from].iter().filter(|(to, _)| circle.contains(*to));
                to.map(move |(to, paths)| (from, to, paths))
            });
            for (from, to, paths) in edges {
                let short = |file: &Path| file.strip_prefix(folder).unwrap().display().to_string();
                text += &format!("  {} -> {}: {}\n", short(from), short(to), paths.join(", "));
            }
        }
    }
    text
}

/// Returns the engine's folders, each with the folders whose files its files import.
fn engine_folders() -> BTreeMap<String, BTreeSet<String>> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let engine = top.join(ENGINE);
    let folder_of = |file: &Path| {
        let inside = file.strip_prefix(&engine).ok()?;
        let folder = inside.parent()?.components().next()?;
        Some(folder.as_os_str().to_str()?.to_owned())
    };
    let mut folders: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for root in roots(&top.join("probe-engine")) {
        let modules = Modules::read(&root);
        for (from, to) in modules.imports() {
            let Some(from) = folder_of(from) else {
                continue;
            };
            let others = to.keys().filter_map(|to| folder_of(to));
            let others: Vec<_> = others.filter(|to| *to != from).collect();
            folders.entry(from).or_default().extend(others);
        }
    }
    folders
}

/// Returns the same from ARCHITECTURE.md's table: rows of a folder, its subject, and its imports.
fn told_folders(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let name = |cell: &str| Some(cell.trim().strip_prefix('`')?.strip_suffix('`')?.to_owned());
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').collect();
        let [folder, _, imports, _] = cells[..] else {
            return None;
        };
        let folder = name(folder)?.strip_suffix('/')?.to_owned();
        Some((folder, imports.split(',').filter_map(name).collect()))
    };
    let table = text.split("\n| folder | subject | imports |\n").nth(1);
    let lines = table.unwrap_or_default().lines();
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.filter_map(row).collect()
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = String::new();
    for name in CRATES {
        let circles = circles_in(&top.join(name));
        if !circles.is_empty() {
            wrong += &format!("{name}: {circles}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_engine_s_folders_import_what_the_architecture_says() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(top.join("ARCHITECTURE.md")).unwrap();
    let mut found = engine_folders();
    // Its tests import everything.
    found.remove("tests");
    assert_eq!(found, told_folders(&text));
}

mod tests {
    use super::*;

    /// The circles of modules without folders, each given as its name and source.
    fn circles_of(modules: &[(&str, &str)]) -> Vec<Vec<String>> {
        let mut all = Modules::default();
        for (name, source) in modules {
            let module: Names = name.split_terminator("::").map(str::to_owned).collect();
            let items = syn::parse_file(source).unwrap().items;
            all.read_items(module, &items, Path::new(name), Path::new(""));
        }
        let imports = all.imports();
        let circles = circles(&imports).into_iter();
        circles
            .map(|circle| {
                circle
                    .iter()
                    .map(|file| file.display().to_string())
                    .collect()
            })
            .collect()
    }

    #[test]
    fn files_that_name_each_other_are_a_circle_in_imports_code_and_macros_alike() {
        for source in [
            "use crate::b::Thing;",
            "use super::{b::Thing as Other, c};",
            "fn f(it: &crate::b::Thing) {}",
            "fn f() { g!(1, [super::b::Thing::new()]) }",
        ] {
            let back = ("b", "use super::a;");
            assert_eq!(
                circles_of(&[("", ""), ("a", source), back, ("c", "")]),
                [["a", "b"]]
            );
        }
    }

    #[test]
    fn a_re_exported_item_is_its_own_file_s() {
        let parent = ("", "pub use b::Thing; pub use a::run;");
        let (a, b) = (("a", "use crate::Thing;"), ("b", "pub struct Thing;"));
        assert_eq!(circles_of(&[parent, a, b]), [[""; 0]; 0]);
        let b = ("b", "pub struct Thing; fn f() { crate::run() }");
        assert_eq!(circles_of(&[parent, a, b]), [["a", "b"]]);
    }

    #[test]
    fn a_parent_that_uses_what_it_re_exports_and_is_used_is_in_a_circle() {
        let parent = ("p", "pub use a::Thing; pub struct Other(Thing);");
        let used = ("p::a", "use super::Other;");
        assert_eq!(circles_of(&[("", ""), parent, used]), [["p", "p::a"]]);
        assert_eq!(circles_of(&[("", ""), parent, ("p::a", "")]), [[""; 0]; 0]);
    }

    #[test]
    fn test_code_and_visibilities_are_no_imports() {
        for source in [
            "#[cfg(test)] use crate::b::Thing;",
            "#[cfg(test)] mod tests { use crate::b::Thing; }",
            "pub(in crate::b) struct Other;",
            "/// Like [`crate::b::Thing`].\nstruct Other;",
        ] {
            let back = ("b", "use super::a;");
            assert_eq!(circles_of(&[("", ""), ("a", source), back]), [[""; 0]; 0]);
        }
    }
}

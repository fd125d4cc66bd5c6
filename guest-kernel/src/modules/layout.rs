//! Where the parts of `struct module` are.

use guest_state::GuestVirtAddr;

use super::ModulesUnsupported;
use crate::blacklist::Reason;
use crate::blacklist::format::Format;
use crate::btf::{Btf, TypeError};
use crate::symbols::Symbols;

/// Reads the modules of one kernel, whose layout it knows.
#[derive(Debug, Clone)]
pub struct ModuleReader {
    /// The head of the list.
    pub(super) list: GuestVirtAddr,
    pub(super) layout: ModuleLayout,
    /// Where the types of modules are; `None` in a kernel that doesn't keep them (`CONFIG_DEBUG_INFO_BTF_MODULES`).
    pub(super) types: Option<TypesAt>,
}

/// Where modules' types are (`kernel/bpf/btf.c`): offsets in bytes.
#[derive(Debug, Clone)]
pub(super) struct TypesAt {
    /// The head of the list of them.
    pub(super) list: GuestVirtAddr,
    /// In `struct btf_module`: the entry of the list, the module, and its types.
    pub(super) entry: u64,
    pub(super) module: u64,
    pub(super) types: u64,
    /// In `struct btf`: where the section is, and its length.
    pub(super) data: u64,
    pub(super) size: u64,
}

impl TypesAt {
    fn find(btf: &Btf, symbols: &Symbols) -> Option<Self> {
        let of_module = |path| Some(btf.member("btf_module", path).ok()?.offset);
        let of_types = |path| Some(btf.member("btf", path).ok()?.offset);
        Some(Self {
            list: symbols.find("btf_modules").ok()?.address,
            entry: of_module("list")?,
            module: of_module("module")?,
            types: of_module("btf")?,
            data: of_types("data")?,
            size: of_types("data_size")?,
        })
    }
}

impl ModuleReader {
    /// Finds out how a kernel describes its modules.
    ///
    /// # Errors
    /// See [`ModulesUnsupported`].
    pub fn new(btf: &Btf, symbols: &Symbols) -> Result<Self, ModulesUnsupported> {
        let list = symbols
            .find("modules")
            .map_err(ModulesUnsupported::NoList)?
            .address;
        Ok(Self {
            list,
            layout: ModuleLayout::new(btf)?,
            types: TypesAt::find(btf, symbols),
        })
    }
}

/// Offsets in `struct module` (`include/linux/module.h`), in bytes.
#[derive(Debug, Clone)]
pub(super) struct ModuleLayout {
    /// Of the member by which modules are in the list.
    pub(super) list: u64,
    pub(super) name: u64,
    /// Room for the name with its NUL.
    pub(super) name_len: usize,
    pub(super) state: u64,
    pub(super) states: States,
    pub(super) text: TextAt,
    pub(super) init_text: TextAt,
    pub(super) symbols: SymbolsAt,
    pub(super) regions: Vec<(Reason, TextAt)>,
    pub(super) tables: Vec<(Reason, TableAt)>,
    pub(super) functions: Option<TableAt>,
    pub(super) exceptions: Option<TableAt>,
    /// Of the flag of live patches.
    pub(super) live_patch: Option<u64>,
}

/// Values of `enum module_state`.
#[derive(Debug, Clone, Copy)]
pub(super) struct States {
    pub(super) live: u32,
    pub(super) coming: u32,
    pub(super) going: u32,
}

/// Where the bounds of some text are.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextAt {
    pub(super) base: u64,
    pub(super) size: u64,
}

/// Where the symbol table is (`struct mod_kallsyms`).
#[derive(Debug, Clone, Copy)]
pub(super) struct SymbolsAt {
    /// Offset of the pointer to it.
    pub(super) at: u64,
    /// Offsets in it.
    pub(super) symbols: u64,
    pub(super) count: u64,
    pub(super) names: u64,
}

/// Where a table is.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableAt {
    pub(super) name: &'static str,
    /// Offset of the pointer to it.
    pub(super) at: u64,
    /// Offset of the number of its entries.
    pub(super) count: u64,
    pub(super) format: Format,
}

impl ModuleLayout {
    fn new(btf: &Btf) -> Result<Self, TypeError> {
        let offset = |path: &str| Ok::<_, TypeError>(btf.member("module", path)?.offset);
        let name = btf.member("module", "name")?;
        let symbols = |path: &str| Ok::<_, TypeError>(btf.member("mod_kallsyms", path)?.offset);
        let state = |name| {
            let value = btf.constant("module_state", name)?;
            Ok::<_, TypeError>(value as u32)
        };
        let (text, init_text) = texts(btf)?;
        // Features that a kernel was built without have no members.
        let region = |base, size| {
            Some(TextAt {
                base: offset(base).ok()?,
                size: offset(size).ok()?,
            })
        };
        let table = |name, count, format| {
            Some(TableAt {
                name,
                at: offset(name).ok()?,
                count: offset(count).ok()?,
                format,
            })
        };
        let regions = [
            (Reason::Noinstr, "noinstr_text_start", "noinstr_text_size"),
            (
                Reason::KprobesText,
                "kprobes_text_start",
                "kprobes_text_size",
            ),
        ];
        let tables = [
            (
                Reason::FtraceSite,
                table("ftrace_callsites", "num_ftrace_callsites", Format::FTRACE),
            ),
            (
                Reason::JumpLabel,
                table("jump_entries", "num_jump_entries", Format::JUMP_LABEL),
            ),
            (
                Reason::StaticCall,
                table(
                    "static_call_sites",
                    "num_static_call_sites",
                    Format::STATIC_CALL,
                ),
            ),
            (
                Reason::Bug,
                table("bug_table", "num_bugs", Format::bug(Some(btf))),
            ),
        ];
        Ok(Self {
            list: offset("list")?,
            name: name.offset,
            // `MODULE_NAME_LEN` is 56 where a long has 8 bytes.
            name_len: name.size.min(256) as usize,
            state: offset("state")?,
            states: States {
                live: state("MODULE_STATE_LIVE")?,
                coming: state("MODULE_STATE_COMING")?,
                going: state("MODULE_STATE_GOING")?,
            },
            text,
            init_text,
            symbols: SymbolsAt {
                at: offset("kallsyms")?,
                symbols: symbols("symtab")?,
                count: symbols("num_symtab")?,
                names: symbols("strtab")?,
            },
            regions: regions
                .into_iter()
                .filter_map(|(reason, base, size)| Some((reason, region(base, size)?)))
                .collect(),
            tables: tables
                .into_iter()
                .filter_map(|(reason, table)| Some((reason, table?)))
                .collect(),
            functions: table(
                "kprobe_blacklist",
                "num_kprobe_blacklist",
                Format::FUNCTIONS,
            ),
            live_patch: offset("klp").ok(),
            exceptions: table("extable", "num_exentries", Format::exception(Some(btf))),
        })
    }
}

/// Returns where the bounds of text and init text are.
fn texts(btf: &Btf) -> Result<(TextAt, TextAt), TypeError> {
    let offset = |path: &str| Ok::<_, TypeError>(btf.member("module", path)?.offset);
    // Up to Linux 6.3: `struct module_layout`, whose text comes first.
    let layout = |base: &str, size: &str| {
        Ok::<_, TypeError>(TextAt {
            base: offset(base)?,
            size: offset(size)?,
        })
    };
    if let Ok(text) = layout("core_layout.base", "core_layout.text_size") {
        return Ok((text, layout("init_layout.base", "init_layout.text_size")?));
    }
    // From 6.4: an array of `struct module_memory`.
    let memory = btf.member("module", "mem")?;
    let element = memory.array.map_or(0, |array| array.element_size);
    let [base, size] = ["base", "size"].map(|name| btf.member("module_memory", name));
    let (base, size) = (base?.offset, size?.offset);
    let at = |kind| {
        let index = btf.constant("mod_mem_type", kind)?.cast_unsigned();
        let start = memory.offset.wrapping_add(index.wrapping_mul(element));
        Ok::<_, TypeError>(TextAt {
            base: start.wrapping_add(base),
            size: start.wrapping_add(size),
        })
    };
    Ok((at("MOD_TEXT")?, at("MOD_INIT_TEXT")?))
}

//! What the engine reads from the Debian kernels' own tables, checked against their code.

use std::collections::BTreeMap;
use std::ops::Range;

use guest_kernel::blacklist::{BlacklistEntry, ImageTables, Reason};
use guest_kernel::btf::Btf;
use guest_kernel::modules::ModuleReader;
use guest_kernel::symbols::{LookupError, Symbols};
use guest_kernel::{Image, Kernel};
use guest_state::GuestVirtAddr;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use probe_engine::detour;
use vmm::boot::bzimage::{KernelFormat, read_kernel};

use crate::context::Context;
use crate::linux::files;
use crate::test::{Failure, Needs, Test, TestResult, check, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "the_tables_of_6_1_name_what_its_code_has_there",
        ids: &["KP02"],
        needs: Needs::None,
        run: |cx| tables(cx, files::BZIMAGE_6_1, &[Reason::Paravirt]),
    },
    Test {
        name: "the_tables_of_6_12_name_what_its_code_has_there",
        ids: &["KP02"],
        needs: Needs::None,
        run: |cx| tables(cx, files::BZIMAGE_6_12, &NEWER),
    },
    Test {
        name: "the_vmlinux_of_each_kernel_tells_the_version_that_its_bzimage_tells",
        ids: &["VM01"],
        needs: Needs::None,
        run: |cx| {
            version(cx, files::BZIMAGE_6_1)?;
            version(cx, files::BZIMAGE_6_12)
        },
    },
    Test {
        name: "functions_without_the_cpu_s_gs_base_are_no_place_for_a_jump_in_either_kernel",
        ids: &["JP09"],
        needs: Needs::None,
        run: |cx| {
            without_gs(
                cx,
                files::BZIMAGE_6_1,
                &["machine_kexec", "load_percpu_segment"],
            )?;
            without_gs(
                cx,
                files::BZIMAGE_6_12,
                &["machine_kexec", "switch_gdt_and_percpu_base"],
            )
        },
    },
    Test {
        name: "a_symbol_that_is_mistyped_or_was_renamed_is_suggested",
        ids: &["KP02"],
        needs: Needs::None,
        run: suggestions,
    },
];

/// Tables that both kernels have.
const BOTH: [Reason; 12] = [
    Reason::Noinstr,
    Reason::EntryText,
    Reason::KprobeBlacklist,
    Reason::CopiedText,
    Reason::FtraceSite,
    Reason::JumpLabel,
    Reason::StaticCall,
    Reason::SmpLock,
    Reason::Alternative,
    Reason::Retpoline,
    Reason::ReturnThunk,
    Reason::Bug,
];
const NEWER: [Reason; 3] = [Reason::CallThunk, Reason::EndbrSeal, Reason::RuntimeConst];

/// The version that a bzImage's header has is also read from the vmlinux inside.
fn version(cx: &Context, kernel: &str) -> TestResult {
    let file = std::fs::read(cx.file(kernel)).map_err(Failure::io("read the kernel"))?;
    let file = read_kernel(file).map_err(|e| wrong!("{e}"))?;
    let KernelFormat::BzImage { version, .. } = file.format else {
        return Err(wrong!("{kernel} is no bzImage"));
    };
    let read = Kernel::from_image(&file.elf).map_err(|e| wrong!("{e}"))?;
    let release = |version: &str| version.split_whitespace().next().map(str::to_owned);
    check!(
        release(&read.version).is_some() && release(&read.version) == release(&version),
        "the vmlinux says {:?}, the bzImage {version:?}",
        read.version
    );
    pass_with(read.version)
}

/// These functions are kept from jumps, and ordinary ones aren't.
fn without_gs(cx: &Context, kernel: &str, names: &[&str]) -> TestResult {
    let file = std::fs::read(cx.file(kernel)).map_err(Failure::io("read it"))?;
    let elf = read_kernel(file).map_err(|e| wrong!("{e}"))?.elf;
    let symbols = Symbols::from_vmlinux(&elf).map_err(|e| wrong!("{e}"))?;
    let range = symbols.text();
    let text = loaded(&elf, &range).ok_or_else(|| wrong!("{range:?} isn't in the file"))?;
    let found = detour::functions_without(&symbols, range.start, text);
    for name in names {
        let symbol = symbols.by_name(name).next();
        let symbol = symbol.ok_or_else(|| wrong!("{kernel} has no {name}"))?;
        check!(
            detour::is_early(name) || found.contains(&symbol.address),
            "{name} of {kernel} may be a jump"
        );
    }
    for name in ["vfs_read", "schedule", "do_exit"] {
        let mut ordinary = symbols.by_name(name);
        check!(
            ordinary.all(|symbol| !found.contains(&symbol.address)),
            "{name} of {kernel} may be no jump"
        );
    }
    pass_with(format!("{} functions by their code", found.len()))
}

fn suggestions(cx: &Context) -> TestResult {
    let file = std::fs::read(cx.file(files::BZIMAGE_6_12)).map_err(Failure::io("read it"))?;
    let elf = read_kernel(file).map_err(|e| wrong!("{e}"))?.elf;
    let symbols = Symbols::from_vmlinux(&elf).map_err(|e| wrong!("{e}"))?;
    for (name, meant) in [
        ("kmem_cache_alloc", "kmem_cache_alloc_noprof"),
        ("vfs_raed", "vfs_read"),
        ("sys_openat", "__x64_sys_openat"),
    ] {
        match symbols.find(name) {
            Err(LookupError::Unknown { similar, .. }) => {
                check!(similar.contains(&meant.to_owned()), "{name}: {similar:?}");
            }
            other => return Err(wrong!("{name}: {other:?}")),
        }
    }
    pass()
}

fn tables(cx: &Context, kernel: &str, more: &[Reason]) -> TestResult {
    let file = std::fs::read(cx.kernel(kernel)).map_err(Failure::io("read the kernel"))?;
    let elf = read_kernel(file).map_err(|e| wrong!("{e}"))?.elf;
    let image = Image::parse(&elf).map_err(|e| wrong!("{e}"))?;
    let symbols = Symbols::from_image(&image).map_err(|e| wrong!("{e}"))?;
    let btf = Btf::from_image(&image, &symbols).map_err(|e| wrong!("{e}"))?;
    let btf = btf.ok_or_else(|| wrong!("the kernel has no types"))?;
    let read = ImageTables::of(&image, &symbols, Some(&btf)).map_err(|e| wrong!("{e}"))?;
    let blacklist = read.blacklist().map_err(|e| wrong!("{e}"))?;
    let exceptions = read.exceptions().map_err(|e| wrong!("{e}"))?;
    ModuleReader::new(&btf, &symbols).map_err(|e| wrong!("{e}"))?;

    let mut counts = BTreeMap::new();
    let texts = [symbols.text(), symbols.init_text()];
    for text in texts.map(|text| Text::new(&elf, &symbols, text)) {
        let text = text?;
        for entry in blacklist.entries() {
            if let Some(insn) = text.at(entry.range.start) {
                *counts.entry(entry.reason).or_insert(0) += 1;
                check!(
                    is_expected(&symbols, &entry, &insn, &text),
                    "{entry:x?} is at {insn}"
                );
            }
        }
        for at in exceptions.iter() {
            check!(
                !text.range.contains(&at) || text.is_boundary(at),
                "exception table: {at} is no instruction's start"
            );
        }
    }
    for reason in BOTH.iter().chain(more) {
        check!(counts.contains_key(reason), "no entries for {reason:?}");
    }
    // The padding that the compiler leaves before functions has symbols of its own.
    let functions = symbols
        .iter()
        .filter(|s| s.kind.eq_ignore_ascii_case(&'t') && !s.name.starts_with("__pfx_"));
    let (sites, functions) = (counts[&Reason::FtraceSite], functions.count());
    check!(
        sites < functions && sites > functions / 2,
        "{sites} ftrace sites for {functions} functions"
    );
    pass_with(format!("{counts:?}"))
}

/// Returns true if the text has the kind of instruction that a blacklist entry claims.
fn is_expected(
    symbols: &Symbols,
    entry: &BlacklistEntry,
    insn: &Instruction,
    text: &Text<'_>,
) -> bool {
    let target = || {
        let target = symbols.resolve(GuestVirtAddr(insn.near_branch_target()));
        target.map_or("", |target| target.symbol.name)
    };
    let whole = entry.range.end.0 - entry.range.start.0 == insn.len() as u64;
    let flow = insn.flow_control();
    let direct = matches!(
        flow,
        FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    let is_nop = matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Xchg);
    let fits = match entry.reason {
        Reason::FtraceSite => whole && (is_nop || target() == "__fentry__"),
        Reason::JumpLabel => whole && (is_nop || flow == FlowControl::UnconditionalBranch),
        Reason::StaticCall => whole && direct && target().starts_with("__SCT__"),
        Reason::SmpLock => insn.has_lock_prefix(),
        Reason::Paravirt => flow == FlowControl::IndirectCall,
        Reason::Retpoline => whole && direct && target().starts_with("__x86_indirect_"),
        Reason::ReturnThunk => whole && target() == "__x86_return_thunk",
        Reason::CallThunk => whole && flow == FlowControl::Call,
        Reason::EndbrSeal => whole && insn.code() == Code::Endbr64,
        Reason::Bug => whole && matches!(insn.mnemonic(), Mnemonic::Ud1 | Mnemonic::Ud2),
        // The constant is inside an instruction.
        Reason::RuntimeConst => return !text.is_boundary(entry.range.start),
        _ => true,
    };
    fits && text.is_boundary(entry.range.start)
}

/// Text of the kernel, decoded.
struct Text<'a> {
    range: Range<GuestVirtAddr>,
    bytes: &'a [u8],
    /// Whether an instruction starts at each byte.
    starts: Vec<bool>,
}

impl<'a> Text<'a> {
    fn new(elf: &'a [u8], symbols: &Symbols, range: Range<GuestVirtAddr>) -> Result<Self, Failure> {
        let bytes = loaded(elf, &range).ok_or_else(|| wrong!("{range:?} isn't in the file"))?;
        let mut starts = vec![false; bytes.len()];
        let offset = |at: GuestVirtAddr| (at.0 - range.start.0) as usize;
        let mut bounds: Vec<_> = symbols
            .iter()
            .map(|symbol| symbol.address)
            .filter(|at| range.contains(at))
            .map(offset)
            .collect();
        bounds.push(bytes.len());
        bounds.dedup();
        for pair in bounds.windows(2) {
            let code = &bytes[pair[0]..pair[1]];
            let at = range.start.0 + pair[0] as u64;
            let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
            for insn in &mut decoder {
                starts[(insn.ip() - range.start.0) as usize] = true;
            }
        }
        Ok(Self {
            range,
            bytes,
            starts,
        })
    }

    /// The instruction at an address, if it is in this text.
    fn at(&self, at: GuestVirtAddr) -> Option<Instruction> {
        let code = self
            .bytes
            .get(at.offset_from(self.range.start)? as usize..)?;
        Some(Decoder::with_ip(64, code, at.0, DecoderOptions::NONE).decode())
    }

    fn is_boundary(&self, at: GuestVirtAddr) -> bool {
        let offset = at.offset_from(self.range.start);
        offset.is_some_and(|offset| self.starts.get(offset as usize) == Some(&true))
    }
}

/// What an ELF file loads into a range of addresses (System V ABI, "Program Header").
fn loaded<'a>(elf: &'a [u8], range: &Range<GuestVirtAddr>) -> Option<&'a [u8]> {
    const LOAD: u64 = 1;
    let number = |at: usize, len: usize| {
        let bytes = elf.get(at..at + len)?;
        let digits = bytes.iter().rev();
        Some(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let (headers, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    (0..count).find_map(|i| {
        let header = (headers + i * size) as usize;
        let (offset, address) = (number(header + 8, 8)?, number(header + 16, 8)?);
        let len = number(header + 32, 8)?;
        let start = range.start.0.checked_sub(address).filter(|s| *s < len)?;
        let end = range.end.0.checked_sub(address).filter(|e| *e <= len)?;
        let is_loaded = number(header, 4)? == LOAD;
        is_loaded.then(|| elf.get((offset + start) as usize..(offset + end) as usize))?
    })
}

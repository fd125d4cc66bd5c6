//! A live patch of one function: a module that does only that (Documentation/livepatch/livepatch.rst). It is made here,
//! byte by byte. The offsets in the kernel's structs come from its type information, so it fits any kernel.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::Tool;
use super::btf::Types;
use super::elf::{self, Relocation, Section, Symbol};
use crate::workload::module;

const NAME: &str = "theirs";
/// The result of the patched function: it isn't a mask, nor an error.
const ANSWER: i32 = 0x1234;
/// `MODULE_INIT_IGNORE_MODVERSIONS` and `MODULE_INIT_IGNORE_VERMAGIC`.
const FORCE: libc::c_int = 3;
/// How often a transition is checked, at most, and the time in between.
const ROUNDS: u32 = 20_000;
const PAUSE: Duration = Duration::from_millis(5);

/// The patch of one function. Its state tells whether all tasks use it, and which ones don't.
pub struct LivePatch {
    file: File,
    waits: bool,
    on: bool,
    seen: u64,
}

impl LivePatch {
    /// A patch that isn't loaded yet. If it `waits`, switching it on waits until all tasks use it.
    pub fn new(function: &str, waits: bool) -> io::Result<Self> {
        const PATH: &CStr = c"/tmp/theirs.ko";
        let path = PATH.to_string_lossy();
        let mut made = File::create(path.as_ref())?;
        made.write_all(&module_file(&Types::of_kernel()?, function)?)?;
        made.rewind()?;
        Ok(Self {
            // The kernel doesn't read a module that is open for writing.
            file: {
                drop(made);
                File::open(path.as_ref())?
            },
            waits,
            on: false,
            seen: 0,
        })
    }
}

impl Tool for LivePatch {
    fn on(&mut self) -> io::Result<()> {
        module::load_opened(&self.file, FORCE)?;
        self.on = true;
        if self.waits { self.complete() } else { Ok(()) }
    }

    fn complete(&self) -> io::Result<()> {
        wait(|| Ok(sys("transition")?.as_deref() == Some("0")))
    }

    fn off(&mut self) -> io::Result<()> {
        self.on = false;
        fs::write(format!("/sys/kernel/livepatch/{NAME}/enabled"), "0")?;
        // The kernel forgets a patch that is off for all tasks.
        wait(|| Ok(sys("transition")?.is_none()))?;
        module::unload(NAME)
    }

    fn seen(&mut self, done: &Value) -> io::Result<u64> {
        if done["answer"] == ANSWER {
            self.seen += done["calls"].as_u64().unwrap_or_default();
        }
        Ok(self.seen)
    }

    fn state(&self) -> io::Result<Value> {
        Ok(match sys("transition")?.as_deref() {
            None => Value::Null,
            Some("0") => json!({ "complete": true }),
            Some(_) => json!({ "complete": false, "unpatched": unpatched()? }),
        })
    }

    fn go(&mut self) -> io::Result<()> {
        if self.on { self.off() } else { Ok(()) }
    }
}

/// The processes that don't use the patched function yet, with their stacks
/// (Documentation/livepatch/livepatch.rst).
fn unpatched() -> io::Result<Vec<Value>> {
    let mut unpatched = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        // The files of a process that has just ended are empty.
        let read = |file| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if read("patch_state").trim() == "0" {
            unpatched
                .push(json!({ "pid": pid, "comm": read("comm").trim(), "stack": read("stack") }));
        }
    }
    Ok(unpatched)
}

/// The content of a file of the patch; `None` if there is no patch.
fn sys(file: &str) -> io::Result<Option<String>> {
    let path = format!("/sys/kernel/livepatch/{NAME}/{file}");
    match fs::read_to_string(Path::new(&path)) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // The patch went away while the file was read.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

fn wait(until: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    for _ in 0..ROUNDS {
        if until()? {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(io::Error::other(
        "the live patch's transition is never complete",
    ))
}

/// The module.
fn module_file(types: &Types, function: &str) -> io::Result<Vec<u8>> {
    // Sections and symbols by their numbers.
    const TEXT: usize = 0;
    const DATA: usize = 1;
    const MODULE: usize = 2;
    const ENABLE: usize = 5;
    // The functions in the text, and their places: 16 bytes each.
    const INIT_AT: usize = 0;
    const EXIT_AT: usize = 16;
    const PATCHED_AT: usize = 32;

    let reference = |at: usize, kind, symbol, addend: usize| Relocation {
        at,
        kind,
        symbol,
        addend: addend as i64,
    };
    let (patch, object, func) = (
        types.size("klp_patch")?,
        types.size("klp_object")?,
        types.size("klp_func")?,
    );
    // Lists of objects and functions end with an entry of zeros. The object without a name is the kernel itself.
    let (object_at, func_at) = (patch, patch + 2 * object);
    let name_at = func_at + 2 * func;
    let mut data = vec![0; name_at];
    data.extend(function.as_bytes());
    data.push(0);
    let member = |name, member| types.member(name, member).map(|at| at as usize);
    let data_relocations = vec![
        reference(member("klp_patch", "mod")?, elf::ABSOLUTE, MODULE, 0),
        reference(member("klp_patch", "objs")?, elf::ABSOLUTE, DATA, object_at),
        reference(
            object_at + member("klp_object", "funcs")?,
            elf::ABSOLUTE,
            DATA,
            func_at,
        ),
        reference(
            func_at + member("klp_func", "old_name")?,
            elf::ABSOLUTE,
            DATA,
            name_at,
        ),
        reference(
            func_at + member("klp_func", "new_func")?,
            elf::ABSOLUTE,
            TEXT,
            PATCHED_AT,
        ),
    ];

    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let mut text = vec![0xcc; 48];
    let mut put = |at: usize, code: &[u8]| {
        text[at..at + 4].copy_from_slice(&ENDBR64);
        text[at + 4..at + 4 + code.len()].copy_from_slice(code);
    };
    // mov $patch, %rdi; jmp klp_enable_patch
    put(INIT_AT, &[0x48, 0xc7, 0xc7, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0]);
    // ret
    put(EXIT_AT, &[0xc3]);
    // mov $ANSWER, %eax; ret
    let [a, b, c, d] = ANSWER.to_le_bytes();
    put(PATCHED_AT, &[0xb8, a, b, c, d, 0xc3]);
    let text_relocations = vec![
        reference(INIT_AT + 7, elf::SIGNED, DATA, 0),
        Relocation {
            at: INIT_AT + 12,
            kind: elf::BRANCH,
            symbol: ENABLE,
            addend: -4,
        },
    ];

    let mut this = vec![0; types.size("module")?];
    let name = member("module", "name")?;
    this[name..name + NAME.len()].copy_from_slice(NAME.as_bytes());
    let this_relocations = vec![
        reference(member("module", "init")?, elf::ABSOLUTE, TEXT, INIT_AT),
        reference(member("module", "exit")?, elf::ABSOLUTE, TEXT, EXIT_AT),
    ];
    let section = |name, flags, bytes, relocations| Section {
        name,
        flags: elf::ALLOC | flags,
        bytes,
        relocations,
    };
    let info = format!("license=GPL\0livepatch=Y\0name={NAME}\0");
    let sections = vec![
        section(".text", elf::EXECUTE, text, text_relocations),
        section(".data", elf::WRITE, data, data_relocations),
        section(
            ".gnu.linkonce.this_module",
            elf::WRITE,
            this,
            this_relocations,
        ),
        section(".modinfo", 0, info.into_bytes(), Vec::new()),
    ];
    let symbol = |name: &str, section, at| Symbol {
        name: name.into(),
        section,
        at,
    };
    let symbols = [
        symbol("theirs_text", Some(TEXT), 0),
        symbol("theirs_data", Some(DATA), 0),
        symbol("__this_module", Some(MODULE), 0),
        symbol("init_module", Some(TEXT), INIT_AT),
        symbol("cleanup_module", Some(TEXT), EXIT_AT),
        symbol("klp_enable_patch", None, 0),
    ];
    Ok(elf::relocatable(sections, &symbols))
}

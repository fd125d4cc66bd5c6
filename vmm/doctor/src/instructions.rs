//! Whether the instructions that a Linux boot needs run at CPL 0.
//!
//! Each has a guest of its own, so that one failure hides no other. RDI points
//! at zeroed, aligned memory.

use crate::{
    error::GuestError,
    guest::{Guest, GuestExit, Runner},
    report::Instruction,
    setup::CODE,
};

/// A feature that an instruction needs; without it, Linux does without the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Popcnt,
    Cmpxchg16b,
    Smap,
    Xsave,
}

/// An instruction, the code that runs it (a `hlt` is appended), and what RAX
/// must be afterwards.
struct Trial {
    name: &'static str,
    needs: Needs,
    code: &'static [u8],
    rax: Option<u64>,
}

const fn trial(name: &'static str, code: &'static [u8]) -> Trial {
    Trial {
        name,
        needs: Needs::Nothing,
        code,
        rax: None,
    }
}

const fn needing(name: &'static str, needs: Needs, code: &'static [u8]) -> Trial {
    Trial {
        name,
        needs,
        code,
        rax: None,
    }
}

const fn giving(name: &'static str, rax: u64, code: &'static [u8]) -> Trial {
    Trial {
        name,
        needs: Needs::Nothing,
        code,
        rax: Some(rax),
    }
}

const TRIALS: &[Trial] = &[
    // xor ecx, ecx; xor eax, eax; cpuid
    trial("cpuid", &[0x31, 0xc9, 0x31, 0xc0, 0x0f, 0xa2]),
    trial("rdtsc", &[0x0f, 0x31]),
    // mov ecx, 0xc0000080; rdmsr; wrmsr
    trial(
        "rdmsr/wrmsr EFER",
        &[0xb9, 0x80, 0, 0, 0xc0, 0x0f, 0x32, 0x0f, 0x30],
    ),
    // mov rax, cr0; mov cr0, rax
    trial("mov cr0", &[0x0f, 0x20, 0xc0, 0x0f, 0x22, 0xc0]),
    // mov rax, cr3; mov cr3, rax
    trial("mov cr3", &[0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8]),
    // mov rax, cr4; btc rax, 7 (global pages); mov cr4, rax
    trial(
        "mov cr4",
        &[
            0x0f, 0x20, 0xe0, 0x48, 0x0f, 0xba, 0xf8, 0x07, 0x0f, 0x22, 0xe0,
        ],
    ),
    // mov rax, dr7; mov dr7, rax
    trial("mov dr7", &[0x0f, 0x21, 0xf8, 0x0f, 0x23, 0xf8]),
    // invlpg [rdi]
    trial("invlpg", &[0x0f, 0x01, 0x3f]),
    // sgdt [rdi]; lgdt [rdi]
    trial("lgdt", &[0x0f, 0x01, 0x07, 0x0f, 0x01, 0x17]),
    // sidt [rdi]; lidt [rdi]
    trial("lidt", &[0x0f, 0x01, 0x0f, 0x0f, 0x01, 0x1f]),
    // mov ax, 0x18; ltr ax
    trial("ltr", &[0x66, 0xb8, 0x18, 0, 0x0f, 0x00, 0xd8]),
    trial("swapgs", &[0x0f, 0x01, 0xf8]),
    // mov rax, rsp; push 0x10; push rax; pushfq; push 8; lea rax, [rip+3]; push rax;
    // iretq, to here; mov eax, 42
    giving(
        "iretq",
        42,
        &[
            0x48, 0x89, 0xe0, 0x6a, 0x10, 0x50, 0x9c, 0x6a, 0x08, 0x48, 0x8d, 0x05, 3, 0, 0, 0,
            0x50, 0x48, 0xcf, 0xb8, 42, 0, 0, 0,
        ],
    ),
    // pushfq; pop rax; or rax, 0x200 (IF); push rax; popfq; pushfq; pop rax; cli;
    // and eax, 0x200
    giving(
        "pushf/popf with IF",
        0x200,
        &[
            0x9c, 0x58, 0x48, 0x0d, 0, 2, 0, 0, 0x50, 0x9d, 0x9c, 0x58, 0xfa, 0x25, 0, 2, 0, 0,
        ],
    ),
    // sti; nop; cli
    trial("sti/cli", &[0xfb, 0x90, 0xfa]),
    // xor eax, eax; mov ecx, 8; rep stosq; mov eax, ecx
    giving(
        "rep stosq",
        0,
        &[0x31, 0xc0, 0xb9, 8, 0, 0, 0, 0xf3, 0x48, 0xab, 0x89, 0xc8],
    ),
    trial("lfence", &[0x0f, 0xae, 0xe8]),
    trial("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa]),
    trial("clts", &[0x0f, 0x06]),
    trial("fninit", &[0xdb, 0xe3]),
    trial("fwait", &[0x9b]),
    // fxsave64 [rdi]
    trial("fxsave", &[0x48, 0x0f, 0xae, 0x07]),
    // fxrstor64 [rdi]: zeroes are a valid image
    trial("fxrstor", &[0x48, 0x0f, 0xae, 0x0f]),
    // mov eax, 0xff; popcnt eax, eax
    Trial {
        name: "popcnt",
        needs: Needs::Popcnt,
        code: &[0xb8, 0xff, 0, 0, 0, 0xf3, 0x0f, 0xb8, 0xc0],
        rax: Some(8),
    },
    // xor eax, eax; xor edx, edx; xor ecx, ecx; mov ebx, 42; lock cmpxchg16b [rdi];
    // mov rax, [rdi]
    Trial {
        name: "cmpxchg16b",
        needs: Needs::Cmpxchg16b,
        code: &[
            0x31, 0xc0, 0x31, 0xd2, 0x31, 0xc9, 0xbb, 42, 0, 0, 0, 0xf0, 0x48, 0x0f, 0xc7, 0x0f,
            0x48, 0x8b, 0x07,
        ],
        rax: Some(42),
    },
    needing("clac", Needs::Smap, &[0x0f, 0x01, 0xca]),
    needing("stac", Needs::Smap, &[0x0f, 0x01, 0xcb]),
    // xor ecx, ecx; xgetbv; xsetbv
    needing(
        "xgetbv/xsetbv",
        Needs::Xsave,
        &[0x31, 0xc9, 0x0f, 0x01, 0xd0, 0x0f, 0x01, 0xd1],
    ),
    // mov eax, 7; xor edx, edx; xsave64 [rdi]
    needing(
        "xsave",
        Needs::Xsave,
        &[0xb8, 7, 0, 0, 0, 0x31, 0xd2, 0x48, 0x0f, 0xae, 0x27],
    ),
    // mov eax, 7; xor edx, edx; xrstor64 [rdi]: zeroes mean the initial state
    needing(
        "xrstor",
        Needs::Xsave,
        &[0xb8, 7, 0, 0, 0, 0x31, 0xd2, 0x48, 0x0f, 0xae, 0x2f],
    ),
];

pub(crate) fn examine(runner: &Runner) -> Vec<Instruction> {
    // A guest that can't tell has a `cpuid` that fails, which is reported.
    let features = runner
        .run(&[0x0f, 0xa2, 0xf4], Features::ask)
        .unwrap_or_default();
    TRIALS
        .iter()
        .map(|trial| attempt(runner, trial, features))
        .collect()
}

fn attempt(runner: &Runner, trial: &'static Trial, features: Features) -> Instruction {
    let name = trial.name;
    if !features.has(trial.needs) {
        let detail = "not in the guest's CPUID: Linux does without".into();
        return Instruction {
            name,
            ok: true,
            detail,
        };
    }
    let code: Vec<u8> = trial.code.iter().copied().chain([0xf4]).collect();
    let outcome = runner.run(&code, |guest| {
        let stop = guest.run()?;
        let rax = guest.registers()?.rax;
        Ok(match trial.rax {
            _ if stop != GuestExit::Halted => (false, guest.describe(&stop)?),
            Some(right) if rax != right => (false, format!("gave {rax:#x}, not {right:#x}")),
            _ => (true, "ran".into()),
        })
    });
    let (ok, detail) = outcome.unwrap_or_else(|error| (false, error.to_string()));
    Instruction { name, ok, detail }
}

/// What the guest's own CPUID says, which is what its Linux goes by.
#[derive(Clone, Copy, Debug, Default)]
struct Features {
    popcnt: bool,
    cmpxchg16b: bool,
    smap: bool,
    xsave: bool,
}

impl Features {
    /// Asks a guest of `cpuid; hlt`.
    fn ask(guest: &mut Guest) -> Result<Self, GuestError> {
        let mut leaf = |number: u64| {
            let mut registers = guest.registers()?;
            (registers.rip, registers.rax, registers.rcx) = (CODE, number, 0);
            guest.set_registers(&registers)?;
            guest.run()?;
            guest.registers()
        };
        let basic = leaf(1)?.rcx;
        let extended = leaf(7)?.rbx;
        Ok(Self {
            popcnt: basic & 1 << 23 != 0,
            cmpxchg16b: basic & 1 << 13 != 0,
            smap: extended & 1 << 20 != 0,
            xsave: basic & 1 << 26 != 0,
        })
    }

    fn has(self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing => true,
            Needs::Popcnt => self.popcnt,
            Needs::Cmpxchg16b => self.cmpxchg16b,
            Needs::Smap => self.smap,
            Needs::Xsave => self.xsave,
        }
    }
}

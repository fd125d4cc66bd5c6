//! The guest's tools.

use super::super::guest::files;

/// Tools that are tested together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Tracers,
    Kprobes,
    Returns,
    Bpf,
    Patches,
}

/// Where a tool is, relative to our probe on the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// At the function by its name: the guest's kernel uses its ftrace site.
    Function,
    /// At the instruction that our probe is on.
    Same,
    /// At the next one, which a jump of ours overwrites.
    Next,
    /// At the first one that a jump of ours leaves alone.
    Behind,
    /// A trace event of this name.
    Event(&'static str),
    /// It is this module.
    Module(&'static str),
}

/// When calls pass our probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meets {
    Always,
    /// Not while the tool is switched on: another function is called then.
    WhileOff,
    /// Only while it is switched on: there is no such function otherwise.
    WhileOn,
}

/// One of the guest's tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theirs {
    /// Its name in the guest's lines.
    pub tool: &'static str,
    pub at: At,
    pub group: Group,
    pub meets: Meets,
    /// True if it counts nothing before it is switched on for the first time.
    pub comes_off: bool,
    /// True if it goes on counting, in another way, while it is switched off.
    pub counts_off: bool,
}

/// All tools.
pub const ALL: &[Theirs] = &[
    tool("function", At::Function, Group::Tracers),
    tool("function_graph", At::Function, Group::Tracers),
    tool("kprobe", At::Function, Group::Kprobes),
    tool("kprobe", At::Same, Group::Kprobes),
    tool("kprobe", At::Next, Group::Kprobes),
    tool("kprobe", At::Behind, Group::Kprobes),
    tool("kprobe-optimized", At::Same, Group::Kprobes),
    tool("kprobe-optimized", At::Next, Group::Kprobes),
    tool("kprobe-optimized", At::Behind, Group::Kprobes),
    comes_off("kprobe-disabled", At::Same),
    comes_off("kprobe-disabled", At::Next),
    comes_off("kprobe-disabled", At::Behind),
    counts_off("kprobe-switched", At::Same),
    counts_off("kprobe-switched", At::Next),
    counts_off("kprobe-switched", At::Behind),
    tool("kretprobe", At::Function, Group::Returns),
    tool("fprobe", At::Function, Group::Returns),
    tool("fprobe-return", At::Function, Group::Returns),
    tool("bpf-kprobe", At::Function, Group::Bpf),
    tool("bpf-kprobe", At::Same, Group::Bpf),
    tool("bpf-kprobe", At::Behind, Group::Bpf),
    tool("bpf-kretprobe", At::Function, Group::Bpf),
    tool("bpf-fentry", At::Function, Group::Bpf),
    tool("bpf-fexit", At::Function, Group::Bpf),
    tool("event", At::Event("task/task_rename"), Group::Patches),
    meets("livepatch", At::Function, Meets::WhileOff),
    meets("module", At::Module("tun"), Meets::WhileOn),
];

const fn tool(tool: &'static str, at: At, group: Group) -> Theirs {
    Theirs {
        tool,
        at,
        group,
        meets: Meets::Always,
        comes_off: false,
        counts_off: false,
    }
}

const fn meets(name: &'static str, at: At, meets: Meets) -> Theirs {
    Theirs {
        meets,
        ..tool(name, at, Group::Patches)
    }
}

const fn comes_off(name: &'static str, at: At) -> Theirs {
    Theirs {
        comes_off: true,
        ..tool(name, at, Group::Kprobes)
    }
}

const fn counts_off(name: &'static str, at: At) -> Theirs {
    Theirs {
        counts_off: true,
        ..tool(name, at, Group::Kprobes)
    }
}

impl Theirs {
    /// Returns true if this kernel has it.
    pub fn is_in(&self, kernel: &str) -> bool {
        // Events of function probes came with 6.5.
        !self.tool.starts_with("fprobe") || kernel == files::BZIMAGE_6_12
    }

    /// Returns the system call that passes it.
    pub fn call(&self) -> &'static str {
        match self.at {
            At::Event(_) => "rename",
            At::Module(name) => name,
            _ => "umask",
        }
    }

    /// Returns the function that our probe is on. Each of those system calls calls it once, and no
    /// other call of it counts.
    pub fn function(&self) -> &'static str {
        match self.at {
            At::Event(_) => "__set_task_comm",
            At::Module(_) => "tun:tun_chr_open",
            _ => "__x64_sys_umask",
        }
    }
}

impl std::fmt::Display for Theirs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.at {
            At::Event(name) | At::Module(name) => write!(f, "{} {name}", self.tool),
            At::Function => write!(f, "{}", self.tool),
            at => write!(f, "{} {at:?}", self.tool),
        }
    }
}

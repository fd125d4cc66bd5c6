//! Debugging a Linux guest: by a client, and by Debian's gdb.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use vmprobe_client::v1::{
    Breakpoint, BreakpointKind, GuestStopped, OptimizationState, StopReason, VmState,
};
use vmprobe_client::{DebugEvent, DebugSession};

use super::guest::{Config, Guest, VM, files};
use super::jumps;
use super::list::vmprobe;
use crate::context::{Context, Place};
use crate::drgn::{self, TaskLayout};
use crate::gdb::{GdbServer, printed};
use crate::test::{Failure, Needs, Outcome, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "gdb_and_a_client_debug_2_vcpus_of_6_12_while_probes_are_jumps",
        ids: &["VM10"],
        needs: Needs::Linux,
        run: debugging,
    },
    Test {
        name: "the_kernel_s_own_scripts_for_gdb_tell_of_its_log_and_its_tasks",
        ids: &["VM10"],
        needs: Needs::Linux,
        run: kernel_scripts,
    },
];

/// Functions that an idle guest executes again and again.
const PROBES: [&str; 3] = ["schedule", "r:back schedule", "tick=update_process_times"];
/// Instructions that each vCPU is stepped.
const STEPS: usize = 150;

fn debugging(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 2).await?;
        let probes = guest.probes(&PROBES).await?;
        let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        jumps::settle(&guest, &names).await?;
        let schedule = probes[0].address;
        let tick = probes[2].address;
        let before = guest.memory(schedule, 64).await?;
        let original = guest.client.read_memory(VM, 0, schedule, 64).await?;
        check!(original != before, "no probe is in the text");

        let stepped = stepping(&guest, schedule, tick).await?;
        guest.work("answers").await?;
        let now = guest.listed(names[0]).await?;
        let state = now.optimization.unwrap_or_default().state();
        check_eq!(state, OptimizationState::Optimized, "the jump afterwards");
        let after = guest.memory(schedule, 64).await?;
        check_eq!(after, before, "the text afterwards");
        let found = guest.client.list_probes(VM).await?;
        check_eq!(found.len(), PROBES.len(), "probes that are left");
        if cx.place == Place::LabAmd {
            by_gdb(cx, &guest, tick).await?;
            guest.work("answers").await?;
            let found = guest.client.list_probes(VM).await?;
            check_eq!(found.len(), PROBES.len(), "probes that gdb leaves");
        }
        let stored = dump(cx, &guest, schedule).await?;
        guest.work("answers").await?;
        guest.remove(&names).await?;
        guest.end().await?;
        pass_with(format!(
            "{stepped} different instructions stepped, a dump takes {stored} MiB"
        ))
    })
}

async fn stop(session: &mut DebugSession) -> Result<GuestStopped, Failure> {
    match session.next().await? {
        DebugEvent::Stopped(stopped) => Ok(stopped),
        DebugEvent::Ended(ending) => Err(wrong!("the guest has ended: {}", ending.detail)),
    }
}

/// A client interrupts the guest, steps both vCPUs through jumps, and comes to breakpoints. Returns how many different
/// instructions it has stepped.
async fn stepping(guest: &Guest, schedule: u64, tick: u64) -> Result<usize, Failure> {
    let mut session = guest.client.debug(VM).await?;
    check_eq!(session.vcpus(), 2, "vCPUs");
    let breakpoint = |kind: BreakpointKind, address, length| Breakpoint {
        kind: kind.into(),
        address,
        length,
    };
    // At a place where a jump is.
    let at_jump = breakpoint(BreakpointKind::Software, schedule, 0);
    session.set_breakpoint(at_jump).await?;
    session.go_on().await?;
    let stopped = stop(&mut session).await?;
    check_eq!(
        stopped.breakpoint,
        Some(at_jump),
        "what has stopped the guest"
    );
    let rip = rip(&mut session, stopped.vcpu).await?;
    check_eq!(rip, schedule, "RIP");
    session.remove_breakpoint(at_jump).await?;
    let mut places = std::collections::BTreeSet::new();
    for vcpu in [stopped.vcpu, 1 - stopped.vcpu] {
        for _ in 0..STEPS {
            session.step(vcpu).await?;
            let stopped = stop(&mut session).await?;
            check_eq!(
                (stopped.reason(), stopped.vcpu),
                (StopReason::Stepped, vcpu),
                "the stop"
            );
            places.insert(self::rip(&mut session, vcpu).await?);
        }
    }
    // A breakpoint on text that the guest patches itself takes a debug register.
    for kind in [BreakpointKind::Software, BreakpointKind::Hardware] {
        let entry = breakpoint(kind, tick, 0);
        session.set_breakpoint(entry).await?;
        session.go_on().await?;
        let stopped = stop(&mut session).await?;
        check_eq!(
            stopped.breakpoint,
            Some(entry),
            "what has stopped the guest"
        );
        let rip = self::rip(&mut session, stopped.vcpu).await?;
        check_eq!(rip, tick, "RIP");
        session.remove_breakpoint(entry).await?;
    }
    let (found, _) = guest.client.lookup_symbols(VM, "jiffies_64", 1).await?;
    let jiffies = found
        .first()
        .ok_or_else(|| wrong!("no jiffies_64"))?
        .address;
    let count = |bytes: Vec<u8>| bytes.try_into().map(u64::from_le_bytes);
    let read = session.read_memory(0, jiffies, 8).await?;
    let first = count(read).map_err(|_| wrong!("jiffies_64 can't be read"))?;
    let watch = breakpoint(BreakpointKind::Write, jiffies, 8);
    session.set_breakpoint(watch).await?;
    session.go_on().await?;
    let stopped = stop(&mut session).await?;
    check_eq!(
        stopped.breakpoint,
        Some(watch),
        "what has stopped the guest"
    );
    let read = session.read_memory(0, jiffies, 8).await?;
    let second = count(read).map_err(|_| wrong!("jiffies_64 can't be read"))?;
    check!(second > first, "jiffies were {first}, and are {second}");
    session.remove_breakpoint(watch).await?;
    session.go_on().await?;
    session.interrupt().await?;
    let stopped = stop(&mut session).await?;
    check_eq!(stopped.reason(), StopReason::Interrupted, "the stop");
    // The session ends with a breakpoint set, in a guest that stands still.
    session.set_breakpoint(at_jump).await?;
    Ok(places.len())
}

async fn rip(session: &mut DebugSession, vcpu: u32) -> Result<u64, Failure> {
    let state = session.read_vcpu(vcpu).await?;
    Ok(state.registers.unwrap_or_default().rip)
}

async fn by_gdb(cx: &Context, guest: &Guest, tick: u64) -> Result<(), Failure> {
    let text = guest.client.read_memory(VM, 0, tick, 4).await?;
    let (found, _) = guest.client.lookup_symbols(VM, "jiffies_64", 1).await?;
    let jiffies = found
        .first()
        .ok_or_else(|| wrong!("no jiffies_64"))?
        .address;
    let server = GdbServer::start(cx, guest.endpoint())?;
    let commands = [
        format!("break *{tick:#x}"),
        "continue".to_owned(),
        "printf \"at %#lx\\n\", $pc".to_owned(),
        format!("printf \"text %02x\\n\", *(unsigned char *){tick:#x}"),
        "x/3i $pc".to_owned(),
        "backtrace 1".to_owned(),
        "info threads".to_owned(),
        "stepi".to_owned(),
        "stepi".to_owned(),
        "delete".to_owned(),
        format!("watch *(long *){jiffies:#x}"),
        "continue".to_owned(),
        "continue".to_owned(),
        "delete".to_owned(),
        format!("hbreak *{tick:#x}"),
        "continue".to_owned(),
        "printf \"again %#lx\\n\", $pc".to_owned(),
    ];
    let lines = server.ask(cx, None, &commands)?;
    let seen = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    check_eq!(
        printed(&lines, "at ")?,
        format!("{tick:#x}"),
        "the breakpoint"
    );
    check_eq!(
        printed(&lines, "text ")?,
        format!("{:02x}", text[0]),
        "the text there"
    );
    check_eq!(
        printed(&lines, "again ")?,
        format!("{tick:#x}"),
        "the one in hardware"
    );
    check!(seen("#0  ") > 0, "there is no backtrace");
    check!(
        seen("(vCPU 0)") == 1 && seen("(vCPU 1)") == 1,
        "threads aren't vCPUs"
    );
    check_eq!(seen("New value = "), 2, "writes of jiffies_64");
    Ok(())
}

/// Offset of a member, as `vmprobe types` shows it behind the member with its size: `pid_t pid; /* 2496 4 */`.
fn member(declaration: &str, name: &str) -> Result<u64, Failure> {
    let place = |line: &str| {
        let (code, note) = line.split_once(';')?;
        let mut words = code.split([' ', '*', '[']);
        let note = note.trim().strip_prefix("/*")?;
        let offset = note.split_whitespace().next()?.parse().ok()?;
        words.any(|word| word == name).then_some(offset)
    };
    let found = declaration.lines().find_map(place);
    found.ok_or_else(|| wrong!("no offset of {name} in {declaration}"))
}

/// Writes a dump of the running guest, and reads it: the text without the jump, and its tasks by drgn. Returns the MiB
/// that the dump takes.
async fn dump(cx: &Context, guest: &Guest, schedule: u64) -> Result<u64, Failure> {
    let path = std::env::temp_dir().join("guest.core");
    let written = path.to_string_lossy();
    vmprobe(cx, guest, &["dump", "-o", &written])?;
    let text = guest.client.read_memory(VM, 0, schedule, 16).await?;
    // The kernel isn't moved: its text is where it is linked to be.
    let at = file_offset(&path, schedule - KERNEL_MAP)?;
    let mut file = File::open(&path).map_err(Failure::io("open the dump"))?;
    let mut found = [0; 16];
    let read = file
        .seek(SeekFrom::Start(at))
        .and_then(|_| file.read_exact(&mut found));
    read.map_err(Failure::io("read the dump"))?;
    check_eq!(found[..], text[..], "the text in the dump");
    check_eq!(
        guest.client.get_vm(VM).await?.state(),
        VmState::Running,
        "the guest"
    );
    if cx.place == Place::LabAmd {
        let declaration = guest.client.describe_type(VM, "struct task_struct").await?;
        let [tasks, pid, comm] = ["tasks", "pid", "comm"].map(|name| member(&declaration, name));
        let (tasks, pid, comm) = (tasks?, pid?, comm?);
        // As many bytes as the members need.
        let size = tasks.max(pid).max(comm) + 16;
        let layout = TaskLayout {
            size,
            tasks,
            pid,
            comm,
        };
        let lines = drgn::list_tasks(cx, &path, layout)?;
        check!(lines[0].starts_with("release 6.12"), "{}", lines[0]);
        for task in ["task 0 swapper/0", "task 1 init", "task 2 kthreadd"] {
            check!(
                lines.iter().any(|line| line == task),
                "no {task} in {lines:?}"
            );
        }
    }
    let stored = file.metadata().map_err(Failure::io("look at the dump"))?;
    std::fs::remove_file(&path).map_err(Failure::io("remove the dump"))?;
    // In blocks of 512 bytes.
    Ok(stored.blocks() >> 11)
}

/// Where the kernel's image is mapped (`__START_KERNEL_map`, `arch/x86/include/asm/page_64_types.h`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// Returns the place of a physical address in a dump.
fn file_offset(path: &Path, phys: u64) -> Result<u64, Failure> {
    let bytes = std::fs::File::open(path).and_then(|mut file| {
        let mut head = vec![0; 4096];
        file.read_exact(&mut head)?;
        Ok(head)
    });
    let head = bytes.map_err(Failure::io("read the dump"))?;
    let word = |at: usize| {
        let bytes = head[at..at + 8].try_into();
        bytes.map_or(0, u64::from_le_bytes)
    };
    let count = u16::from_le_bytes([head[56], head[57]]);
    // ELF-64 program headers of 56 bytes behind a header of 64.
    let headers = (0..usize::from(count)).map(|index| 64 + 56 * index);
    let found = headers.map(|at| (word(at + 8), word(at + 24), word(at + 32)));
    let holds = |&(_, start, len): &(u64, u64, u64)| (start..start + len).contains(&phys);
    // The first segment has notes.
    let segment = found.skip(1).find(holds);
    let (offset, start, _) = segment.ok_or_else(|| wrong!("the dump lacks {phys:#x}"))?;
    Ok(offset + (phys - start))
}

/// Where the test kernel's vmlinux is, which has debug information, with the scripts.
const DEBUG: &str = "debug";
/// A task's line of `lx-ps`: its address, its number and its name.
const PID_1: [&str; 2] = ["1", "init"];

/// gdb has the kernel's `vmlinux` with debug information, and loads its scripts.
fn kernel_scripts(cx: &Context) -> TestResult {
    let file = |name: &str| cx.file(&format!("{DEBUG}/{name}"));
    let vmlinux = file("vmlinux");
    if !Path::new(&vmlinux).exists() {
        return Ok(Outcome::Skip("the debug information isn't here".to_owned()));
    }
    cx.block_on(async {
        let config = Config {
            kernel: "test-kernel",
            vcpus: 2,
            // The guest's clocks go on while gdb reads.
            kernel_args: "quiet nowatchdog workqueue.watchdog_thresh=0",
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        let server = GdbServer::start(cx, guest.endpoint())?;
        let commands = [
            format!("source {}", file("vmlinux-gdb.py")),
            "lx-version".to_owned(),
            "lx-cmdline".to_owned(),
            "lx-dmesg".to_owned(),
            "lx-ps".to_owned(),
            "lx-mounts".to_owned(),
            // Stops at a tick while PID 1 runs on this CPU.
            "break update_process_times if $lx_current().pid == 1".to_owned(),
            "continue".to_owned(),
            "printf \"comm %s\\n\", $lx_current().comm".to_owned(),
            "backtrace 3".to_owned(),
            "delete".to_owned(),
        ];
        guest.say("workload=spin").await?;
        let lines = server.ask(cx, Some(Path::new(&vmlinux)), &commands)?;
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        check!(
            has("Linux version 6."),
            "lx-version or lx-dmesg says nothing"
        );
        check!(has("workload=echo"), "lx-cmdline says nothing");
        let of_pid_1 = lines.iter().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.len() == 3 && words[0].starts_with("0x") && words[1..] == PID_1
        });
        check!(of_pid_1, "lx-ps doesn't list PID 1");
        check!(has("proc /proc"), "lx-mounts doesn't list /proc");
        check_eq!(printed(&lines, "comm ")?, "init", "the task of the tick");
        check!(
            has("#0  update_process_times (user_tick="),
            "the argument has no value"
        );
        check!(has("#1  ") && has("#2  "), "the callers aren't known");
        // The guest has gone on.
        guest.say("").await?;
        guest.console.report("done").await?;
        guest.end().await?;
        pass_with(String::new())
    })
}

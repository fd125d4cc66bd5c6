//! Debugging a tiny guest: by a client, and by Debian's gdb.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, cr4, ptr, qword_ptr, rax, rbp, rdi, rsp, xmm3};
use vmprobe_client::v1::{Breakpoint, BreakpointKind, EndingKind, GuestStopped, StopReason};
use vmprobe_client::{ClientError, DebugEvent, DebugSession, spec};

use super::image::{self, DATA, Names, UPPER_HALF};
use super::vm::{Tiny, VM};
use crate::context::{Context, Place};
use crate::gdb::{GdbServer, printed};
use crate::test::{Failure, Needs, Outcome, Test, TestResult, check, check_eq, pass, wrong};

pub const SESSION: Test = Test {
    name: "tiny_a_debugger_stops_and_steps_a_guest_that_goes_on_without_it",
    ids: &["VM10"],
    needs: Needs::Tiny,
    run: session,
};

pub const GDB: Test = Test {
    name: "tiny_gdb_stops_steps_and_looks_into_a_guest",
    ids: &["VM10"],
    needs: Needs::Tiny,
    run: gdb,
};

/// Where `inner` counts its calls.
const COUNTER: u64 = UPPER_HALF + DATA + 0x2000;
const CALLS: u64 = 200;
/// The control register's bit without which instructions of SSE are invalid (SDM vol. 3, 2.5).
const CR4_OSFXSR: i32 = 1 << 9;
/// What XMM3 has, and pi as the FPU has it (SDM vol. 1, 8.3.8).
const IN_XMM3: u64 = 0x0123_4567_89ab_cdef;
const PI: [u8; 10] = [0x35, 0xc2, 0x68, 0x21, 0xa2, 0xda, 0x0f, 0xc9, 0x00, 0x40];
/// `push rbp; mov rbp, rsp`.
const PROLOGUE: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];

fn function(
    a: &mut CodeAssembler,
    body: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    a.push(rbp)?;
    a.mov(rbp, rsp)?;
    body(a)?;
    a.pop(rbp)?;
    a.ret()
}

/// `main` calls `outer` some times, which calls `inner`, each time with an argument that is one more. With `fpu`, ST(0)
/// is pi and ST(1) is 1 then, and XMM3 has a number.
fn kernel(fpu: bool) -> Result<Vec<u8>, IcedError> {
    image::build(|a: &mut CodeAssembler, names: &mut Names| {
        let (mut outer, mut inner) = (a.create_label(), a.create_label());
        let mut again = a.create_label();
        names.here(a, "main")?;
        if fpu {
            a.mov(rax, cr4)?;
            a.or(rax, CR4_OSFXSR)?;
            a.mov(cr4, rax)?;
            a.fninit()?;
            a.fld1()?;
            a.fldpi()?;
            a.mov(rax, IN_XMM3)?;
            a.movq(xmm3, rax)?;
        }
        a.mov(rax, COUNTER)?;
        a.mov(qword_ptr(rax), 0)?;
        a.set_label(&mut again)?;
        a.nop()?;
        a.mov(rdi, ptr(rax))?;
        a.call(outer)?;
        a.cmp(qword_ptr(rax), CALLS as i32)?;
        a.jb(again)?;
        image::power_off(a)?;
        // An instruction can have only one label.
        a.set_label(&mut outer)?;
        a.nop()?;
        names.here(a, "outer")?;
        function(a, |a| a.call(inner))?;
        a.set_label(&mut inner)?;
        a.nop()?;
        names.here(a, "inner")?;
        function(a, |a| {
            a.inc(rdi)?;
            a.mov(ptr(rax), rdi)?;
            a.pushfq()?;
            a.popfq()
        })
    })
}

/// Returns true if KVM here executes all of the FPU's instructions. This machine's own KVM emulates a kernel's
/// instructions, but not all of the FPU's.
fn has_fpu(cx: &Context) -> bool {
    cx.place != Place::Host
}

async fn address(guest: &Tiny, name: &str) -> Result<u64, Failure> {
    let (found, _) = guest.client.lookup_symbols(VM, name, 1).await?;
    let symbol = found.first();
    Ok(symbol.ok_or_else(|| wrong!("no symbol {name}"))?.address)
}

async fn stop(session: &mut DebugSession) -> Result<GuestStopped, Failure> {
    match session.next().await? {
        DebugEvent::Stopped(stopped) => Ok(stopped),
        DebugEvent::Ended(ending) => Err(wrong!("the guest has ended: {}", ending.detail)),
    }
}

/// Steps, and returns the new address.
async fn step(session: &mut DebugSession) -> Result<u64, Failure> {
    session.step(0).await?;
    let stopped = stop(session).await?;
    check_eq!(stopped.reason(), StopReason::Stepped, "the stop");
    registers(session).await.map(|registers| registers.rip)
}

async fn registers(session: &mut DebugSession) -> Result<vmprobe_client::v1::Registers, Failure> {
    Ok(session.read_vcpu(0).await?.registers.unwrap_or_default())
}

fn session(cx: &Context) -> TestResult {
    let has_fpu = has_fpu(cx);
    let kernel = kernel(has_fpu)?;
    cx.block_on(async {
        let guest = Tiny::new_with(cx, &kernel, 64, |command| {
            command.arg("--allow-changes");
        })
        .await?;
        let (inner, main) = (
            address(&guest, "inner").await?,
            address(&guest, "main").await?,
        );
        let counts = spec::parse("p:counts inner+0x4 count").map_err(|error| wrong!("{error}"))?;
        guest.client.register_probes(VM, vec![counts]).await?;
        let mut session = guest.client.debug(VM).await?;
        check_eq!(session.vcpus(), 1, "vCPUs");
        match guest.client.debug(VM).await {
            Err(ClientError::AlreadyExists(_)) => {}
            other => return Err(wrong!("a second debugger: {other:?}")),
        }
        let breakpoint = Breakpoint {
            kind: BreakpointKind::Software.into(),
            address: inner + 4,
            length: 0,
        };
        session.set_breakpoint(breakpoint).await?;
        session.go_on().await?;
        let stopped = stop(&mut session).await?;
        check_eq!(stopped.reason(), StopReason::Breakpoint, "the stop");
        check_eq!(stopped.breakpoint, Some(breakpoint), "its breakpoint");
        let now = registers(&mut session).await?;
        check_eq!((now.rip, now.rdi), (inner + 4, 0), "RIP and RDI");
        if has_fpu {
            let fpu = session.read_vcpu(0).await?.fpu.unwrap_or_default();
            check_eq!(fpu.st[..10], PI, "ST(0)");
            // Registers 6 and 7 are in use, and valid.
            check_eq!(fpu.tags, 0x0fff, "the tag word");
            check_eq!(fpu.xmm[48..56], IN_XMM3.to_le_bytes(), "XMM3");
        }
        let text = session.read_memory(0, inner, 4).await?;
        check_eq!(text, PROLOGUE, "the text without the breakpoint");
        let text = guest.client.read_memory(VM, 0, inner + 4, 3).await?;
        // inc rdi
        check_eq!(text, [0x48, 0xff, 0xc7], "the text at the breakpoint");

        // The breakpoint stays set. A step leads away from it, and the other probe's hit counts once.
        let places = [inner + 7, inner + 10, inner + 11, inner + 12, inner + 13];
        for place in places {
            check_eq!(step(&mut session).await?, place, "where a step leads");
        }
        // `pushf` has pushed no trap flag.
        let now = registers(&mut session).await?;
        check_eq!(now.rflags & 0x100, 0, "TF");
        let back = step(&mut session).await?;
        check!(back < inner && back > main, "`ret` leads to {back:#x}");
        session.go_on().await?;
        check_eq!(
            stop(&mut session).await?.reason(),
            StopReason::Breakpoint,
            "the stop"
        );
        let mut now = registers(&mut session).await?;
        check_eq!(now.rdi, 1, "the argument of the second call");
        now.rdi = 100;
        session.write_vcpu(0, now).await?;
        session.remove_breakpoint(breakpoint).await?;
        let after = Breakpoint {
            address: inner + 10,
            ..breakpoint
        };
        session.set_breakpoint(after).await?;
        session.go_on().await?;
        stop(&mut session).await?;
        let counter = session.read_memory(0, COUNTER, 8).await?;
        check_eq!(counter, 101_u64.to_le_bytes(), "what was counted");
        session
            .write_memory(0, COUNTER, 150_u64.to_le_bytes().to_vec())
            .await?;
        let wrong_place = Breakpoint {
            kind: BreakpointKind::Write.into(),
            address: COUNTER + 1,
            length: 8,
        };
        let refused = session.set_breakpoint(wrong_place).await;
        check!(refused.is_err(), "a watchpoint that isn't aligned was set");
        let unmapped = session.read_memory(0, 1 << 46, 8).await?;
        check_eq!(unmapped.len(), 0, "bytes where nothing is mapped");
        drop(session);
        guest.power_off().await?;
        let probes = guest.client.list_probes(VM).await?;
        let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        check_eq!(names, ["counts"], "the probes that are left");
        // Calls 0 and 1, and those that counted from 150 on.
        check_eq!(probes[0].hits, 2 + (CALLS - 150), "hits of the other probe");
        pass()
    })
}

fn gdb(cx: &Context) -> TestResult {
    if cx.place == Place::LabIntel {
        return Ok(Outcome::Skip("gdb is in the other lab".to_owned()));
    }
    let has_fpu = has_fpu(cx);
    let kernel = kernel(has_fpu)?;
    cx.block_on(async {
        let guest = Tiny::new(cx, &kernel, 64).await?;
        let inner = address(&guest, "inner").await?;
        let symbols = std::env::temp_dir().join("tiny-kernel");
        let server = GdbServer::start(cx, &guest.server.endpoint)?;
        // Connections that aren't gdb's are dropped, and don't block later ones.
        for nonsense in [&b"$vCont;s:zz#00"[..], b"\x03\x03$m0,ffffffffffff#00", b"$g#67\xff}"] {
            server.send(nonsense)?;
        }
        let stop = format!("break *{:#x}", inner + 4);
        let mut commands = vec![
            // Behind the prologue.
            stop.as_str(),
            "continue",
            "backtrace",
            "printf \"rdi %d\\n\", $rdi",
            "printf \"text %02x %02x %02x %02x\\n\", *(unsigned char *)($pc - 4), *(unsigned char *)($pc - 3), \
             *(unsigned char *)($pc - 2), *(unsigned char *)$pc",
            "info registers cr0 eflags",
            "info threads",
            "stepi",
            "stepi",
            "printf \"at %#lx\\n\", $pc",
            "continue",
            "printf \"again %d\\n\", $rdi",
        ];
        // This machine's own KVM may not notice a kernel's accesses to data.
        let watches = cx.place != Place::Host;
        let watch = format!("watch *(long *){COUNTER:#x}");
        if watches {
            commands.extend(["delete", &watch, "continue", "continue", "delete"]);
            commands.extend(["hbreak outer", "continue", "printf \"outer %d\\n\", $rdi"]);
        }
        if has_fpu {
            commands.extend([
                "printf \"pi %.6Lf\\n\", $st0",
                "printf \"tags %#x\\n\", $ftag",
                "printf \"xmm3 %#lx\\n\", $xmm3.v2_int64[0]",
            ]);
        }
        let commands: Vec<String> = commands.into_iter().map(str::to_owned).collect();
        let lines = server.ask(cx, Some(&symbols), &commands)?;
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        check!(has("Breakpoint 1, "), "no breakpoint was hit");
        for frame in ["#0  ", "#1  ", "#2  "] {
            check!(has(frame), "the backtrace lacks {frame}");
        }
        check!(has(" in outer ()") && has(" in main ()"), "the callers aren't known");
        check_eq!(printed(&lines, "rdi ")?, "0", "the argument");
        check_eq!(printed(&lines, "text ")?, "55 48 89 48", "the text");
        check!(has("cr0 ") && has("[ "), "control registers or flags are missing");
        check!(has("vCPU 0"), "no thread is a vCPU");
        let at = format!("{:#x}", inner + 10);
        check_eq!(printed(&lines, "at ")?, at, "where two steps lead");
        check_eq!(printed(&lines, "again ")?, "1", "the second call");
        if watches {
            let seen = |text: &str| lines.iter().filter(|line| line.starts_with(text)).count();
            check_eq!(seen("New value = "), 2, "accesses that gdb has seen");
            check!(has("New value = 3"), "not the value that was written");
            check_eq!(printed(&lines, "outer ")?, "3", "the call behind them");
        }
        if has_fpu {
            check_eq!(printed(&lines, "pi ")?, "3.141593", "ST(0)");
            check_eq!(printed(&lines, "tags ")?, "0xfff", "the tag word");
            check_eq!(printed(&lines, "xmm3 ")?, format!("{IN_XMM3:#x}"), "XMM3");
        }
        // gdb has detached, so the guest goes on.
        guest.ends_by(EndingKind::PowerOff, 0).await?;
        let probes = guest.client.list_probes(VM).await?;
        check_eq!(probes.len(), 0, "probes that are left");
        pass()
    })
}

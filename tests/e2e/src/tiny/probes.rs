//! Probes in tiny guests: exact counts, unchanged results, and the guest's own int3s.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, al, dx, eax, ebx, ptr, qword_ptr, r8, r9, rax, rbx, rsi, rsp,
};
use vmprobe_client::v1::{Probe, Strategy};
use vmprobe_client::{Message, spec};

use super::image::{self, COM1, DATA, Names};
use super::interrupts;
use super::vm::{Tiny, VM, number};
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const EMULATED: Test = Test {
    name: "tiny_an_emulated_instruction_counts_every_pass",
    ids: &["KP01"],
    needs: Needs::Tiny,
    run: |cx| counts(cx, Strategy::Emulate, |a| a.lea(rax, ptr(rax + 3))),
};

pub const STEPPED: Test = Test {
    name: "tiny_a_stepped_instruction_counts_every_pass",
    ids: &["KP01"],
    needs: Needs::Tiny,
    // rax = rax + 3, by an instruction that isn't emulated.
    run: |cx| {
        counts(cx, Strategy::Step, |a| {
            a.mov(r9, 3_u64)?;
            a.lock().xadd(qword_ptr(rsi), r9)?;
            a.mov(rax, ptr(rsi))
        })
    },
};

pub const SAME_PLACE: Test = Test {
    name: "tiny_two_probes_at_one_place_count_apart",
    ids: &["KP01"],
    needs: Needs::Tiny,
    run: same_place,
};

pub const FOREIGN: Test = Test {
    name: "tiny_an_int3_of_the_guest_reaches_its_handler",
    ids: &["KP12"],
    needs: Needs::Tiny,
    run: foreign,
};

pub const STREAM_LEFT: Test = Test {
    name: "tiny_a_client_that_leaves_its_stream_harms_nobody",
    ids: &["SV01"],
    needs: Needs::Tiny,
    run: stream_left,
};

/// Passes of a loop.
const PASSES: u64 = 300;

/// Vector of an int3 (SDM vol. 3, 6.3.1).
const BREAKPOINT: u64 = 3;

/// A loop of [`PASSES`] passes over an instruction at `probed` that adds 3 to rax. Then it sends
/// rax.
fn looped(
    a: &mut CodeAssembler,
    names: &mut Names,
    body: fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let mut again = a.create_label();
    a.mov(rsi, DATA)?;
    a.xor(eax, eax)?;
    a.mov(r8, PASSES)?;
    a.set_label(&mut again)?;
    a.nop()?;
    names.here(a, "body")?;
    body(a)?;
    names.here(a, "after")?;
    a.dec(r8)?;
    a.jnz(again)?;
    image::send_rax(a)?;
    image::power_off(a)
}

/// Probes each instruction of the loop's body. Checks that the strategy of one of them is
/// `strategy`.
fn counts(
    cx: &Context,
    strategy: Strategy,
    body: fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> TestResult {
    let kernel = image::build(|a, names| looped(a, names, body))?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        let probes = probe_all(&guest, "body", "after").await?;
        let found = probes.iter().find(|probe| probe.strategy() == strategy);
        let found = found.ok_or_else(|| wrong!("none is passed by {strategy:?}: {probes:?}"))?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.start().await?;
        check_eq!(
            number(&guest.console.bytes(8).await?),
            PASSES * 3,
            "the guest's result"
        );
        let events = events::all(&mut stream).await?;
        check_eq!(events.len() as u64, PASSES * probes.len() as u64, "events");
        check!(
            events.is_sorted_by_key(|event| event.tsc),
            "times don't grow"
        );
        guest.power_off().await?;
        for probe in guest.client.list_probes(VM).await? {
            check_eq!(probe.hits, PASSES, "hits of `{}`", probe.instruction);
            check_eq!(probe.missed, 0, "missed hits of `{}`", probe.instruction);
        }
        pass_with(format!("`{}`", found.instruction))
    })
}

/// Probes every instruction between two symbols.
async fn probe_all(guest: &Tiny, from: &str, to: &str) -> Result<Vec<Probe>, Failure> {
    let mut ends = Vec::new();
    for name in [from, to] {
        let (symbols, _) = guest.client.lookup_symbols(VM, name, 0).await?;
        let symbol = symbols.first().ok_or_else(|| wrong!("no symbol {name}"))?;
        ends.push(symbol.address);
    }
    let mut probes = Vec::new();
    for address in ends[0]..ends[1] {
        let spec = spec::parse(&format!("{address:#x}")).map_err(|error| wrong!("{error}"))?;
        match guest.client.register_probes(VM, vec![spec]).await {
            Ok(registered) => probes.extend(registered),
            Err(error) if error.to_string().contains("inside the instruction") => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(probes)
}

fn same_place(cx: &Context) -> TestResult {
    let kernel = image::build(|a, names| looped(a, names, |a| a.lea(rax, ptr(rax + 3))))?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        let one = |text: &str| spec::parse(text).map_err(|error| wrong!("{error}"));
        let batch = vec![one("a=body")?, one("b=body")?, one("c=body")?];
        guest.client.register_probes(VM, batch).await?;
        let again = guest.client.register_probes(VM, vec![one("a=body")?]).await;
        check!(again.is_err(), "a name was given twice at one place");
        guest
            .client
            .unregister_probes(VM, Vec::new(), vec!["b".into()])
            .await?;
        guest.start().await?;
        check_eq!(
            number(&guest.console.bytes(8).await?),
            PASSES * 3,
            "the guest's result"
        );
        guest.power_off().await?;
        let probes = guest.client.list_probes(VM).await?;
        let counts: Vec<(&str, u64)> = probes.iter().map(|p| (&*p.name, p.hits)).collect();
        check_eq!(counts, [("a", PASSES), ("c", PASSES)], "probes and hits");
        pass()
    })
}

/// The guest has int3s with its own handler, while a probe of ours is armed elsewhere. Checks the
/// return address on the handler's stack, and that the handler itself ran each time.
fn foreign(cx: &Context) -> TestResult {
    const INT3S: u64 = 50;
    let kernel = image::build(|a, names| {
        let mut handler = a.create_label();
        let mut again = a.create_label();
        let mut behind = a.create_label();
        interrupts::gates(a, &[(BREAKPOINT, handler)])?;
        a.xor(ebx, ebx)?;
        a.mov(r8, INT3S)?;
        a.set_label(&mut again)?;
        a.nop()?;
        names.here(a, "body")?;
        a.nop()?;
        a.int3()?;
        a.set_label(&mut behind)?;
        a.dec(r8)?;
        a.jnz(again)?;
        // How often the handler ran with the right return address.
        a.mov(rax, rbx)?;
        image::send_rax(a)?;
        image::power_off(a)?;

        a.set_label(&mut handler)?;
        a.lea(rax, ptr(behind))?;
        let mut otherwise = a.create_label();
        a.cmp(ptr(rsp), rax)?;
        a.jne(otherwise)?;
        a.inc(rbx)?;
        a.set_label(&mut otherwise)?;
        a.iretq()
    })?;
    cx.block_on(async {
        for armed in [false, true] {
            let mut guest = Tiny::new(cx, &kernel, 64).await?;
            if armed {
                let spec = spec::parse("body").map_err(|error| wrong!("{error}"))?;
                guest.client.register_probes(VM, vec![spec]).await?;
            }
            guest.start().await?;
            let count = number(&guest.console.bytes(8).await?);
            check_eq!(
                count,
                INT3S,
                "int3s that the guest's handler saw (probe armed: {armed})"
            );
            guest.power_off().await?;
            if let Some(probe) = guest.client.list_probes(VM).await?.first() {
                check_eq!(probe.hits, INT3S, "hits of the probe beside them");
            }
        }
        pass()
    })
}

fn stream_left(cx: &Context) -> TestResult {
    let kernel = image::build(|a, names| {
        // Waits for a byte, then loops.
        let mut wait = a.create_label();
        a.mov(dx, u32::from(COM1 + 5))?;
        a.set_label(&mut wait)?;
        a.in_(al, dx)?;
        a.test(al, 1)?;
        a.jz(wait)?;
        looped(a, names, |a| a.lea(rax, ptr(rax + 3)))
    })?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        let spec = spec::parse("probe=body").map_err(|error| wrong!("{error}"))?;
        guest.client.register_probes(VM, vec![spec]).await?;
        guest.start().await?;
        let (server, process) = (guest.server.process(), guest.server.vm_process(VM)?);
        let files = (server.open_files()?, process.open_files()?);
        let mut stays = guest.client.events(VM, Vec::new()).await?;
        for _ in 0..20 {
            // A connection of its own, which is cut while its stream is open.
            let leaver = guest.server.client().await?;
            let stream = leaver.events(VM, Vec::new()).await?;
            drop((stream, leaver));
        }
        guest.console.send(b"!").await?;
        check_eq!(
            number(&guest.console.bytes(8).await?),
            PASSES * 3,
            "the guest's result"
        );
        let mut events = 0;
        while let Some(message) = stays.next().await? {
            if let Message::Batch { events: batch, .. } = message {
                events += batch.len() as u64;
            }
        }
        check_eq!(events, PASSES, "events of the client that stayed");
        guest.power_off().await?;
        // The server closes a connection when it notices its end: soon, but not at once.
        while server.open_files()? > files.0 || process.open_files()? > files.1 {
            tokio::task::yield_now().await;
        }
        pass()
    })
}

//! Clients that share a probe's place in a tiny guest, and what goes when one of the clients goes.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, al, dx, ebx, ptr, rax, rbx};
use vmprobe_client::v1::{EventCursor, Probe, ProbeSpec, ReadMemoryRequest};
use vmprobe_client::{ClientError, EventOptions, EventStream, Message, Session, spec};

use super::image::{self, COM1};
use super::vm::{Tiny, VM, number};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const SHARED: Test = Test {
    name: "tiny_clients_share_a_place_and_each_takes_its_own_probe_with_it",
    ids: &["SV02"],
    needs: Needs::Tiny,
    run: shared,
};

pub const CUT_OFF: Test = Test {
    name: "tiny_a_client_that_was_cut_off_finds_its_probes_again",
    ids: &["SV02"],
    needs: Needs::Tiny,
    run: cut_off,
};

pub const RESUMED: Test = Test {
    name: "tiny_a_stream_that_breaks_goes_on_where_it_was_with_every_event_once",
    ids: &["SV03"],
    needs: Needs::Tiny,
    run: resumed,
};

/// The longest that probes stay: far more than a test takes.
const LONG: Duration = Duration::from_secs(600);
/// The byte of an int3.
const INT3: u8 = 0xcc;

/// Builds a kernel that goes through `body` until it is sent a byte, sends its number of passes, and ends at another
/// byte.
pub fn kernel() -> Result<Vec<u8>, Failure> {
    let wait = |a: &mut CodeAssembler| -> Result<(), IcedError> {
        a.mov(dx, u32::from(COM1 + 5))?;
        a.in_(al, dx)?;
        a.test(al, 1)
    };
    Ok(image::build(|a, names| {
        let (mut again, mut end) = (a.create_label(), a.create_label());
        a.xor(ebx, ebx)?;
        a.set_label(&mut again)?;
        a.nop()?;
        names.here(a, "body")?;
        a.lea(rbx, ptr(rbx + 1))?;
        names.here(a, "after")?;
        wait(a)?;
        a.jz(again)?;
        // The byte is read, so that the guest then waits for the next one.
        a.mov(dx, u32::from(COM1))?;
        a.in_(al, dx)?;
        a.mov(rax, rbx)?;
        image::send_rax(a)?;
        a.set_label(&mut end)?;
        wait(a)?;
        a.jz(end)?;
        image::power_off(a)
    })?)
}

pub fn probe(text: &str) -> Result<Vec<ProbeSpec>, Failure> {
    Ok(vec![spec::parse(text).map_err(|error| wrong!("{error}"))?])
}

/// The bytes at `body`: as they are in memory, or as the guest's kernel has them.
async fn text(guest: &Tiny, as_is: bool) -> Result<Vec<u8>, Failure> {
    let (symbols, _) = guest.client.lookup_symbols(VM, "body", 0).await?;
    let body = symbols.first().ok_or_else(|| wrong!("no symbol"))?;
    let request = ReadMemoryRequest {
        vm: VM.into(),
        address: body.address,
        length: 8,
        as_is,
        ..Default::default()
    };
    Ok(guest.client.read_memory_by(request).await?)
}

/// Lists the probes until they satisfy `is_so`.
async fn until(guest: &Tiny, is_so: impl Fn(&[Probe]) -> bool) -> Result<Vec<Probe>, Failure> {
    loop {
        let probes = guest.client.list_probes(VM).await?;
        if is_so(&probes) {
            return Ok(probes);
        }
    }
}

/// A command that traces until it is ended.
struct Tracing(Child);

impl Tracing {
    fn start(cx: &Context, guest: &Tiny) -> Result<Self, Failure> {
        let mut command = Command::new(cx.program("vmprobe"));
        command.args(["trace", "traced=body", "--server", &guest.server.endpoint]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(command.spawn().map_err(Failure::io("run vmprobe"))?))
    }
}

impl Drop for Tracing {
    /// Ends it by SIGKILL.
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shared(cx: &Context) -> TestResult {
    let kernel = kernel()?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        guest
            .client
            .register_probes(VM, probe("kept=body")?)
            .await?;
        let other = guest.server.client().await?;
        let session = other.open_session(VM, Duration::ZERO).await?;
        session.register_probes(probe("held=body")?).await?;
        let traced = Tracing::start(cx, &guest)?;
        guest.start().await?;
        let is_hit = |probe: &Probe| probe.hits > 0;
        let probes = until(&guest, |probes| {
            probes.len() == 3 && probes.iter().all(is_hit)
        });
        let stay: Vec<_> = probes
            .await?
            .iter()
            .map(|probe| !probe.in_session)
            .collect();
        check_eq!(stay, [true, false, false], "probes that stay");
        let original = text(&guest, false).await?;
        check_eq!(original.len(), 8, "bytes of text");
        let patched = [&[INT3], &original[1..]].concat();
        check_eq!(
            text(&guest, true).await?,
            patched,
            "the text below three probes"
        );

        drop(traced);
        let left = until(&guest, |probes| probes.len() < 3).await?;
        let names: Vec<_> = left.iter().map(|probe| &*probe.name).collect();
        check_eq!(names, ["kept", "held"], "probes when a client was killed");
        drop(session);
        let left = until(&guest, |probes| probes.len() < 2).await?;
        check_eq!(left[0].name, "kept", "the probe that stays");
        check_eq!(
            text(&guest, true).await?,
            patched,
            "the text below one probe"
        );

        guest.console.send(b"!").await?;
        let passes = number(&guest.console.bytes(8).await?);
        let kept = guest.client.list_probes(VM).await?.remove(0);
        check_eq!((kept.hits, kept.missed), (passes, 0), "hits and misses");
        let exits = guest.client.get_vm(VM).await?.exits.unwrap_or_default();
        check_eq!(
            exits.breakpoint,
            passes,
            "exits for up to three probes at a place"
        );
        guest
            .client
            .unregister_probes(VM, vec![kept.id], Vec::new())
            .await?;
        check_eq!(
            text(&guest, true).await?,
            original,
            "the text without probes"
        );
        guest.console.send(b"!").await?;
        guest.power_off().await?;
        pass()
    })
}

/// Returns the next batch of a stream: its events' times, and how many events were lost before them.
async fn batch(stream: &mut EventStream) -> Result<Option<(Vec<u64>, u64)>, Failure> {
    match stream.next().await? {
        Some(Message::Batch { lost, events }) => {
            let times = events.iter().map(|event| event.tsc);
            Ok(Some((times.collect(), lost)))
        }
        Some(Message::Progress { .. } | Message::Ended(_)) | None => Ok(None),
    }
}

fn resumed(cx: &Context) -> TestResult {
    /// How often the stream breaks.
    const BREAKS: usize = 20;
    let lingering = EventOptions::lingering(LONG);
    let kernel = kernel()?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        guest.client.register_probes(VM, probe("body")?).await?;
        let mut client = guest.server.client().await?;
        let mut stream = client.events_to_resume(VM, Vec::new(), lingering).await?;
        guest.start().await?;
        let (mut times, mut lost) = (Vec::new(), 0);
        for number in 0..BREAKS {
            // A batch that its client has received but not acknowledged comes again.
            let at = stream.cursor().clone();
            let first = batch(&mut stream).await?;
            batch(&mut stream).await?;
            drop((stream, client));
            client = guest.server.client().await?;
            stream = client.resume_events(VM, &at, lingering).await?;
            check_eq!(stream.cursor(), &at, "the cursor of a stream resumed");
            let again = batch(&mut stream).await?;
            check_eq!(again, first, "the batch that comes again (break {number})");
            let (new, more) = again.ok_or_else(|| wrong!("the stream has ended"))?;
            times.extend(new);
            lost += more;
        }
        guest.console.send(b"!").await?;
        let passes = number(&guest.console.bytes(8).await?);
        guest.console.send(b"!").await?;
        guest.power_off().await?;
        // The same after the guest's end.
        let at = stream.cursor().clone();
        drop(stream);
        stream = client.resume_events(VM, &at, lingering).await?;
        while let Some((new, more)) = batch(&mut stream).await? {
            times.extend(new);
            lost += more;
        }
        check!(times.is_sorted_by(|one, next| one < next), "an event came twice, or late");
        check_eq!(times.len() as u64 + lost, passes, "events and losses");
        check_eq!(guest.client.list_probes(VM).await?[0].hits, passes, "hits");

        let behind = EventCursor {
            batch: u64::MAX,
            ..at
        };
        for expected in ["can go on behind one of the batches", "there is no such stream"] {
            match client.resume_events(VM, &behind, lingering).await {
                Err(refused) => check!(refused.to_string().contains(expected), "{refused}"),
                Ok(_) => return Err(wrong!("the stream goes on behind what never was")),
            }
        }
        let too_long = guest.client.events_to_resume(VM, Vec::new(), EventOptions::lingering(2 * LONG)).await;
        check!(
            matches!(&too_long, Err(ClientError::InvalidArgument { fields, .. }) if fields == &["linger_ms"]),
            "{too_long:?}"
        );
        pass_with(format!("{passes} events, {lost} lost, {BREAKS} breaks"))
    })
}

async fn end_of(session: &mut Session) -> Result<ClientError, Failure> {
    match session.guest_ended().await {
        Ok(ending) => Err(wrong!("the session goes on to the guest's end: {ending:?}")),
        Err(error) => Ok(error),
    }
}

fn cut_off(cx: &Context) -> TestResult {
    let kernel = kernel()?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        guest.start().await?;
        let client = guest.server.client().await?;
        let session = client.open_session(VM, LONG).await?;
        let probes = session.register_probes(probe("one=body")?).await?;
        let (name, ids) = (session.name().to_owned(), vec![probes[0].id]);
        drop((session, client));
        let client = guest.server.client().await?;
        let mut found = client.resume_session(VM, LONG, &name).await?;
        check_eq!(found.probe_ids(), ids, "the probes of a session resumed");

        // The client that resumes a session last has it. It may have noticed before the server that it was cut off.
        let last = guest.client.resume_session(VM, Duration::ZERO, &name).await?;
        let ended = end_of(&mut found).await?;
        check!(ended.to_string().contains("another stream has resumed"), "{ended}");
        check_eq!(last.probe_ids(), ids, "the probes of a session taken over");
        drop(found);
        check_eq!(guest.client.list_probes(VM).await?.len(), 1, "probes");
        drop(last);
        until(&guest, <[Probe]>::is_empty).await?;

        let refused = guest.client.resume_session(VM, LONG, &name).await;
        check!(matches!(refused, Err(ClientError::NotFound(_))), "{refused:?}");
        let refused = guest.client.open_session(VM, 2 * LONG).await;
        check!(
            matches!(&refused, Err(ClientError::InvalidArgument { fields, .. }) if fields == &["linger_ms"]),
            "{refused:?}"
        );

        let mut session = guest.client.open_session(VM, Duration::ZERO).await?;
        guest.console.send(b"!").await?;
        guest.console.bytes(8).await?;
        guest.console.send(b"!").await?;
        let ending = session.guest_ended().await?;
        check_eq!(ending.exit_code, 0, "the guest's end");
        guest.power_off().await?;
        pass()
    })
}

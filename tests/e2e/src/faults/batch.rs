//! A guest, the process of a VM or a client that ends in the middle of a batch of thousands of probes.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use iced_x86::code_asm::{CodeAssembler, al, dx, ptr, qword_ptr, rax, rbx, rsi};
use seeded_random::Random;
use tempfile::TempDir;
use tiny_kernel::{self as image, COM1, DATA, UPPER_HALF};
use vmprobe_client::v1::{EndingKind, Probe, ProbeSpec, ReadMemoryRequest, VmState};
use vmprobe_client::{Client, ClientError, spec};

use super::load::{self, COUNT};
use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};
use crate::tiny::vm::number;

pub const GUEST: Test = Test {
    name: "tiny_a_guest_that_crashes_in_the_middle_of_a_batch_has_it_whole_and_harms_no_other",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: guest,
};

pub const PROCESS: Test = Test {
    name: "tiny_a_process_of_a_vm_that_dies_in_the_middle_of_a_batch_is_reported_and_harms_no_other",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: process,
};

pub const CLIENT: Test = Test {
    name: "tiny_a_client_that_is_killed_in_the_middle_of_a_batch_leaves_nothing_of_it",
    ids: &["SV07", "SV02"],
    needs: Needs::Tiny,
    run: client,
};

/// Instructions of the guest that are probed together.
const BATCH: u64 = 2000;
/// How often each fault is tried, each time at another moment.
const TIMES: u64 = 9;
/// The VM that is harmed, and the one beside it.
const VM: &str = "harmed";
const OTHER: &str = "other";

/// A kernel with [`BATCH`] instructions to probe. They are never executed. A byte on its serial port makes it crash at
/// once.
fn kernel() -> Result<Vec<u8>, Failure> {
    Ok(image::build(|a, names| {
        let mut again = a.create_label();
        a.mov(dx, u32::from(COM1 + 5))?;
        a.set_label(&mut again)?;
        a.in_(al, dx)?;
        a.test(al, 1)?;
        a.jz(again)?;
        crash(a)?;
        for at in 0..BATCH {
            names.here(a, &format!("body_{at}"))?;
            a.lea(rbx, ptr(rbx + 1))?;
        }
        names.here(a, "behind")?;
        a.nop()
    })?)
}

/// Raises an exception without an IDT: neither it nor the double fault that follows has a handler (SDM vol. 3, 6.15,
/// triple fault).
fn crash(a: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
    a.mov(rax, DATA + 0x8000)?;
    a.lidt(ptr(rax))?;
    a.ud2()
}

/// A server with a second guest, whose one probe must count each pass.
struct Beside {
    server: Server,
    client: Client,
    folder: TempDir,
    text: Option<Vec<u8>>,
    /// How long a batch takes from the request to the answer.
    takes: Duration,
}

impl Beside {
    async fn start(cx: &Context) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let server = Server::start(cx)?;
        let client = server.client().await?;
        let other = image::build(|a, names| {
            let mut again = a.create_label();
            a.mov(rsi, COUNT)?;
            a.set_label(&mut again)?;
            a.nop()?;
            names.here(a, "body")?;
            a.add(qword_ptr(rsi), 1)?;
            names.here(a, "after")?;
            a.jmp(again)
        })?;
        let mut request = load::request(folder.path(), OTHER, &other)?;
        request.hold = true;
        client.create_vm(request).await?;
        client
            .register_probes(OTHER, parse(["p:count body"])?)
            .await?;
        client.start_vm(OTHER).await?;
        let mut beside = Self {
            server,
            client,
            folder,
            text: None,
            takes: Duration::ZERO,
        };
        beside.make().await?;
        beside.text = Some(beside.read_text().await?);
        let begun = Instant::now();
        let probes = beside.client.register_probes(VM, batch()?).await?;
        beside.takes = begun.elapsed();
        check_eq!(probes.len() as u64, BATCH, "probes of a batch");
        beside.client.delete_vm(VM).await?;
        Ok(beside)
    }

    /// Makes the VM that is to be harmed.
    async fn make(&self) -> Result<(), Failure> {
        let request = load::request(self.folder.path(), VM, &kernel()?)?;
        self.client.create_vm(request).await?;
        Ok(())
    }

    /// Reads the text of the guest's bodies from memory, by their physical addresses. The upper half is mapped only
    /// between the guest's first instructions and its crash, which resets the vCPU of some processors.
    async fn read_text(&self) -> Result<Vec<u8>, Failure> {
        let (symbols, _) = self.client.lookup_symbols(VM, "body_0", 0).await?;
        let first = symbols.first().ok_or_else(|| wrong!("no symbol"))?;
        let (symbols, _) = self.client.lookup_symbols(VM, "behind", 0).await?;
        let behind = symbols.first().ok_or_else(|| wrong!("no symbol"))?;
        let request = ReadMemoryRequest {
            vm: VM.into(),
            address: first.address - UPPER_HALF,
            length: (behind.address - first.address) as u32,
            as_is: true,
            ..Default::default()
        };
        Ok(self.client.read_memory_by(request).await?)
    }

    /// Fails unless the text is whole, as it is without probes.
    async fn is_whole(&self) -> Result<(), Failure> {
        let text = self.read_text().await?;
        check!(
            Some(&text) == self.text.as_ref(),
            "the text isn't whole: {text:x?}"
        );
        Ok(())
    }

    /// Returns a moment inside a batch. The last part of a batch's time is the client's own, which reads the answer.
    fn moment(&self, random: &mut Random) -> Duration {
        self.takes.mul_f64(random.below(500) as f64 / 1000.0)
    }

    /// Sends a batch; its answer comes while something else happens.
    async fn send(&self) -> Result<tokio::task::JoinHandle<Answer>, Failure> {
        let (client, batch) = (self.server.client().await?, batch()?);
        Ok(tokio::spawn(async move {
            client.register_probes(VM, batch).await
        }))
    }

    /// Checks that the other guest's count is that of its probe, and that the server ends well.
    async fn end(self) -> Result<(), Failure> {
        let client = &self.client;
        client.pause_vm(OTHER).await?;
        let hits = client.list_probes(OTHER).await?[0].hits;
        let counted = number(&client.read_memory(OTHER, 0, COUNT, 8).await?);
        check_eq!(hits, counted, "hits of the probe in the other guest");
        check!(hits > 0, "the other guest stands still");
        check_eq!(self.server.stop()?, Some(0), "exit code of the server");
        Ok(())
    }
}

/// What is answered to a batch.
type Answer = Result<Vec<Probe>, ClientError>;

fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<ProbeSpec>, Failure> {
    let parsed: Result<_, _> = texts.into_iter().map(spec::parse).collect();
    parsed.map_err(|error| wrong!("{error}"))
}

fn batch() -> Result<Vec<ProbeSpec>, Failure> {
    let texts: Vec<String> = (0..BATCH).map(|at| format!("p:b{at} body_{at}")).collect();
    parse(texts.iter().map(String::as_str))
}

fn guest(cx: &Context) -> TestResult {
    cx.block_on(async {
        let (beside, mut random) = (Beside::start(cx).await?, cx.random());
        let client = &beside.client;
        let mut in_time = 0;
        for _ in 0..TIMES {
            beside.make().await?;
            let (input, _output) = client.attach_console(VM).await?;
            let answer = beside.send().await?;
            tokio::time::sleep(beside.moment(&mut random)).await;
            input.send(b"!".to_vec()).await?;
            let ending = client.wait_vm(VM).await?;
            check_eq!(ending.kind(), EndingKind::TripleFault, "{}", ending.detail);
            in_time += u64::from(!answer.is_finished());
            // Probes of a guest that has ended can be listed and changed as before, and its text can be read.
            let registered = answer.await.map_err(|error| wrong!("{error}"))??;
            check_eq!(registered.len() as u64, BATCH, "probes registered");
            let ids: Vec<u64> = registered.iter().map(|probe| probe.id).collect();
            let listed = client.list_probes(VM).await?;
            let listed: Vec<u64> = listed.iter().map(|probe| probe.id).collect();
            check_eq!(listed, ids, "probes of a guest that has crashed");
            check!(
                Some(beside.read_text().await?) != beside.text,
                "the text of a guest with probes has none"
            );
            client.unregister_probes(VM, ids, Vec::new()).await?;
            beside.is_whole().await?;
            client.delete_vm(VM).await?;
        }
        beside.end().await?;
        pass_with(format!(
            "{in_time} of {TIMES} guests had ended before the answer"
        ))
    })
}

fn process(cx: &Context) -> TestResult {
    cx.block_on(async {
        let (beside, mut random) = (Beside::start(cx).await?, cx.random());
        let client = &beside.client;
        let mut cut_off = 0;
        for time in 0..TIMES {
            // The signals of a panic that can't be caught, of an invalid instruction, and of the host's OOM killer.
            let signals = [libc::SIGABRT, libc::SIGILL, libc::SIGKILL];
            let signal = signals[time as usize % signals.len()];
            beside.make().await?;
            let process = beside.server.vm_process(VM)?;
            let answer = beside.send().await?;
            tokio::time::sleep(beside.moment(&mut random)).await;
            process.signal(signal)?;
            let ending = client.wait_vm(VM).await?;
            check_eq!(ending.kind(), EndingKind::Failed, "{}", ending.detail);
            let named = format!("signal: {signal}");
            check!(
                ending.detail.contains(&named),
                "{}, not {named}",
                ending.detail
            );
            match answer.await.map_err(|error| wrong!("{error}"))? {
                Ok(registered) => {
                    check_eq!(registered.len() as u64, BATCH, "probes registered");
                }
                Err(ClientError::FailedPrecondition(why)) => {
                    check!(why.contains(&named), "{why}, not {named}");
                    cut_off += 1;
                }
                Err(other) => return Err(wrong!("a process has died: {other:?}")),
            }
            let vm = client.get_vm(VM).await?;
            check_eq!(vm.state(), VmState::Ended, "state of the VM");
            client.delete_vm(VM).await?;
            check!(!process.exists(), "a process that has died is still there");
        }
        beside.end().await?;
        pass_with(format!("{cut_off} of {TIMES} batches were cut off"))
    })
}

/// A command line that traces. It ends by SIGKILL when this is dropped.
struct Tracing(Child);

impl Drop for Tracing {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _ = self.0.wait();
    }
}

fn client(cx: &Context) -> TestResult {
    cx.block_on(async {
        let (beside, mut random) = (Beside::start(cx).await?, cx.random());
        let client = &beside.client;
        beside.make().await?;
        let start = || {
            let mut command = Command::new(cx.program("vmprobe"));
            command.args(["trace", "p:all body_*", "--vm", VM]);
            command.args(["--server", &beside.server.endpoint]);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let child = command.stderr(Stdio::null()).spawn();
            child.map(Tracing).map_err(Failure::io("run vmprobe"))
        };
        let begun = Instant::now();
        let tracing = start()?;
        while client.list_probes(VM).await?.is_empty() {
            tokio::task::yield_now().await;
        }
        let takes = begun.elapsed();
        drop(tracing);
        let mut in_time = 0;
        for _ in 0..TIMES {
            while !client.list_probes(VM).await?.is_empty() {
                tokio::task::yield_now().await;
            }
            beside.is_whole().await?;
            let tracing = start()?;
            tokio::time::sleep(takes.mul_f64(random.below(1200) as f64 / 1000.0)).await;
            drop(tracing);
            let probes = client.list_probes(VM).await?.len() as u64;
            check!([0, BATCH].contains(&probes), "{probes} of {BATCH} probes");
            in_time += u64::from(probes > 0);
        }
        while !client.list_probes(VM).await?.is_empty() {
            tokio::task::yield_now().await;
        }
        beside.is_whole().await?;
        beside.end().await?;
        pass_with(format!("{in_time} of {TIMES} clients had all their probes"))
    })
}

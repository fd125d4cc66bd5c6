//! A guest that makes 100,000 events a second. Each of them must be reported or counted as lost.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use iced_x86::code_asm::{ptr, qword_ptr, rbx, rsi};
use tiny_kernel::{self as image, DATA};
use vmprobe_client::v1::{CreateVmRequest, Event, Probe, ProbeSpec};
use vmprobe_client::{Client, EventStream, Message, spec};

use crate::test::{Failure, check, check_eq, wrong};

/// Events a second that are wanted.
pub const RATE: f64 = 100_000.0;
/// Numbers of probes to try at the one instruction. Each probe makes an event of a hit, so more probes mean a higher
/// rate.
const PROBES: [usize; 3] = [16, 64, 256];
/// Events over which a rate is measured.
const MEASURED: u64 = 10_000;
/// Where the guest counts its passes.
pub const COUNT: u64 = DATA;

/// Builds a kernel that only goes through `body` again and again; `rbx` is the number of the pass, from 1.
///
/// # Errors
/// If it doesn't assemble.
pub fn kernel() -> Result<Vec<u8>, Failure> {
    Ok(image::build(|a, names| {
        let mut again = a.create_label();
        a.mov(rsi, COUNT)?;
        a.mov(rbx, 0_u64)?;
        a.set_label(&mut again)?;
        a.lea(rbx, ptr(rbx + 1))?;
        names.here(a, "body")?;
        a.add(qword_ptr(rsi), 1)?;
        a.jmp(again)
    })?)
}

/// A request for a VM of a kernel, which is written into the folder.
///
/// # Errors
/// If it can't be written.
pub fn request(folder: &Path, name: &str, kernel: &[u8]) -> Result<CreateVmRequest, Failure> {
    let path = folder.join(format!("{name}-kernel"));
    fs::write(&path, kernel).map_err(Failure::io("write a kernel"))?;
    Ok(CreateVmRequest {
        name: name.into(),
        kernel: path.to_string_lossy().into_owned(),
        memory_mib: 64,
        ..Default::default()
    })
}

/// Returns `count` probes at `body`.
///
/// # Errors
/// None that this text causes.
pub fn specs(count: usize) -> Result<Vec<ProbeSpec>, Failure> {
    let parse = |at| spec::parse(&format!("p:load{at} body regs=rbx"));
    let specs: Result<_, _> = (0..count).map(parse).collect();
    specs.map_err(|error| wrong!("{error}"))
}

/// A client that follows all probes at `body`, which were registered together.
#[derive(Debug)]
pub struct Follower {
    pub stream: EventStream,
    probes: Vec<Probe>,
    /// The place of each probe among them, by its id.
    numbers: HashMap<u64, u64>,
    /// The pass of the first event, and the place behind the last event, counted in events from the first one.
    first: Option<u64>,
    place: u64,
    pub events: u64,
    pub lost: u64,
}

impl Follower {
    /// Follows probes of which none has been hit yet.
    pub fn new(stream: EventStream, probes: Vec<Probe>) -> Self {
        let numbers = probes.iter().map(|probe| probe.id).zip(0..).collect();
        Self {
            stream,
            probes,
            numbers,
            first: None,
            place: 0,
            events: 0,
            lost: 0,
        }
    }

    /// Registers as many probes as the wanted rate takes, or the most of `PROBES`. Returns their follower and the
    /// rate.
    ///
    /// # Errors
    /// If an event is missing.
    pub async fn under_load(client: &Client, vm: &str) -> Result<(Self, f64), Failure> {
        for count in PROBES {
            let stream = client.events(vm, Vec::new()).await?;
            let probes = client.register_probes(vm, specs(count)?).await?;
            let ids: Vec<u64> = probes.iter().map(|probe| probe.id).collect();
            let mut follower = Self::new(stream, probes);
            let rate = follower.rate().await?;
            if rate >= RATE || count == PROBES[PROBES.len() - 1] {
                return Ok((follower, rate));
            }
            client.unregister_probes(vm, ids, Vec::new()).await?;
        }
        Err(wrong!("no load"))
    }

    /// Returns how many events a second come or are reported as lost.
    async fn rate(&mut self) -> Result<f64, Failure> {
        self.next().await?;
        let (begun, before) = (Instant::now(), self.total());
        while self.total() < before + MEASURED {
            self.next().await?;
        }
        Ok((self.total() - before) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Events that came or were reported as lost.
    pub fn total(&self) -> u64 {
        self.events + self.lost
    }

    /// Takes a batch.
    ///
    /// # Errors
    /// If an event is missing, or the stream has ended.
    pub async fn next(&mut self) -> Result<(), Failure> {
        match self.stream.next().await? {
            Some(message) => self.take(message),
            None => Err(wrong!("the stream has ended")),
        }
    }

    /// Takes a batch. Checks that the events missing between it and the batch before are reported as lost.
    ///
    /// # Errors
    /// If it isn't so, or it is no batch.
    pub fn take(&mut self, message: Message) -> Result<(), Failure> {
        let Message::Batch { lost, events } = message else {
            return Err(wrong!("{message:?} instead of a batch"));
        };
        self.place += lost;
        self.lost += lost;
        for event in events {
            let found = self.place_of(&event)?;
            check_eq!(
                found,
                self.place,
                "the place of an event behind {} events and {} lost, {lost} of them last",
                self.events,
                self.lost
            );
            self.place += 1;
            self.events += 1;
        }
        Ok(())
    }

    /// Returns the place of an event among all: each pass makes one for each probe, in the order of their registration.
    fn place_of(&mut self, event: &Event) -> Result<u64, Failure> {
        let pass = event.registers.map_or(0, |registers| registers.rbx);
        let first = *self.first.get_or_insert(pass);
        let number = self.numbers.get(&event.probe_id);
        let number = number.ok_or_else(|| wrong!("an event of probe {}", event.probe_id))?;
        check!(pass >= first, "pass {pass} behind {first}");
        Ok((pass - first) * self.probes.len() as u64 + number)
    }

    /// Fails unless all events of each pass came or were reported as lost, also of the last pass.
    ///
    /// # Errors
    /// If it isn't so.
    pub fn is_whole(&self) -> Result<(), Failure> {
        let probes = self.probes.len() as u64;
        check!(
            self.total() > 0 && self.total().is_multiple_of(probes),
            "{} events and {} lost of {probes} probes",
            self.events,
            self.lost
        );
        Ok(())
    }

    /// Probes that it follows.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }
}

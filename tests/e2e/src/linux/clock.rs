//! The clock of the guest's own log, by an event's counter.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use guest_kernel::Image;
use guest_kernel::btf::Btf;
use guest_kernel::clock::{Clock, Conversion};
use guest_kernel::symbols::Symbols;
use guest_state::x86_64::paging::{PageTables, PagingMode};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, Tsc};
use vmprobe_client::v1::Event;

use super::guest::{Guest, VM, files};
use super::jumps::jump;
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "an_event_has_the_time_that_the_log_of_6_1_has",
        ids: &[],
        needs: Needs::Linux,
        run: |cx| log(cx, files::BZIMAGE_6_1, files::VMLINUX_6_1),
    },
    Test {
        name: "an_event_has_the_time_that_the_log_of_6_12_has",
        ids: &[],
        needs: Needs::Linux,
        run: |cx| log(cx, files::BZIMAGE_6_12, files::VMLINUX_6_12),
    },
];

const VCPUS: u32 = 2;
/// The function that takes the time of a log line as its first step, and one that it calls afterwards
/// (`kernel/printk/printk.c`).
const LOGS: &str = "vprintk_store";
const RESERVES: &str = "prb_reserve";
/// Lines that are logged at a time, and how far apart in time. That is much farther than the allowed distance.
const LINES: usize = 12;
const SAY: &str = "say count=12 ms=20";
/// The most nanoseconds between two hits around a time of the log, for the closest pair.
const ALLOWED_NS: u64 = 1_000_000;

fn log(cx: &Context, kernel: &'static str, image: &str) -> TestResult {
    cx.block_on(async {
        let clock = clock(&cx.file(image))?;
        let mut guest = Guest::breakpoints(cx, kernel, VCPUS).await?;
        let slow = bracketed(&mut guest, &clock, false).await?;
        guest.client.set_optimization(VM, true).await?;
        let fast = bracketed(&mut guest, &clock, true).await?;
        check!(
            fast[0] < ALLOWED_NS,
            "jumps before and after the log takes its time are {fast:?} ns apart"
        );
        guest.finish().await?;
        pass_with(format!(
            "between breakpoints that are {slow:?} ns apart, and jumps that are {fast:?} ns apart"
        ))
    })
}

/// Checks that the log's times lie between the times of two probes. A vCPU may be held up for long in between: at a
/// breakpoint, by the host, or at a page that it touches for the first time. Returns how far apart the two are at
/// least, and at most.
async fn bracketed(guest: &mut Guest, clock: &Clock, as_jumps: bool) -> Result<[u64; 2], Failure> {
    let (logged, told) = said(guest, clock, &[LOGS, RESERVES], as_jumps).await?;
    let mut apart = [u64::MAX, 0];
    for time in &logged {
        let pair = told.windows(2).find(|pair| match pair {
            [(0, before), (1, after)] => before <= &time.end && &time.start <= after,
            _ => false,
        });
        let pair = pair.ok_or_else(|| {
            wrong!("no probes before and after a time of the log: {logged:?}, {told:?}")
        })?;
        let between = pair[1].1 - pair[0].1;
        apart = [apart[0].min(between), apart[1].max(between)];
    }
    Ok(apart)
}

/// Has the guest log some lines with probes at these functions. Returns the times of the lines, which the log has to
/// the microsecond, and, in order, which of the probes was hit and when, in nanoseconds.
async fn said(
    guest: &mut Guest,
    clock: &Clock,
    functions: &[&str],
    as_jumps: bool,
) -> Result<(Vec<Range<u64>>, Vec<(usize, u64)>), Failure> {
    let mut stream = guest.client.events(VM, Vec::new()).await?;
    let probes = guest.probes(functions).await?;
    let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
    for name in names.iter().filter(|_| as_jumps) {
        jump(guest, name).await?;
    }
    let logged = times(guest).await?;
    check_eq!(logged.len(), LINES, "times of lines");
    let removed = guest.remove(&names).await?;
    let hits = removed.iter().map(|probe| probe.hits).sum();
    let (mut events, lost) = events::next(&mut stream, hits).await?;
    check_eq!(lost, 0, "lost events");

    let conversions = conversions(guest, clock).await?;
    events.sort_by_key(|event| event.tsc);
    let tell = |event: &Event| {
        let probe = probes.iter().position(|probe| probe.id == event.probe_id);
        let of_cpu = conversions.get(event.vcpu as usize);
        match (probe, of_cpu) {
            (Some(probe), Some(of_cpu)) => Ok((probe, of_cpu.unbounded().ns(Tsc(event.tsc)))),
            _ => Err(wrong!("an event of another probe or vCPU: {event:?}")),
        }
    };
    let told: Result<_, Failure> = events.iter().map(tell).collect();
    Ok((logged, told?))
}

/// Has the guest log some lines. Returns their times in the log, each as the nanoseconds that the logged microsecond
/// covers.
async fn times(guest: &mut Guest) -> Result<Vec<Range<u64>>, Failure> {
    let report = guest.work(SAY).await?;
    let times = report["times_us"].as_array();
    let times = times.ok_or_else(|| wrong!("no times in {report}"))?;
    let times = times.iter().filter_map(serde_json::Value::as_u64);
    Ok(times.map(|us| us * 1000..us * 1000 + 999).collect())
}

fn clock(image: &str) -> Result<Clock, Failure> {
    let file = std::fs::read(image).map_err(Failure::io("read the kernel"))?;
    let told = |error: &dyn std::error::Error| wrong!("{image}: {error}");
    let image = Image::parse(&file).map_err(|error| told(&error))?;
    let symbols = Symbols::from_image(&image).map_err(|error| told(&error))?;
    let types = Btf::from_image(&image, &symbols).map_err(|error| told(&error))?;
    let clock = types.and_then(|types| Clock::find(&symbols, &types));
    clock.ok_or_else(|| wrong!("the kernel doesn't tell where its clock is"))
}

/// Reads how each CPU converts its counter into a time now.
async fn conversions(guest: &Guest, clock: &Clock) -> Result<Vec<Conversion>, Failure> {
    guest.client.pause_vm(VM).await?;
    let offsets = guest.symbol("__per_cpu_offset").await?;
    let offsets = guest.memory(offsets, VCPUS as usize * 8).await?;
    let mut conversions = Vec::new();
    for offset in offsets.as_chunks().0 {
        let variables = GuestVirtAddr(u64::from_le_bytes(*offset));
        conversions.push(conversion(guest, clock, variables).await?);
    }
    guest.client.resume_vm(VM).await?;
    Ok(conversions)
}

async fn conversion(
    guest: &Guest,
    clock: &Clock,
    variables: GuestVirtAddr,
) -> Result<Conversion, Failure> {
    // The server reads by virtual addresses.
    let tables = PageTables {
        root: GuestPhysAddr(0),
        mode: PagingMode::Off,
        no_execute: false,
    };
    let seen = Seen::default();
    loop {
        let read = clock.read(&seen, tables, variables);
        let Some(missed) = seen.missed.take() else {
            return read.ok_or_else(|| wrong!("the guest has no clock that is known"));
        };
        let page = guest.memory(missed, PAGE as usize).await?;
        seen.pages.borrow_mut().insert(missed, page);
    }
}

const PAGE: u64 = 4096;

/// What has been read of a guest's memory, by virtual addresses, and what remains to be read.
#[derive(Debug, Default)]
struct Seen {
    pages: RefCell<BTreeMap<u64, Vec<u8>>>,
    missed: Cell<Option<u64>>,
}

impl GuestMemory for Seen {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        let pages = self.pages.borrow();
        for (at, byte) in (at.0..).zip(into.iter_mut()) {
            let (page, offset) = (at & !(PAGE - 1), at % PAGE);
            let Some(bytes) = pages.get(&page) else {
                self.missed.set(Some(page));
                let at = GuestPhysAddr(at);
                return Err(MemoryError { at, len: 1 });
            };
            *byte = bytes[offset as usize];
        }
        Ok(())
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        let len = from.len();
        Err(MemoryError { at, len })
    }
}

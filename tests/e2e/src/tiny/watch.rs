//! Watchpoints of every length, on accesses of every length.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, al, ax, byte_ptr, dword_ptr, eax, ptr, qword_ptr, rax, rdi, word_ptr,
};
use vmprobe_client::spec;
use vmprobe_client::v1::EventKind;

use super::image::{self, DATA, UPPER_HALF};
use super::vm::{Tiny, VM};
use crate::context::{Context, Place};
use crate::events;
use crate::test::{Needs, Outcome, Test, TestResult, check, check_eq, pass_with, wrong};

pub const SIZES: Test = Test {
    name: "tiny_watchpoints_of_each_length_tell_of_each_access_that_overlaps_them",
    ids: &["KP18"],
    needs: Needs::Tiny,
    run: sizes,
};

/// Each watchpoint has an area of its own, this far from the next, with unused memory around it.
const LINES: u64 = UPPER_HALF + DATA + 0x4000;
const APART: u64 = 0x40;
const LENGTHS: [u64; 4] = [1, 2, 4, 8];
/// Where an access begins, relative to the watchpoint's start; its bytes; and how often it is made. Some are beside a
/// watchpoint of any length, others only beside a shorter one.
const ACCESSES: [(i64, u64, u64); 10] = [
    (0, 1, 3),
    (0, 2, 2),
    (0, 4, 1),
    (0, 8, 2),
    (-1, 1, 4),
    (-4, 4, 1),
    (-4, 8, 2),
    (1, 1, 1),
    (4, 2, 3),
    (8, 8, 2),
];

/// Returns how many accesses touch a watchpoint of a length.
fn touching(len: u64) -> u64 {
    let touches = |(at, of, _): &&(i64, u64, u64)| *at < len as i64 && at + *of as i64 > 0;
    let made = ACCESSES.iter().filter(touches).map(|(.., times)| times);
    made.sum()
}

/// Makes all accesses to an area: writes, then reads. `rdi` is the area's address.
fn access(a: &mut CodeAssembler) -> Result<(), IcedError> {
    for (at, of, times) in ACCESSES {
        let place = rdi + at as i32;
        for _ in 0..times {
            match of {
                1 => a.mov(byte_ptr(place), al)?,
                2 => a.mov(word_ptr(place), ax)?,
                4 => a.mov(dword_ptr(place), eax)?,
                _ => a.mov(qword_ptr(place), rax)?,
            }
            match of {
                1 => a.mov(al, byte_ptr(place))?,
                2 => a.mov(ax, word_ptr(place))?,
                4 => a.mov(eax, dword_ptr(place))?,
                _ => a.mov(rax, ptr(place))?,
            }
        }
    }
    Ok(())
}

fn sizes(cx: &Context) -> TestResult {
    let kernel = image::build(|a, names| {
        names.here(a, "from")?;
        for line in 0..LENGTHS.len() as u64 {
            a.mov(rdi, LINES + line * APART)?;
            access(a)?;
        }
        names.here(a, "to")?;
        image::power_off(a)
    })?;
    cx.block_on(async {
        let mut seen = 0;
        // Half of the accesses are writes.
        for (access, share) in [("", 1), (":rw", 2)] {
            let guest = Tiny::new(cx, &kernel, 64).await?;
            let texts = LENGTHS.iter().zip(0..).map(|(len, line)| {
                let at = LINES + line * APART;
                format!("w:of{len} {at:#x}/{len}{access}")
            });
            let specs: Result<Vec<_>, _> = texts.map(|text| spec::parse(&text)).collect();
            let specs = specs.map_err(|error| wrong!("{error}"))?;
            let probes = guest.client.register_probes(VM, specs).await?;
            let place = |name| guest.client.lookup_symbols(VM, name, 0);
            let (from, to) = (place("from").await?.0, place("to").await?.0);
            let code = from[0].address..to[0].address;
            let mut stream = guest.client.events(VM, Vec::new()).await?;
            guest.start().await?;
            let events = events::all(&mut stream).await?;
            guest.power_off().await?;
            if events.is_empty() && cx.place == Place::Host {
                let why = "this KVM has no watchpoints in kernel mode";
                return Ok(Outcome::Skip(why.to_owned()));
            }
            for (probe, len) in probes.iter().zip(LENGTHS) {
                let expected = share * touching(len);
                let of_probe = events.iter().filter(|event| event.probe_id == probe.id);
                let mut on_vcpu = 0;
                for event in of_probe {
                    check_eq!(event.kind(), EventKind::Access, "kind of {event:?}");
                    let rip = event.registers.map_or(0, |registers| registers.rip);
                    check!(code.start < rip && rip <= code.end, "RIP of {event:?}");
                    on_vcpu += u64::from(event.vcpu == 0);
                }
                check_eq!(on_vcpu, expected, "events of {} on vCPU 0", probe.name);
                let listed = guest.client.list_probes(VM).await?;
                let found = listed.iter().find(|other| other.id == probe.id);
                let found = found.ok_or_else(|| wrong!("{} isn't listed", probe.name))?;
                check_eq!(found.hits, expected, "hits of {}", probe.name);
                seen += expected;
            }
        }
        pass_with(format!("{seen} accesses"))
    })
}

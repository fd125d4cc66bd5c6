//! Init memory that the guest has freed and uses for other things.

use vmprobe_client::v1::{Probe, ProbeState};

use super::guest::{Config, Guest, VM, files};
use super::jumps::{jump, settle};
use super::whole::accepted;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "nothing_is_written_into_freed_init_text_that_the_guest_has_filled_anew",
        ids: &["KP15"],
        needs: Needs::Linux,
        run: |cx| freed(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "nothing_is_written_into_freed_init_text_of_6_1_that_the_guest_has_filled_anew",
        ids: &["KP15"],
        needs: Needs::Linux,
        run: |cx| freed(cx, files::BZIMAGE_6_1),
    },
];

/// Functions of init text have such names.
const NAMES: [&str; 3] = ["init_*", "*_init", "*_setup"];
/// Probes there, at most.
const PROBES: usize = 300;
const PAGE: usize = 4096;
/// MiB that the guest leaves free, at first and in the retries if that isn't enough. Its kernel leaves a process no
/// less than 4 (`min_free_kbytes` in Documentation/admin-guide/sysctl/vm.rst).
const LEFT: [u32; 3] = [24, 8, 5];
/// Where the kernel's image is mapped (`__START_KERNEL_map` in `page_64_types.h`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// Freed memory, addressed by the kernel's direct mapping: the image's own mapping may be gone.
struct Memory {
    text: u64,
    mapped: u64,
    /// The bytes with which the guest has filled it.
    bytes: Vec<u8>,
    mark: u64,
}

impl Memory {
    async fn of(guest: &Guest, mark: u64) -> Result<Self, Failure> {
        let text = guest.symbol("_sinittext").await?;
        let length = (guest.symbol("_einittext").await? - text) as usize;
        let number = async |name: &str| {
            let at = guest.symbol(name).await?;
            let bytes = guest.memory(at, 8).await?;
            let bytes = bytes.first_chunk().copied().unwrap_or_default();
            Ok::<u64, Failure>(u64::from_le_bytes(bytes))
        };
        let mapped =
            text - KERNEL_MAP + number("phys_base").await? + number("page_offset_base").await?;
        Ok(Self {
            text,
            mapped,
            bytes: guest.memory(mapped, length).await?,
            mark,
        })
    }

    /// Returns true if the guest has filled the page in which an address of init text was.
    fn is_filled(&self, address: u64) -> bool {
        let page = (address - self.text) as usize / PAGE * PAGE;
        let first = self.bytes.get(page..).and_then(|page| page.first_chunk());
        first.is_some_and(|first| u64::from_le_bytes(*first) == self.mark)
    }

    /// Fails if a byte that the guest has filled has changed.
    async fn unchanged(&self, guest: &Guest, after: &str) -> Result<(), Failure> {
        let now = guest.memory(self.mapped, self.bytes.len()).await?;
        for (offset, (old, new)) in self.bytes.iter().zip(&now).enumerate() {
            let address = self.text + offset as u64;
            check!(
                old == new || !self.is_filled(address),
                "after {after} the byte that was {address:#x} is {new:#x} instead of {old:#x}"
            );
        }
        Ok(())
    }
}

fn freed(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let config = Config {
            kernel,
            vcpus: 2,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::hold(cx, &config).await?;
        let (start, end) = (
            guest.symbol("_sinittext").await?,
            guest.symbol("_einittext").await?,
        );
        let mut places = Vec::new();
        for pattern in NAMES {
            let (symbols, _) = guest.client.lookup_symbols(VM, pattern, 100_000).await?;
            let inside = symbols.into_iter().map(|symbol| symbol.address);
            places.extend(inside.filter(|address| (start..end).contains(address)));
        }
        places.sort_unstable();
        places.dedup();
        let step = places.len().div_ceil(PROBES).max(1);
        let places = places.iter().step_by(step);
        // Behind an `endbr64` alone, and behind an `endbr64` and an ftrace site.
        let places = places.flat_map(|at| [format!("{:#x}", at + 4), format!("{:#x}", at + 9)]);
        let mut places = accepted(&guest, &places.collect::<Vec<_>>()).await?;
        places.extend(["start_kernel".to_owned(), "r:returns kernel_init_freeable".to_owned()]);
        let texts: Vec<&str> = places.iter().map(String::as_str).collect();
        guest.probes(&texts).await?;
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        let gone = guest.client.list_probes(VM).await?;
        let gone: Vec<_> = gone
            .into_iter()
            .filter(|probe| probe.state() == ProbeState::Gone)
            .collect();
        check_eq!(gone.len(), places.len(), "probes that are gone");

        let (memory, reused) = fill(&mut guest, &gone).await?;
        let changes = changes(&guest, &memory, &gone.iter().map(|it| it.id).collect::<Vec<_>>()).await?;
        // The guest checks all memory that it has filled.
        guest.say("").await?;
        let done = guest.console.report("done").await?;
        check_eq!(done["wrong"], 0, "words that the guest finds changed: {done}");
        guest.finish().await?;
        pass_with(format!(
            "the pages of {reused} of {} probes filled with something else, {changes} kinds of changes",
            gone.len()
        ))
    })
}

/// Has the guest fill its free memory until most places of these probes are filled. Returns how many. The guest's
/// kernel chooses which pages stay free, so each retry leaves fewer.
async fn fill(guest: &mut Guest, gone: &[Probe]) -> Result<(Memory, usize), Failure> {
    let mut reused = 0;
    for left in LEFT {
        guest
            .say(&format!("workload=fill hold=yes count={left}"))
            .await?;
        let filled = guest.console.report("filled").await?;
        let mark = filled["mark"]
            .as_str()
            .and_then(|mark| mark.strip_prefix("0x"));
        let mark = mark.and_then(|mark| u64::from_str_radix(mark, 16).ok());
        let mark = mark.ok_or_else(|| wrong!("no mark: {filled}"))?;
        let memory = Memory::of(guest, mark).await?;
        let inside = gone.iter().filter(|probe| memory.is_filled(probe.address));
        reused = inside.count();
        if reused * 10 > gone.len() * 9 {
            return Ok((memory, reused));
        }
        guest.say("").await?;
        guest.console.report("done").await?;
    }
    Err(wrong!(
        "the guest has filled the pages of only {reused} of {} probes that are gone",
        gone.len()
    ))
}

/// Makes every kind of change, and checks the memory after each. Returns how many changes.
async fn changes(guest: &Guest, memory: &Memory, gone: &[u64]) -> Result<usize, Failure> {
    let client = &guest.client;
    let (first, others) = gone.split_at(gone.len() / 2);
    let mut count = 0;
    let mut look = async |what: &str| {
        count += 1;
        memory.unchanged(guest, what).await
    };
    look("nothing").await?;
    // Some of these are refused because the probe is gone. Nothing may be written then, either.
    let _refused = client.disable_probes(VM, gone.to_vec(), Vec::new()).await;
    look("disabling those that are gone").await?;
    let _refused = client.enable_probes(VM, gone.to_vec(), Vec::new()).await;
    look("enabling those that are gone").await?;
    client.disarm_probes(VM).await?;
    look("disarming").await?;
    client.arm_probes(VM).await?;
    look("arming").await?;
    guest
        .probes(&["live=vfs_read", "r:back vfs_read", "p:after vfs_write post"])
        .await?;
    look("registering").await?;
    jump(guest, "live").await?;
    look("making jumps").await?;
    let names = || vec!["live".to_owned(), "after".to_owned()];
    client.disable_probes(VM, Vec::new(), names()).await?;
    look("disabling others").await?;
    client.enable_probes(VM, Vec::new(), names()).await?;
    look("enabling others").await?;
    client.set_optimization(VM, false).await?;
    look("taking jumps back").await?;
    client.set_optimization(VM, true).await?;
    settle(guest, &[]).await?;
    look("making jumps again").await?;
    for text in ["start_kernel", "r:again kernel_init_freeable"] {
        let error = guest.refusal(text).await?.to_string();
        check!(error.contains("freed"), "{text}: {error}");
    }
    look("refusing what was freed").await?;
    client
        .unregister_probes(VM, first.to_vec(), Vec::new())
        .await?;
    look("removing some that are gone").await?;
    client.disarm_probes(VM).await?;
    client.arm_probes(VM).await?;
    look("disarming and arming the others").await?;
    client
        .unregister_probes(VM, others.to_vec(), Vec::new())
        .await?;
    look("removing the others that are gone").await?;
    guest.probe("w:watched jiffies/8").await?;
    look("watching").await?;
    guest.remove(&["live", "back", "after", "watched"]).await?;
    look("removing all").await?;
    Ok(count)
}

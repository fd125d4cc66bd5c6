//! Values behind pointers in a guest with much memory.

use super::super::guest::{Config, Guest, VM, files};
use super::modules::value;
use super::{Seen, by_event, definitions, text};
use crate::context::Context;
use crate::events;
use crate::linux::jumps;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "jumps_follow_pointers_in_a_guest_of_40_gib",
    ids: &["TR02"],
    needs: Needs::Linux,
    run: follow,
}];

const MEMORY_MIB: u64 = 40 << 10;
/// The kernel uses two parts of the memory: one at the bottom, where its image is, and one beyond what page directories
/// alone could map. It takes pages from the upper one first.
const ARGS: &str =
    "quiet cryptomgr.notests memmap=exactmap memmap=640K@0 memmap=1023M@1M memmap=256M@36G";
const HIGH: u64 = 36 << 30;
/// The kernel's direct mapping, without KASLR (`Documentation/arch/x86/x86_64/mm.rst`).
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// The `file` that is read.
const POINTER: &str = "p:read vfs_read file=%di:x64 inode=file->f_inode:x64";

fn follow(cx: &Context) -> TestResult {
    cx.block_on(async {
        let config = Config {
            kernel: files::BZIMAGE_6_12,
            kernel_args: ARGS,
            memory_mib: MEMORY_MIB,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;

        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.probes(&[POINTER]).await?;
        jumps::jump(&guest, "read").await?;
        guest.work("files count=2").await?;
        let removed = guest.remove(&["read"]).await?;
        let (all, _) = events::next(&mut stream, removed[0].hits).await?;
        let told = by_event(text(&removed, &all)?.lines());
        let reads = told.get("read").map_or(&[][..], Vec::as_slice);
        for name in ["file", "inode"] {
            let is_high = |line: &&String| {
                let digits = value(line, name).trim_start_matches("0x");
                let pointer = u64::from_str_radix(digits, 16).unwrap_or_default();
                pointer >= DIRECT_MAP + HIGH
            };
            check!(
                reads.iter().any(|line| is_high(&line)),
                "no {name} is in the upper memory: {reads:?}"
            );
        }
        drop(stream);

        let parts = definitions::apart(definitions::all(true));
        let part = parts.first().ok_or_else(|| wrong!("no definitions"))?;
        let mut seen = Seen::default();
        seen.compare(&mut guest, part, true).await?;
        guest.finish().await?;
        check!(seen.different.is_empty(), "{:#?}", seen.different);
        check_eq!(seen.jumping, part.len(), "definitions that are jumps");
        pass_with(format!(
            "{} definitions as jumps, {} values of {} hits",
            part.len(),
            seen.values,
            seen.hits
        ))
    })
}

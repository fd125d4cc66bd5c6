//! What probes on the hottest functions cost a guest that works with files on its disk and with processes (BN15).

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use vmprobe_client::v1::{Devices, Disk, Probe};

use super::{Figure, rounded};
use crate::context::Context;
use crate::linux::guest::{Config, Guest, VM, files, specs};
use crate::linux::jumps::{is_jump, settle, settle_paused};
use crate::test::{Failure, check, check_eq, wrong};

/// Patterns of functions among which the hottest are searched: those that system calls, paths, files, pages and
/// processes pass.
const CANDIDATES: [&str; 14] = [
    "__x64_sys_*",
    "do_*",
    "ext4_*",
    "vfs_*",
    "path_*",
    "filemap_*",
    "folio_*",
    "lookup_*",
    "link_*",
    "d_*",
    "mas_*",
    "generic_*",
    "copy_*",
    "jbd2_*",
];
/// How many of them are probed.
const HOT: usize = 100;
/// Folders of a round, rounds of a block, and the order of blocks, again and again.
const FOLDERS: u64 = 10;
const ROUNDS: u64 = 3;
const REPEATS: usize = 5;

/// Whether the probes are armed in a block.
const ABBA: [bool; 4] = [false, true, true, false];

/// The workload's time with 100 probes over that without, as jumps and as breakpoints.
pub async fn measure(
    cx: &Context,
    place: &'static str,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let folder = TempDir::new().map_err(Failure::io("make a folder for a disk"))?;
    let disk = folder.path().join("disk.img");
    fs::copy(cx.file("root.img"), &disk).map_err(Failure::io("copy a disk"))?;
    let config = Config {
        kernel: files::BZIMAGE_6_12,
        devices: Some(Devices {
            disks: vec![Disk {
                path: disk.to_string_lossy().into_owned(),
                ..Disk::default()
            }],
            ..Devices::default()
        }),
        ..Config::new("workload=echo")
    };
    let mut guest = Guest::boot(cx, &config).await?;
    guest.console.report("ready").await?;
    guest.work("drivers").await?;
    block(&mut guest).await?;
    let hot = hottest(&mut guest).await?;
    let texts: Vec<String> = hot.iter().map(|place| format!("p {place}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let counting: Vec<String> = texts.iter().map(|text| format!("{text} count")).collect();
    let counting: Vec<&str> = counting.iter().map(String::as_str).collect();
    for (kind, texts, limit) in [
        (Kind::Jumps, &texts, Some(1.1)),
        (Kind::CountingJumps, &counting, Some(1.1)),
        (Kind::Breakpoints, &texts, None),
    ] {
        let compared = compare(&mut guest, texts, kind).await?;
        let verdict = match limit {
            Some(limit) if compared.ratio <= limit => format!("limit {limit}: kept"),
            Some(limit) => format!("limit {limit}: missed"),
            None => "reported".to_owned(),
        };
        figures.push(Figure {
            id: "BN15",
            value: rounded(compared.ratio),
            unit: "ratio",
            place,
            how: format!(
                "files on an ext4 disk and processes, with the {} hottest functions probed as {} / unprobed, same \
                 guest, blocks in the order unprobed, probed, probed, unprobed",
                hot.len(),
                kind.name()
            ),
            note: format!("{verdict}; {}", compared.note),
        });
    }
    guest.finish().await
}

/// How the functions are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Each hit is a record of all registers.
    Jumps,
    /// Each hit is counted.
    CountingJumps,
    /// The records of [`Self::Jumps`], made by breakpoints.
    Breakpoints,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Jumps => "jumps",
            Self::CountingJumps => "jumps that count",
            Self::Breakpoints => "breakpoints",
        }
    }
}

/// The results of a comparison.
struct Compared {
    ratio: f64,
    note: String,
}

/// Compares the workload's time under these probes with that without.
async fn compare(guest: &mut Guest, texts: &[&str], kind: Kind) -> Result<Compared, Failure> {
    guest
        .client
        .set_optimization(VM, kind != Kind::Breakpoints)
        .await?;
    let probes = guest.client.register_probes(VM, specs(texts)?).await?;
    let jumps = settle(guest, &[]).await?.probes;
    let jumps = jumps.iter().filter(|probe| is_jump(probe)).count();
    check!(
        kind != Kind::Breakpoints || jumps == 0,
        "{jumps} probes are jumps, and none should be"
    );
    let (mut ratios, mut times) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..REPEATS {
        let mut sums = [0.0; 2];
        for armed in ABBA {
            match armed {
                true => guest.client.arm_probes(VM).await.map(drop)?,
                false => guest.client.disarm_probes(VM).await.map(drop)?,
            }
            settle(guest, &[]).await?;
            sums[usize::from(armed)] += block(guest).await?;
        }
        ratios.push(sums[1] / sums[0]);
        times
            .iter_mut()
            .zip(sums)
            .for_each(|(all, sum)| all.push(sum));
    }
    guest.client.arm_probes(VM).await?;
    let ids = probes.iter().map(|probe| probe.id).collect();
    let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    let hits: u64 = removed.iter().map(|probe| probe.hits).sum();
    let missed: u64 = removed.iter().map(|probe| probe.missed).sum();
    // Folders of one of a repeat's two sums.
    let folders = 2 * ROUNDS * FOLDERS;
    let [unprobed, probed] = times.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[REPEATS / 2] / folders as f64 / 1e3
    });
    ratios.sort_by(f64::total_cmp);
    let note = format!(
        "median of {REPEATS} ({:.2} to {:.2}); {unprobed:.0} us a folder unprobed, {probed:.0} probed; {jumps} of {} \
         were jumps; {} hits a folder, {missed} of {} missed",
        ratios[0],
        ratios[REPEATS - 1],
        probes.len(),
        (hits + missed) / (REPEATS as u64 * folders),
        hits + missed,
    );
    Ok(Compared {
        ratio: ratios[REPEATS / 2],
        note,
    })
}

/// Nanoseconds of a block, all its rounds.
async fn block(guest: &mut Guest) -> Result<f64, Failure> {
    let work = format!("mixed at=vda count={FOLDERS} rounds={ROUNDS}");
    let done = guest.work(&work).await?;
    let times = done["ns"].as_array().into_iter().flatten();
    let times: Vec<f64> = times.filter_map(Value::as_f64).collect();
    check_eq!(times.len() as u64, ROUNDS, "times that the guest told");
    Ok(times.iter().sum())
}

/// Finds the places that the workload passes most often, by probes that are jumps and count.
async fn hottest(guest: &mut Guest) -> Result<Vec<String>, Failure> {
    let texts = CANDIDATES.map(|pattern| format!("p {pattern} count"));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let probes = guest.client.register_probes(VM, specs(&texts)?).await?;
    settle_paused(guest).await?;
    block(guest).await?;
    let ids = probes.iter().map(|probe| probe.id).collect();
    let mut counted: Vec<Probe> = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    counted.sort_by_key(|probe| std::cmp::Reverse(probe.hits));
    counted.truncate(HOT);
    check_eq!(counted.len(), HOT, "functions that were found");
    let coolest = counted.last().ok_or_else(|| wrong!("there is none"))?;
    check!(coolest.hits > 0, "{} is never called", coolest.name);
    Ok(counted
        .iter()
        .map(|probe| format!("{:#x}", probe.address))
        .collect())
}

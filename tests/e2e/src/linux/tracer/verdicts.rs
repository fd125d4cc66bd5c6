//! The kernel's own tests of kprobe events (`tools/testing/selftests/ftrace/test.d/kprobe/` of Linux 6.12), with probes
//! of ours: the same definitions, and the expected results.
//!
//! `vmprobe_spec` has the tests of refusals and of what the text alone decides; `kprobe_ftrace`, `kprobe_module` and
//! `kprobe_opt_types` have tests of their own here. `busy_check` has another result: an event of the guest's own can't
//! be removed while it is on, and a probe of ours can.

use std::collections::BTreeSet;

use vmprobe_client::v1::Probe;
use vmprobe_client::v1::probe::Kind;

use super::super::guest::{Guest, VM, files};
use super::text;
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "the_kernel_s_own_tests_of_kprobe_events_have_the_same_verdicts",
    ids: &["TR09", "TR10", "TR05"],
    needs: Needs::Linux,
    run: verdicts,
}];

/// Makes a directory of the name `test` among the guest's own events, and removes it. Linux 6.12 makes it by
/// `eventfs_create_dir`; the tests' scripts use older names of that function.
const MAKES_TEST: &[&str] = &["define at=p:mine/test,kernel_clone", "trace"];
const FORKS: &[&str] = &["forks count=1"];
const FILES: &[&str] = &["files count=1"];

/// One test.
struct Case {
    /// Its file.
    file: &'static str,
    definitions: &'static [&'static str],
    /// What the guest does.
    work: &'static [&'static str],
    verdict: fn(&Seen) -> bool,
}

/// The results.
#[derive(Debug)]
struct Seen {
    /// The probes as they were when they were removed.
    probes: Vec<Probe>,
    /// The events in ftrace's form.
    lines: Vec<String>,
}

const CASES: &[Case] = &[
    Case {
        file: "add_and_remove",
        definitions: &["p:myevent kernel_clone"],
        work: &[],
        verdict: |seen| seen.probes[0].name == "myevent",
    },
    Case {
        file: "kprobe_args",
        definitions: &["p:testprobe kernel_clone $stack $stack0 +0($stack)"],
        work: FORKS,
        verdict: |seen| seen.each(|line| values(line)[1..] == [values(line)[2]; 2]),
    },
    Case {
        file: "kprobe_args_char",
        definitions: &["p:testprobe eventfs_create_dir arg1=+0(%di):char arg2=+0(%di):char[4]"],
        work: MAKES_TEST,
        verdict: |seen| seen.has("arg1='t' arg2={'t','e','s','t'}"),
    },
    Case {
        file: "kprobe_args_comm",
        definitions: &["p:testprobe kernel_clone comm=$comm "],
        work: FORKS,
        verdict: |seen| seen.has("comm=\"init\""),
    },
    Case {
        file: "kprobe_args_string",
        definitions: &["p:testprobe eventfs_create_dir arg1=+0(%di):string arg2=+0(%di):string"],
        work: MAKES_TEST,
        verdict: |seen| seen.has("arg1=\"test\" arg2=\"test\""),
    },
    Case {
        file: "kprobe_args_symbol",
        definitions: &[
            "p:testprobe_u kernel_clone arg1=@linux_proc_banner:u64 arg2=@linux_proc_banner:u32 \
             arg3=@linux_proc_banner:u16 arg4=@linux_proc_banner:u8",
            "p:testprobe_s kernel_clone arg1=@linux_proc_banner:s64 arg2=@linux_proc_banner:s32 \
             arg3=@linux_proc_banner:s16 arg4=@linux_proc_banner:s8",
            "p:testprobe_x kernel_clone arg1=@linux_proc_banner:x64 arg2=@linux_proc_banner:x32 \
             arg3=@linux_proc_banner:x16 arg4=@linux_proc_banner:x8",
            "p:testprobe_bf kernel_clone arg1=@linux_proc_banner:b8@4/32",
            "p:testprobe_str kernel_clone arg1=@linux_proc_banner:string",
        ],
        work: FORKS,
        verdict: |seen| {
            // "%s version %s (...)"
            let bytes = u64::from_le_bytes(*b"%s versi");
            let widths = [64, 32, 16, 8].map(|bits| bytes & (u64::MAX >> (64 - bits)));
            ["testprobe_u:", "testprobe_s:", "testprobe_x:"]
                .iter()
                .all(|event| seen.of(event).all(|line| numbers(line) == widths.map(Some)))
                && seen
                    .of("testprobe_bf:")
                    .all(|line| numbers(line) == [Some(bytes >> 4 & 0xff)])
                && seen.has("arg1=\"%s version %s")
        },
    },
    Case {
        file: "kprobe_args_type",
        definitions: &[
            "p:testprobe64 kernel_clone $stack0:s64 $stack0:u64 $stack0:x64 $stack0:b4@4/64",
            "p:testprobe32 kernel_clone $stack0:s32 $stack0:u32 $stack0:x32 $stack0:b4@4/32",
            "p:testprobe16 kernel_clone $stack0:s16 $stack0:u16 $stack0:x16 $stack0:b4@4/16",
            "p:testprobe8 kernel_clone $stack0:s8 $stack0:u8 $stack0:x8 $stack0:b4@4/8",
        ],
        work: FORKS,
        verdict: |seen| {
            [64, 32, 16, 8].iter().all(|bits| {
                let mask = u64::MAX >> (64 - bits);
                seen.of(&format!("testprobe{bits}:")).all(|line| {
                    let [Some(signed), Some(unsigned), Some(hex), Some(field)] = numbers(line)[..]
                    else {
                        return false;
                    };
                    signed & mask == unsigned && unsigned == hex && field == hex >> 4 & 0xf
                })
            })
        },
    },
    Case {
        file: "kprobe_args_user",
        definitions: &[
            "p:myevent2 do_sys_openat2 path=+0($arg2):ustring path2=+u0($arg2):string",
            // The script makes a symbolic link, whose name `vfs_symlink` has as a pointer of the kernel's, too.
            "p:myevent eventfs_create_dir path=+0($arg1):ustring path2=+u0($arg1):string",
        ],
        work: &["files count=1", MAKES_TEST[0], MAKES_TEST[1]],
        verdict: |seen| {
            seen.has("path=\"/init\" path2=\"/init\"")
                && seen
                    .of("myevent:")
                    .all(|line| line.ends_with("path=(fault) path2=(fault)"))
        },
    },
    Case {
        file: "kprobe_eventname",
        definitions: &[
            "p vfs_read",
            "p:event1 vfs_read",
            "p:kprobes2/event2 vfs_read",
        ],
        work: &[],
        verdict: |seen| {
            let names: Vec<&str> = seen.probes.iter().map(|it| it.name.as_str()).collect();
            names[0].contains("vfs_read") && names[1..] == ["event1", "kprobes2/event2"]
        },
    },
    Case {
        file: "kprobe_multiprobe",
        definitions: &[
            "p:kprobes/testevent kernel_clone",
            "p:kprobes/testevent do_exit",
        ],
        work: FORKS,
        verdict: |seen| {
            let places = seen.of("testevent:").filter_map(place);
            places.collect::<BTreeSet<_>>().len() == 2
                && seen.probes.iter().all(|probe| probe.hits > 0)
        },
    },
    Case {
        file: "kretprobe_args",
        definitions: &["r:testprobe2 kernel_clone $retval"],
        work: FORKS,
        verdict: |seen| seen.each(|line| numbers(line)[0].is_some_and(|pid| pid > 1)),
    },
    Case {
        file: "kretprobe_entry_arg",
        definitions: &[
            "p:myevent1 vfs_open arg=$arg1",
            "r:myevent2 vfs_open arg=$arg1",
        ],
        work: FILES,
        verdict: |seen| {
            let of = |event| seen.of(event).map(values).collect::<Vec<_>>();
            of("myevent1:") == of("myevent2:") && !of("myevent1:").is_empty()
        },
    },
    Case {
        file: "kretprobe_maxactive",
        definitions: &[
            "r:myprobeaccept inet_csk_accept",
            "r10:myprobeaccept10 inet_csk_accept",
            "r10 inet_csk_accept",
        ],
        work: &[],
        verdict: |seen| seen.probes.iter().all(|probe| maxactive(probe) == Some(10)),
    },
    Case {
        file: "kretprobe_return_suffix",
        definitions: &["p:myprobeaccept vfs_read%return"],
        work: &[],
        verdict: |seen| maxactive(&seen.probes[0]).is_some(),
    },
    Case {
        file: "multiple_kprobes",
        // 256 functions and more, of which few are called.
        definitions: &["p acpi_*"],
        work: FILES,
        verdict: |seen| seen.probes.len() >= 256,
    },
    Case {
        file: "probepoint",
        definitions: &[
            "p:testprobe eventfs_create_dir",
            "p:testprobe kernel_clone+9",
        ],
        work: &[],
        verdict: |seen| seen.probes.len() == 2,
    },
    Case {
        file: "profile",
        definitions: &["p:myevent kernel_clone"],
        work: FORKS,
        verdict: |seen| seen.probes[0].hits >= 1 && seen.probes[0].missed == 0,
    },
];

impl Seen {
    /// The lines of an event, whose name ends with a colon.
    fn of(&self, event: &str) -> impl Iterator<Item = &str> {
        let event = format!(" {event} ");
        self.lines
            .iter()
            .map(String::as_str)
            .filter(move |line| line.contains(&event))
    }

    fn has(&self, values: &str) -> bool {
        self.lines.iter().any(|line| line.contains(values))
    }

    /// Returns true if there are events, and all satisfy `is_so`.
    fn each(&self, is_so: impl Fn(&str) -> bool) -> bool {
        !self.lines.is_empty() && self.lines.iter().all(|line| is_so(line))
    }
}

/// Returns the place of a line's event.
fn place(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(": (")?;
    Some(rest.split_once(')')?.0)
}

/// Returns the values in a line, without their names. None of these has blanks.
fn values(line: &str) -> Vec<&str> {
    let (_, values) = line.rsplit_once(") ").unwrap_or_default();
    let named = values.split(' ').filter_map(|value| value.split_once('='));
    named.map(|(_, value)| value).collect()
}

/// As [`values`], but as numbers. A number may be in the two's complement of its own number of bits.
fn numbers(line: &str) -> Vec<Option<u64>> {
    let number = |value: &str| match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => {
            let signed = value.parse::<i64>().ok().map(i64::cast_unsigned);
            signed.or_else(|| value.parse().ok())
        }
    };
    values(line).into_iter().map(number).collect()
}

/// Returns how many calls a return probe follows.
fn maxactive(probe: &Probe) -> Option<u32> {
    match &probe.kind {
        Some(Kind::ReturnProbe(kind)) => Some(kind.maxactive),
        _ => None,
    }
}

fn verdicts(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_12, 1).await?;
        let mut hits = 0;
        for case in CASES {
            let seen = run(&mut guest, case).await?;
            hits += seen.lines.len();
            check!(
                (case.verdict)(&seen),
                "{}: {:#?} of {} probes",
                case.file,
                seen.lines,
                seen.probes.len()
            );
        }
        let starts = boundaries(&guest).await?;
        // `kprobe_non_uniq_symbol`
        let error = guest.refusal("p:test_non_unique name_show").await?;
        check!(error.to_string().contains("name_show"), "{error}");
        // `probepoint`, by the address
        let at = guest.symbol("kernel_clone").await?;
        let by_address = format!("p:testprobe {:#x}", at + 9);
        let probe = guest.probe(&by_address).await?;
        check_eq!(probe.symbol, "kernel_clone", "where {by_address} is");
        guest.remove(&["testprobe"]).await?;
        check_eq!(
            guest.client.list_probes(VM).await?.len(),
            0,
            "probes at the end"
        );
        guest.finish().await?;
        pass_with(format!(
            "{} files' cases with {hits} events; {starts} of 256 offsets took a probe",
            CASES.len()
        ))
    })
}

/// Registers a case's probes one after the other, and has the guest work with them.
async fn run(guest: &mut Guest, case: &Case) -> Result<Seen, Failure> {
    let failed = |what: &str, error| wrong!("{}: {what}: {error:?}", case.file);
    let mut stream = guest.client.events(VM, Vec::new()).await?;
    let mut ids = Vec::new();
    for definition in case.definitions {
        let probes = guest.probes(&[definition]).await;
        let probes = probes.map_err(|error| failed(definition, error))?;
        ids.extend(probes.iter().map(|probe| probe.id));
    }
    for work in case.work {
        let report = guest.work(work).await;
        report.map_err(|error| failed(work, error))?;
    }
    let probes = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    let hits = probes.iter().map(|probe| probe.hits).sum();
    let (events, lost) = events::next(&mut stream, hits).await?;
    check_eq!(lost, 0, "lost events of {}", case.file);
    let lines = text(&probes, &events)?;
    Ok(Seen {
        probes,
        lines: lines.lines().map(str::to_owned).collect(),
    })
}

/// `kprobe_insn_boundary`: a probe at each of the first 256 offsets of a function, taken or refused. Returns how many
/// were taken.
async fn boundaries(guest: &Guest) -> Result<usize, Failure> {
    let mut taken = Vec::new();
    for offset in 0..256 {
        match guest.probe(&format!("p kernel_clone+{offset}")).await {
            Ok(probe) => taken.push(probe.id),
            Err(Failure::Client(_)) => {}
            Err(other) => return Err(other),
        }
    }
    let count = taken.len();
    check!((32..256).contains(&count), "{count} offsets took a probe");
    guest
        .client
        .unregister_probes(VM, taken, Vec::new())
        .await?;
    Ok(count)
}

//! The list of probes.

use vmprobe_client::spec::{actions, option_words};
use vmprobe_client::v1::{Argument, Probe};
use vmprobe_client::words;

use super::probes::{jump, kind, place, state, strategy};
use super::table::{fitted, table};

/// Characters of a line, unless more are asked for.
const WIDTH: usize = 120;

/// A column: its heading, and what it is like.
struct Column {
    heading: &'static str,
    right: bool,
    /// True if it gives way when lines get too long.
    gives_way: bool,
    /// True if it is there only where lines may have any length.
    wide_only: bool,
    cell: fn(&Probe) -> String,
}

const PLAIN: Column = Column {
    heading: "",
    right: false,
    gives_way: false,
    wide_only: false,
    cell: |_| String::new(),
};

const COLUMNS: [Column; 18] = [
    Column {
        heading: "ID",
        right: true,
        cell: |probe| probe.id.to_string(),
        ..PLAIN
    },
    Column {
        heading: "ADDRESS",
        wide_only: true,
        cell: address,
        ..PLAIN
    },
    Column {
        heading: "KIND",
        cell: kind,
        ..PLAIN
    },
    Column {
        heading: "PLACE",
        gives_way: true,
        cell: place,
        ..PLAIN
    },
    Column {
        heading: "NAME",
        gives_way: true,
        cell: name,
        ..PLAIN
    },
    Column {
        heading: "STATE",
        cell: |probe| state(probe).to_owned(),
        ..PLAIN
    },
    Column {
        heading: "HITS",
        right: true,
        cell: |probe| probe.hits.to_string(),
        ..PLAIN
    },
    Column {
        heading: "MISSED",
        right: true,
        cell: |probe| probe.missed.to_string(),
        ..PLAIN
    },
    Column {
        heading: "ENDED",
        right: true,
        cell: |probe| if_any(probe.ended),
        ..PLAIN
    },
    Column {
        heading: "EXITS/HIT",
        right: true,
        cell: exits_a_hit,
        ..PLAIN
    },
    Column {
        heading: "TRIPS",
        right: true,
        cell: |probe| if_any(probe.trips),
        ..PLAIN
    },
    Column {
        heading: "DEFINITION",
        gives_way: true,
        cell: definition,
        ..PLAIN
    },
    Column {
        heading: "ACTIONS",
        gives_way: true,
        cell: acting,
        ..PLAIN
    },
    Column {
        heading: "JUMP",
        cell: |probe| jump(probe).to_owned(),
        ..PLAIN
    },
    Column {
        heading: "STRATEGY",
        wide_only: true,
        cell: |probe| strategy(probe).to_owned(),
        ..PLAIN
    },
    Column {
        heading: "INSTRUCTION",
        wide_only: true,
        cell: |probe| probe.instruction.clone(),
        ..PLAIN
    },
    Column {
        heading: "REASON",
        wide_only: true,
        cell: |probe| probe.strategy_reason.clone(),
        ..PLAIN
    },
    Column {
        heading: "WHY NO JUMP",
        gives_way: true,
        cell: why_no_jump,
        ..PLAIN
    },
];

/// Returns probes as a table under headings; columns that have nothing to tell are left out. Lines have at most 120
/// characters unless they are `wide`, which has more columns too. No lines where there are no probes.
#[must_use]
pub fn probe_list(probes: &[Probe], wide: bool) -> Vec<String> {
    if probes.is_empty() {
        return Vec::new();
    }
    let columns = COLUMNS.iter().filter(|column| wide || !column.wide_only);
    let told = |column: &&Column| probes.iter().any(|probe| !(column.cell)(probe).is_empty());
    let columns: Vec<&Column> = columns.filter(told).collect();
    let headings = columns.iter().map(|column| column.heading.to_owned());
    let mut rows: Vec<Vec<String>> = vec![headings.collect()];
    rows.extend(probes.iter().map(|probe| {
        let cells = columns.iter().map(|column| (column.cell)(probe));
        cells.collect()
    }));
    let which = |wanted: fn(&Column) -> bool| {
        let numbered = columns.iter().enumerate();
        let found = numbered.filter(|(_, column)| wanted(column));
        found.map(|(index, _)| index).collect::<Vec<usize>>()
    };
    let right = which(|column| column.right);
    if wide {
        table(&rows, &right)
    } else {
        fitted(rows, &right, &which(|column| column.gives_way), WIDTH)
    }
}

fn address(probe: &Probe) -> String {
    match probe.address {
        0 => "-".to_owned(),
        address => format!("{address:016x}"),
    }
}

fn name(probe: &Probe) -> String {
    if probe.name == place(probe) {
        return String::new();
    }
    probe.name.clone()
}

/// Returns what stands behind the place in the probe's definition, except what its kind has.
fn definition(probe: &Probe) -> String {
    let mut words: Vec<String> = probe.arguments.iter().map(argument).collect();
    match probe.stack {
        0 => {}
        wanted => words.push(format!("stack={wanted}")),
    }
    words.extend(probe.options.iter().flat_map(option_words));
    if !probe.filter.is_empty() {
        words.push(format!("if {}", probe.filter));
    }
    words.join(" ")
}

/// Returns what it does at a hit, and how often it has: `override 0x1 (3 done)`, `pause (2 done, 1 failed: WHY)`.
fn acting(probe: &Probe) -> String {
    let mut told: Vec<String> = probe.actions.iter().map(actions::text).collect();
    if probe.attended {
        told.push("as a client answers".to_owned());
    }
    let told = told.join("; ");
    match (probe.actions_done, probe.actions_failed) {
        (0, 0) => told,
        (done, 0) => format!("{told} ({done} done)"),
        (done, failed) => {
            let why = &probe.action_failure;
            format!("{told} ({done} done, {failed} failed: {why})")
        }
    }
}

fn argument(argument: &Argument) -> String {
    let Argument {
        name, definition, ..
    } = argument;
    if name.is_empty() || name == definition || definition.starts_with(&format!("{name}=")) {
        return definition.clone();
    }
    format!("{name}={definition}")
}

/// Returns `KIND: REASON`.
fn why_no_jump(probe: &Probe) -> String {
    let Some(told) = &probe.optimization else {
        return String::new();
    };
    match words::no_jump(told) {
        "" => told.reason.clone(),
        kind => format!("{kind}: {}", told.reason),
    }
}

/// Returns a count, or nothing where there is nothing to tell.
fn if_any(count: u64) -> String {
    match count {
        0 => String::new(),
        count => count.to_string(),
    }
}

/// Returns the VM exits that hits made, for each hit so far, to two places; `-` before the first hit.
fn exits_a_hit(probe: &Probe) -> String {
    if probe.hits == 0 {
        return "-".to_owned();
    }
    let hundredths =
        u128::from(probe.exits.saturating_sub(probe.trips)) * 100 / u128::from(probe.hits);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use vmprobe_client::v1::probe::Kind;
    use vmprobe_client::v1::{NoJumpReason, OptimizationState, ProbeState, ReturnProbe};

    use super::super::samples;
    use super::*;

    #[test]
    fn what_a_probe_does_to_the_guest_is_told_with_how_often_it_did() {
        let mut probe = samples::probe();
        assert_eq!(acting(&probe), "");
        probe.actions = vec![actions::set("rdi=5").unwrap(), actions::pause()];
        assert_eq!(acting(&probe), "set rdi=0x5; pause");
        probe.actions_done = 4;
        assert_eq!(acting(&probe), "set rdi=0x5; pause (4 done)");
        (probe.actions_failed, probe.action_failure) = (1, "so".into());
        probe.actions.clear();
        probe.attended = true;
        assert_eq!(acting(&probe), "as a client answers (4 done, 1 failed: so)");
    }

    #[test]
    fn a_list_has_headings_and_only_columns_that_tell_something() {
        assert!(probe_list(&[], true).is_empty());
        assert_eq!(
            probe_list(&[samples::probe()], true),
            [
                "ID  ADDRESS           KIND  PLACE         STATE  HITS  MISSED  EXITS/HIT  STRATEGY  INSTRUCTION  REASON",
                " 7  ffffffff812f0c15  p     vfs_read+0x5  armed    42       0       1.00  emulate   push %rbp    push of a register",
            ]
        );
    }

    #[test]
    fn a_list_shows_names_kinds_and_states() {
        let mut pending = samples::probe();
        pending.name = "sync".into();
        pending.address = 0;
        pending.symbol = "ext4_sync_file".into();
        pending.module = "ext4".into();
        pending.offset = 0;
        pending.kind = Some(Kind::ReturnProbe(ReturnProbe {
            maxactive: 64,
            rets: false,
        }));
        pending.hits = 0;
        pending.set_state(ProbeState::Pending);
        let lines = probe_list(&[pending, samples::probe()], true);
        let cells: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            cells[..9],
            [
                "7",
                "-",
                "r64",
                "ext4:ext4_sync_file+0x0",
                "sync",
                "pending",
                "0",
                "0",
                "-"
            ]
        );
    }

    #[test]
    fn a_list_shows_calls_that_never_return_where_there_are_some() {
        let mut probe = samples::probe();
        probe.ended = 12;
        let lines = probe_list(&[probe, samples::probe()], true);
        assert!(
            lines[0].contains("MISSED  ENDED  EXITS/HIT"),
            "{}",
            lines[0]
        );
        assert!(lines[1].contains("   0     12       1.00"), "{}", lines[1]);
    }

    #[test]
    fn a_list_shows_which_probes_are_jumps_and_why_the_others_are_not() {
        let mut counting =
            samples::with_optimization(OptimizationState::Optimized, NoJumpReason::Unspecified, "");
        counting.options = vmprobe_client::spec::parse("f count if=pid==100")
            .unwrap()
            .options;
        let lines = probe_list(
            &[
                counting,
                samples::with_optimization(
                    OptimizationState::Waiting,
                    NoJumpReason::Unspecified,
                    "",
                ),
                samples::with_optimization(
                    OptimizationState::Not,
                    NoJumpReason::Branch,
                    "0x5 jumps there",
                ),
            ],
            true,
        );
        for (line, parts) in lines.iter().zip([
            &[
                "EXITS/HIT  DEFINITION         ",
                "JUMP     STRATEGY",
                "WHY NO JUMP",
            ][..],
            &["1.00  count if=pid==100  yes      emulate"],
            &["waiting  emulate"],
            &["no       emulate", "branch: 0x5 jumps there"],
        ]) {
            for part in parts {
                assert!(line.contains(part), "{line}");
            }
        }
    }

    #[test]
    fn exits_a_hit_are_exact_and_never_overflow() {
        let mut probe = samples::probe();
        for (hits, exits, expected) in [
            (0, 0, "-"),
            (3, 4, "1.33"),
            (2, 4, "2.00"),
            (u64::MAX, u64::MAX, "1.00"),
            (1, u64::MAX, "18446744073709551615.00"),
        ] {
            (probe.hits, probe.exits) = (hits, exits);
            assert_eq!(exits_a_hit(&probe), expected);
        }
    }

    #[test]
    fn a_definition_has_arguments_stack_options_and_filter() {
        let mut probe = samples::probe();
        let argument = |name: &str, definition: &str| Argument {
            name: name.into(),
            definition: definition.into(),
            ..Default::default()
        };
        probe.arguments = vec![
            argument("count", "count"),
            argument("name", "+u0($arg2):ustring"),
        ];
        probe.stack = 16;
        probe.filter = "count > 5".into();
        probe.options = vmprobe_client::spec::parse("f regs=rdi").unwrap().options;
        assert_eq!(
            definition(&probe),
            "count name=+u0($arg2):ustring stack=16 regs=rdi if count > 5"
        );
    }

    #[test]
    fn lines_are_at_most_120_characters_unless_they_are_wide() {
        let mut probe = samples::with_optimization(
            OptimizationState::Not,
            NoJumpReason::Branch,
            &"a long reason ".repeat(10),
        );
        probe.filter = "comm == \"x\" && ".repeat(10) + "pid == 1";
        probe.name = "n".repeat(64);
        probe.hits = u64::MAX;
        probe.missed = u64::MAX;
        let lines = probe_list(&[samples::probe(), probe.clone()], false);
        for line in &lines {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(lines[0].contains("DEFINITI…"), "{}", lines[0]);
        assert!(lines[2].contains("…  no"), "{}", lines[2]);
        assert!(!lines[0].contains("INSTRUCTION"), "{}", lines[0]);
        let wide = probe_list(&[probe], true);
        assert!(wide[1].contains(&"a long reason ".repeat(9)), "{}", wide[1]);
    }
}

//! A paused guest stands still.

use std::time::Duration;

use vmprobe_client::v1::VmState;

use super::guest::{Config, Guest, VM};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_paused_busy_guest_executes_nothing_and_goes_on_afterwards",
        ids: &["VM04"],
        needs: Needs::Linux,
        run: paused,
    },
    Test {
        name: "a_guest_s_watchdogs_take_no_cpu_for_hung_that_was_paused_for_long",
        ids: &["VM04"],
        needs: Needs::Linux,
        run: watched,
    },
    Test {
        name: "kernel_memory_is_read_while_user_mode_has_page_tables_without_it",
        ids: &["VM04", "VM13"],
        needs: Needs::Linux,
        run: isolated,
    },
];

const ROUNDS: usize = 10;

fn paused(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::boot(
            cx,
            &Config {
                vcpus: 2,
                ..Config::new("workload=spin")
            },
        )
        .await?;
        guest.console.report("ready").await?;
        let mut jiffies = Vec::new();
        for _ in 0..ROUNDS {
            let vm = guest.client.pause_vm(VM).await?;
            check_eq!(vm.state(), VmState::Paused, "the state after the pause");
            let before = still(&guest).await?;
            // Each of these calls stops the vCPUs and releases them by itself. The vCPUs must not run in between.
            for _ in 0..20 {
                check_eq!(
                    still(&guest).await?,
                    before,
                    "registers and jiffies of the paused guest"
                );
            }
            jiffies.push(before.1);
            guest.client.resume_vm(VM).await?;
            // The guest goes on: its clock moves.
            while read_jiffies(&guest).await? == before.1 {
                tokio::task::yield_now().await;
            }
        }
        check!(
            jiffies.is_sorted_by(|a, b| a < b),
            "jiffies don't grow: {jiffies:?}"
        );
        guest.console.send(b"stop\n").await?;
        let done = guest.console.report("done").await?;
        check_eq!(done["line"], "stop", "the line that ended the workload");
        guest.power_off().await?;
        pass_with(format!("{ROUNDS} pauses"))
    })
}

/// How long the guest is paused: much longer than the limit of its watchdogs.
const PAUSE: Duration = Duration::from_secs(6);
/// With this, a CPU counts as hung if it has executed nothing for 2 s by the guest's clock (`get_softlockup_thresh` in
/// `kernel/watchdog.c`). The check is every 0.4 s (`set_sample_period`).
const WATCHDOGS: &str = "watchdog_thresh=1";
/// Ticks of the guest in which its watchdogs check several times, at 250 or 1,000 ticks a second.
const TICKS: u64 = 2000;

fn watched(cx: &Context) -> TestResult {
    cx.block_on(async {
        let config = Config {
            kernel_args: WATCHDOGS,
            vcpus: 2,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        guest.say("workload=spin").await?;
        let before = guest.client.pause_vm(VM).await?;
        check_eq!(before.state(), VmState::Paused, "the state after the pause");
        tokio::time::sleep(PAUSE).await;
        guest.client.resume_vm(VM).await?;
        let resumed = read_jiffies(&guest).await?;
        while read_jiffies(&guest).await? < resumed + TICKS {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        guest.say("").await?;
        guest.console.report("done").await?;
        // The log has no complaint.
        guest.finish().await?;
        pass_with(format!("paused for {PAUSE:?}"))
    })
}

/// The message of a kernel that isolates user mode's page tables. It is forced here if the CPU doesn't need it.
const ISOLATES: &str = "page tables isolation: ";

fn isolated(cx: &Context) -> TestResult {
    cx.block_on(async {
        let config = Config {
            kernel_args: "pti=on",
            ..Config::new("workload=spin")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.wait_for(ISOLATES).await?;
        guest.console.report("ready").await?;
        let text = guest.symbol("vfs_read").await?;
        let original = guest.memory(text, 16).await?;
        let (mut in_user_mode, mut in_all) = (0, 0);
        while in_user_mode < ROUNDS {
            guest.client.pause_vm(VM).await?;
            let registers = guest.client.read_registers(VM, 0).await?;
            in_all += 1;
            let user_mode = registers.rip >> 63 == 0;
            in_user_mode += usize::from(user_mode);
            // The kernel's data and text can be read also while user mode's page tables are active, and, below, the
            // stack, also if it is the user's.
            read_jiffies(&guest).await?;
            check_eq!(guest.memory(text, 16).await?, original, "text");
            // The kernel's entry code keeps CR3 in RSP while it switches page tables
            // (SWITCH_TO_KERNEL_CR3 in arch/x86/entry/calling.h): no stack is there then.
            if user_mode || registers.rsp >> 63 == 1 {
                let stack = guest.client.read_memory(VM, 0, registers.rsp, 8).await?;
                check_eq!(stack.len(), 8, "bytes of the stack at {:#x}", registers.rsp);
            }
            guest.client.resume_vm(VM).await?;
        }
        guest.console.send(b"stop\n").await?;
        guest.console.report("done").await?;
        guest.power_off().await?;
        pass_with(format!("{in_user_mode} of {in_all} stops in user mode"))
    })
}

/// What must not change while a guest is paused: registers of its vCPUs, its clock.
async fn still(guest: &Guest) -> Result<(Vec<vmprobe_client::v1::Registers>, u64), Failure> {
    let mut registers = Vec::new();
    for vcpu in 0..2 {
        registers.push(guest.client.read_registers(VM, vcpu).await?);
    }
    Ok((registers, read_jiffies(guest).await?))
}

/// The kernel's `jiffies_64`.
async fn read_jiffies(guest: &Guest) -> Result<u64, Failure> {
    let (symbols, _) = guest.client.lookup_symbols(VM, "jiffies_64", 0).await?;
    let symbol = symbols
        .first()
        .ok_or_else(|| wrong!("no symbol jiffies_64"))?;
    let bytes = guest.client.read_memory(VM, 0, symbol.address, 8).await?;
    let bytes: [u8; 8] = bytes
        .try_into()
        .map_err(|bytes| wrong!("8 bytes of jiffies_64, not {bytes:?}"))?;
    Ok(u64::from_le_bytes(bytes))
}

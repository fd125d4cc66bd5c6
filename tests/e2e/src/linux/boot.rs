//! Kernels in all the forms that they come in, to user space and back.

use vmprobe_client::v1::{BootMethod, ProbeState};

use super::guest::{Config, Guest, VM, files};
use super::jumps::jump;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "debian_6_1_bzimage_boots_to_user_space",
        ids: &["VM01"],
        needs: Needs::Linux,
        run: |cx| {
            boots(
                cx,
                files::BZIMAGE_6_1,
                BootMethod::Elf,
                "Linux version 6.1.",
            )
        },
    },
    Test {
        name: "debian_6_12_bzimage_boots_to_user_space",
        ids: &["VM01", "VM13"],
        needs: Needs::Linux,
        run: |cx| {
            boots(
                cx,
                files::BZIMAGE_6_12,
                BootMethod::Elf,
                "Linux version 6.12.",
            )
        },
    },
    Test {
        name: "a_gzip_payload_boots_to_user_space",
        ids: &["VM01"],
        needs: Needs::Linux,
        run: |cx| {
            boots(
                cx,
                files::BZIMAGE_GZIP,
                BootMethod::Elf,
                "Linux version 6.1.",
            )
        },
    },
    Test {
        name: "an_xz_payload_boots_to_user_space",
        ids: &["VM01"],
        needs: Needs::Linux,
        run: |cx| boots(cx, files::BZIMAGE_XZ, BootMethod::Elf, "Linux version 6.1."),
    },
    Test {
        name: "a_vmlinux_elf_boots_to_user_space",
        ids: &["VM01"],
        needs: Needs::Linux,
        run: |cx| {
            boots(
                cx,
                files::VMLINUX_6_1,
                BootMethod::Elf,
                "Linux version 6.1.",
            )
        },
    },
    Test {
        name: "a_bzimage_as_it_is_boots_with_kaslr_switched_off",
        ids: &["VM01"],
        needs: Needs::Linux,
        run: as_it_is,
    },
    Test {
        name: "a_bzimage_that_is_probed_while_it_starts_counts_as_started_when_it_has",
        ids: &["VM01", "JP04"],
        needs: Needs::Linux,
        run: while_it_starts,
    },
    Test {
        name: "a_bzimage_that_moves_itself_is_found_out",
        ids: &["VM01"],
        needs: Needs::Linux,
        run: moved,
    },
];

fn boots(cx: &Context, kernel: &'static str, boot: BootMethod, version: &str) -> TestResult {
    cx.block_on(async {
        let config = Config {
            kernel,
            as_packaged: true,
            boot,
            kernel_args: "",
            ..Config::new("workload=files count=3")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        let line = guest.console.wait_for("Linux version ").await?;
        check!(line.contains(version), "the kernel is another one: {line}");
        let done = guest.console.report("done").await?;
        check_eq!(done["opens"], 3, "files that PID 1 opened");
        let remark = line.split("Linux version ").nth(1).unwrap_or_default();
        let remark = remark.split(' ').next().unwrap_or_default().to_owned();
        let listed = guest.client.get_vm(VM).await?.kernel_version;
        let listed = listed.split(' ').next().unwrap_or_default();
        check_eq!(listed, remark, "release that is listed of the VM");
        guest.power_off().await?;
        pass_with(remark)
    })
}

/// With KASLR the kernel would be elsewhere than its symbols say: the address in a vCPU's RIP tells.
fn as_it_is(cx: &Context) -> TestResult {
    cx.block_on(async {
        let config = Config {
            boot: BootMethod::Bzimage,
            kernel_args: "",
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        let line = guest.console.wait_for("Command line: ").await?;
        check!(
            line.split_whitespace().any(|word| word == "nokaslr"),
            "no nokaslr in {line:?}"
        );
        guest.console.report("ready").await?;
        let (symbols, _) = guest
            .client
            .lookup_symbols(super::guest::VM, "linux_banner", 0)
            .await?;
        let banner = symbols.first().map_or(0, |symbol| symbol.address);
        let found = guest
            .client
            .read_memory(super::guest::VM, 0, banner, 14)
            .await?;
        check_eq!(
            String::from_utf8_lossy(&found),
            "Linux version ",
            "memory at linux_banner"
        );
        // Where the kernel is was not known before; now it is, and can be probed.
        let probe = guest.probe("do_sys_openat2").await?;
        guest.console.send(b"workload=files count=3\n").await?;
        guest.console.report("done").await?;
        let probes = guest.client.list_probes(super::guest::VM).await?;
        let hits = probes
            .iter()
            .find(|p| p.id == probe.id)
            .map_or(0, |p| p.hits);
        check!(hits >= 3, "3 files were opened, {hits} hits");
        guest.console.send(b"quit\n").await?;
        guest.power_off().await?;
        pass_with("linux_banner is where the symbols say")
    })
}

/// A moved kernel isn't probed where it isn't.
fn moved(cx: &Context) -> TestResult {
    cx.block_on(async {
        let config = Config {
            boot: BootMethod::Bzimage,
            kernel_args: "quiet kaslr",
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        let remark = match guest.probe("do_sys_openat2").await {
            // Chance may leave it in its place; then the probe must work.
            Ok(probe) => {
                guest.console.send(b"workload=files count=3\n").await?;
                guest.console.report("done").await?;
                let probes = guest.client.list_probes(super::guest::VM).await?;
                let hit = probes.iter().any(|p| p.id == probe.id && p.hits >= 3);
                check!(hit, "a moved kernel was probed: {probes:?}");
                "it stayed where it was".to_owned()
            }
            Err(error) => {
                let error = error.to_string();
                check!(error.contains("has moved itself by 0x"), "{error}");
                error
            }
        };
        guest.console.send(b"quit\n").await?;
        guest.power_off().await?;
        pass_with(remark)
    })
}

/// The kernel is found long before it has applied its alternatives: its init text can be probed then, and
/// is gone when it says so.
fn while_it_starts(cx: &Context) -> TestResult {
    cx.block_on(async {
        let config = Config {
            boot: BootMethod::Bzimage,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        let texts = ["init=kernel_init_freeable", "open=do_sys_openat2"];
        loop {
            match guest.probes(&texts).await {
                Ok(_) => break,
                // It is still unpacking itself.
                Err(Failure::Client(error)) if error.to_string().contains("not known yet") => {}
                Err(other) => return Err(other),
            }
        }
        guest.console.report("ready").await?;
        let init = guest.listed("init").await?;
        check_eq!(
            (init.hits, init.state()),
            (1, ProbeState::Gone),
            "hits and state of a probe in init text"
        );
        let open = jump(&guest, "open").await?;
        guest.work("files count=3").await?;
        let opened = guest.listed("open").await?;
        check!(
            opened.hits >= open.hits + 3 && opened.exits == open.exits,
            "3 files were opened: {open:?}, then {opened:?}"
        );
        guest.finish().await?;
        pass()
    })
}

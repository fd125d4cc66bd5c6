//! The list of probes in the kernel's own form, by the command line.

pub mod own;

use std::process::{Command, Stdio};

use super::guest::{Config, Guest, VM, specs};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "the_command_line_lists_probes_as_the_kernel_lists_its_own",
    ids: &["KP09"],
    needs: Needs::Linux,
    run: kernel_form,
}];

/// Runs `vmprobe`, and returns its output, line by line.
pub fn vmprobe(cx: &Context, guest: &Guest, arguments: &[&str]) -> Result<Vec<String>, Failure> {
    let output = Command::new(cx.program("vmprobe"))
        .args(arguments)
        .env("VMPROBE_SERVER", guest.endpoint())
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::io("start vmprobe"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text.lines().map(str::to_owned).collect())
    } else {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(wrong!("vmprobe {arguments:?} failed: {error}"))
    }
}

fn kernel_form(cx: &Context) -> TestResult {
    cx.block_on(async {
        let config = Config {
            probes: specs(&["gone=start_kernel"])?,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        vmprobe(
            cx,
            &guest,
            &[
                "probe",
                "add",
                "read=vfs_read",
                "r:done vfs_read",
                "p:off vfs_write disabled",
            ],
        )?;
        vmprobe(
            cx,
            &guest,
            &[
                "probe",
                "add",
                "tun:tun_chr_open",
                "waits=no_module:function",
            ],
        )?;
        guest.say("workload=module count=1 hold=yes").await?;
        guest.console.report("loaded").await?;
        let lines = vmprobe(cx, &guest, &["probe", "list", "--kernel"])?;
        // As `report_probe` in kernel/kprobes.c writes them, in any order.
        let mut expected = Vec::new();
        for (name, letter, module, state) in [
            ("gone", 'k', "", "[GONE]"),
            ("read", 'k', "", ""),
            ("done", 'r', "", ""),
            ("off", 'k', "", "[DISABLED]"),
            ("tun:tun_chr_open", 'k', "tun", ""),
        ] {
            let probes = guest.client.list_probes(VM).await?;
            let found = probes.iter().find(|probe| probe.name.starts_with(name));
            let probe = found.ok_or_else(|| wrong!("no {name} in {probes:?}"))?;
            let module = if module.is_empty() { " " } else { module };
            expected.push(format!(
                "{:016x}  {letter}  {}+{:#x}  {module} {state}",
                probe.address, probe.symbol, probe.offset
            ));
        }
        check_eq!(lines.len(), expected.len(), "lines of {lines:#?}");
        for line in &expected {
            check!(lines.contains(line), "no line {line:?} in {lines:#?}");
        }
        for event in ["used", "unloaded"] {
            guest.say("").await?;
            guest.console.report(event).await?;
        }
        guest.say("").await?;
        guest.console.report("done").await?;
        let lines = vmprobe(cx, &guest, &["probe", "list", "--kernel"])?;
        let gone = lines.iter().filter(|line| line.ends_with("[GONE]")).count();
        check_eq!(gone, 2, "probes that are gone in {lines:#?}");
        let blacklist = vmprobe(cx, &guest, &["probe", "blacklist", "vfs_read"])?;
        check!(
            blacklist.iter().any(|line| line.contains("\tvfs_read\t")),
            "no ftrace site in the blacklist of vfs_read: {blacklist:#?}"
        );
        guest.finish().await?;
        pass()
    })
}

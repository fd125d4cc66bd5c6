//! The Debian package in a Debian with systemd.

use std::fs;

use super::system::{Disk, cmdline, log_in, with_disk};
use crate::context::Context;
use crate::terminal::Terminal;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "the_debian_package_is_installed_upgraded_removed_and_purged_with_its_service",
    ids: &["SV09"],
    needs: Needs::Linux,
    run: |cx| with_disk(cx, package),
}];

/// The packages' files: one of an earlier version, and that of this clone.
const BEFORE: &str = "vmprobe-before.deb";
const PACKAGE: &str = "vmprobe.deb";
/// A line that an owner adds to the configuration.
const OWN: &str = "max-vms = 3";
/// Finds files that the package has brought or made.
const FIND: &str = "find / /run -xdev -name '*vmprobe*' -not -path '/mnt/*' -not -path '/proc/*'";

fn package(cx: &Context, disk: &Disk) -> TestResult {
    let packages = disk.path("packages");
    let copied = fs::create_dir(&packages).and_then(|()| {
        [BEFORE, PACKAGE]
            .iter()
            .try_for_each(|name| fs::copy(cx.file(name), packages.join(name)).map(drop))
    });
    copied.map_err(Failure::io("copy the packages"))?;
    let share = format!("packages={}", packages.display());
    let cmdline = cmdline();
    let options = [
        "--init",
        "--memory",
        "768",
        "--cmdline",
        &cmdline,
        "--share",
        &share,
    ];
    let mut command = disk.run(cx, ",qcow2", &options);
    let mut guest = Terminal::start(&mut command)?;
    log_in(&mut guest)?;
    guest.command("mount -t virtiofs packages /mnt")?;

    guest.command(&format!("dpkg -i /mnt/{BEFORE}"))?;
    runs(&mut guest)?;
    let socket = guest.command("stat -c '%U:%G %a' /run/vmprobe/vmprobed.sock")?;
    check_eq!(socket.trim(), "vmprobe:vmprobe 660", "the socket");
    let groups = guest.command("id -nG vmprobe")?;
    check_eq!(groups.trim(), "vmprobe kvm", "groups of the user");
    let first = process(&mut guest)?;

    // The owner's changes stay, and the service uses them.
    guest.command(&format!("echo '{OWN}' >>/etc/vmprobe/vmprobed.toml"))?;
    guest.command(&format!("dpkg -i /mnt/{PACKAGE}"))?;
    runs(&mut guest)?;
    check!(
        process(&mut guest)? != first,
        "the upgrade has not restarted the service"
    );
    guest.command(&format!("grep -x '{OWN}' /etc/vmprobe/vmprobed.toml"))?;

    guest.command("systemctl stop vmprobed && ! ls /run/vmprobe")?;
    let result = guest.command("systemctl show --property Result --value vmprobed")?;
    check_eq!(result.trim(), "success", "how the service has ended");
    guest.command("systemctl start vmprobed")?;
    runs(&mut guest)?;

    guest.command("dpkg -r vmprobe")?;
    guest.command("! systemctl is-active vmprobed")?;
    guest.command(&format!("grep -x '{OWN}' /etc/vmprobe/vmprobed.toml"))?;
    guest.command("! ls /usr/bin/vmprobed")?;
    guest.command("dpkg -P vmprobe")?;
    let left = guest.command(FIND)?;
    check_eq!(left.trim(), "", "files that are left");

    guest.type_line("systemctl poweroff")?;
    check_eq!(guest.end()?, Some(0), "exit code of vmprobe run");
    pass_with(String::new())
}

/// Checks that clients can use the service, as far as that is possible without KVM.
fn runs(guest: &mut Terminal) -> Result<(), Failure> {
    // If it isn't active, the reason is in the failure.
    guest
        .command("systemctl is-active vmprobed || { journalctl --no-pager -u vmprobed; false; }")?;
    guest.command("vmprobe vm list")?;
    let created = guest.command("vmprobe vm create --kernel /usr/bin/vmprobe-init; true")?;
    if !created.contains("/dev/kvm") {
        let log = guest.command("journalctl --no-pager -u vmprobed")?;
        return Err(wrong!("a VM without KVM: {created}; {log}"));
    }
    let doctor = guest.command("vmprobe doctor; true")?;
    check!(
        doctor.contains("/dev/kvm"),
        "the doctor without KVM: {doctor}"
    );
    Ok(())
}

fn process(guest: &mut Terminal) -> Result<String, Failure> {
    let number = guest.command("systemctl show --property MainPID --value vmprobed")?;
    Ok(number.trim().to_owned())
}

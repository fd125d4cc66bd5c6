//! Kernels in all the forms that they come in, to user space and back.

use vmprobe_client::v1::BootMethod;

use super::guest::{Config, Guest, VM, files};
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with};

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
        name: "a_kernel_that_is_entered_by_pvh_boots_to_user_space",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: |cx| {
            boots(
                cx,
                files::VMLINUX_6_12,
                BootMethod::Pvh,
                "Linux version 6.12.",
            )
        },
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

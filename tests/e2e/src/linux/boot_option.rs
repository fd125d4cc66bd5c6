//! Probes on the guest's own command line, and what they report of the boot.

use vmprobe_client::ClientError;
use vmprobe_client::v1::{CreateVmRequest, ProbeState};

use super::guest::{Config, Guest, VM};
use crate::context::Context;
use crate::server::Server;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "probes_of_the_guest_s_command_line_are_there_before_its_first_instruction",
        ids: &["KP17"],
        needs: Needs::Linux,
        run: option,
    },
    Test {
        name: "a_bad_probe_on_the_guest_s_command_line_is_refused_with_its_column",
        ids: &["KP17"],
        needs: Needs::Linux,
        run: bad_option,
    },
];

fn option(cx: &Context) -> TestResult {
    cx.block_on(async {
        let config = Config {
            kernel_args: "quiet vmprobe.probe=first=x86_64_start_kernel;start_kernel \
                          vmprobe.probe=r:trap,trap_init",
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        check_eq!(guest.probes.len(), 3, "probes of {:?}", config.kernel_args);
        guest.console.report("ready").await?;
        for probe in &guest.client.list_probes(VM).await? {
            check_eq!(probe.hits, 1, "hits of {}", probe.name);
            check_eq!(probe.state(), ProbeState::Gone, "state of {}", probe.name);
        }
        // The kernel takes the option for one of a module that isn't there, and goes on.
        guest.finish().await?;
        pass()
    })
}

fn bad_option(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        let cases = [
            ("vmprobe.probe=start_kernel;vfs_read+", "column 10"),
            ("vmprobe.probe=no_such_symbol_at_all", "no symbol"),
            ("vmprobe.probe=", "belongs"),
        ];
        for (argument, part) in cases {
            let config = Config {
                kernel_args: argument,
                ..Config::new("workload=none")
            };
            let request: CreateVmRequest = config.request(cx);
            let error = match client.create_vm(request).await {
                Ok(_) => return Err(wrong!("{argument} was accepted")),
                Err(error) => error,
            };
            check!(
                matches!(
                    error,
                    ClientError::InvalidArgument { .. } | ClientError::NotFound { .. }
                ),
                "{argument}: {error:?}"
            );
            check!(error.to_string().contains(part), "{argument}: {error}");
            check!(client.list_vms().await?.is_empty(), "a VM was left behind");
        }
        pass()
    })
}

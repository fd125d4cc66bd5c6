//! The functions that mark the progress of a boot, and the probes on them.

use vmprobe_client::v1::ProbeSpec;
use vmprobe_client::v1::probe_spec::{Kind, Place};
use vmprobe_client::{Client, ClientError, spec};

use super::log::BootLog;
use crate::failure::Failure;

/// In the order of a boot (`arch/x86/kernel/head64.c`, `init/main.c`). Of several names, the first
/// that the kernel has. `mem_init` stands for the `mm_init` of kernels before 6.4, whose name
/// belongs to a function of `kernel/fork.c`, too; `driver_init` for `do_basic_setup`, which
/// compilers make part of its caller.
const STAGES: [&[&str]; 18] = [
    &["x86_64_start_kernel"],
    &["start_kernel"],
    &["setup_arch"],
    &["mm_core_init", "mem_init"],
    &["sched_init"],
    &["init_IRQ"],
    &["time_init"],
    &["console_init"],
    &["rest_init"],
    &["kernel_init"],
    &["kernel_init_freeable"],
    &["workqueue_init"],
    &["smp_init"],
    &["do_basic_setup", "driver_init"],
    &["wait_for_initramfs"],
    &[FREE],
    &[INIT],
    // Only if the stage before it can't be probed: the `kernel_execve` of PID 1 itself, after those
    // of the kernel's helpers.
    &[EXECVE],
];
const FREE: &str = "free_initmem";
const INIT: &str = "run_init_process";
const EXECVE: &str = "kernel_execve";

const INITCALL: &str = "do_one_initcall";

/// Registers the probes of a boot on a guest that hasn't started. Probes that can't be placed are
/// left out and reported, except the one to stop at.
pub async fn plant(
    client: &Client,
    vm: &str,
    until: Option<ProbeSpec>,
    log: &mut BootLog,
) -> Result<(), Failure> {
    let mut planted: Vec<(&str, usize)> = Vec::new();
    let mut refused = None;
    for names in STAGES {
        let has = |name: &str| planted.iter().any(|(planted, _)| *planted == name);
        if names == [EXECVE] && has(INIT) {
            continue;
        }
        match first_of(client, vm, names).await? {
            Ok((name, id)) => planted.push((name, log.add_probe(id, name.to_owned()))),
            Err(reason) => {
                refused.get_or_insert_with(|| reason.clone());
                log.leave_out(&names.join(" or "), reason);
            }
        }
    }
    let find = |name: &str| {
        let mut planted = planted.iter();
        planted.find(|(other, _)| *other == name).map(|(_, at)| *at)
    };
    if let (Some(execve), Some(free)) = (find(EXECVE), find(FREE)) {
        log.only_after(execve, free);
    }
    if let (true, Some(reason)) = (planted.is_empty(), refused) {
        return Err(Failure::NoStage { reason });
    }

    let end = match until {
        None => find(INIT).or_else(|| find(EXECVE)),
        Some(until) => match function(&until).and_then(find) {
            Some(stage) => Some(stage),
            None => {
                let text = spec::definition(&until);
                let ids = client.register_probes(vm, vec![until]).await?;
                let id = ids.first().ok_or(ClientError::Protocol("probe"))?.id;
                Some(log.add_probe(id, text))
            }
        },
    };
    if let Some(end) = end {
        log.watch_until(end);
    }

    match register(client, vm, &format!("r:boot/initcall {INITCALL}")).await? {
        Ok(id) => log.add_initcall_probe(id),
        Err(reason) => log.leave_out(INITCALL, reason),
    }
    Ok(())
}

/// Returns the name of the function that a plain probe is on the start of.
fn function(spec: &ProbeSpec) -> Option<&str> {
    match (&spec.place, &spec.kind) {
        (Some(Place::Symbol(place)), Some(Kind::Instruction(_)))
            if place.offset == 0 && place.module.is_empty() && spec.name.is_empty() =>
        {
            Some(&place.symbol)
        }
        _ => None,
    }
}

/// Finds the first of these functions that can be probed. Returns it with its probe's id, or why
/// none can be.
async fn first_of(
    client: &Client,
    vm: &str,
    names: &[&'static str],
) -> Result<Result<(&'static str, u64), String>, Failure> {
    let mut reasons = Vec::new();
    for name in names {
        match register(client, vm, &format!("p:boot/{name} {name}")).await? {
            Ok(id) => return Ok(Ok((name, id))),
            Err(reason) => reasons.push(reason),
        }
    }
    Ok(Err(reasons.join("; ")))
}

/// Registers a probe. Returns its id, or the server's reason against it.
async fn register(client: &Client, vm: &str, text: &str) -> Result<Result<u64, String>, Failure> {
    match client.register_probes(vm, vec![spec::parse(text)?]).await {
        Ok(probes) => match probes.first() {
            Some(probe) => Ok(Ok(probe.id)),
            None => Err(ClientError::Protocol("probe").into()),
        },
        Err(
            error @ (ClientError::NotFound(_)
            | ClientError::AlreadyExists(_)
            | ClientError::InvalidArgument { .. }
            | ClientError::FailedPrecondition(_)
            | ClientError::ResourceExhausted(_)),
        ) => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_a_probe_that_can_be_read() {
        for name in STAGES.iter().copied().flatten() {
            let spec = spec::parse(&format!("p:boot/{name} {name}")).unwrap();
            assert_eq!(spec.name, format!("boot/{name}"));
        }
        assert!(spec::parse(&format!("r:boot/initcall {INITCALL}")).is_ok());
    }

    #[test]
    fn only_a_plain_probe_on_a_function_is_a_stage_s_own() {
        let function = |text: &str| function(&spec::parse(text).unwrap()).map(str::to_owned);
        assert_eq!(function("rest_init").as_deref(), Some("rest_init"));
        for other in [
            "rest_init+4",
            "rest_init%return",
            "m:rest_init",
            "x=rest_init",
            "0x10",
            "w rest_init",
        ] {
            assert_eq!(function(other), None, "{other}");
        }
    }
}

//! `vmprobe probe ...`

use std::time::Duration;

use vmprobe_client::v1::{Probe as Registered, ProbeState};
use vmprobe_client::{ClientError, ProbeBatch};

use super::guest;
use super::session::reach;
use crate::cli::{
    FormatArgs, OnOff, ProbeAdd, ProbeBlacklist, ProbeCalls, ProbeCommand, ProbeList, ProbeNames,
    ProbeOptimize, ProbeRm, ProbeWait, TargetArgs,
};
use crate::failure::Failure;
use crate::output::{Output, note, print};
use crate::render;
use crate::tracing::{Definition, register_as_asked};

pub async fn probe(command: ProbeCommand) -> Result<(), Failure> {
    match command {
        ProbeCommand::Add(add) => self::add(&add).await,
        ProbeCommand::List(list) => self::list(&list).await,
        ProbeCommand::Rm(remove) => self::remove(remove).await,
        ProbeCommand::Enable(names) => enable(names).await,
        ProbeCommand::Disable(names) => disable(names).await,
        ProbeCommand::Arm(target) => arm(&target).await,
        ProbeCommand::Disarm(target) => disarm(&target).await,
        ProbeCommand::Optimize(optimize) => self::optimize(optimize).await,
        ProbeCommand::Wait(wait) => self::wait(wait).await,
        ProbeCommand::Calls(calls) => self::calls(&calls).await,
        ProbeCommand::Blacklist(blacklist) => self::blacklist(&blacklist).await,
    }
}

async fn add(add: &ProbeAdd) -> Result<(), Failure> {
    let mut definitions = guest::specs_with(&add.specs, &option_words(add))?;
    for Definition { spec, .. } in &mut definitions {
        spec.actions = add.actions.actions();
    }
    let (client, vm) = reach(&add.target).await?;
    changed(
        &register_as_asked(&client, &vm, &definitions).await?,
        add.format,
    )
}

/// Returns the arguments as words of a probe's text.
fn option_words(add: &ProbeAdd) -> Vec<String> {
    let flags = [
        (add.post, "post"),
        (add.fault, "fault"),
        (add.rets, "rets"),
        (add.disabled, "disabled"),
        (add.count, "count"),
        (add.lossless, "lossless"),
        (add.no_jump, "nojump"),
    ];
    let flags = flags.into_iter().filter(|(wanted, _)| *wanted);
    let mut words: Vec<String> = flags.map(|(_, word)| word.to_owned()).collect();
    let tight = |text: &String| text.replace(' ', "");
    words.extend(add.regs.iter().map(tight).map(|registers| {
        let registers = registers.replace(',', "+");
        format!("regs={registers}")
    }));
    let conditions = add.conditions.iter().map(tight);
    words.extend(conditions.map(|condition| format!("if={condition}")));
    words
}

async fn list(list: &ProbeList) -> Result<(), Failure> {
    let (client, vm) = reach(&list.target).await?;
    let answer = client.probe_list(&vm).await?;
    if !answer.armed {
        note("all probes of this VM are disarmed: `vmprobe probe arm` arms those that are enabled");
    }
    if !answer.optimizing {
        note("no probe of this VM is a jump: `vmprobe probe optimize on` lets them be jumps again");
    }
    let probes = answer.probes;
    if list.format.is_json() {
        return print_json(&probes);
    }
    if !list.kernel {
        return print(render::probe_list(&probes, list.wide));
    }
    let pending = |probe: &&Registered| probe.state() == ProbeState::Pending;
    match probes.iter().filter(pending).count() {
        0 => {}
        count => note(format!(
            "left out, because their modules aren't loaded yet: {count}"
        )),
    }
    print(render::kernel_list(&probes))
}

async fn remove(remove: ProbeRm) -> Result<(), Failure> {
    let (client, vm) = reach(&remove.target).await?;
    let (mut ids, names) = ids_and_names(remove.probes);
    if remove.all {
        ids = client
            .list_probes(&vm)
            .await?
            .iter()
            .map(|probe| probe.id)
            .collect();
    }
    changed(
        &client.unregister_batch(&vm, ids, names).await?,
        remove.format,
    )
}

async fn enable(probes: ProbeNames) -> Result<(), Failure> {
    let (client, vm) = reach(&probes.target).await?;
    let (ids, names) = ids_and_names(probes.probes);
    changed(&client.enable_probes(&vm, ids, names).await?, probes.format)
}

async fn disable(probes: ProbeNames) -> Result<(), Failure> {
    let (client, vm) = reach(&probes.target).await?;
    let (ids, names) = ids_and_names(probes.probes);
    changed(
        &client.disable_probes(&vm, ids, names).await?,
        probes.format,
    )
}

async fn arm(target: &TargetArgs) -> Result<(), Failure> {
    let (client, vm) = reach(target).await?;
    stood_still(client.arm_probes(&vm).await?);
    Ok(())
}

async fn disarm(target: &TargetArgs) -> Result<(), Failure> {
    let (client, vm) = reach(target).await?;
    stood_still(client.disarm_probes(&vm).await?);
    Ok(())
}

async fn optimize(optimize: ProbeOptimize) -> Result<(), Failure> {
    let (client, vm) = reach(&optimize.target).await?;
    let on = optimize.switch == OnOff::On;
    if optimize.probes.is_empty() {
        stood_still(client.set_optimization(&vm, on).await?);
        return Ok(());
    }
    let (ids, names) = ids_and_names(optimize.probes);
    let batch = match optimize.switch {
        OnOff::On => client.optimize_probes(&vm, ids, names).await?,
        OnOff::Off => client.keep_breakpoints(&vm, ids, names).await?,
    };
    changed(&batch, optimize.format)
}

async fn wait(wait: ProbeWait) -> Result<(), Failure> {
    let (client, vm) = reach(&wait.target).await?;
    let (ids, names) = ids_and_names(wait.probes);
    let time = Duration::from_secs(wait.timeout);
    let answer = match client.wait_probes(&vm, ids, names, time).await {
        Err(ClientError::Timeout) => {
            let seconds = wait.timeout;
            return Err(Failure::StillWaiting { seconds });
        }
        answer => answer?,
    };
    if wait.format.is_json() {
        return print_json(&answer.probes);
    }
    print(render::probe_list(&answer.probes, false))?;
    if let Some(optimizer) = &answer.optimizer
        && optimizer.batches > 0
    {
        note(format!("so far {}", render::optimizer(optimizer)));
    }
    Ok(())
}

async fn calls(calls: &ProbeCalls) -> Result<(), Failure> {
    let (client, vm) = reach(&calls.target).await?;
    let found = client.calls(&vm).await?;
    if calls.format.is_json() {
        let lines = found.iter().map(render::call_json);
        return print(lines.map(|line| line.to_string()));
    }
    let probes = client.list_probes(&vm).await?;
    print(render::call_list(&found, &probes))
}

async fn blacklist(blacklist: &ProbeBlacklist) -> Result<(), Failure> {
    let (client, vm) = reach(&blacklist.target).await?;
    let mut stream = client.blacklist(&vm, &blacklist.pattern).await?;
    let mut output = Output::new();
    let mut shown = 0;
    while let Some(entries) = stream.next().await? {
        for entry in &entries {
            if blacklist.format.is_json() {
                output.line(render::blacklist_json(entry).to_string())?;
            } else {
                output.line(render::blacklist_line(entry))?;
            }
        }
        shown += entries.len();
        output.flush()?;
    }
    if shown == 0 && !blacklist.pattern.is_empty() {
        let pattern = &blacklist.pattern;
        note(format!("nothing that matches `{pattern}` is refused"));
    }
    Ok(())
}

/// Tells ids from names: a number alone is an id.
fn ids_and_names(probes: Vec<String>) -> (Vec<u64>, Vec<String>) {
    let mut ids = Vec::new();
    let mut names = Vec::new();
    for probe in probes {
        match probe.parse() {
            Ok(id) => ids.push(id),
            Err(_) => names.push(probe),
        }
    }
    (ids, names)
}

fn print_json(probes: &[Registered]) -> Result<(), Failure> {
    let values = probes.iter().map(render::probe_json);
    print(values.map(|value| value.to_string()))
}

fn changed(batch: &ProbeBatch, format: FormatArgs) -> Result<(), Failure> {
    match format.is_json() {
        true => print_json(&batch.probes)?,
        false => print(render::probe_list(&batch.probes, false))?,
    }
    stood_still(batch.stopped);
    Ok(())
}

/// Says what the change cost the guest; nothing when it didn't run yet.
fn stood_still(stopped: Duration) {
    if !stopped.is_zero() {
        note(format!("the guest stood still for {stopped:.1?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_alone_is_an_id() {
        let probes = ["1", "a", "2b", "18446744073709551616"].map(str::to_owned);
        let (ids, names) = ids_and_names(probes.to_vec());
        assert_eq!(ids, [1]);
        assert_eq!(names, ["a", "2b", "18446744073709551616"]);
    }
}

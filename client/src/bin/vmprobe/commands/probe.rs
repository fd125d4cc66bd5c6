//! `vmprobe probe ...`

use vmprobe_client::render;

use super::{guest, reach};
use crate::cli::{Probe, ProbeAdd, ProbeList, ProbeRm};
use crate::failure::Failure;
use crate::output::print;

pub async fn probe(command: Probe) -> Result<(), Failure> {
    match command {
        Probe::Add(add) => self::add(&add).await,
        Probe::List(list) => self::list(&list).await,
        Probe::Rm(remove) => self::remove(remove).await,
    }
}

async fn add(add: &ProbeAdd) -> Result<(), Failure> {
    let specs = guest::specs(&add.specs)?;
    let (client, vm) = reach(&add.target).await?;
    let probes = client.register_probes(&vm, specs).await?;
    print(render::probe_list(&probes))
}

async fn list(list: &ProbeList) -> Result<(), Failure> {
    let (client, vm) = reach(&list.target).await?;
    let probes = client.list_probes(&vm).await?;
    if list.json {
        print(
            probes
                .iter()
                .map(|probe| render::probe_json(probe).to_string()),
        )
    } else {
        print(render::probe_list(&probes))
    }
}

async fn remove(remove: ProbeRm) -> Result<(), Failure> {
    let (client, vm) = reach(&remove.target).await?;
    let mut ids = Vec::new();
    let mut names = Vec::new();
    for probe in remove.probes {
        match probe.parse() {
            Ok(id) => ids.push(id),
            Err(_) => names.push(probe),
        }
    }
    if remove.all {
        ids = client
            .list_probes(&vm)
            .await?
            .iter()
            .map(|probe| probe.id)
            .collect();
    }
    let probes = client.unregister_probes(&vm, ids, names).await?;
    print(render::probe_list(&probes))
}

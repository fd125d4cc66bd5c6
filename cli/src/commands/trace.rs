//! `vmprobe trace`: events on standard output.

use std::io::{self, BufWriter};
use std::time::Duration;

use vmprobe_trace_formats::{Guest, Header, JsonLines};

use crate::cli::Trace;
use crate::failure::Failure;
use crate::tracing::{
    Definition, FleetJson, FleetLines, FleetTrace, TraceLines, Wanted, follow, follow_fleet,
};

pub async fn trace(mut trace: Trace) -> Result<(), Failure> {
    let mut wanted = Wanted::read(&trace.traced)?;
    wanted.names.append(&mut trace.names);
    let actions = trace.actions.actions();
    if !actions.is_empty() && wanted.definitions.is_empty() {
        return Err(Failure::NothingToActAt);
    }
    for Definition { spec, .. } in &mut wanted.definitions {
        spec.actions.clone_from(&actions);
    }
    let out = BufWriter::new(io::stdout());
    let header = match trace.header {
        true => Header::Columns,
        false => Header::None,
    };
    if !trace.hosts.is_empty() {
        let fleet = FleetTrace {
            hosts: trace.target.server.hosts(&trace.hosts)?,
            wanted,
            vms: trace.target.vm.clone().unwrap_or_else(|| "*".to_owned()),
            window: Duration::from_millis(trace.window.into()),
            until: trace.traced.until,
        };
        return match trace.format.is_json() {
            true => follow_fleet(fleet, &mut FleetJson(out)).await,
            false => follow_fleet(fleet, &mut FleetLines { out, header }).await,
        };
    }
    let (target, until) = (&trace.target, &trace.traced.until);
    let totals = if trace.format.is_json() {
        let make = |guest: &Guest| Ok(JsonLines::new(out, guest));
        follow(target, &wanted, until, false, make, Failure::Output)
            .await?
            .1
    } else {
        let make = |guest: &Guest| TraceLines::new(out, guest, header).map_err(Failure::Output);
        follow(target, &wanted, until, false, make, Failure::Output)
            .await?
            .1
    };
    totals.tell();
    Ok(())
}

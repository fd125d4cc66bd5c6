//! `vmprobe export`: events to other engines.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use vmprobe_client::fleet::FleetVm;
use vmprobe_client::v1::{Event, Probe};
use vmprobe_exports::{Export, FileLimits, Nats, NatsOptions, Otlp, Parquet, Say};
use vmprobe_trace_formats::Guest;

use crate::cli::{ExportArgs, NatsArgs, ParquetArgs};
use crate::failure::Failure;
use crate::output::{note, print};
use crate::tracing::{FleetEvents, FleetTrace, VmRecorder, Wanted, follow_fleet, of};

pub async fn export(args: ExportArgs) -> Result<(), Failure> {
    let hosts = match &*args.hosts {
        [] => vec![args.server.host()?],
        wanted => args.server.hosts(wanted)?,
    };
    let fleet = FleetTrace {
        hosts,
        wanted: Wanted::read(&args.traced)?,
        vms: args.vm,
        window: Duration::from_millis(args.window.into()),
        until: args.traced.until,
    };
    let say: Say = Arc::new(|text| note(text));
    let mut exported = Exported(Export::default());
    if !args.nats.nats.is_empty() {
        let nats = Nats::connect(nats_options(args.nats)?, Arc::clone(&say)).await?;
        exported.0.add(nats);
    }
    let ParquetArgs {
        parquet,
        parquet_size,
        parquet_age,
    } = args.parquet;
    if let Some(folder) = parquet {
        let limits = FileLimits {
            bytes: u64::from(parquet_size) << 20,
            age: Duration::from_secs(parquet_age.into()),
        };
        exported.0.add(Parquet::new(folder, limits)?);
    }
    if let Some(receiver) = args.otlp.options() {
        exported.0.add(Otlp::new(&receiver, say)?);
    }
    let followed = follow_fleet(fleet, &mut exported).await;
    let drain = Duration::from_secs(args.drain.into());
    let mut error = None;
    for outcome in exported.0.finish(drain).await {
        let (to, exported, failed) = (outcome.name, outcome.exported, outcome.failed);
        if args.format.is_json() {
            print([json!({"to": to, "exported": exported, "failed": failed}).to_string()])?;
        }
        note(format!("{to}: {exported} events exported, {failed} failed"));
        error = error.or(outcome.error);
    }
    match (followed, error) {
        // If a sink has ended, its error says why events were not followed any more.
        (Err(Failure::SinkEnded { .. }) | Ok(()), Some(error)) => Err(error.into()),
        (followed, _) => followed,
    }
}

fn nats_options(args: NatsArgs) -> Result<NatsOptions, Failure> {
    let secret = |file: Option<&Path>| {
        let read = file.map(|file| {
            let text = fs::read_to_string(file).map_err(|cause| Failure::ReadFile {
                file: file.to_owned(),
                cause,
            });
            text.map(|text| text.trim().to_owned())
        });
        read.transpose()
    };
    Ok(NatsOptions {
        servers: args.nats,
        stream: args.nats_stream,
        credentials: args.nats_creds,
        nkey: secret(args.nats_nkey_file.as_deref())?,
        token: secret(args.nats_token_file.as_deref())?,
        ca: args.nats_ca,
        identity: args.nats_cert.zip(args.nats_key),
    })
}

/// The events on their way to all sinks.
struct Exported(Export);

impl FleetEvents for Exported {
    type Vm = VmRecorder;

    fn joins(&mut self, vm: &FleetVm, guest: &Guest) -> Result<VmRecorder, Failure> {
        Ok(VmRecorder::new(vm, guest))
    }

    fn learn(&mut self, known: &mut VmRecorder, probes: &[Probe]) -> Result<(), Failure> {
        known.learn(probes);
        Ok(())
    }

    async fn event(
        &mut self,
        _vm: &FleetVm,
        known: &mut VmRecorder,
        unix_ns: u64,
        event: &Event,
    ) -> Result<(), Failure> {
        let record = known.record(unix_ns, event);
        let handed = self.0.hand(record).await;
        handed.map_err(|name| Failure::SinkEnded { name })
    }

    fn lost(&mut self, vm: &FleetVm, count: u64) -> Result<(), Failure> {
        note(format!("{}: {count} events lost", of(vm)));
        Ok(())
    }
}

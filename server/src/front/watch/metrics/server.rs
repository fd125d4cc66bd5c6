//! The server's own metrics. Those that all programs have are named as in Prometheus' client libraries.

use std::fmt;

use super::encoder::{Encoder, Labels, in_bytes, in_seconds, plain};
use crate::front::watch::usage::Usage;

/// Writes them, with the number of VMs and the resources that the server's process uses.
pub(super) fn encode(to: &mut Encoder<'_>, vms: usize, this: Option<Usage>) -> fmt::Result {
    let one = |value: f64| [(Labels::new(), value)];
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    to.gauge(
        plain("vmprobe_build_info", "The version of the server, always 1"),
        [(version, 1.0)],
    )?;
    to.gauge(
        plain(
            "vmprobe_vms",
            "VMs of the server that whoever asks may use, ended ones included",
        ),
        one(vms as f64),
    )?;
    let Some(this) = this else {
        return Ok(());
    };
    to.seconds(
        in_seconds(
            "process_cpu",
            "CPU time of the server's process, without those of VMs",
        ),
        one(this.cpu_seconds),
    )?;
    to.gauge(
        in_bytes(
            "process_resident_memory",
            "Memory of the server's process in RAM",
        ),
        one(this.resident_bytes as f64),
    )?;
    to.gauge(
        in_bytes(
            "process_virtual_memory",
            "Address space of the server's process",
        ),
        one(this.virtual_bytes as f64),
    )?;
    to.gauge(
        plain(
            "process_open_fds",
            "Files that the server's process has open",
        ),
        this.open_files.map(|open| (Labels::new(), open as f64)),
    )?;
    to.gauge(
        plain(
            "process_max_fds",
            "Files that the server's process may have open",
        ),
        this.most_files.map(|most| (Labels::new(), most as f64)),
    )?;
    to.gauge(
        plain("process_threads", "Threads of the server's process"),
        one(this.threads as f64),
    )?;
    to.gauge(
        in_seconds(
            "process_start_time",
            "When the server's process was started, since 1970 began",
        ),
        this.started.map(|started| (Labels::new(), started)),
    )
}

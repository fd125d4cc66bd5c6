//! What a server is started with.

use std::path::PathBuf;

use super::address::ListenAddress;
use super::process::VmProgram;
use super::telemetry::TelemetryOptions;
use super::tls::TlsFiles;
use crate::settings::Settings;

/// Permissions of a socket that only its owner may write to.
pub const PRIVATE: u32 = 0o600;

/// Probes of a VM that metrics tell one by one, unless the owner says otherwise.
pub const METRICS_PROBES: u32 = 100;

/// Where to listen, whom to let in, and what to give.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The addresses.
    pub listen: Vec<ListenAddress>,
    /// Permissions of the Unix sockets among them: who may write to one may do all.
    pub socket_mode: u32,
    /// What is shown to clients that come by TCP.
    pub tls: Option<TlsFiles>,
    /// The list of these clients.
    pub clients: Option<PathBuf>,
    /// Takes a line for each call that changes something.
    pub audit_log: Option<PathBuf>,
    /// Whether clients may come by TCP in plain text, to the loopback interface: any process of the host may do all
    /// then.
    pub plain_text: bool,
    /// The addresses of metrics and the status page.
    pub metrics: Vec<ListenAddress>,
    /// The most probes of a VM that metrics tell one by one.
    pub metrics_probes: u32,
    /// Where metrics and the log are sent. The log is as far as the settings have copies of it.
    pub telemetry: TelemetryOptions,
    /// A file with the VMs that are made when the server starts.
    pub vms: Option<PathBuf>,
    /// What holds for all VMs.
    pub settings: Settings,
    /// What runs the VMs.
    pub program: VmProgram,
}

impl ServeOptions {
    /// Those of a server on one address, in plain text if that is one of TCP.
    pub fn new(listen: ListenAddress, settings: Settings, program: VmProgram) -> Self {
        Self {
            listen: vec![listen],
            socket_mode: PRIVATE,
            tls: None,
            clients: None,
            audit_log: None,
            plain_text: true,
            metrics: Vec::new(),
            metrics_probes: METRICS_PROBES,
            telemetry: TelemetryOptions::default(),
            vms: None,
            settings,
            program,
        }
    }
}

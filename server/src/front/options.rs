//! The options that a server is started with.

use std::path::PathBuf;

use super::address::ListenAddress;
use super::process::VmProgram;
use super::telemetry::TelemetryOptions;
use super::tls::TlsFiles;
use crate::settings::Settings;

/// Permissions of a socket that only its owner may write to.
pub const PRIVATE: u32 = 0o600;

/// How many probes of each VM have their own metrics, unless the owner says otherwise.
pub const METRICS_PROBES: u32 = 100;

/// The addresses, the clients that may connect, and what they may use.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The addresses.
    pub listen: Vec<ListenAddress>,
    /// Permissions of the Unix sockets among them. A process that may write to such a socket may do everything.
    pub socket_mode: u32,
    /// The server's certificate and key for clients that connect by TCP.
    pub tls: Option<TlsFiles>,
    /// The list of these clients.
    pub clients: Option<PathBuf>,
    /// The file that gets a line for each call that changes something.
    pub audit_log: Option<PathBuf>,
    /// True if clients may connect by TCP in plain text, on the loopback interface. Any process of the host may do
    /// everything then.
    pub plain_text: bool,
    /// The addresses of metrics and the status page.
    pub metrics: Vec<ListenAddress>,
    /// How many probes of each VM have their own metrics at most.
    pub metrics_probes: u32,
    /// Where metrics and the log are sent. Log records are sent only if the settings keep copies of them.
    pub telemetry: TelemetryOptions,
    /// A file with the VMs that are made when the server starts.
    pub vms: Option<PathBuf>,
    /// The settings for all VMs.
    pub settings: Settings,
    /// The program that runs the VMs.
    pub program: VmProgram,
}

impl ServeOptions {
    /// Makes the options of a server on one address, in plain text if it's a TCP address.
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

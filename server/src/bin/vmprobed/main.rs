//! `vmprobed`: the vmprobe server.

mod args;
mod service_manager;

use std::env;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use vmprobe_command_line::{ConfigurationError, ManualError, completions, write_manual};
use vmprobe_server::vm_process::{self, VmProcessError};
use vmprobe_server::{BindError, Copies, LogOptions, Records, ServeError, Server, Signal, doctor};

use crate::args::{Args, Command, Serve};
use crate::service_manager::Told;

/// The manual that the pages belong to.
const MANUAL: &str = "vmprobe";

/// Why the server didn't start, or stopped.
#[derive(Debug, Error)]
enum ServerFailure {
    #[error("can't start the asynchronous runtime: {0}")]
    Runtime(io::Error),
    #[error("can't watch for signals: {0}")]
    Signals(io::Error),
    #[error("can't write to standard output: {0}")]
    Output(io::Error),
    #[error("can't tell the service manager of being ready: {0}")]
    ServiceManager(io::Error),
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error(transparent)]
    Manual(#[from] ManualError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Vm(#[from] VmProcessError),
}

impl ServerFailure {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Bind(_) | Self::Configuration(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

fn main() -> ExitCode {
    let (log, done) = match Args::read(env::args_os()) {
        Ok(args) => (args.log().clone(), start(args)),
        Err(error) => (LogOptions::default(), Err(error.into())),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            log.tell_failure(&failure);
            failure.exit_code()
        }
    }
}

fn start(args: Args) -> Result<ExitCode, ServerFailure> {
    let sends_logs = args.command.is_none() && args.serve.telemetry.sends(Signal::Logs);
    let records = sends_logs.then(Records::default);
    let copies = match &args.command {
        Some(Command::Vm(arguments)) => arguments.copies(),
        _ => records.clone().map(Copies::Kept),
    };
    args.log().start(args.vm(), copies);
    match args.command {
        Some(Command::Doctor { json }) => return Ok(doctor::report(json)),
        Some(Command::Completions { shell }) => {
            let script = completions(Args::command(), shell);
            let mut stdout = io::stdout().lock();
            stdout.write_all(&script).map_err(ServerFailure::Output)?;
        }
        Some(Command::Manual { folder }) => write_manual(Args::command(), MANUAL, &folder)?,
        Some(Command::Vm(arguments)) => {
            allow_files();
            vm_process::run(&arguments)?;
        }
        None if args.serve.check_config => {
            Server::check(&args.serve.options(None))?;
            let good = "the configuration is good";
            writeln!(io::stdout(), "{good}").map_err(ServerFailure::Output)?;
        }
        None => {
            allow_files();
            serve(&args.serve, records)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Raises the number of files that the process may have open to the system's limit: a guest's connections take one
/// each, and would leave none for clients.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::warn!(
            "the limit of open files stays at {:?}: {error}",
            limit.current
        );
    }
}

fn serve(serve: &Serve, records: Option<Records>) -> Result<(), ServerFailure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(ServerFailure::Runtime)?;
    let result = runtime.block_on(run(serve, records));
    // A read of standard input may still hang, as may a call that was cut off. Neither matters now.
    runtime.shutdown_background();
    result
}

async fn run(serve: &Serve, records: Option<Records>) -> Result<(), ServerFailure> {
    let server = Server::bind(serve.options(records)).await?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServerFailure::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServerFailure::Signals)?;
    announce(&server).map_err(ServerFailure::Output)?;
    let told = Told::ready().map_err(ServerFailure::ServiceManager)?;

    let parent = serve.exit_with_stdin;
    let end = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = stdin_closed(), if parent => {}
        }
        told.stopping();
    };
    Ok(server.serve(end).await?)
}

/// Prints a line on standard output for each address. The program that started this one reads them to learn the ports,
/// and to know that connections are accepted.
fn announce(server: &Server) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for endpoint in server.endpoints() {
        writeln!(stdout, "listening on {endpoint}")?;
    }
    for endpoint in server.metrics_endpoints() {
        writeln!(stdout, "metrics on {endpoint}")?;
    }
    stdout.flush()
}

/// Completes when standard input ends, as the process at its other end has gone.
async fn stdin_closed() {
    let (closed, wait) = oneshot::channel();
    // The read has a thread of its own and not one of the runtime's, as it lasts as long as the process.
    std::thread::spawn(move || {
        let mut byte = [0; 64];
        while matches!(io::stdin().lock().read(&mut byte), Ok(1..)) {}
        // This fails if the server has ended by itself before.
        let _ = closed.send(());
    });
    // An error means that the thread ended, too.
    let _ = wait.await;
}

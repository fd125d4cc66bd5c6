//! `vmprobed`: the vmprobe server.

mod args;

use std::io::{self, Read, Write};
use std::process::ExitCode;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use vmprobe_server::vm_process::{self, VmProcessError};
use vmprobe_server::{BindError, ServeError, Server, doctor};

use crate::args::{Args, Command, Serve};

/// Why the server didn't start, or stopped.
#[derive(Debug, Error)]
enum ServerFailure {
    #[error("can't start the asynchronous runtime: {0}")]
    Runtime(io::Error),
    #[error("can't watch for signals: {0}")]
    Signals(io::Error),
    #[error("can't say where it listens, on standard output: {0}")]
    Announce(io::Error),
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
            Self::Bind(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Doctor { json }) = args.command {
        return doctor::report(json);
    }
    let (log, vm) = match &args.command {
        Some(Command::Vm(arguments)) => (&arguments.log, Some(arguments.name.as_str())),
        _ => (&args.serve.log, None),
    };
    log.start(vm);
    allow_files();
    let served = match &args.command {
        Some(Command::Vm(arguments)) => vm_process::run(arguments).map_err(ServerFailure::from),
        _ => start(&args.serve),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log.tell_failure(&failure);
            failure.exit_code()
        }
    }
}

/// Lets the process have as many files open as the system allows it: a guest's connections take one each, and
/// would leave none for clients.
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

fn start(serve: &Serve) -> Result<(), ServerFailure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(ServerFailure::Runtime)?;
    let result = runtime.block_on(run(serve));
    // A read of standard input may still hang, and a call that the end cut off; neither matters now.
    runtime.shutdown_background();
    result
}

async fn run(serve: &Serve) -> Result<(), ServerFailure> {
    let server = Server::bind(serve.options()).await?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServerFailure::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServerFailure::Signals)?;
    announce(&server).map_err(ServerFailure::Announce)?;

    let parent = serve.exit_with_stdin;
    let end = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = stdin_closed(), if parent => {}
        }
    };
    Ok(server.serve(end).await?)
}

/// A line on standard output for each address. Whoever started this reads them to learn the ports, and to know
/// that connections are accepted.
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

/// Completes when standard input ends: when the process that holds its other end has gone.
async fn stdin_closed() {
    let (closed, wait) = oneshot::channel();
    // A thread of its own, not the runtime's: the read lasts as long as the process.
    std::thread::spawn(move || {
        let mut byte = [0; 64];
        while matches!(io::stdin().lock().read(&mut byte), Ok(1..)) {}
        // Nobody waits any more when the server ends by itself.
        let _ = closed.send(());
    });
    // An error means that the thread ended, too.
    let _ = wait.await;
}

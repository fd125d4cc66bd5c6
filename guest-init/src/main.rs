//! PID 1 of a guest whose root is a folder of its host's or a disk. It runs one command there and switches the guest
//! off, or makes way for the root's own PID 1.

mod command;
mod disk;
mod init;
mod modules;
mod mounts;

use std::{
    error::Error,
    fs,
    io::{self, BufRead, BufReader, Write},
};

use rustix::system::{RebootCommand, reboot};
use vmprobe_init::{Command, JOB, Job, PREFIX, Port, Task, Told};
use vsock::{VMADDR_CID_HOST, VsockStream};

fn main() {
    if std::process::id() != 1 {
        say("this is PID 1 of a guest, and nothing to run by hand");
        std::process::exit(2);
    }
    if let Err(error) = run() {
        let mut text = error.source.to_string();
        let mut cause = error.source.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        say(&text);
        if error.has_system {
            // The kernel panics when PID 1 ends: a guest whose system doesn't boot must not look as if it had
            // switched itself off.
            std::process::exit(1);
        }
    }
    rustix::fs::sync();
    // If even that fails, PID 1 ends and the kernel panics, which ends the guest as well.
    let _failed = reboot(RebootCommand::PowerOff);
}

/// Why the job isn't done.
struct JobError {
    source: Box<dyn Error>,
    /// The job is to boot the root's system. The host waits for no command's end then.
    has_system: bool,
}

fn run() -> Result<(), JobError> {
    let failed = |has_system| move |source| JobError { source, has_system };
    let job = read_job().map_err(failed(false))?;
    let has_system = matches!(job.task, Task::Init(_));
    let done = prepare(&job).and_then(|()| match &job.task {
        Task::Command(command) => run_command(command),
        Task::Init(program) => Err(init::become_init(program).into()),
    });
    done.map_err(failed(has_system))
}

fn read_job() -> Result<Job, Box<dyn Error>> {
    mounts::early()?;
    let job = fs::read(JOB)?;
    Ok(serde_json::from_slice(&job)?)
}

fn prepare(job: &Job) -> Result<(), Box<dyn Error>> {
    modules::load_all()?;
    mounts::enter_root(job)
}

fn run_command(command: &Command) -> Result<(), Box<dyn Error>> {
    let mut control = connect(Port::Control)?;
    let [input, output, errors] = [Port::Input, Port::Output, Port::Errors].map(connect);
    let told = match command::start(command, input?, output?, errors?) {
        Ok(running) => {
            tell(&mut control, &Told::Started)?;
            running.end()?
        }
        Err(error) => Told::Failed {
            reason: error.to_string(),
        },
    };
    tell(&mut control, &told)?;
    // The host closes it when it has read what was told.
    BufReader::new(control).skip_until(b'\0')?;
    Ok(())
}

fn connect(port: Port) -> io::Result<VsockStream> {
    VsockStream::connect_with_cid_port(VMADDR_CID_HOST, port.number()).map_err(|error| {
        let message = format!(
            "can't connect to the host by a virtio socket ({error}): the kernel needs \
             CONFIG_VIRTIO_VSOCKETS"
        );
        io::Error::new(error.kind(), message)
    })
}

fn tell(control: &mut VsockStream, told: &Told) -> io::Result<()> {
    let line = serde_json::to_string(told)?;
    control.write_all(format!("{line}\n").as_bytes())
}

/// Writes a line to the kernel's console.
fn say(text: &str) {
    // There is no other way to tell if that fails.
    let _failed = io::stderr().write_all(format!("{PREFIX}{text}\n").as_bytes());
}

//! What happens to guests and clients when something fails or ends around them.

use std::fs::{self, File};
use std::io;

use iced_x86::code_asm::{qword_ptr, r9, rsi};
use vmprobe_client::v1::{CreateVmRequest, EndingKind, Strategy};
use vmprobe_client::{ClientError, Message};

use super::image::{self, DATA};
use super::power_off_image;
use super::sessions::{kernel, probe};
use super::vm::{Tiny, VM, number};
use crate::context::Context;
use crate::process::Process;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const ENDED: Test = Test {
    name: "tiny_a_server_that_is_asked_to_end_takes_the_probes_out_and_delivers_all_events",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: ended,
};

pub const FILES: Test = Test {
    name: "tiny_processes_without_a_file_to_open_refuse_what_is_new_and_go_on_with_the_rest",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: files,
};

pub const STEPPED: Test = Test {
    name: "tiny_a_guest_whose_instructions_were_stepped_ends_within_the_filters_of_its_threads",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: stepped,
};

/// Checks that the resources of a step go with the vCPU's thread, and not with the thread that
/// drops the VM last.
fn stepped(cx: &Context) -> TestResult {
    let kernel = image::build(|a, names| {
        let mut again = a.create_label();
        a.mov(rsi, DATA)?;
        a.set_label(&mut again)?;
        a.mov(r9, 1_u64)?;
        names.here(a, "body")?;
        a.lock().xadd(qword_ptr(rsi), r9)?;
        names.here(a, "after")?;
        a.jmp(again)
    })?;
    cx.block_on(async {
        let log = std::env::temp_dir().join("server-log");
        let file = File::create(&log).map_err(Failure::io("make a file for the log"))?;
        let guest = Tiny::new_with(cx, &kernel, 64, |command| {
            command.stderr(file);
        })
        .await?;
        let probe = guest.client.register_probes(VM, probe("body")?).await?;
        check_eq!(probe[0].strategy(), Strategy::Step, "the way past it");
        guest.start().await?;
        while guest.client.list_probes(VM).await?[0].hits == 0 {}
        guest.client.kill_vm(VM).await?;
        check_eq!(guest.server.stop()?, Some(0), "exit code of the server");
        let said = fs::read_to_string(&log).map_err(Failure::io("read the log"))?;
        check!(!said.contains("forbids"), "{said}");
        pass()
    })
}

fn ended(cx: &Context) -> TestResult {
    let kernel = kernel()?;
    cx.block_on(async {
        let log = std::env::temp_dir().join("server-log");
        let file = File::create(&log).map_err(Failure::io("make a file for the log"))?;
        let guest = Tiny::new_with(cx, &kernel, 64, |command| {
            command.stderr(file).env("VMPROBE_LOG", "info");
        })
        .await?;
        let definitions = [probe("one=body")?, probe("two=after")?].concat();
        guest.client.register_probes(VM, definitions).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.start().await?;
        // Under load.
        while guest.client.list_probes(VM).await?[1].hits < 1000 {}
        let events = tokio::spawn(async move {
            let (mut of_one, mut of_two, mut lost) = (0, 0, 0);
            loop {
                match stream.next().await {
                    Ok(Some(Message::Batch { lost: more, events })) => {
                        let ones = events.iter().filter(|event| event.probe_id == 1).count();
                        of_one += ones;
                        of_two += events.len() - ones;
                        lost += more;
                    }
                    Ok(Some(Message::Ended(ending))) => return Ok((of_one, of_two, lost, ending)),
                    other => return Err(format!("{other:?}")),
                }
            }
        });
        guest.server.process().signal(libc::SIGTERM)?;
        check_eq!(guest.server.stop()?, Some(0), "exit code of the server");
        let events = events.await.map_err(|error| wrong!("{error}"))?;
        let (of_one, of_two, lost, ending) =
            events.map_err(|other| wrong!("the stream: {other}"))?;
        check_eq!(ending.kind(), EndingKind::Killed, "the guest's ending");
        check_eq!(lost, 0, "lost events");
        // Both probes were removed at the same moment, which may be between them.
        check!(
            of_one == of_two || of_one == of_two + 1,
            "{of_one} events of the first probe, {of_two} of the second"
        );
        let said = fs::read_to_string(&log).map_err(Failure::io("read the log"))?;
        check!(said.contains("its 2 probes are taken out"), "{said}");
        pass_with(format!("{of_one} and {of_two} events"))
    })
}

/// Sets how many files a process may have open. Returns the limit before.
fn limit_files(process: Process, most: u64) -> Result<u64, Failure> {
    let read = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let (mut before, pid) = (read, process.0 as libc::pid_t);
    // SAFETY: `before` is as long as the call.
    let told = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &mut before) };
    let new = libc::rlimit {
        rlim_cur: most,
        ..before
    };
    // SAFETY: `new` is as long as the call.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &new, std::ptr::null_mut()) };
    match (told, set) {
        (0, 0) => Ok(before.rlim_cur),
        _ => Err(Failure::io("limit a process's files")(
            io::Error::last_os_error(),
        )),
    }
}

fn files(cx: &Context) -> TestResult {
    let kernel = kernel()?;
    let other = std::env::temp_dir().join("other-kernel");
    fs::write(&other, power_off_image()?).map_err(Failure::io("write a kernel"))?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        guest.start().await?;
        let processes = [guest.server.process(), guest.server.vm_process(VM)?];
        let mut limits = Vec::new();
        for process in processes {
            // With this limit no further file can be opened, whatever gaps the descriptors have.
            limits.push(limit_files(process, 0)?);
        }
        let request = CreateVmRequest {
            name: "other".into(),
            kernel: other.to_string_lossy().into_owned(),
            memory_mib: 64,
            ..Default::default()
        };
        let refused = guest.client.create_vm(request.clone()).await;
        check!(
            matches!(&refused, Err(ClientError::ResourceExhausted(why)) if why.contains("Too many open files")),
            "{refused:?}"
        );
        check_eq!(guest.client.list_vms().await?.len(), 1, "VMs");
        // Existing connections and VMs go on, and need no new file.
        for text in ["one=body", "two=after"] {
            guest.client.register_probes(VM, probe(text)?).await?;
        }
        let names = vec!["two".to_owned()];
        guest.client.unregister_probes(VM, vec![], names).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        check!(
            matches!(stream.next().await?, Some(Message::Batch { .. })),
            "no events come"
        );
        // A client that connects meanwhile waits.
        let late = tokio::spawn({
            let endpoint = guest.server.endpoint.clone();
            async move {
                let client = vmprobe_client::Client::connect(&endpoint).await?;
                client.list_vms().await
            }
        });
        for (process, limit) in processes.into_iter().zip(limits) {
            limit_files(process, limit)?;
        }
        let found = late.await.map_err(|error| wrong!("{error}"))??;
        check_eq!(found.len(), 1, "VMs that a client sees that has come meanwhile");
        guest.client.create_vm(request).await?;
        guest.client.wait_vm("other").await?;

        let removed = guest.client.unregister_probes(VM, vec![], vec!["one".into()]).await?;
        guest.console.send(b"!").await?;
        let passes = number(&guest.console.bytes(8).await?);
        check!(removed[0].hits > 0 && removed[0].hits <= passes, "{} hits", removed[0].hits);
        guest.console.send(b"!").await?;
        guest.power_off().await?;
        pass()
    })
}

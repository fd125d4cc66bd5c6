//! `vmprobe gdb`.

use serde_json::json;
use tokio::net::TcpListener;
use vmprobe_client::Client;
use vmprobe_gdb::{End, serve};

use super::session::{interrupted, reach};
use crate::cli::Gdb;
use crate::failure::Failure;
use crate::output::{note, print};

pub async fn gdb(gdb: &Gdb) -> Result<(), Failure> {
    let (client, vm) = reach(&gdb.target).await?;
    let done = async {
        match gdb.stdio {
            true => over_stdio(&client, &vm).await,
            false => listen(&client, &vm, gdb).await,
        }
    };
    tokio::select! {
        done = done => done,
        failure = interrupted() => Err(failure),
    }
}

async fn over_stdio(client: &Client, vm: &str) -> Result<(), Failure> {
    let session = client.debug(vm).await?;
    let (from, to) = (tokio::io::stdin(), tokio::io::stdout());
    tell(serve(session, from, to, &mut |reason| note(reason)).await?);
    Ok(())
}

/// Serves one gdb after the other, until the guest has ended.
async fn listen(client: &Client, vm: &str, gdb: &Gdb) -> Result<(), Failure> {
    let address = gdb.listen;
    if !address.ip().is_loopback() {
        return Err(Failure::GdbNotLoopback { address });
    }
    let refused = |cause| Failure::GdbListen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    if gdb.format.is_json() {
        print([json!({"address": address, "vm": vm}).to_string()])?;
    }
    note(format!(
        "waiting for gdb: `target remote {address}` pauses VM `{vm}`"
    ));
    loop {
        let (connection, _) = tokio::select! {
            connection = listener.accept() => connection.map_err(refused)?,
            ended = client.wait_vm(vm) => return Ok(ended.map(drop)?),
        };
        // Without this the acknowledgement of each packet waits for the next one.
        let _only_slower = connection.set_nodelay(true);
        let (from, to) = connection.into_split();
        let session = match client.debug(vm).await {
            Ok(session) => session,
            // Another debugger may be attached, and leave later.
            Err(error) => {
                note(error.to_string());
                continue;
            }
        };
        match serve(session, from, to, &mut |reason| note(reason)).await {
            Ok(end) => tell(end),
            Err(error) => note(error.to_string()),
        }
    }
}

fn tell(end: End) {
    note(match end {
        End::Gone => "gdb has gone; the guest goes on",
        End::Kill => "gdb has gone; the guest goes on. `vmprobe vm kill` kills it",
        End::GuestEnded => "the guest has ended",
    });
}

//! `vmprobe top`: what probes do right now.

mod latencies;
mod rows;
mod screen;

use std::io::{self, IsTerminal};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use vmprobe_client::v1::VmState;

use self::latencies::Latencies;
use self::rows::{Sample, json_lines, table};
use self::screen::Screen;
use super::session::{Signals, reach};
use crate::cli::Top;
use crate::failure::Failure;
use crate::output::print;
use crate::render;

pub async fn top(top: &Top) -> Result<(), Failure> {
    let mut signals = Signals::listen();
    let (client, vm) = reach(&top.target).await?;
    let mut latencies = Latencies::new(client.clone(), vm.clone());
    let mut before = Sample::default();
    let is_json = top.format.is_json();
    let mut screen = match io::stdout().is_terminal() && !top.once && !is_json {
        true => Some(Screen::enter()?),
        false => None,
    };
    let mut next = Instant::now();
    let mut tables = 0;
    loop {
        let probes = client.list_probes(&vm).await?;
        let seen = client.get_vm(&vm).await?;
        let now = Sample::new(&probes, latencies.take());
        latencies.watch(&probes).await;
        let ended = seen.state() == VmState::Ended;
        // Rates need two samples.
        if !before.is_first() || ended {
            let lines = match is_json {
                true => json_lines(&now, &before),
                false => table(&now, &before),
            };
            match &mut screen {
                Some(screen) => screen.show(&title(&vm, &now, &before), &lines)?,
                None => {
                    let between = (tables > 0 && !is_json).then(String::new);
                    print(between.into_iter().chain(lines))?;
                }
            }
            tables += 1;
        }
        if ended {
            drop(screen);
            if let Some(ending) = &seen.ending {
                crate::output::note(format!("the guest ended: {}", render::ending(ending)));
            }
            return Ok(());
        }
        if top.once && tables > 0 {
            return Ok(());
        }
        before = now;
        // A slow sample doesn't make the next ones come faster.
        next = (next + top.interval).max(Instant::now() + Duration::from_millis(1));
        tokio::select! {
            () = sleep_until(next) => {}
            _ = signals.next() => return Ok(()),
        }
    }
}

/// Returns a title such as `guest: 3 probes, 1234 hits/s, 1200 exits/s; Ctrl-C ends it`.
fn title(vm: &str, now: &Sample, before: &Sample) -> String {
    let (hits, exits) = now.totals(before);
    let count = now.probes().len();
    format!("{vm}: {count} probes, {hits} hits/s, {exits} exits/s; Ctrl-C ends it")
}

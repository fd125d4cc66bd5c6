//! What gdb's `monitor` asks for.

use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, outputln};
use vmprobe_client::ClientError;

use crate::guest::Guest;

/// The kernel's scripts for gdb ask for this (`scripts/gdb/linux/utils.py`). A server that answers it has vCPUs as
/// threads, numbered from 1, so that the scripts know which CPU's variables are meant.
const VERSION: &str = "info version";

impl MonitorCmd for Guest<'_> {
    fn handle_monitor_cmd(
        &mut self,
        command: &[u8],
        mut out: ConsoleOutput<'_>,
    ) -> Result<(), ClientError> {
        outputln!(out, "{}", answer(&String::from_utf8_lossy(command)));
        Ok(())
    }
}

fn answer(command: &str) -> String {
    match command.trim() {
        VERSION => format!("vmprobe {}", env!("CARGO_PKG_VERSION")),
        "" | "help" => format!("{VERSION}: the version of vmprobe"),
        other => format!(
            "there is no `{other}`: `monitor help` says what there is, and `vmprobe` in another terminal does the rest"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_an_answer() {
        let version = concat!("vmprobe ", env!("CARGO_PKG_VERSION"));
        assert_eq!(answer(" info version\n"), version);
        assert!(answer("help").starts_with("info version"));
        assert!(answer("info registers").starts_with("there is no `info registers`"));
    }
}

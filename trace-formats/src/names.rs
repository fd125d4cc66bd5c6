//! The probes and addresses of a guest, by name.

use std::collections::HashMap;
use std::sync::Arc;

use vmprobe_proto::v1::probe::Kind;
use vmprobe_proto::v1::{Argument, Event, EventKind, Probe};

use crate::kinds::returned;
use crate::symbols::{Place, Symbols};
use crate::text::{identifier, printable};
use crate::writer::Guest;

/// The group of a probe that names none (`KPROBE_EVENT_SYSTEM` in `kernel/trace/trace_kprobe.c`).
const GROUP: &str = "kprobes";

/// The probes that are known, and the symbols that name addresses.
pub(crate) struct Names {
    probes: HashMap<u64, Arc<Probe>>,
    symbols: Arc<dyn Symbols + Send + Sync>,
}

impl Names {
    pub(crate) fn new(guest: &Guest) -> Self {
        Self {
            probes: HashMap::new(),
            symbols: Arc::clone(&guest.symbols),
        }
    }

    /// Learns probes; those learnt before stay, so that late events of a removed probe keep their names.
    pub(crate) fn learn(&mut self, probes: &[Probe]) {
        for probe in probes {
            self.probes.insert(probe.id, Arc::new(probe.clone()));
        }
    }

    /// Returns the event's probe, if it is known.
    pub(crate) fn probe(&self, event: &Event) -> Option<&Arc<Probe>> {
        self.probes.get(&event.probe_id)
    }

    /// Returns what covers an address.
    pub(crate) fn symbol(&self, address: u64) -> Option<Place> {
        self.symbols.name(address)
    }

    /// Returns an address as the kernel writes it with its offset (`seq_print_ip_sym` in
    /// `kernel/trace/trace_output.c`): `vfs_read+0x5/0x310`, `0x00401000` where nothing covers it, `0` for 0.
    pub(crate) fn place(&self, address: u64) -> String {
        match (address, self.symbol(address)) {
            (0, _) => "0".into(),
            (_, Some(symbol)) => printable(symbol.to_string().as_bytes()),
            (_, None) => format!("0x{address:08x}"),
        }
    }

    /// As [`Self::place`], without the offset: `vfs_read`.
    pub(crate) fn function(&self, address: u64) -> String {
        match (address, self.symbol(address)) {
            (0, _) => "0".into(),
            (_, Some(symbol)) => printable(symbol.name.as_bytes()),
            (_, None) => format!("0x{address:08x}"),
        }
    }

    /// Returns what covers the address of a probe. The probe's own symbol comes before other names of the same place.
    fn symbol_of(&self, probe: &Probe) -> Option<Place> {
        let found = self.symbol(probe.address);
        if probe.symbol.is_empty() {
            return found;
        }
        let size = found
            .filter(|found| found.offset == probe.offset)
            .and_then(|found| found.size);
        Some(Place {
            name: probe.symbol.clone(),
            offset: probe.offset,
            size,
            module: probe.module.clone(),
        })
    }

    /// Returns where an event that is no return happened: the probe's place, or for an access to data the instruction
    /// behind the access.
    pub(crate) fn event_place(&self, event: &Event) -> String {
        match self.probe(event) {
            Some(probe) if probe.address != 0 && event.kind() != EventKind::Access => {
                match self.symbol_of(probe) {
                    Some(symbol) => printable(symbol.to_string().as_bytes()),
                    None => format!("0x{:08x}", probe.address),
                }
            }
            _ => self.place(self.event_address(event)),
        }
    }

    /// Returns the address of that place. It is 0 where it isn't known.
    pub(crate) fn event_address(&self, event: &Event) -> u64 {
        match self.probe(event) {
            Some(probe) if probe.address != 0 && event.kind() != EventKind::Access => probe.address,
            _ => event
                .registers
                .as_ref()
                .map_or(0, |registers| registers.rip),
        }
    }

    /// Returns the function that a return event's probe is on; `?` where that isn't known.
    pub(crate) fn probed_function(&self, event: &Event) -> String {
        match self.probe(event) {
            Some(probe) if !probe.symbol.is_empty() => printable(probe.symbol.as_bytes()),
            Some(probe) if probe.address != 0 => self.function(probe.address),
            _ => "?".into(),
        }
    }

    /// Returns group and name of the event, such as `kprobes` and `open`; see [`event_name`].
    pub(crate) fn event_name(&self, event: &Event) -> (String, String) {
        match self.probe(event) {
            Some(probe) => event_name(probe),
            None => (GROUP.into(), format!("#{}", event.probe_id)),
        }
    }

    /// Returns the argument that the event's value at an index belongs to.
    pub(crate) fn argument(&self, event: &Event, at: usize) -> Option<&Argument> {
        self.probe(event)?.arguments.get(at)
    }

    /// Returns the place of an event as the kernel writes it, for a return event `ksys_read+0x6a/0xe0 <- vfs_read`
    /// (`print_kprobe_event` and `print_kretprobe_event` in `kernel/trace/trace_kprobe.c`).
    pub(crate) fn places(&self, event: &Event) -> String {
        match returned(event) {
            Some(returned) => format!(
                "{} <- {}",
                self.place(returned.caller),
                self.probed_function(event)
            ),
            None => self.event_place(event),
        }
    }
}

/// Returns group and name of a probe's events. The name is the probe's; `fs/open` is `open` of the group `fs`. A probe
/// without a name has the kernel's default one: `p_vfs_read_0`, `r_vfs_read_0`, or `p_0xffffffff81234567` where there
/// is no symbol (`__trace_kprobe_create` in `kernel/trace/trace_kprobe.c`). A watchpoint's begins with `w`.
pub(crate) fn event_name(probe: &Probe) -> (String, String) {
    if !probe.name.is_empty() {
        let name = printable(probe.name.as_bytes());
        return match name.split_once('/') {
            Some((group, name)) if !group.is_empty() && !name.is_empty() => {
                (group.to_owned(), name.to_owned())
            }
            _ => (GROUP.into(), name),
        };
    }
    let letter = match probe.kind {
        Some(Kind::ReturnProbe(_)) => 'r',
        Some(Kind::Watchpoint(_)) => 'w',
        _ => 'p',
    };
    let name = if probe.symbol.is_empty() {
        format!("{letter}_{:#x}", probe.address)
    } else {
        format!("{letter}_{}_{}", identifier(&probe.symbol), probe.offset)
    };
    (GROUP.into(), name)
}

#[cfg(test)]
mod tests {
    use vmprobe_proto::v1::ReturnProbe;

    use super::*;

    #[test]
    fn a_probe_without_a_name_has_the_kernels_default_one() {
        let mut probe = Probe {
            symbol: "vfs_read.cold".into(),
            offset: 5,
            address: 0xffff_ffff_8123_4567,
            ..Probe::default()
        };
        assert_eq!(event_name(&probe).1, "p_vfs_read_cold_5");
        probe.kind = Some(Kind::ReturnProbe(ReturnProbe::default()));
        probe.offset = 0;
        assert_eq!(event_name(&probe).1, "r_vfs_read_cold_0");
        probe.symbol.clear();
        assert_eq!(event_name(&probe).1, "r_0xffffffff81234567");
    }

    #[test]
    fn a_name_may_have_a_group() {
        for (name, group, event) in [
            ("open", "kprobes", "open"),
            ("fs/open", "fs", "open"),
            ("/open", "kprobes", "/open"),
            ("vfs_read+0x5", "kprobes", "vfs_read+0x5"),
        ] {
            let probe = Probe {
                name: name.into(),
                ..Probe::default()
            };
            assert_eq!(event_name(&probe), (group.to_owned(), event.to_owned()));
        }
    }
}

//! What the probes and the addresses of events are called, asked of the server.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::task::JoinSet;
use vmprobe_client::v1::event::Detail;
use vmprobe_client::v1::{Event, EventKind, Probe, ResolveAddressResponse};
use vmprobe_client::{Client, ClientError};
use vmprobe_trace_formats::{Guest, Place, Symbols};

/// Addresses whose symbols are kept. A guest that makes up more only loses their names.
const SYMBOLS_MAX: usize = 1 << 16;

/// Addresses that are asked for at the same time.
const AT_ONCE: usize = 32;

/// The symbols of addresses that were asked for; none for those that have none.
#[derive(Debug, Default)]
struct KnownSymbols(RwLock<HashMap<u64, Option<Place>>>);

impl KnownSymbols {
    fn wants(&self, address: u64) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.len() < SYMBOLS_MAX && !known.contains_key(&address)
    }

    fn learn(&self, address: u64, place: Option<Place>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() < SYMBOLS_MAX {
            known.insert(address, place);
        }
    }
}

impl Symbols for KnownSymbols {
    fn name(&self, address: u64) -> Option<Place> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&address).cloned().flatten()
    }
}

/// Asks the server for the names of probes and addresses before their events are written.
pub struct EventNames {
    client: Client,
    vm: String,
    guest: Guest,
    symbols: Arc<KnownSymbols>,
    /// The addresses of the probes that are known, by their ids; 0 where there is none.
    probes: HashMap<u64, u64>,
}

impl EventNames {
    /// Makes one for a VM whose time stamp counter has `tsc_hz` hertz.
    pub fn new(client: Client, vm: String, tsc_hz: u64, cpus: u32) -> Self {
        let symbols = Arc::<KnownSymbols>::default();
        Self {
            client,
            vm,
            guest: Guest {
                tsc_hz,
                cpus,
                symbols: Arc::clone(&symbols) as _,
            },
            symbols,
            probes: HashMap::new(),
        }
    }

    /// The guest, as writers need it. Its symbols are those that events were prepared for.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Notes probes that the writer has learned already.
    pub fn learn(&mut self, probes: &[Probe]) {
        let known = probes.iter().map(|probe| (probe.id, probe.address));
        self.probes.extend(known);
    }

    /// Asks for all that the writer will need for these events. Returns the probes that the writer has to learn first.
    ///
    /// # Errors
    /// The server doesn't tell of its probes. An address without a symbol is no error.
    pub async fn prepare(&mut self, events: &[Event]) -> Result<Vec<Probe>, ClientError> {
        let mut new = Vec::new();
        let knows = |probes: &HashMap<u64, u64>, id| probes.contains_key(&id);
        if events
            .iter()
            .any(|event| !knows(&self.probes, event.probe_id))
        {
            new = self.client.list_probes(&self.vm).await?;
            new.retain(|probe| !knows(&self.probes, probe.id));
            self.learn(&new);
            for event in events {
                // A probe that was removed meanwhile: ask only once.
                self.probes.entry(event.probe_id).or_default();
            }
        }
        self.ask_symbols(events).await;
        Ok(new)
    }

    async fn ask_symbols(&self, events: &[Event]) {
        let mut wanted = HashSet::new();
        for event in events {
            let address = self.probes.get(&event.probe_id).copied().unwrap_or(0);
            let registers = event.registers.as_ref();
            let own = match (address, event.kind()) {
                (0, _) | (_, EventKind::Access) => registers.map(|registers| registers.rip),
                (address, _) => Some(address),
            };
            let caller = match &event.detail {
                Some(Detail::Return(returned)) => Some(returned.caller),
                _ => None,
            };
            let all = own.into_iter().chain(caller);
            let all = all.chain(event.stack.iter().copied());
            wanted.extend(all.filter(|address| self.symbols.wants(*address)));
        }
        let wanted: Vec<u64> = wanted.into_iter().collect();
        for addresses in wanted.chunks(AT_ONCE) {
            let mut asked = JoinSet::new();
            for address in addresses.iter().copied() {
                let (client, vm) = (self.client.clone(), self.vm.clone());
                asked.spawn(async move { (address, client.locate(&vm, address).await) });
            }
            while let Some(answer) = asked.join_next().await {
                // An address without a name is shown as a number; a lost connection shows in the stream.
                if let Ok((address, answer)) = answer {
                    self.symbols.learn(address, answer.ok().and_then(place));
                }
            }
        }
    }
}

/// Returns what covers the address that the server was asked for.
pub fn place(answer: ResolveAddressResponse) -> Option<Place> {
    let symbol = answer.symbol?;
    Some(Place {
        size: (answer.size > 0).then_some(answer.size),
        module: answer.module,
        ..Place::new(symbol.name, answer.offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_kept_for_a_bounded_number_of_addresses() {
        let symbols = KnownSymbols::default();
        for address in 0..SYMBOLS_MAX as u64 + 10 {
            symbols.learn(address, Some(Place::new("f", address)));
        }
        assert_eq!(symbols.0.read().unwrap().len(), SYMBOLS_MAX);
        assert!(!symbols.wants(u64::MAX));
        assert_eq!(symbols.name(7), Some(Place::new("f", 7)));
        assert_eq!(symbols.name(u64::MAX), None);
    }

    #[test]
    fn a_symbol_of_unknown_size_has_none() {
        let mut answer = ResolveAddressResponse {
            offset: 5,
            ..Default::default()
        };
        assert_eq!(place(answer.clone()), None);
        answer.symbol = Some(vmprobe_client::v1::Symbol {
            name: "f".into(),
            ..Default::default()
        });
        assert_eq!(place(answer.clone()), Some(Place::new("f", 5)));
        answer.size = 16;
        assert_eq!(place(answer).unwrap().to_string(), "f+0x5/0x10");
    }
}

//! A server that keeps to the contract and has no guest: each probe has one made-up event once its
//! VM is started.

pub mod command;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};
use vmprobe_client::spec;
use vmprobe_client::v1::event_service_server::{EventService, EventServiceServer};
use vmprobe_client::v1::probe_service_server::{ProbeService, ProbeServiceServer};
use vmprobe_client::v1::symbol_service_server::{SymbolService, SymbolServiceServer};
use vmprobe_client::v1::update_probes_request::Change;
use vmprobe_client::v1::vm_service_server::{VmService, VmServiceServer};
use vmprobe_client::v1::{event::Detail, stream_events_response::Message, *};

/// Hertz of its guests' TSC.
const TSC_HZ: u64 = 1_000_000_000;

/// Items of its pages, whatever a client asks for.
const PAGE: usize = 2;

/// What the kernel of its guests has: name, address.
const SYMBOLS: [(&str, u64); 10] = [
    ("start_kernel", 0x1000),
    ("mem_init", 0x2000),
    ("do_one_initcall", 0x3000),
    ("free_initmem", 0x4000),
    ("kernel_execve", 0x5000),
    ("vfs_read", 0x6000),
    ("vfs_write", 0x6800),
    ("acpi_init", 0x7000),
    ("jiffies", 0x8000),
    ("__initcall__kmod_acpi__431_1452_acpi_init4", 0x9000),
];

#[derive(Default)]
struct State {
    vm: Option<Vm>,
    probes: Vec<Probe>,
    disarmed: bool,
    optimization_off: bool,
    /// Calls, in their order, for tests that ask what the client did.
    calls: Vec<&'static str>,
    ending: Option<Ending>,
}

/// The server; ends with the test's runtime.
#[derive(Clone, Default)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Fake {
    /// Starts it on a port of its own; the address is the answer.
    pub async fn start() -> (Self, String) {
        let fake = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = tonic::transport::Server::builder()
            .add_service(VmServiceServer::new(fake.clone()))
            .add_service(ProbeServiceServer::new(fake.clone()))
            .add_service(EventServiceServer::new(fake.clone()))
            .add_service(SymbolServiceServer::new(fake.clone()));
        tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        (fake, address)
    }

    /// One with a VM called `guest`.
    pub async fn with_guest() -> (Self, String) {
        let (fake, address) = Self::start().await;
        fake.state().vm = Some(Vm {
            name: "guest".into(),
            ..Default::default()
        });
        (fake, address)
    }

    /// The calls it has had so far.
    pub fn calls(&self) -> Vec<&'static str> {
        self.state().calls.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn called(&self, name: &'static str) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.calls.push(name);
        state
    }

    fn set_vm_state(&self, to: VmState, call: &'static str) -> Option<Vm> {
        let mut state = self.called(call);
        if let Some(vm) = &mut state.vm {
            vm.set_state(to);
        }
        self.changed.notify_waiters();
        state.vm.clone()
    }
}

impl State {
    fn register(&mut self, specs: &[ProbeSpec]) -> Result<Vec<Probe>, Status> {
        let mut new = Vec::new();
        let expanded: Vec<ProbeSpec> = specs.iter().flat_map(expanded).collect();
        if expanded.is_empty() && !specs.is_empty() {
            return Err(Status::not_found("nothing matches"));
        }
        for spec in &expanded {
            let mut probe = Probe {
                id: (self.probes.len() + new.len() + 1) as u64,
                name: spec.name.clone(),
                ..Default::default()
            };
            match &spec.place {
                Some(probe_spec::Place::Symbol(place)) => {
                    let found = SYMBOLS.iter().find(|(name, _)| *name == place.symbol);
                    probe.symbol.clone_from(&place.symbol);
                    probe.module.clone_from(&place.module);
                    probe.offset = place.offset;
                    match found {
                        Some((_, address)) => probe.address = address + place.offset,
                        None if !place.module.is_empty() => probe.set_state(ProbeState::Pending),
                        None => {
                            let text = format!("this kernel has no symbol {}", place.symbol);
                            return Err(Status::invalid_argument(text));
                        }
                    }
                }
                Some(probe_spec::Place::Address(address)) => probe.address = *address,
                None => return Err(Status::invalid_argument("no place")),
            }
            if probe.state() == ProbeState::Unspecified {
                probe.set_state(match spec::is_enabled(spec) {
                    true => ProbeState::Armed,
                    false => ProbeState::Disabled,
                });
            }
            probe.options.clone_from(&spec.options);
            probe.filter.clone_from(&spec.filter);
            probe.stack = spec.stack;
            probe.arguments = spec.arguments.iter().map(|text| argument(text)).collect();
            if let Some(at) = spec.arguments.iter().position(|text| text == "nobody") {
                let field = format!("probes[{}].arguments[{at}]", new.len());
                let text = "`nobody`, column 1: vfs_read has no parameter nobody";
                let details = ErrorDetails::with_bad_request_violation(field, text);
                let code = Code::InvalidArgument;
                return Err(Status::with_error_details(code, text, details));
            }
            let on = spec.options.as_ref().is_none_or(spec::may_optimize);
            probe.optimization = Some(optimization(on));
            probe.kind = spec.kind.map(|kind| match kind {
                probe_spec::Kind::Instruction(kind) => probe::Kind::InstructionProbe(kind),
                probe_spec::Kind::Return(kind) => probe::Kind::ReturnProbe(kind),
                probe_spec::Kind::Watchpoint(kind) => probe::Kind::Watchpoint(kind),
            });
            if probe.name.is_empty() {
                probe.name = format!("{}+{:#x}", probe.symbol, probe.offset);
            }
            new.push(probe);
        }
        self.probes.extend(new.iter().cloned());
        Ok(new)
    }

    fn chosen(&self, selector: Option<&ProbeSelector>) -> Result<Vec<usize>, Status> {
        let Some(ProbeSelector { ids, names }) = selector else {
            return Ok(Vec::new());
        };
        let by_id = ids.iter().map(|id| {
            let found = self.probes.iter().position(|probe| probe.id == *id);
            found.ok_or_else(|| Status::not_found(format!("no probe has the id {id}")))
        });
        let by_name = names.iter().map(|name| {
            let found = self.probes.iter().position(|probe| probe.name == *name);
            found.ok_or_else(|| Status::not_found(format!("no probe is called `{name}`")))
        });
        by_id.chain(by_name).collect()
    }

    /// A hit a millisecond, by id. `kernel_execve` is hit first, by a helper's process, and last.
    fn events(&self) -> Vec<Event> {
        let execve = |probe: &&Probe| probe.symbol == "kernel_execve";
        let others = self.probes.iter().filter(|probe| !execve(probe));
        let mut probes: Vec<&Probe> = others.collect();
        if let Some(execve) = self.probes.iter().find(execve) {
            probes.insert(0, execve);
            probes.push(execve);
        }
        let events = probes.iter().enumerate().map(|(index, probe)| {
            let mut event = Event {
                probe_id: probe.id,
                tsc: (index as u64 + 1) * TSC_HZ / 1000,
                registers: Some(Registers {
                    rip: probe.address,
                    rax: u64::from((-19i32).cast_unsigned()),
                    ..Default::default()
                }),
                context: Some(Context {
                    pid: 77,
                    tgid: 77,
                    comm: b"cat".to_vec(),
                    time_ns: (index as u64 + 1) * 1_000_000,
                    ..Default::default()
                }),
                values: probe.arguments.iter().map(value).collect(),
                ..Default::default()
            };
            if probe.stack > 0 {
                event.stack = vec![probe.address, 0x3010, 0x1020];
            }
            event.set_kind(EventKind::Pre);
            match &probe.kind {
                Some(probe::Kind::ReturnProbe(_)) => {
                    event.set_kind(EventKind::Return);
                    event.detail = Some(Detail::Return(Return {
                        caller: 0x6010,
                        entry_tsc: event.tsc - TSC_HZ / 2000,
                        entry: Some(Registers {
                            rdi: 0x7000,
                            ..Default::default()
                        }),
                        tail_call: false,
                    }));
                }
                Some(probe::Kind::InstructionProbe(kind)) if kind.fault => {
                    event.set_kind(EventKind::Fault);
                    event.detail = Some(Detail::Fault(Fault {
                        vector: 14,
                        error_code: Some(2),
                        address: Some(0x10),
                    }));
                }
                Some(probe::Kind::InstructionProbe(kind)) if kind.post => {
                    event.set_kind(EventKind::Post);
                }
                Some(probe::Kind::Watchpoint(_)) => event.set_kind(EventKind::Access),
                _ => {}
            }
            event
        });
        events.collect()
    }
}

#[tonic::async_trait]
impl VmService for Fake {
    async fn create_vm(&self, request: Request<CreateVmRequest>) -> Answer<CreateVmResponse> {
        let request = request.into_inner();
        let mut state = self.called("create");
        let probes = state.register(&request.probes)?;
        let mut vm = Vm {
            name: request.name,
            kernel: request.kernel,
            kernel_version: "6.1.0-fake (builder@host)".into(),
            ..Default::default()
        };
        vm.set_state(VmState::Created);
        state.vm = Some(vm.clone());
        Ok(Response::new(CreateVmResponse {
            vm: Some(vm),
            probes,
        }))
    }

    async fn start_vm(&self, _: Request<StartVmRequest>) -> Answer<StartVmResponse> {
        let vm = self.set_vm_state(VmState::Running, "start");
        Ok(Response::new(StartVmResponse { vm }))
    }

    async fn get_vm(&self, _: Request<GetVmRequest>) -> Answer<GetVmResponse> {
        let vm = self.state().vm.clone();
        Ok(Response::new(GetVmResponse { vm }))
    }

    async fn list_vms(&self, _: Request<ListVmsRequest>) -> Answer<ListVmsResponse> {
        let vms = self.state().vm.iter().cloned().collect();
        Ok(Response::new(ListVmsResponse {
            vms,
            ..Default::default()
        }))
    }

    async fn pause_vm(&self, _: Request<PauseVmRequest>) -> Answer<PauseVmResponse> {
        let vm = self.set_vm_state(VmState::Paused, "pause");
        Ok(Response::new(PauseVmResponse { vm }))
    }

    async fn resume_vm(&self, _: Request<ResumeVmRequest>) -> Answer<ResumeVmResponse> {
        let vm = self.set_vm_state(VmState::Running, "resume");
        Ok(Response::new(ResumeVmResponse { vm }))
    }

    async fn kill_vm(&self, _: Request<KillVmRequest>) -> Answer<KillVmResponse> {
        let mut ending = Ending::default();
        ending.set_kind(EndingKind::Killed);
        ending.exit_code = 6;
        self.state().ending = Some(ending.clone());
        if let Some(vm) = &mut self.state().vm {
            vm.ending = Some(ending);
        }
        let vm = self.set_vm_state(VmState::Ended, "kill");
        Ok(Response::new(KillVmResponse { vm }))
    }

    async fn wait_vm(&self, _: Request<WaitVmRequest>) -> Answer<WaitVmResponse> {
        let mut ending = Ending::default();
        ending.set_kind(EndingKind::Panic);
        ending.exit_code = 4;
        drop(self.called("wait"));
        Ok(Response::new(WaitVmResponse {
            ending: Some(ending),
        }))
    }

    async fn delete_vm(&self, _: Request<DeleteVmRequest>) -> Answer<DeleteVmResponse> {
        Ok(Response::new(DeleteVmResponse {}))
    }

    async fn read_registers(
        &self,
        _: Request<ReadRegistersRequest>,
    ) -> Answer<ReadRegistersResponse> {
        Ok(Response::new(ReadRegistersResponse::default()))
    }

    async fn read_memory(&self, _: Request<ReadMemoryRequest>) -> Answer<ReadMemoryResponse> {
        Ok(Response::new(ReadMemoryResponse::default()))
    }
}

#[tonic::async_trait]
impl ProbeService for Fake {
    type ListCallsStream = Answers<ListCallsResponse>;
    type ListBlacklistStream = Answers<ListBlacklistResponse>;

    async fn register_probes(
        &self,
        request: Request<RegisterProbesRequest>,
    ) -> Answer<RegisterProbesResponse> {
        let probes = self
            .called("register")
            .register(&request.into_inner().probes)?;
        Ok(Response::new(RegisterProbesResponse {
            probes,
            stopped_ns: 12_345,
        }))
    }

    async fn unregister_probes(
        &self,
        request: Request<UnregisterProbesRequest>,
    ) -> Answer<UnregisterProbesResponse> {
        let request = request.into_inner();
        let mut state = self.called("unregister");
        let chosen = state.chosen(request.selector.as_ref())?;
        let probes: Vec<Probe> = chosen.iter().map(|&at| state.probes[at].clone()).collect();
        state.probes.retain(|probe| !probes.contains(probe));
        Ok(Response::new(UnregisterProbesResponse {
            probes,
            stopped_ns: 0,
        }))
    }

    async fn list_probes(&self, request: Request<ListProbesRequest>) -> Answer<ListProbesResponse> {
        let state = self.state();
        let (probes, next_page_token) = page(&state.probes, &request.get_ref().page_token);
        Ok(Response::new(ListProbesResponse {
            probes,
            next_page_token,
            armed: !state.disarmed,
            optimizing: !state.optimization_off,
        }))
    }

    async fn update_probes(
        &self,
        request: Request<UpdateProbesRequest>,
    ) -> Answer<UpdateProbesResponse> {
        let request = request.into_inner();
        let selector = request.selector.as_ref();
        let change = request
            .change
            .ok_or_else(|| Status::invalid_argument("no change"))?;
        let mut state = self.called(match (change, selector) {
            (Change::Enabled(_), Some(_)) => "enable",
            (Change::Enabled(_), None) => "arm",
            (Change::Optimize(_), Some(_)) => "optimize",
            (Change::Optimize(_), None) => "set optimization",
        });
        match change {
            Change::Enabled(on) if selector.is_none() => state.disarmed = !on,
            Change::Optimize(on) if selector.is_none() => state.optimization_off = !on,
            _ => {}
        }
        let mut probes = Vec::new();
        for at in state.chosen(selector)? {
            match change {
                Change::Enabled(true) => state.probes[at].set_state(ProbeState::Armed),
                Change::Enabled(false) => state.probes[at].set_state(ProbeState::Disabled),
                Change::Optimize(on) => state.probes[at].optimization = Some(optimization(on)),
            }
            probes.push(state.probes[at].clone());
        }
        let stopped_ns = match (change, selector) {
            (Change::Enabled(_), None) => 0,
            _ => 12_345,
        };
        Ok(Response::new(UpdateProbesResponse { probes, stopped_ns }))
    }

    /// A probe called `slow` waits for ever.
    async fn wait_probes(&self, request: Request<WaitProbesRequest>) -> Answer<WaitProbesResponse> {
        let selector = request.into_inner().selector.unwrap_or_default();
        let probes = {
            let state = self.called("wait");
            let chosen = state.chosen(Some(&selector))?;
            let all = selector == ProbeSelector::default();
            let probes = state.probes.iter().enumerate();
            let probes = probes.filter(|(at, _)| all || chosen.contains(at));
            probes.map(|(_, probe)| probe.clone()).collect::<Vec<_>>()
        };
        if probes.iter().any(|probe| probe.name == "slow") {
            std::future::pending::<()>().await;
        }
        let optimizer = Optimizer {
            batches: 1,
            probes: probes.len() as u64,
            stopped_ns: 12_345,
            ..Default::default()
        };
        Ok(Response::new(WaitProbesResponse {
            probes,
            optimizer: Some(optimizer),
        }))
    }

    async fn list_calls(&self, _: Request<ListCallsRequest>) -> Answer<Self::ListCallsStream> {
        let state = self.called("calls");
        let call = |probe: &Probe| FollowedCall {
            probe_ids: vec![probe.id],
            entry_tsc: Some(5),
            caller: 0xffff_ffff_8100_0007,
            task: 0xffff_8880_0012_3400,
            pid: Some(77),
            comm: Some("cat\u{7}".into()),
        };
        let calls: Vec<FollowedCall> = state.probes.iter().map(call).collect();
        let chunks = calls.chunks(PAGE).map(<[_]>::to_vec);
        let answers: Vec<_> = chunks
            .map(|calls| Ok(ListCallsResponse { calls }))
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
    }

    async fn list_blacklist(
        &self,
        request: Request<ListBlacklistRequest>,
    ) -> Answer<Self::ListBlacklistStream> {
        let entry = |symbol: &str, kind: BlacklistKind| BlacklistEntry {
            start: 0xffff_ffff_8100_0000,
            end: 0xffff_ffff_8100_0010,
            symbol: symbol.into(),
            offset: 0,
            kind: kind.into(),
            reason: "because".into(),
        };
        let batches = match &*request.into_inner().pattern {
            "" => vec![
                vec![
                    entry("a", BlacklistKind::Noinstr),
                    entry("b", BlacklistKind::Ftrace),
                ],
                vec![entry("c", BlacklistKind::JumpLabel)],
            ],
            "b" => vec![vec![entry("b", BlacklistKind::Ftrace)]],
            "vfs_*" => vec![vec![BlacklistEntry {
                start: 0x6000,
                ..entry("vfs_read", BlacklistKind::Noinstr)
            }]],
            _ => vec![],
        };
        let answers = batches
            .into_iter()
            .map(|entries| Ok(ListBlacklistResponse { entries }));
        let answers: Vec<_> = answers.collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
    }
}

#[tonic::async_trait]
impl EventService for Fake {
    type StreamEventsStream = Answers<StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<StreamEventsRequest>,
    ) -> Answer<Self::StreamEventsStream> {
        let wanted = request.into_inner().probe_ids;
        let (sender, receiver) = tokio::sync::mpsc::channel(8);
        let fake = self.clone();
        let state = self
            .called("subscribe")
            .vm
            .clone()
            .unwrap_or_default()
            .state();
        tokio::spawn(async move {
            let send = async |message| {
                let message = Some(message);
                let _ = sender.send(Ok(StreamEventsResponse { message })).await;
            };
            let started = fake.changed.notified();
            send(Message::Subscribed(Subscribed { tsc_hz: TSC_HZ })).await;
            if state == VmState::Created {
                started.await;
            }
            let mut events = fake.state().events();
            events.retain(|event| wanted.is_empty() || wanted.contains(&event.probe_id));
            for probe in &mut fake.state().probes {
                let own = events.iter().filter(|event| event.probe_id == probe.id);
                probe.hits += own.count() as u64;
            }
            send(Message::Batch(EventBatch { events, lost: 3 })).await;
            loop {
                let changed = fake.changed.notified();
                let ending = fake.state().ending.clone();
                if ending.is_some() {
                    return send(Message::Ended(Ended { ending })).await;
                }
                changed.await;
            }
        });
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        Ok(Response::new(Box::pin(stream.map(|answer| answer))))
    }
}

#[tonic::async_trait]
impl SymbolService for Fake {
    async fn lookup_symbols(
        &self,
        request: Request<LookupSymbolsRequest>,
    ) -> Answer<LookupSymbolsResponse> {
        let LookupSymbolsRequest {
            pattern,
            page_token,
            ..
        } = request.into_inner();
        let prefix = pattern.trim_end_matches('*');
        let found = SYMBOLS.iter().filter(|(name, _)| name.starts_with(prefix));
        let found: Vec<Symbol> = found.map(symbol).collect();
        let (symbols, next_page_token) = page(&found, &page_token);
        Ok(Response::new(LookupSymbolsResponse {
            symbols,
            next_page_token,
            similar: Vec::new(),
        }))
    }

    async fn resolve_address(
        &self,
        request: Request<ResolveAddressRequest>,
    ) -> Answer<ResolveAddressResponse> {
        let address = request.into_inner().address;
        let mut symbols = SYMBOLS.iter().rev();
        let found = symbols.find(|(_, start)| *start <= address);
        let found = found.ok_or_else(|| Status::not_found("no symbol"))?;
        Ok(Response::new(ResolveAddressResponse {
            symbol: Some(symbol(found)),
            offset: address - found.1,
            size: match found.0 {
                "vfs_read" | "vfs_write" => 0x800,
                _ => 0x1000,
            },
            module: String::new(),
        }))
    }

    async fn describe_type(
        &self,
        request: Request<DescribeTypeRequest>,
    ) -> Answer<DescribeTypeResponse> {
        let declaration = match &*request.into_inner().name {
            "struct file" => "struct file {\n\tunsigned int f_mode;\n}; /* size: 4 */\n",
            name => {
                let text = format!("the guest kernel has no type {name:?}");
                return Err(Status::not_found(text));
            }
        };
        let declaration = declaration.to_owned();
        Ok(Response::new(DescribeTypeResponse { declaration }))
    }

    async fn list_types(&self, request: Request<ListTypesRequest>) -> Answer<ListTypesResponse> {
        let ListTypesRequest {
            pattern,
            page_token,
            ..
        } = request.into_inner();
        let all = ["struct file", "union file_any", "struct filename"].map(str::to_owned);
        let all = if pattern == "file*" { &all[..] } else { &[] };
        let (names, next_page_token) = page(all, &page_token);
        Ok(Response::new(ListTypesResponse {
            names,
            next_page_token,
        }))
    }
}

/// What follows the token in a list, at most [`PAGE`] items, and the token of the rest.
fn page<T: Clone>(all: &[T], token: &str) -> (Vec<T>, String) {
    let start = token.parse().unwrap_or(0);
    let end = all.len().min(start + PAGE);
    let next = (end < all.len()).then(|| end.to_string());
    (all[start..end].to_vec(), next.unwrap_or_default())
}

/// A probe for each function that matches a pattern but `vfs_read`; the probe itself if its place is none.
fn expanded(spec: &ProbeSpec) -> Vec<ProbeSpec> {
    let place = match &spec.place {
        Some(probe_spec::Place::Symbol(place)) if spec::is_pattern(&place.symbol) => place,
        _ => return vec![spec.clone()],
    };
    let prefix = place.symbol.trim_end_matches('*');
    let names = SYMBOLS.iter().map(|(name, _)| *name);
    let found = names.filter(|name| name.starts_with(prefix) && *name != "vfs_read");
    let on = |function: &str| {
        let symbol = function.to_owned();
        let place = SymbolPlace {
            symbol,
            ..place.clone()
        };
        let name = match &*spec.name {
            "" => String::new(),
            name => format!("{name}.{function}"),
        };
        ProbeSpec {
            name,
            place: Some(probe_spec::Place::Symbol(place)),
            ..spec.clone()
        }
    };
    found.map(on).collect()
}

/// An argument of a probe: a string if its type is one, else a number.
fn argument(text: &str) -> Argument {
    let (name, definition) = text.split_once('=').unwrap_or((text, text));
    let format = match definition.ends_with("string") {
        true => ArgumentFormat::String,
        false => ArgumentFormat::Unsigned,
    };
    Argument {
        name: name.into(),
        definition: definition.into(),
        format: format.into(),
        ..Default::default()
    }
}

fn value(argument: &Argument) -> Value {
    let value = match argument.format() {
        ArgumentFormat::String => value::Value::Text(b"/etc/passwd".to_vec()),
        _ => value::Value::Unsigned(42),
    };
    Value { value: Some(value) }
}

fn optimization(on: bool) -> Optimization {
    let mut optimization = Optimization::default();
    if on {
        optimization.set_state(OptimizationState::Optimized);
    } else {
        optimization.set_state(OptimizationState::Not);
        optimization.set_reason_kind(NoJumpReason::Asked);
        optimization.reason = "it was asked for".into();
    }
    optimization
}

fn symbol((name, address): &(&str, u64)) -> Symbol {
    Symbol {
        name: (*name).into(),
        address: *address,
        kind: "T".into(),
    }
}

//! Probes: they are registered, listed and changed, and nothing ever hits them.

use super::*;

impl State {
    pub(super) fn register(&mut self, specs: &[ProbeSpec]) -> Result<Vec<Probe>, Status> {
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

    pub(super) fn chosen(&self, selector: Option<&ProbeSelector>) -> Result<Vec<usize>, Status> {
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
}

#[tonic::async_trait]
impl ProbeService for Fake {
    type ListCallsStream = Answers<ListCallsResponse>;
    type ListBlacklistStream = Answers<ListBlacklistResponse>;

    async fn register_probes(
        &self,
        request: Request<RegisterProbesRequest>,
    ) -> Answer<RegisterProbesResponse> {
        let request = request.into_inner();
        let mut state = self.called("register");
        let mut probes = state.register(&request.probes)?;
        let first = state.probes.len() - probes.len();
        for probe in state.probes[first..].iter_mut().chain(&mut probes) {
            probe.in_session = !request.session.is_empty();
        }
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

    /// Answers, but never for a probe called `slow`.
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

/// Returns a probe for each function that matches a pattern but `vfs_read`; the probe itself if its place is none.
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

/// Makes an argument of a probe: a string if its type is one, else a number.
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

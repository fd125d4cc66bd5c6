//! Events: one for each probe.

use super::*;

impl State {
    /// Makes a hit a millisecond, by id. `kernel_execve` is hit first, by a helper's process, and
    /// last.
    pub(super) fn events(&self) -> Vec<Event> {
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
            send(Message::Subscribed(Subscribed {
                tsc_hz: TSC_HZ,
                ..Default::default()
            }))
            .await;
            if state == VmState::Created {
                started.await;
            }
            let mut events = fake.state().events();
            events.retain(|event| wanted.is_empty() || wanted.contains(&event.probe_id));
            for probe in &mut fake.state().probes {
                let own = events.iter().filter(|event| event.probe_id == probe.id);
                probe.hits += own.count() as u64;
            }
            let mut batch: EventBatch = events.into_iter().collect();
            batch.lost = 3;
            send(Message::Batch(batch)).await;
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

fn value(argument: &Argument) -> Value {
    let value = match argument.format() {
        ArgumentFormat::String => value::Value::Text(b"/etc/passwd".to_vec()),
        _ => value::Value::Unsigned(42),
    };
    Value { value: Some(value) }
}

//! One VM of a fleet's server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use vmprobe_proto::v1::{Event, EventCursor, Vm};

use super::message::{FleetMessage, FleetOptions, FleetVm, Told};
use crate::clock::HostClock;
use crate::{Client, ClientError, DisabledProbes, EventOptions, EventStream, Message, Session};

/// How often a server reports its progress.
const PROGRESS: Duration = Duration::from_millis(100);
/// Events of a VM that wait for those of others. Further events stay at its server.
const WAITING: usize = 1024;
/// The number of the next source.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The state of a VM.
#[derive(Debug)]
pub(super) enum Standing {
    /// It was never followed.
    New,
    /// It is followed now.
    Followed,
    /// Its guest has ended.
    Ended,
    /// It refuses the probes, or the fleet was dropped.
    Refused,
    /// The connection to its server has broken.
    Left(Left),
}

/// A VM on a server that is away.
#[derive(Debug)]
pub(super) struct Left {
    session: String,
    cursor: EventCursor,
    vm: Arc<FleetVm>,
    source: u64,
    /// True if the connection is back.
    is_back: Arc<AtomicBool>,
}

/// Follows a VM until its guest has ended, or the connection breaks.
pub(super) async fn follow(
    host: Arc<str>,
    client: Client,
    vm: Vm,
    options: &FleetOptions,
    standing: Standing,
    to: &Sender<Told>,
) -> Standing {
    let found = match standing {
        Standing::Left(left) => resume(&client, left, options, to).await,
        _ => Err(None),
    };
    let begun = match found {
        Ok(followed) => Ok(followed),
        Err(Some(end)) => return end,
        Err(None) => begin(&host, client, &vm, options, to).await,
    };
    match begun {
        Ok(mut followed) => {
            let joined = FleetMessage::Joined(Arc::clone(&followed.vm));
            match to.send(Told::Message(joined)).await {
                Ok(()) => followed.deliver(options.window, to).await,
                Err(_) => followed.leave().await,
            }
        }
        Err(ClientError::Disconnected(_)) => Standing::New,
        Err(error) => {
            let refused = FleetMessage::Refused {
                host,
                vm: vm.name,
                reason: error.to_string(),
            };
            let _nobody_may_want_to_know = to.send(Told::Message(refused)).await;
            Standing::Refused
        }
    }
}

/// A VM whose probes are registered.
struct Followed {
    vm: Arc<FleetVm>,
    session: Session,
    stream: EventStream,
    clock: HostClock,
    /// The VM's number as a source of events.
    source: u64,
    /// Places for events on their way.
    places: Arc<Semaphore>,
}

fn event_options(options: &FleetOptions) -> EventOptions {
    EventOptions {
        linger: options.linger,
        progress: Some(PROGRESS),
    }
}

/// Registers the probes, and enables them when they are followed.
async fn begin(
    host: &Arc<str>,
    client: Client,
    vm: &Vm,
    options: &FleetOptions,
    to: &Sender<Told>,
) -> Result<Followed, ClientError> {
    let session = client.open_session(&vm.name, options.linger).await?;
    let DisabledProbes { probes, enable } =
        session.register_disabled(options.probes.clone()).await?;
    let ids: Vec<u64> = probes.iter().map(|probe| probe.id).collect();
    let stream = client
        .events_to_resume(&vm.name, ids, event_options(options))
        .await?;
    let vm = FleetVm {
        host: Arc::clone(host),
        name: vm.name.clone(),
        tsc_hz: stream.tsc_hz(),
        vcpus: vm.vcpus,
        probes,
        client,
    };
    let source = NEXT.fetch_add(1, Ordering::Relaxed);
    let followed = Followed::new(Arc::new(vm), session, stream, source)?;
    followed.begin(enable, to).await?;
    Ok(followed)
}

/// Goes on where a connection has broken. Returns `Err(None)` if the client has to begin anew.
async fn resume(
    client: &Client,
    left: Left,
    options: &FleetOptions,
    to: &Sender<Told>,
) -> Result<Followed, Option<Standing>> {
    let (name, events) = (&left.vm.name, event_options(options));
    let session = client
        .resume_session(name, options.linger, &left.session)
        .await;
    let session = match session {
        Ok(session) => session,
        Err(error) => return Err(left.missed(error, to).await),
    };
    let stream = match client.resume_events(name, &left.cursor, events).await {
        Ok(stream) => stream,
        Err(ClientError::Disconnected(_)) => {
            return Err(Some(Standing::Left(left)));
        }
        // The VM's probes are still there, and events from now on are reported.
        Err(error) => {
            left.tell_gap(&error.to_string(), to).await;
            let ids = left.vm.probes.iter().map(|probe| probe.id).collect();
            match client.events_to_resume(name, ids, events).await {
                Ok(stream) => stream,
                Err(error) => return Err(left.missed(error, to).await),
            }
        }
    };
    let vm = Arc::new(FleetVm {
        client: client.clone(),
        ..FleetVm::clone(&left.vm)
    });
    left.is_back.store(true, Ordering::Release);
    Followed::new(vm, session, stream, left.source).map_err(|_| None)
}

impl Left {
    /// Lets other VMs wait for this one, but not for longer than `window`.
    pub(super) fn wait(&self, window: Duration, to: Sender<Told>) {
        let (source, is_back) = (self.source, Arc::clone(&self.is_back));
        tokio::spawn(async move {
            sleep(window).await;
            if !is_back.load(Ordering::Acquire) {
                let _nobody_may_want_to_know = to.send(Told::Silent { source }).await;
            }
        });
    }

    /// Returns the VM's state if it can't be resumed, or `None` if the client has to begin anew.
    async fn missed(self, error: ClientError, to: &Sender<Told>) -> Option<Standing> {
        if let ClientError::Disconnected(_) = error {
            return Some(Standing::Left(self));
        }
        self.tell_gap(&error.to_string(), to).await;
        None
    }

    /// Reports that it isn't known what has happened meanwhile.
    pub(super) async fn tell_gap(&self, reason: &str, to: &Sender<Told>) {
        let gap = FleetMessage::Gap {
            vm: Arc::clone(&self.vm),
            reason: reason.to_owned(),
        };
        let _nobody_may_want_to_know = to.send(Told::Message(gap)).await;
    }
}

impl Followed {
    fn new(
        vm: Arc<FleetVm>,
        session: Session,
        stream: EventStream,
        source: u64,
    ) -> Result<Self, ClientError> {
        let clock = stream.clock().ok_or(ClientError::Protocol("clock"))?;
        Ok(Self {
            vm,
            session,
            stream,
            clock,
            source,
            places: Arc::new(Semaphore::new(WAITING)),
        })
    }

    /// Enables the VM's probes, once others wait for its events.
    async fn begin(&self, probes: Vec<u64>, to: &Sender<Told>) -> Result<(), ClientError> {
        let (heard, told) = oneshot::channel();
        let begins = Told::Begins {
            source: self.source,
            unix_ns: self.clock.sampled_at(),
            heard,
        };
        let FleetVm { client, name, .. } = &*self.vm;
        // If the fleet was dropped, the VM is left soon.
        if to.send(begins).await.is_ok() && told.await.is_ok() && !probes.is_empty() {
            client.enable_probes(name, probes, Vec::new()).await?;
        }
        Ok(())
    }

    /// Passes the VM's messages on, until there are no more.
    async fn deliver(&mut self, window: Duration, to: &Sender<Told>) -> Standing {
        let (end, standing) = loop {
            let message = tokio::select! {
                message = timeout(window, self.stream.next()) => message,
                () = to.closed() => return self.leave().await,
            };
            let handed_on = match message {
                Ok(Ok(Some(Message::Batch { lost, events }))) => {
                    self.hand_on(lost, events, to).await
                }
                Ok(Ok(Some(Message::Progress { tsc }))) => self.reach(tsc, to).await,
                Err(_) => to.send(self.silent()).await.ok(),
                Ok(Ok(Some(Message::Ended(ending)))) => {
                    let vm = Arc::clone(&self.vm);
                    break (FleetMessage::Ended { vm, ending }, Standing::Ended);
                }
                Ok(Ok(None) | Err(ClientError::Disconnected(_))) => {
                    return Standing::Left(Left {
                        session: self.session.name().to_owned(),
                        cursor: self.stream.cursor().clone(),
                        vm: Arc::clone(&self.vm),
                        source: self.source,
                        is_back: Arc::default(),
                    });
                }
                Ok(Err(error)) => {
                    let refused = FleetMessage::Refused {
                        host: Arc::clone(&self.vm.host),
                        vm: self.vm.name.clone(),
                        reason: error.to_string(),
                    };
                    break (refused, Standing::Refused);
                }
            };
            if handed_on.is_none() {
                return self.leave().await;
            }
        };
        for last in [self.silent(), Told::Message(end)] {
            let _nobody_may_want_to_know = to.send(last).await;
        }
        standing
    }

    fn silent(&self) -> Told {
        Told::Silent {
            source: self.source,
        }
    }

    async fn reach(&self, tsc: u64, to: &Sender<Told>) -> Option<()> {
        let reached = Told::Reached {
            source: self.source,
            unix_ns: self.clock.unix_ns(tsc),
        };
        to.send(reached).await.ok()
    }

    /// Removes the probes, so that none lingers.
    async fn leave(&self) -> Standing {
        let FleetVm {
            client,
            name,
            probes,
            ..
        } = &*self.vm;
        let ids = probes.iter().map(|probe| probe.id).collect();
        let _they_go_with_the_session = client.unregister_probes(name, ids, Vec::new()).await;
        Standing::Refused
    }

    /// Passes events on, each when it has a place. Returns `None` if the fleet was dropped.
    async fn hand_on(&self, lost: u64, events: Vec<Event>, to: &Sender<Told>) -> Option<()> {
        if lost > 0 {
            let vm = Arc::clone(&self.vm);
            let message = FleetMessage::Lost { vm, count: lost };
            to.send(Told::Message(message)).await.ok()?;
        }
        for event in events {
            let place = tokio::select! {
                place = Arc::clone(&self.places).acquire_owned() => place.ok()?,
                () = to.closed() => return None,
            };
            let unix_ns = self.clock.unix_ns(event.tsc);
            let event = FleetMessage::Event {
                vm: Arc::clone(&self.vm),
                unix_ns,
                event: Box::new(event),
            };
            let event = Told::Event {
                source: self.source,
                unix_ns,
                event,
                place,
            };
            to.send(event).await.ok()?;
        }
        Some(())
    }
}

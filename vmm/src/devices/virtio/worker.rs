//! The thread of a device: it sleeps until a doorbell rings or a file of the device's is ready.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
};

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use parking_lot::Mutex;
use vmm_sys_util::{epoll::EventSet, eventfd::EventFd};

use super::{
    device::{OWN_EVENT, VirtioDevice},
    interrupts::Interrupts,
    queue::{DeviceQueue, QueueError},
};
use crate::confinement::Confinement;

/// Data of the event that stops the thread; a queue's has its place among the enabled ones.
const STOP: u32 = OWN_EVENT - 1;

/// A queue and its doorbell.
pub(crate) struct BelledQueue {
    pub(crate) queue: DeviceQueue,
    pub(crate) doorbell: EventFd,
}

/// A device that has been started.
pub(crate) struct Worker {
    stop: EventFd,
    thread: Option<JoinHandle<Option<Box<dyn VirtioDevice>>>>,
}

impl Worker {
    /// Starts `device`, whose driver has accepted `features`, on a thread called `name` that is confined to what
    /// its kind needs.
    ///
    /// # Errors
    /// The host has no thread or no event file. The device is gone then.
    pub(crate) fn start(
        name: String,
        device: Box<dyn VirtioDevice>,
        features: u64,
        queues: Vec<BelledQueue>,
        interrupts: Arc<Interrupts>,
        confinement: &Confinement,
    ) -> io::Result<Self> {
        // Blocking: a broken device's thread sleeps in a read of it.
        let stop = EventFd::new(libc::EFD_CLOEXEC)?;
        let role = device.id().role();
        let mut serving = Serving {
            device,
            features,
            queues: Vec::with_capacity(queues.len()),
            doorbells: Vec::with_capacity(queues.len()),
            stop: stop.try_clone()?,
            interrupts,
            state: ServingState::Serves,
        };
        for BelledQueue { queue, doorbell } in queues {
            serving.queues.push(queue);
            serving.doorbells.push(doorbell);
        }
        let thread = confinement.spawn(role, name, move || serve(serving))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Stops the device and gives it back, or None where it has failed for good.
    pub(crate) fn stop(mut self) -> Option<Box<dyn VirtioDevice>> {
        self.end()
    }

    fn end(&mut self) -> Option<Box<dyn VirtioDevice>> {
        let thread = self.thread.take()?;
        if let Err(error) = self.stop.write(1) {
            // A wait for the thread would never end.
            tracing::error!("a device's thread can't be stopped: {error}");
            return None;
        }
        thread.join().ok().flatten()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServingState {
    Serves,
    /// It needs a reset and does nothing until it is stopped.
    Broken,
    Stopped,
}

/// What a device's thread has.
struct Serving {
    device: Box<dyn VirtioDevice>,
    features: u64,
    queues: Vec<DeviceQueue>,
    doorbells: Vec<EventFd>,
    stop: EventFd,
    interrupts: Arc<Interrupts>,
    state: ServingState,
}

/// Serves until the device is stopped. Returns None if the device has panicked.
fn serve(serving: Serving) -> Option<Box<dyn VirtioDevice>> {
    let interrupts = Arc::clone(&serving.interrupts);
    let serving = Arc::new(Mutex::new(serving));
    let shared = Arc::clone(&serving);
    let served = catch_unwind(AssertUnwindSafe(move || run(&shared)));
    match served {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!("a device can't wait for its events: {error}");
            interrupts.need_reset();
        }
        Err(_) => {
            tracing::error!("a device's thread panicked: a bug of the monitor");
            interrupts.need_reset();
            return None;
        }
    }
    let mut device = Arc::into_inner(serving)?.into_inner().device;
    device.reset();
    Some(device)
}

fn run(serving: &Arc<Mutex<Serving>>) -> Result<(), event_manager::Error> {
    let mut events = EventManager::new()?;
    events.add_subscriber(Subscriber(Arc::clone(serving)));
    loop {
        let (state, stop) = {
            let serving = serving.lock();
            (serving.state, serving.stop.try_clone())
        };
        match state {
            ServingState::Serves => {
                events.run()?;
            }
            ServingState::Broken => {
                let _until_it_is_stopped = stop.and_then(|stop| stop.read());
                return Ok(());
            }
            ServingState::Stopped => return Ok(()),
        }
    }
}

impl Serving {
    fn watch_all(&mut self, watch: &mut EventOps<'_>) -> Result<(), io::Error> {
        let mut add = |file: &EventFd, data: u32| {
            let event = Events::with_data(file, data, EventSet::IN);
            watch.add(event).map_err(io::Error::other)
        };
        add(&self.stop, STOP)?;
        for (doorbell, place) in self.doorbells.iter().zip(0..) {
            add(doorbell, place)?;
        }
        self.device.start(self.features, watch, &self.queues)
    }

    fn handle(&mut self, event: Events, watch: &mut EventOps<'_>) -> Result<(), QueueError> {
        let data = event.data();
        if data == STOP {
            self.state = ServingState::Stopped;
            return Ok(());
        }
        if data & OWN_EVENT != 0 {
            return self.device.own_event(event, watch, &mut self.queues);
        }
        let place = data as usize;
        let (Some(doorbell), Some(queue)) = (self.doorbells.get(place), self.queues.get(place))
        else {
            return Ok(());
        };
        // The doorbell rings until it is read. There may be nothing to read, if it was rung before the last
        // reset.
        let _count = doorbell.read();
        let index = queue.index();
        self.device.queue_ready(index, &mut self.queues)
    }
}

/// The thread takes the device out again when it stops.
struct Subscriber(Arc<Mutex<Serving>>);

impl MutEventSubscriber for Subscriber {
    fn init(&mut self, watch: &mut EventOps<'_>) {
        let mut serving = self.0.lock();
        if let Err(error) = serving.watch_all(watch) {
            tracing::error!("a device can't be started: {error}");
            serving.state = ServingState::Broken;
            serving.interrupts.need_reset();
        }
    }

    fn process(&mut self, event: Events, watch: &mut EventOps<'_>) {
        let mut serving = self.0.lock();
        if serving.state != ServingState::Serves {
            return;
        }
        if let Err(error) = serving.handle(event, watch) {
            tracing::warn!("a device needs a reset: {error}");
            serving.state = ServingState::Broken;
            serving.interrupts.need_reset();
        }
    }
}

//! Things that clients' streams hold. They stay for a while when a stream breaks, so that its client can come back.

use std::collections::HashMap;
use std::fmt::Write;

use tokio::sync::oneshot;
use tonic::Status;

/// Bytes of a name before they are written as hexadecimal digits: too many to be guessed.
const NAME_BYTES: usize = 16;

/// Things by their names. Each is held by at most one stream.
#[derive(Debug)]
pub struct HeldTable<T> {
    things: HashMap<String, Entry<T>>,
    /// How many streams have held a thing.
    streams: u64,
}

#[derive(Debug)]
struct Entry<T> {
    thing: T,
    /// The number of the last stream that has held it.
    stream: u64,
    /// Dropped when another stream takes it.
    _held: Option<oneshot::Sender<()>>,
}

/// A stream's hold of a thing.
#[derive(Debug)]
pub struct Held {
    /// The thing's name. It can't be guessed.
    pub name: String,
    /// Completes when another stream takes the thing, or it has ended.
    pub taken: oneshot::Receiver<()>,
    stream: u64,
}

impl<T> Default for HeldTable<T> {
    fn default() -> Self {
        Self {
            things: HashMap::new(),
            streams: 0,
        }
    }
}

impl<T> HeldTable<T> {
    /// Returns the number of things.
    pub fn len(&self) -> usize {
        self.things.len()
    }

    /// Adds a thing, and gives it to a stream.
    ///
    /// # Errors
    /// `INTERNAL` if the host has no random bytes for its name.
    pub fn add(&mut self, thing: T) -> Result<Held, Status> {
        let name = random_name()?;
        let entry = Entry {
            thing,
            stream: 0,
            _held: None,
        };
        self.things.insert(name.clone(), entry);
        let held = self.take(&name);
        held.ok_or_else(|| Status::internal("a stream lost what it held: a bug of the server"))
    }

    /// Gives the thing of this name to a stream, if it exists. A stream that holds it has to let it go.
    pub fn take(&mut self, name: &str) -> Option<Held> {
        let entry = self.things.get_mut(name)?;
        let (held, taken) = oneshot::channel();
        self.streams += 1;
        entry.stream = self.streams;
        entry._held = Some(held);
        Some(Held {
            name: name.to_owned(),
            taken,
            stream: self.streams,
        })
    }

    /// Returns the thing of this name, if it exists.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.things.get_mut(name).map(|entry| &mut entry.thing)
    }

    /// Removes and returns a thing that a stream has held, unless another stream holds it by now.
    pub fn end(&mut self, held: &Held) -> Option<T> {
        let entry = self.things.get(&held.name);
        match entry.is_some_and(|entry| entry.stream == held.stream) {
            true => self.things.remove(&held.name).map(|entry| entry.thing),
            false => None,
        }
    }
}

fn random_name() -> Result<String, Status> {
    let mut bytes = [0; NAME_BYTES];
    // The kernel always gives this few bytes at once.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Status::internal(format!("the host has no random bytes: {error}")))?;
    Ok(bytes.iter().fold(String::new(), |mut name, byte| {
        let _a_string_takes_all = write!(name, "{byte:02x}");
        name
    }))
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn whoever_comes_last_holds_a_thing_and_ends_it() {
        let mut table = HeldTable::default();
        let mut first = table.add(7).unwrap();
        let other = table.add(8).unwrap();
        assert_ne!(first.name, other.name);
        assert_eq!(first.name.len(), 2 * NAME_BYTES);
        assert_eq!(first.taken.try_recv(), Err(TryRecvError::Empty));
        let second = table.take(&first.name).unwrap();
        assert_eq!(first.taken.try_recv(), Err(TryRecvError::Closed));
        // The end of the first stream changes nothing.
        assert_eq!(table.end(&first), None);
        assert_eq!(table.get_mut(&first.name), Some(&mut 7));
        assert_eq!(table.end(&second), Some(7));
        assert!(table.take(&first.name).is_none());
        assert_eq!(table.len(), 1);
    }
}

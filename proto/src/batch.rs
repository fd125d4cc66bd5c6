//! `EventBatch`: events that are encoded once, for all clients, and decoded where they are read.
//!
//! On the wire it has the form of event.proto. A server encodes an event when it comes, into the batches of all clients
//! that want it. Generated code would hold each event as a structure of some 400 bytes and encode it for each client
//! again.

use prost::DecodeError;
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{self, DecodeContext, WireType};

use crate::v1::Event;

/// Field numbers of event.proto.
const EVENTS: u32 = 1;
const LOST: u32 = 2;
const NUMBER: u32 = 3;
/// Bytes of the key before each event.
const KEY_LEN: usize = 1;

/// Some encoded events of one stream, and how many were lost before them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EventBatch {
    /// The field `events` in its wire form: for each event a key, its length and its bytes.
    encoded: BytesMut,
    /// The number of these events.
    len: usize,
    /// Hits that were lost just before the first of these.
    pub lost: u64,
    /// The batch's number in a stream that can be resumed, from 1; 0 in others.
    pub number: u64,
}

/// An event in its form in a batch, to be added to several batches.
#[derive(Debug, Default)]
pub struct EncodedEvent(Vec<u8>);

impl EncodedEvent {
    /// Replaces the content by another event, and keeps the memory.
    pub fn encode(&mut self, event: &Event) {
        self.0.clear();
        encoding::message::encode(EVENTS, event, &mut self.0);
    }
}

impl EventBatch {
    /// Makes a batch without events, with room for `bytes` bytes of them.
    #[must_use]
    pub fn with_capacity(bytes: usize, lost: u64) -> Self {
        Self {
            encoded: BytesMut::with_capacity(bytes),
            len: 0,
            lost,
            number: 0,
        }
    }

    /// Adds an event at the end.
    pub fn push(&mut self, event: &EncodedEvent) {
        self.encoded.put_slice(&event.0);
        self.len += 1;
    }

    /// Returns true if an event can be added so that all events take at most `bytes` bytes.
    #[must_use]
    pub fn has_room(&self, event: &EncodedEvent, bytes: usize) -> bool {
        self.encoded.len() + event.0.len() <= bytes
    }

    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of the events.
    #[must_use]
    pub fn size(&self) -> usize {
        self.encoded.len()
    }

    /// Returns true if the batch has no event. It may still report losses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Decodes the events.
    ///
    /// # Errors
    /// An event's bytes aren't those of an event: the sender broke the protocol.
    pub fn into_events(self) -> Result<Vec<Event>, DecodeError> {
        let mut rest = self.encoded.freeze();
        let mut events = Vec::with_capacity(self.len);
        while rest.has_remaining() {
            rest.advance(KEY_LEN);
            events.push(Event::decode_length_delimited(&mut rest)?);
        }
        Ok(events)
    }
}

impl EventBatch {
    /// Returns the fields behind the events, without those that are 0.
    fn numbers(&self) -> impl Iterator<Item = (u32, u64)> + use<> {
        let fields = [(LOST, self.lost), (NUMBER, self.number)];
        fields.into_iter().filter(|(_, number)| *number != 0)
    }
}

impl FromIterator<Event> for EventBatch {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        let mut batch = Self::default();
        let mut encoded = EncodedEvent::default();
        for event in events {
            encoded.encode(&event);
            batch.push(&encoded);
        }
        batch
    }
}

impl Message for EventBatch {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.encoded);
        for (tag, number) in self.numbers() {
            encoding::uint64::encode(tag, &number, buffer);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            EVENTS => {
                let mut event = Bytes::new();
                encoding::bytes::merge(wire_type, &mut event, buffer, context)?;
                encoding::bytes::encode(EVENTS, &event, &mut self.encoded);
                self.len += 1;
                Ok(())
            }
            LOST => encoding::uint64::merge(wire_type, &mut self.lost, buffer, context),
            NUMBER => encoding::uint64::merge(wire_type, &mut self.number, buffer, context),
            _ => encoding::skip_field(wire_type, tag, buffer, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let numbers = self.numbers();
        let lens = numbers.map(|(tag, number)| encoding::uint64::encoded_len(tag, &number));
        self.encoded.len() + lens.sum::<usize>()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::Registers;

    /// The same message as generated code has it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Generated {
        #[prost(message, repeated, tag = "1")]
        events: Vec<Event>,
        #[prost(uint64, tag = "2")]
        lost: u64,
        #[prost(uint64, tag = "3")]
        number: u64,
    }

    /// Returns events of several sizes, one of them without any bytes.
    fn events() -> Vec<Event> {
        let event = |tsc| Event {
            probe_id: tsc << 20,
            tsc,
            stack: vec![tsc; tsc as usize],
            registers: (tsc % 2 == 1).then(|| Registers {
                rip: tsc,
                ..Registers::default()
            }),
            ..Event::default()
        };
        (0..40).map(event).collect()
    }

    fn batch(lost: u64, number: u64) -> EventBatch {
        EventBatch {
            lost,
            number,
            ..events().into_iter().collect()
        }
    }

    #[test]
    fn a_batch_is_on_the_wire_what_generated_code_makes_of_it() {
        for (lost, number) in [(0, 0), (3, 0), (0, 1), (u64::MAX, u64::MAX)] {
            let generated = Generated {
                events: events(),
                lost,
                number,
            };
            let bytes = batch(lost, number).encode_to_vec();
            assert_eq!(bytes, generated.encode_to_vec());
            assert_eq!(bytes.len(), batch(lost, number).encoded_len());
        }
    }

    #[test]
    fn a_batch_that_is_received_has_the_events_that_were_sent() {
        let received = EventBatch::decode(&batch(9, 2).encode_to_vec()[..]).unwrap();
        assert_eq!((received.len(), received.lost, received.number), (40, 9, 2));
        assert_eq!(received, batch(9, 2));
        assert_eq!(received.into_events().unwrap(), events());
    }

    #[test]
    fn losses_between_events_and_fields_of_later_versions_are_read_as_by_generated_code() {
        let mut bytes = Vec::new();
        let events = events();
        encoding::message::encode(EVENTS, &events[1], &mut bytes);
        encoding::uint64::encode(LOST, &7, &mut bytes);
        encoding::string::encode(15, &"later".into(), &mut bytes);
        encoding::message::encode(EVENTS, &events[2], &mut bytes);
        let received = EventBatch::decode(&bytes[..]).unwrap();
        let generated = Generated::decode(&bytes[..]).unwrap();
        assert_eq!((received.lost, generated.lost), (7, 7));
        assert_eq!(received.into_events().unwrap(), generated.events);
    }

    #[test]
    fn bytes_that_are_no_batch_are_an_error() {
        let whole = batch(3, 0).encode_to_vec();
        let cut = &whole[..whole.len() - 3];
        assert!(EventBatch::decode(cut).is_err(), "the last event is cut");

        let mut wrong = Vec::new();
        encoding::uint64::encode(EVENTS, &1, &mut wrong);
        assert!(
            EventBatch::decode(&wrong[..]).is_err(),
            "a number for an event"
        );

        let mut inside = Vec::new();
        encoding::bytes::encode(EVENTS, &vec![0x08_u8, 0xff], &mut inside);
        let received = EventBatch::decode(&inside[..]).unwrap();
        assert!(received.into_events().is_err(), "an event's number is cut");

        // A length that reaches past the event's own bytes takes nothing from the next one.
        let mut past = Vec::new();
        encoding::bytes::encode(EVENTS, &vec![0x22_u8, 0x40], &mut past);
        encoding::message::encode(EVENTS, &events()[5], &mut past);
        let received = EventBatch::decode(&past[..]).unwrap();
        assert!(received.into_events().is_err(), "registers that are cut");
    }

    #[test]
    fn a_batch_has_room_up_to_its_limit() {
        let mut event = EncodedEvent::default();
        event.encode(&events()[3]);
        let mut batch = EventBatch::default();
        batch.push(&event);
        let two = 2 * batch.encoded_len();
        assert!(batch.has_room(&event, two));
        assert!(!batch.has_room(&event, two - 1));
    }
}

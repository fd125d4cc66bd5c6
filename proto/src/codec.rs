//! Encoding and decoding of messages: as in [`tonic_prost::ProstCodec`], but each message is decoded from one
//! contiguous buffer.
//!
//! tonic gives a decoder a buffer that may consist of several pieces, and each of the many small reads of decoding asks
//! it for its piece. A message is complete by then, so it is split off first.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Encodes `T` and decodes `U`.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = WholeDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        WholeDecoder(PhantomData)
    }
}

/// Decodes messages from one contiguous buffer.
#[derive(Debug)]
pub struct WholeDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for WholeDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // This doesn't copy: it shares the message's part of the buffer.
        let message = buffer.copy_to_bytes(buffer.remaining());
        U::decode(message)
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

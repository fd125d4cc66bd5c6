//! A guest's memory and vCPUs as an ELF core file.

use tonic::Streaming;
use vmprobe_proto::v1::DumpVmResponse;

use crate::ClientError;

/// A part of a core file. Bytes of the file that are in no part are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpPart {
    /// Bytes of the whole file.
    pub size: u64,
    /// The part's offset in the file.
    pub offset: u64,
    /// The part's bytes.
    pub data: Vec<u8>,
}

/// The parts of a core file, in the order of their offsets. If the guest ran, it goes on when this ends or is dropped.
#[derive(Debug)]
pub struct Dump {
    pub(crate) stream: Streaming<DumpVmResponse>,
}

impl Dump {
    /// Returns the next part, or `None` after the last.
    pub async fn next(&mut self) -> Result<Option<DumpPart>, ClientError> {
        let message = self.stream.message().await?;
        Ok(message.map(|DumpVmResponse { size, offset, data }| DumpPart { size, offset, data }))
    }
}

//! A guest's memory and vCPUs as an ELF core file.

use tonic::Streaming;
use vmprobe_proto::v1::DumpVmResponse;

use crate::ClientError;

/// A part of a core file. What no part has is zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpPart {
    /// Bytes of the whole file.
    pub size: u64,
    /// Where in the file the part begins.
    pub offset: u64,
    /// What is there.
    pub data: Vec<u8>,
}

/// The parts of a core file, in the order of their offsets. A guest that ran goes on when it ends or is dropped.
#[derive(Debug)]
pub struct Dump {
    pub(crate) stream: Streaming<DumpVmResponse>,
}

impl Dump {
    /// The next part; none after the last.
    pub async fn next(&mut self) -> Result<Option<DumpPart>, ClientError> {
        let message = self.stream.message().await?;
        Ok(message.map(|DumpVmResponse { size, offset, data }| DumpPart { size, offset, data }))
    }
}

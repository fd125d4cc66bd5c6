//! The header of a packet (5.10.6).

/// Bytes of a header.
pub(super) const HEADER_LEN: usize = 44;
/// The type of a stream's packets.
pub(super) const STREAM: u16 = 1;
/// Flags of [`Op::Shutdown`]: the sender receives no more, or sends no more.
pub(super) const NO_MORE_RECEIVED: u32 = 1 << 0;
pub(super) const NO_MORE_SENT: u32 = 1 << 1;

/// What a packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Op {
    /// Asks for a connection.
    Request = 1,
    /// Accepts it.
    Response = 2,
    /// Refuses it or ends it at once.
    Reset = 3,
    /// Ends it in one or both directions.
    Shutdown = 4,
    /// Carries data (`VIRTIO_VSOCK_OP_RW`).
    Data = 5,
    /// Says how much room the sender has.
    CreditUpdate = 6,
    /// Asks for a [`Op::CreditUpdate`].
    CreditRequest = 7,
}

impl Op {
    /// The operation of this number.
    pub(super) fn from_number(number: u16) -> Option<Self> {
        [
            Self::Request,
            Self::Response,
            Self::Reset,
            Self::Shutdown,
            Self::Data,
            Self::CreditUpdate,
            Self::CreditRequest,
        ]
        .into_iter()
        .find(|op| *op as u16 == number)
    }
}

/// The two ports of a connection. There is one connection at most between the same two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ports {
    pub(super) guest: u32,
    pub(super) host: u32,
}

/// `struct virtio_vsock_hdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) src_cid: u64,
    pub(super) dst_cid: u64,
    pub(super) src_port: u32,
    pub(super) dst_port: u32,
    /// Bytes of data behind the header.
    pub(super) len: u32,
    /// [`STREAM`], or what isn't supported.
    pub(super) kind: u16,
    /// An [`Op`].
    pub(super) op: u16,
    pub(super) flags: u32,
    /// Bytes that the sender has room for, those included that it has not given on yet.
    pub(super) buf_alloc: u32,
    /// Bytes that the sender has given on so far, of those it received, modulo 2^32.
    pub(super) fwd_cnt: u32,
}

impl Header {
    pub(super) fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let mut rest = &bytes[..];
        Self {
            src_cid: u64::from_le_bytes(take(&mut rest)),
            dst_cid: u64::from_le_bytes(take(&mut rest)),
            src_port: u32::from_le_bytes(take(&mut rest)),
            dst_port: u32::from_le_bytes(take(&mut rest)),
            len: u32::from_le_bytes(take(&mut rest)),
            kind: u16::from_le_bytes(take(&mut rest)),
            op: u16::from_le_bytes(take(&mut rest)),
            flags: u32::from_le_bytes(take(&mut rest)),
            buf_alloc: u32::from_le_bytes(take(&mut rest)),
            fwd_cnt: u32::from_le_bytes(take(&mut rest)),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut rest = &mut bytes[..];
        put(&mut rest, self.src_cid.to_le_bytes());
        put(&mut rest, self.dst_cid.to_le_bytes());
        put(&mut rest, self.src_port.to_le_bytes());
        put(&mut rest, self.dst_port.to_le_bytes());
        put(&mut rest, self.len.to_le_bytes());
        put(&mut rest, self.kind.to_le_bytes());
        put(&mut rest, self.op.to_le_bytes());
        put(&mut rest, self.flags.to_le_bytes());
        put(&mut rest, self.buf_alloc.to_le_bytes());
        put(&mut rest, self.fwd_cnt.to_le_bytes());
        bytes
    }

    /// The reset that answers a packet with this header.
    pub(super) fn reset(&self) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            kind: self.kind,
            op: Op::Reset as u16,
            ..Self::default()
        }
    }
}

/// Takes the first bytes; zeros if there are too few.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let Some((first, behind)) = rest.split_first_chunk() else {
        return [0; N];
    };
    *rest = behind;
    *first
}

/// Writes the first bytes, if there is room.
fn put<const N: usize>(rest: &mut &mut [u8], bytes: [u8; N]) {
    if let Some((first, behind)) = std::mem::take(rest).split_first_chunk_mut() {
        *first = bytes;
        *rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_field_has_its_place_in_the_header() {
        let header = Header {
            src_cid: 0x0807_0605_0403_0201,
            dst_cid: 0x1817_1615_1413_1211,
            src_port: 0x2423_2221,
            dst_port: 0x2827_2625,
            len: 0x3433_3231,
            kind: 0x4241,
            op: 0x4443,
            flags: 0x5453_5251,
            buf_alloc: 0x6463_6261,
            fwd_cnt: 0x7473_7271,
        };
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22,
            0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44,
            0x51, 0x52, 0x53, 0x54, 0x61, 0x62, 0x63, 0x64, 0x71, 0x72, 0x73, 0x74,
        ];
        assert_eq!(header.to_bytes(), expected);
    }

    proptest! {
        #[test]
        fn any_header_is_the_same_after_it_was_read(bytes: [u8; HEADER_LEN]) {
            prop_assert_eq!(Header::from_bytes(&bytes).to_bytes(), bytes);
        }
    }
}

//! What a thread is there for.

/// A kind of thread. Each has a filter in `filters/`, with the reason for each of its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Runs a vCPU and decides about its traps.
    Vcpu,
    /// Prepares jumps, or reads rings.
    Engine,
    /// Waits for the guest's end, and takes its devices apart.
    End,
    /// Serves a disk.
    Block,
    /// Serves a network device.
    Network,
    /// Serves a shared folder.
    FileSystem,
    /// Serves the socket device.
    Vsock,
    /// Serves the entropy device.
    Entropy,
    /// Serves the virtio console.
    Console,
    /// Answers the calls of clients.
    Service,
    /// Makes the VM, and starts the threads of all other roles but the service's.
    Starter,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Vcpu,
        Self::Engine,
        Self::End,
        Self::Block,
        Self::Network,
        Self::FileSystem,
        Self::Vsock,
        Self::Entropy,
        Self::Console,
        Self::Service,
        Self::Starter,
    ];

    /// Returns true if the calls of another role are allowed to this one as well: the roles of threads that it starts,
    /// as these are within its filter, and of devices that write their last data when they are taken apart.
    pub(super) fn includes(self, other: Self) -> bool {
        match self {
            Self::Starter => !matches!(other, Self::Starter | Self::Service),
            Self::End => matches!(
                other,
                Self::Block | Self::Network | Self::FileSystem | Self::Vsock
            ),
            _ => false,
        }
    }

    /// Returns true if its threads act on files for the guest's users, for which those of a root's process need
    /// capabilities.
    pub(super) fn keeps_file_capabilities(self) -> bool {
        matches!(self, Self::FileSystem | Self::Starter)
    }
}

//! The ways to start a kernel.

/// How a kernel is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMethod {
    /// The vmlinux inside is put where it is linked to run, and entered
    /// directly. There is no KASLR.
    #[default]
    Elf,
    /// As [`Self::Elf`], but the kernel is entered in 32-bit mode, by the protocol that hypervisors have for guests
    /// without firmware (PVH).
    Pvh,
    /// The bzImage unpacks itself, as on a real machine, to a random place if it is built so (KASLR) and the
    /// command line has no `nokaslr`. It has done so, and not yet entered the kernel, when the VM is made.
    BzImage,
}

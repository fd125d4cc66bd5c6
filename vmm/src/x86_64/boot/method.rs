//! The ways to start a kernel.

/// How a kernel is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMethod {
    /// The vmlinux inside is put where it is linked to run, and entered
    /// directly. There is no KASLR.
    #[default]
    Elf,
    /// The bzImage unpacks itself, as on a real machine, to a random place if it is built so (KASLR) and the
    /// command line has no `nokaslr`. It has done so, and not yet entered the kernel, when the VM is made.
    BzImage,
}

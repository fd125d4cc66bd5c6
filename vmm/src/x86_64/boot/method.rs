//! The ways to start a kernel.

/// How a kernel is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMethod {
    /// The vmlinux inside is put where it is linked to run, and entered
    /// directly. Its addresses are known from the start; there is no KASLR.
    #[default]
    Elf,
    /// The bzImage is entered and unpacks itself, as on a real machine.
    BzImage,
}

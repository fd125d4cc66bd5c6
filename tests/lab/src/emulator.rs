//! The emulators for the lab machine.

/// The emulator of the lab machine's CPU. It decides which of Linux' KVMs is tested in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emulator {
    /// QEMU, an AMD CPU with SVM: `kvm-amd`. Its CPUs run at the same time, as the host schedules them.
    Qemu,
    /// Bochs, an Intel CPU with VMX: `kvm-intel`. Its CPUs run in turn, some instructions each, so that
    /// the same run comes again.
    Bochs(BochsCpu),
}

/// The CPUs of a Bochs machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BochsCpu {
    /// The model as Bochs names it (`bochs --help cpu` lists them).
    pub model: String,
    /// How many instructions each of several CPUs runs before the next one's turn: 1 to 32. The fewer
    /// there are, the finer the CPUs interleave, and the slower it all is.
    pub quantum: u8,
    /// Instructions in a second of the machine's own time. If they are more than in a real second, timer interrupts are
    /// farther apart, and time limits inside the machine take longer.
    pub ips: u32,
}

impl Default for BochsCpu {
    fn default() -> Self {
        Self {
            model: "corei7_haswell_4770".into(),
            quantum: 16,
            ips: 200_000_000,
        }
    }
}

impl Emulator {
    /// Returns the name of such a place in reports: `lab-amd` or `lab-intel`.
    #[must_use]
    pub fn place(&self) -> &'static str {
        match self {
            Self::Qemu => "lab-amd",
            Self::Bochs(_) => "lab-intel",
        }
    }

    /// Returns a description for people.
    #[must_use]
    pub fn description(&self) -> &'static str {
        match self {
            Self::Qemu => "upstream kvm-amd in an AMD CPU that QEMU emulates",
            Self::Bochs(_) => "upstream kvm-intel in an Intel CPU that Bochs emulates",
        }
    }

    /// The modules that make `/dev/kvm`, each after those it needs: path below the kernel's `kernel`
    /// folder, and parameters.
    ///
    /// With virtual interrupts (`APICv`), guests of two vCPUs crash in their first interrupts under Bochs, and only
    /// there.
    pub(crate) fn kvm_modules(&self) -> [(&'static str, &'static str); 3] {
        let own = match self {
            Self::Qemu => ("arch/x86/kvm/kvm-amd", ""),
            Self::Bochs(_) => ("arch/x86/kvm/kvm-intel", "enable_apicv=0"),
        };
        [("virt/lib/irqbypass", ""), ("arch/x86/kvm/kvm", ""), own]
    }
}

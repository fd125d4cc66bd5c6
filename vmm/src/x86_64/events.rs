//! Interrupts and doorbells of devices, by KVM's events.

use std::{io, sync::Arc};

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE, KvmIrqRouting, kvm_irq_routing_entry, kvm_irq_routing_irqchip,
    kvm_irq_routing_msi,
};
use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use parking_lot::Mutex;
use vmm_sys_util::eventfd::EventFd;

use crate::devices::events::{DeviceEvents, InterruptVector, MsiMessage};

/// Pins of KVM's I/O APIC, and of each of its two PICs. Interrupts by message have the numbers behind
/// them.
const IO_APIC_PINS: u32 = 24;
const PIC_PINS: u32 = 8;

/// The events of a VM.
pub(crate) struct KvmEvents {
    routes: Arc<Routes>,
}

/// What each of a VM's interrupt numbers is in the guest. KVM takes them all at once
/// (Documentation/virt/kvm/api.rst, `KVM_SET_GSI_ROUTING`).
struct Routes {
    vm: Arc<VmFd>,
    state: Mutex<RouteState>,
}

struct RouteState {
    entries: Vec<kvm_irq_routing_entry>,
    next_gsi: u32,
}

/// An interrupt by message.
struct KvmVector {
    gsi: u32,
    event: EventFd,
    routes: Arc<Routes>,
}

impl KvmEvents {
    /// The events of `vm`, which has its interrupt controllers.
    pub(crate) fn new(vm: Arc<VmFd>) -> Self {
        let state = Mutex::new(RouteState {
            entries: lines(),
            next_gsi: IO_APIC_PINS,
        });
        let routes = Arc::new(Routes { vm, state });
        Self { routes }
    }
}

impl DeviceEvents for KvmEvents {
    fn new_vector(&self) -> io::Result<Box<dyn InterruptVector>> {
        let event = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let gsi = {
            let mut state = self.routes.state.lock();
            let gsi = state.next_gsi;
            state.next_gsi += 1;
            gsi
        };
        self.routes
            .vm
            .register_irqfd(&event, gsi)
            .map_err(system_error)?;
        Ok(Box::new(KvmVector {
            gsi,
            event,
            routes: Arc::clone(&self.routes),
        }))
    }

    fn add_doorbell(&self, address: u64, event: &EventFd) -> io::Result<()> {
        let at = IoEventAddress::Mmio(address);
        let vm = &self.routes.vm;
        vm.register_ioevent(event, &at, NoDatamatch)
            .map_err(system_error)
    }

    fn remove_doorbell(&self, address: u64, event: &EventFd) -> io::Result<()> {
        let at = IoEventAddress::Mmio(address);
        let vm = &self.routes.vm;
        vm.unregister_ioevent(event, &at, NoDatamatch)
            .map_err(system_error)
    }
}

impl InterruptVector for KvmVector {
    fn set_message(&self, message: MsiMessage) -> io::Result<()> {
        let mut state = self.routes.state.lock();
        let mut entries = state.entries.clone();
        entries.retain(|entry| entry.gsi != self.gsi);
        entries.push(message_route(self.gsi, message));
        let table = KvmIrqRouting::from_entries(&entries).map_err(io::Error::other)?;
        self.routes
            .vm
            .set_gsi_routing(&table)
            .map_err(system_error)?;
        state.entries = entries;
        Ok(())
    }

    fn signal(&self) -> io::Result<()> {
        self.event.write(1)
    }
}

/// The interrupt lines of a PC, as KVM has them until it is told otherwise (`kvm_setup_default_irq_routing`
/// in `arch/x86/kvm/irq.c`): each goes to the I/O APIC, and the first 16 to the PICs as well.
fn lines() -> Vec<kvm_irq_routing_entry> {
    let line = |gsi: u32, irqchip: u32, pin: u32| {
        let mut entry = kvm_irq_routing_entry {
            gsi,
            type_: KVM_IRQ_ROUTING_IRQCHIP,
            ..Default::default()
        };
        entry.u.irqchip = kvm_irq_routing_irqchip { irqchip, pin };
        entry
    };
    let io_apic = (0..IO_APIC_PINS).map(|gsi| line(gsi, KVM_IRQCHIP_IOAPIC, gsi));
    let first = (0..PIC_PINS).map(|gsi| line(gsi, KVM_IRQCHIP_PIC_MASTER, gsi));
    let second = (0..PIC_PINS).map(|pin| line(PIC_PINS + pin, KVM_IRQCHIP_PIC_SLAVE, pin));
    io_apic.chain(first).chain(second).collect()
}

fn message_route(gsi: u32, message: MsiMessage) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry {
        gsi,
        type_: KVM_IRQ_ROUTING_MSI,
        ..Default::default()
    };
    entry.u.msi = kvm_irq_routing_msi {
        address_lo: message.address as u32,
        address_hi: (message.address >> 32) as u32,
        data: message.data,
        ..Default::default()
    };
    entry
}

fn system_error(error: kvm_ioctls::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

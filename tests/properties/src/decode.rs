//! Placing probes in any text.

use std::sync::Arc;

use guest_kernel::ImageMap;
use guest_kernel::Kernel;
use guest_kernel::symbols::Symbols;
use guest_kernel::symbols::synthetic::{TEXT, unstripped};
use guest_state::testing::{TestGuest, TestMemory, TestVcpu};
use guest_state::{Action, GuestMemory, GuestPhysAddr, GuestVirtAddr, Segment, Trap, TrapHandler};
use iced_x86::{Decoder, DecoderOptions};
use probe_engine::engine::Engine;
use probe_engine::event::{Event, EventSink};
use probe_engine::probe::ProbeId;
use probe_engine::probe::{Options, Place, ProbeKind, ProbeSpec};

use crate::input::Input;

/// The text: two functions of this size, the first of which is probed.
const SIZE: usize = 0x40;
const PHYS: GuestPhysAddr = GuestPhysAddr(0x1000);
const INT3: u8 = 0xcc;

struct Deaf;

impl EventSink for Deaf {
    fn event(&self, _: &Event) {}
}

/// Checks that with any bytes as a function's text, a probe is on an instruction's first byte or is
/// refused, a hit is answered, and removing the probe restores every byte.
///
/// The bytes: offset, registers, the text.
///
/// # Panics
/// If that doesn't hold.
pub fn decode(bytes: &[u8]) {
    let mut input = Input(bytes);
    let offset = u64::from(input.byte()) % (SIZE as u64 + 4);
    let mut vcpu = TestVcpu::default();
    let r = &mut vcpu.registers;
    for register in [&mut r.rax, &mut r.rcx, &mut r.rbx, &mut r.rsp] {
        *register = u64::from(input.short() & 0x3fff);
    }
    r.rflags = 2 | u64::from(input.short());
    let mut text = [0x90; 2 * SIZE];
    let given = input.bytes(2 * SIZE);
    text[..given.len()].copy_from_slice(given);

    let memory = TestMemory::new(0x4000);
    memory.write(PHYS, &text).unwrap();
    let engine = engine();
    let guest = TestGuest::new(&memory);
    let spec = ProbeSpec {
        name: None,
        place: Place::Symbol {
            module: None,
            name: "first".to_owned(),
            offset,
        },
        kind: ProbeKind::PRE,
        enabled: true,
        options: Options::default(),
    };
    let Ok(probes) = engine.register(&guest, &[spec]) else {
        assert_eq!(read(&memory), text, "a refused probe left its mark");
        return;
    };
    let ids: Vec<ProbeId> = probes.iter().map(|probe| probe.id).collect();
    let at = probes[0].offset as usize;
    assert!(at < SIZE, "a probe outside its function");
    assert!(
        boundaries(&text).any(|boundary| boundary == at),
        "a probe inside an instruction: {at:#x} of {text:02x?}"
    );
    let mut armed = text;
    armed[at] = INT3;
    assert_eq!(read(&memory), armed, "not one int3 at {at:#x}");

    vcpu.registers.rip = TEXT + at as u64;
    let before = vcpu.registers;
    let action = engine.trap(&mut vcpu, &memory, Trap::Breakpoint);
    assert_ne!(action, Action::Reinject);
    if matches!(action, Action::PageFault { .. }) {
        assert_eq!(vcpu.registers, before, "a fault has done something");
    }
    // The instruction may have written to its own text. Such bytes are left as the guest wrote
    // them.
    let by_guest = read(&memory);
    engine.unregister(&guest, &ids).unwrap();
    if by_guest == armed {
        assert_eq!(read(&memory), text, "removal left its mark");
    }
}

fn engine() -> Engine {
    let end = TEXT + 2 * SIZE as u64;
    let symbols = [
        (TEXT, 'T', "_text"),
        (TEXT, 'T', "_stext"),
        (TEXT, 't', "first"),
        (TEXT + SIZE as u64, 't', "second"),
        (end, 'T', "_etext"),
        (TEXT + 0x1000, 'D', "_end"),
    ]
    .map(|(address, kind, name)| (address, kind, name.to_owned()));
    let symbols = Symbols::from_elf_symtab(&unstripped(&symbols)).unwrap();
    let image = ImageMap::new(vec![Segment {
        virt: GuestVirtAddr(TEXT),
        phys: PHYS,
        len: 2 * SIZE as u64,
    }]);
    Engine::new(Kernel::from_symbols(symbols), image, 1, Arc::new(Deaf))
}

fn read(memory: &TestMemory) -> [u8; 2 * SIZE] {
    let mut text = [0; 2 * SIZE];
    memory.read(PHYS, &mut text).unwrap();
    text
}

/// Where instructions begin, one after another from the function's start.
fn boundaries(text: &[u8]) -> impl Iterator<Item = usize> {
    let mut decoder = Decoder::with_ip(64, text, TEXT, DecoderOptions::NONE);
    std::iter::from_fn(move || {
        let at = decoder.position();
        (decoder.can_decode() && !decoder.decode().is_invalid()).then_some(at)
    })
}

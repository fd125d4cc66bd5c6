//! Random purposes.

use guest_state::Registers;
use probe_engine::condition::{Comparison, Context, Operand, Relation};
use probe_engine::detour::{Purpose, Tag};
use probe_engine::fetch::Fetches;
use probe_engine::probe::Capture;
use seeded_random::Random;

use crate::registers::in_encoding_order;

/// What a hit records.
pub fn capture(random: &mut Random) -> Capture {
    match random.below(3) {
        0 => Capture::Count,
        1 => Capture::FULL,
        _ => Capture::Event(Fetches::ALL.iter().filter(|_| random.once_in(3)).collect()),
    }
}

/// What conditions read besides registers.
pub fn context(random: &mut Random) -> Context {
    Context {
        cpu: random.value() as u32,
        pid: Some(random.value() as u32),
        tgid: Some(random.value() as u32),
    }
}

/// Returns a comparison that is often met with these values.
pub fn comparison(random: &mut Random, registers: &Registers, context: &Context) -> Comparison {
    use Relation::{Common, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    let number = random.below(16) as u8;
    let (operand, value) = match random.below(6) {
        0 => (Operand::Cpu, context.cpu.into()),
        1 => (Operand::Pid, context.pid.unwrap_or(0).into()),
        2 => (Operand::Tgid, context.tgid.unwrap_or(0).into()),
        _ => {
            let size = random.pick(&[1, 2, 4, 8]);
            let values = in_encoding_order(registers);
            let operand = Operand::Register { number, size };
            (operand, values[usize::from(number)])
        }
    };
    let constant = match random.below(4) {
        0 => random.value(),
        1 => value,
        2 => value.wrapping_add(1),
        _ => value.wrapping_sub(1),
    };
    Comparison {
        operand,
        relation: random.pick(&[
            Equal,
            NotEqual,
            Less,
            LessOrEqual,
            Greater,
            GreaterOrEqual,
            Common,
        ]),
        constant,
        signed: random.once_in(2),
    }
}

/// Any purpose; mostly without a condition.
pub fn purpose(random: &mut Random, registers: &Registers, context: &Context) -> Purpose {
    let checks = if random.once_in(3) {
        random.below(4)
    } else {
        0
    };
    Purpose {
        capture: Some(capture(random)),
        condition: (0..checks)
            .map(|_| comparison(random, registers, context))
            .collect(),
        lossless: random.once_in(2),
        ..Purpose::default()
    }
}

/// Any tag.
pub fn tag(random: &mut Random) -> Tag {
    Tag {
        number: random.bits() as u32,
        cell: random.below(1000) as u32 * 2,
    }
}

//! What a record has of the task.

use guest_kernel::context::TaskContext;
use guest_state::Registers;
use probe_engine::detour::{Dead, Purpose};
use probe_engine::fetch::Fetches;
use probe_engine::probe::Capture;
use probe_engine::value::{Base, Take, Value};

use super::Probed;
use crate::cpu::Cpu;
use crate::jump::blocks::Blocks;

#[test]
fn a_record_tells_of_the_task() {
    let mut cpu = Cpu::new().unwrap();
    let blocks = Blocks::new(1).unwrap();
    let context = TaskContext {
        pid: 0x1234,
        tgid: 0x1230,
        comm: *b"somebody's task\0",
        ..TaskContext::default()
    };
    blocks.describe_task(&context);
    let mut probed = Probed {
        environment: blocks.environment(blocks.gs_base(0)),
        registers: Registers {
            rsp: cpu.layout().data + 4096,
            rbx: 77,
            rflags: 0x8d5,
            ..Registers::default()
        },
        cpu: &mut cpu,
        blocks: &blocks,
    };
    let value = Value {
        base: Base::Register(3),
        loads: Vec::new(),
        take: Take::Word,
    };
    let comm = |at: usize| u64::from_le_bytes(context.comm[at..at + 8].try_into().unwrap());
    for values in [vec![], vec![value]] {
        let mut expected = vec![0x1230_0000_1234, comm(0), comm(8), 1 << 31, 0];
        expected.splice(0..0, [0xad7]);
        if !values.is_empty() {
            expected.extend([8, 77]);
        }
        let purpose = Purpose {
            capture: Some(Capture::Event(Fetches::default())),
            values: values.into(),
            context: true,
            ..Purpose::default()
        };
        let (mut records, _) = probed.hit(&purpose, Dead::default());
        // IF is that of the host.
        records[0][0] |= 0x200;
        assert_eq!(records, [expected]);
    }
}

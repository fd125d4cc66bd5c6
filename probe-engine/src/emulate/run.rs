//! Carrying out a compiled instruction on a stopped vCPU.

use guest_state::x86_64::supervisor::{AccessError, Intent, Span, SupervisorMemory};
use guest_state::{GuestMemory, GuestVirtAddr, Registers, Vcpu};

use super::compiled::{
    Address, Base, BranchTo, Compiled, Count, InsnOperand, Operation, Reg, SegmentBase, Width,
};
use super::flags::{self, CF, IF, POPPED, RF, VM, ZF};

/// How the emulation of an instruction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The instruction is done.
    Done,
    /// It is done and has halted the vCPU.
    Halted,
    /// It raises this page fault; nothing has changed.
    Fault {
        /// What CR2 becomes.
        address: GuestVirtAddr,
        /// Bits P, W and RSVD.
        error_code: u32,
    },
    /// The CPU has to do it; nothing has changed.
    Step,
}

/// Does the instruction at RIP, all of it or nothing.
pub(crate) fn run(compiled: &Compiled, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Outcome {
    let regs = vcpu.registers();
    let mut emulation = Emulation {
        next: regs.rip.wrapping_add(u64::from(compiled.len)),
        regs: *regs,
        memory,
        vcpu,
        view: None,
        store: None,
    };
    match emulation
        .execute(&compiled.operation)
        .and_then(|()| emulation.commit(&compiled.operation))
    {
        Ok(()) if matches!(compiled.operation, Operation::Halt) => Outcome::Halted,
        Ok(()) => Outcome::Done,
        Err(AccessError::PageFault {
            address,
            error_code,
        }) => Outcome::Fault {
            address,
            error_code,
        },
        Err(AccessError::Unknown | AccessError::Unmarked) => Outcome::Step,
    }
}

/// An instruction that is being emulated: what it will leave behind.
struct Emulation<'a> {
    /// The registers afterwards. RIP stays at the instruction until the end.
    regs: Registers,
    /// Where execution goes on: after the instruction, until a branch says otherwise.
    next: u64,
    memory: &'a dyn GuestMemory,
    vcpu: &'a mut dyn Vcpu,
    /// Made when memory is first needed: it costs a system call.
    view: Option<SupervisorMemory<'a>>,
    /// The one write to memory.
    store: Option<(Span, u64)>,
}

/// Where a result goes.
#[derive(Clone, Copy)]
enum Destination {
    Register(Reg),
    Memory(Span),
}

impl<'a> Emulation<'a> {
    fn execute(&mut self, operation: &Operation) -> Result<(), AccessError> {
        match *operation {
            Operation::Nothing | Operation::Halt => {}
            Operation::Push(from) => {
                let value = self.read(from, Width::Quad)?;
                self.push(value)?;
            }
            Operation::Pop(to) => {
                // The address of a memory operand uses the RSP after the pop.
                let value = self.pop()?;
                let to = self.destination(to, Width::Quad)?;
                self.write(to, Width::Quad, value);
            }
            Operation::PushFlags => {
                let value = self.regs.rflags & !(RF | VM);
                self.push(value)?;
            }
            Operation::PopFlags => {
                let value = self.pop()?;
                self.regs.rflags = self.regs.rflags & !POPPED | value & POPPED;
            }
            Operation::Leave => {
                self.regs.rsp = self.regs.rbp;
                self.regs.rbp = self.pop()?;
            }
            Operation::Move { width, to, from } => {
                let value = self.read(from, width)?;
                let to = self.destination(to, width)?;
                self.write(to, width, value);
            }
            Operation::Extend {
                to,
                width,
                from,
                from_width,
                signed,
            } => {
                let value = self.read(from, from_width)?;
                let value = if signed {
                    from_width.sign_extend(value)
                } else {
                    value
                };
                self.write_register(to, width, value);
            }
            Operation::LoadAddress { to, width, address } => {
                let value = self.address(&address)?;
                self.write_register(to, width, value);
            }
            Operation::Arithmetic {
                kind,
                width,
                to,
                from,
            } => {
                use super::compiled::Arithmetic::{Cmp, Test};
                let b = self.read(from, width)?;
                let rflags = self.regs.rflags;
                if matches!(kind, Cmp | Test) {
                    let a = self.read(to, width)?;
                    self.regs.rflags = flags::arithmetic(kind, width, a, b, rflags).1;
                } else {
                    self.update(to, width, |a| flags::arithmetic(kind, width, a, b, rflags))?;
                }
            }
            Operation::Unary {
                kind,
                width,
                operand,
            } => {
                let rflags = self.regs.rflags;
                self.update(operand, width, |a| flags::unary(kind, width, a, rflags))?;
            }
            Operation::Shift {
                kind,
                width,
                operand,
                count,
            } => {
                let count = self.read(count, Width::Byte)?;
                let rflags = self.regs.rflags;
                self.update(operand, width, |a| {
                    flags::shift(kind, width, a, count, rflags)
                })?;
            }
            Operation::SetIf { condition, to } => {
                let value = u64::from(flags::holds(condition, self.regs.rflags));
                let to = self.destination(to, Width::Byte)?;
                self.write(to, Width::Byte, value);
            }
            Operation::MoveIf {
                condition,
                width,
                to,
                from,
            } => {
                // It reads its source, and clears the upper half of a 32-bit
                // destination, whether or not it moves.
                let value = self.read(from, width)?;
                let old = self.read_register(to, width);
                let moves = flags::holds(condition, self.regs.rflags);
                self.write_register(to, width, if moves { value } else { old });
            }
            Operation::Exchange { width, a, b } => {
                let (old_a, old_b) = (self.read_register(a, width), self.read_register(b, width));
                self.write_register(a, width, old_b);
                self.write_register(b, width, old_a);
            }
            Operation::ExtendA { width } => {
                let half = match width {
                    Width::Quad => Width::Double,
                    Width::Double => Width::Word,
                    _ => Width::Byte,
                };
                let value = half.sign_extend(self.read_register(RAX, half));
                self.write_register(RAX, width, value);
            }
            Operation::SignOfA { width } => {
                let negative = self.read_register(RAX, width) & width.sign() != 0;
                self.write_register(RDX, width, if negative { u64::MAX } else { 0 });
            }
            Operation::Jump(target) => self.next = self.target(target)?,
            Operation::Call(target) => {
                let target = self.target(target)?;
                self.push(self.next)?;
                self.next = target;
            }
            Operation::JumpIf { condition, by } => {
                if flags::holds(condition, self.regs.rflags) {
                    self.next = canonical(self.next.wrapping_add(by))?;
                }
            }
            Operation::JumpCounting { count, by } => {
                if self.count(count) {
                    self.next = canonical(self.next.wrapping_add(by))?;
                }
            }
            Operation::Return { drop } => {
                let target = self.pop()?;
                self.next = canonical(target)?;
                self.regs.rsp = self.regs.rsp.wrapping_add(u64::from(drop));
            }
            Operation::Flag { mask, set } => {
                self.regs.rflags = self.regs.rflags & !mask | if set { mask } else { 0 };
            }
            Operation::ComplementCarry => self.regs.rflags ^= CF,
            Operation::EnableInterrupts => self.regs.rflags |= IF,
        }
        Ok(())
    }

    /// Makes the result visible to the guest. Only the last step can't fail.
    fn commit(&mut self, operation: &Operation) -> Result<(), AccessError> {
        let enables = matches!(operation, Operation::EnableInterrupts);
        let shadow = enables && self.vcpu.registers().rflags & IF == 0;
        self.vcpu
            .set_interrupt_shadow(shadow)
            .map_err(|_| AccessError::Unknown)?;
        if let Some((span, value)) = self.store.take() {
            self.view()?.store(span, value)?;
        }
        self.regs.rip = self.next;
        // Every instruction that completes clears RF (SDM vol. 3B, 18.3.1.1).
        self.regs.rflags &= !RF;
        let registers = self.vcpu.registers_mut();
        *registers = self.regs;
        Ok(())
    }

    #[inline]
    fn view(&mut self) -> Result<&SupervisorMemory<'a>, AccessError> {
        if self.view.is_none() {
            let control = self.vcpu.control().map_err(|_| AccessError::Unknown)?;
            self.view = Some(SupervisorMemory::new(self.memory, control)?);
        }
        self.view.as_ref().ok_or(AccessError::Unknown)
    }

    fn address(&mut self, address: &Address) -> Result<u64, AccessError> {
        let segment = match address.segment {
            SegmentBase::Flat => 0,
            other => other.value(self.view()?),
        };
        let end = self.regs.rip.wrapping_add(self.length());
        Ok(address.resolve(&self.regs, end).wrapping_add(segment))
    }

    /// The instruction's length: until a branch has set it, `next` is that far behind RIP, and
    /// operands are computed before.
    fn length(&self) -> u64 {
        self.next.wrapping_sub(self.regs.rip)
    }

    #[inline]
    fn span(&mut self, at: u64, width: Width, access: Intent) -> Result<Span, AccessError> {
        let rflags = self.regs.rflags;
        let at = GuestVirtAddr(at);
        self.view()?.span(at, width.bytes(), access, rflags)
    }

    fn read(&mut self, from: InsnOperand, width: Width) -> Result<u64, AccessError> {
        match from {
            InsnOperand::Register(reg) => Ok(self.read_register(reg, width)),
            InsnOperand::Immediate(value) => Ok(value & width.mask()),
            InsnOperand::Memory(address) => {
                let at = self.address(&address)?;
                self.load(at, width)
            }
        }
    }

    fn load(&mut self, at: u64, width: Width) -> Result<u64, AccessError> {
        let span = self.span(at, width, Intent::Read)?;
        self.view()?.load(span)
    }

    /// Returns where a result goes, if it can be written there.
    fn destination(&mut self, to: InsnOperand, width: Width) -> Result<Destination, AccessError> {
        match to {
            InsnOperand::Register(reg) => Ok(Destination::Register(reg)),
            InsnOperand::Memory(address) => {
                let at = self.address(&address)?;
                self.span(at, width, Intent::Write).map(Destination::Memory)
            }
            InsnOperand::Immediate(_) => Err(AccessError::Unknown),
        }
    }

    fn write(&mut self, to: Destination, width: Width, value: u64) {
        match to {
            Destination::Register(reg) => self.write_register(reg, width, value),
            Destination::Memory(span) => self.store = Some((span, value)),
        }
    }

    /// Replaces an operand by the first of `change`'s results and the flags by
    /// the second.
    fn update(
        &mut self,
        operand: InsnOperand,
        width: Width,
        change: impl FnOnce(u64) -> (u64, u64),
    ) -> Result<(), AccessError> {
        let to = self.destination(operand, width)?;
        let old = match to {
            Destination::Register(reg) => self.read_register(reg, width),
            Destination::Memory(span) => self.view()?.load(span)?,
        };
        let (value, rflags) = change(old);
        self.write(to, width, value);
        self.regs.rflags = rflags;
        Ok(())
    }

    fn read_register(&self, reg: Reg, width: Width) -> u64 {
        let value = self.regs.by_number(reg.number);
        (if reg.high { value >> 8 } else { value }) & width.mask()
    }

    /// Writes a register: a 32-bit result clears the upper half; a smaller one leaves the rest.
    fn write_register(&mut self, reg: Reg, width: Width, value: u64) {
        let register = self.regs.by_number_mut(reg.number);
        let value = value & width.mask();
        *register = match width {
            Width::Quad | Width::Double => value,
            _ if reg.high => *register & !0xff00 | value << 8,
            _ => *register & !width.mask() | value,
        };
    }

    #[inline]
    fn push(&mut self, value: u64) -> Result<(), AccessError> {
        let at = self.regs.rsp.wrapping_sub(8);
        let span = self.span(at, Width::Quad, Intent::Write)?;
        self.store = Some((span, value));
        self.regs.rsp = at;
        Ok(())
    }

    fn pop(&mut self) -> Result<u64, AccessError> {
        let value = self.load(self.regs.rsp, Width::Quad)?;
        self.regs.rsp = self.regs.rsp.wrapping_add(8);
        Ok(value)
    }

    fn target(&mut self, target: BranchTo) -> Result<u64, AccessError> {
        canonical(match target {
            BranchTo::Relative(by) => self.next.wrapping_add(by),
            BranchTo::Absolute(operand) => self.read(operand, Width::Quad)?,
        })
    }

    /// Counts RCX down and returns true if the branch is taken.
    fn count(&mut self, count: Count) -> bool {
        if count == Count::IsZero {
            return self.regs.rcx == 0;
        }
        self.regs.rcx = self.regs.rcx.wrapping_sub(1);
        let equal = self.regs.rflags & ZF != 0;
        self.regs.rcx != 0
            && match count {
                Count::NotZeroAndEqual => equal,
                Count::NotZeroAndNotEqual => !equal,
                _ => true,
            }
    }
}

const RAX: Reg = Reg {
    number: 0,
    high: false,
};
const RDX: Reg = Reg {
    number: 2,
    high: false,
};

/// Refuses a branch target that might not be canonical: the CPU has to judge that. Kernel and user
/// text are in the 48 bits that all paging modes share.
fn canonical(target: u64) -> Result<u64, AccessError> {
    let extended = ((target << 16).cast_signed() >> 16).cast_unsigned();
    if extended == target {
        Ok(target)
    } else {
        Err(AccessError::Unknown)
    }
}

impl Address {
    /// Computes the address less its segment's base; the instruction ends at `end`.
    pub(super) fn resolve(&self, regs: &Registers, end: u64) -> u64 {
        let base = match self.base {
            Base::Zero => 0,
            Base::Register(number) => regs.by_number(number),
            Base::NextInstruction => end,
        };
        let index = self.index.map_or(0, |(number, scale)| {
            regs.by_number(number).wrapping_mul(u64::from(scale))
        });
        base.wrapping_add(index).wrapping_add(self.displacement)
    }
}

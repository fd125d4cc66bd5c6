//! The options of probes.

use std::sync::Arc;

use probe_engine::condition::{Comparison, Operand, Relation};
use probe_engine::fetch::{Fetch, Fetches};
use probe_engine::probe::{Capture, Optimization, Options};
use probe_engine::value::Values;
use vmprobe_proto::v1;
use vmprobe_proto::v1::condition::Operand as WireOperand;
use vmprobe_spec::{CONDITIONS_MAX, names};

use super::no_jump::no_jump;

/// What is wrong with the options, and in which of their fields.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongOption {
    /// A path into the options, such as `conditions[1].operand`.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

fn wrong<T>(field: impl Into<String>, why: impl Into<String>) -> Result<T, WrongOption> {
    Err(WrongOption {
        field: field.into(),
        why: why.into(),
    })
}

/// Returns the engine's form of a probe's options.
///
/// # Errors
/// The first option that is wrong, and the reason.
pub fn options(options: &v1::ProbeOptions) -> Result<Options, WrongOption> {
    if options.conditions.len() > CONDITIONS_MAX {
        let many = options.conditions.len();
        return wrong(
            "conditions",
            format!("a probe has at most {CONDITIONS_MAX} conditions, not {many}"),
        );
    }
    let conditions = options.conditions.iter().enumerate();
    let condition = conditions.map(|(index, condition)| comparison(index, condition));
    Ok(Options {
        capture: capture(options)?,
        condition: condition.collect::<Result<_, _>>()?,
        values: Values::default(),
        filter: None,
        context: true,
        stack: 0,
        lossless: options.lossless,
        optimize: vmprobe_spec::may_optimize(options),
        actions: Arc::default(),
    })
}

fn capture(options: &v1::ProbeOptions) -> Result<Capture, WrongOption> {
    let capture = match v1::Capture::try_from(options.capture) {
        Ok(v1::Capture::Registers) => return registers(&options.registers),
        Ok(v1::Capture::Unspecified | v1::Capture::Full) => Capture::FULL,
        Ok(v1::Capture::Count) => Capture::Count,
        Err(_) => {
            let why = format!("{} is unknown to this server", options.capture);
            return wrong("capture", why);
        }
    };
    if !options.registers.is_empty() {
        return wrong("registers", "only CAPTURE_REGISTERS takes registers");
    }
    Ok(capture)
}

fn registers(registers: &[i32]) -> Result<Capture, WrongOption> {
    let mut fetches = Fetches::default();
    for (index, register) in registers.iter().enumerate() {
        let known = v1::Register::try_from(*register).ok();
        let number = known.and_then(names::number);
        match number.and_then(Fetch::numbered) {
            Some(fetch) => fetches = fetches.with(fetch),
            None => {
                let why = format!("{register} is no register that this server knows");
                return wrong(format!("registers[{index}]"), why);
            }
        }
    }
    Ok(Capture::Event(fetches))
}

/// Returns what a condition compares, or the wrong field and the reason.
fn operand(operand: Option<&WireOperand>) -> Result<Operand, (&'static str, String)> {
    match operand {
        Some(WireOperand::Register(part)) => {
            let number = names::part_name(part).and(names::number(part.register()));
            let size = u8::try_from(names::operand_size(&WireOperand::Register(*part)));
            let (Some(number), Ok(size)) = (number, size) else {
                let why =
                    "the lowest 1, 2, 4 or 8 bytes of rax to r15 can be compared, and nothing else";
                return Err(("register", why.to_owned()));
            };
            Ok(Operand::Register { number, size })
        }
        Some(WireOperand::Variable(variable)) => match v1::Variable::try_from(*variable) {
            Ok(v1::Variable::Cpu) => Ok(Operand::Cpu),
            Ok(v1::Variable::Pid) => Ok(Operand::Pid),
            Ok(v1::Variable::Tgid) => Ok(Operand::Tgid),
            Ok(v1::Variable::Unspecified) | Err(_) => {
                let why = format!("{variable} is no variable that this server knows");
                Err(("variable", why))
            }
        },
        None => Err(("operand", "a register or a variable is missing".to_owned())),
    }
}

fn comparison(index: usize, condition: &v1::Condition) -> Result<Comparison, WrongOption> {
    let field = |name: &str| format!("conditions[{index}].{name}");
    let operand = operand(condition.operand.as_ref());
    let operand = operand.or_else(|(name, why)| wrong(field(name), why))?;
    let relation = match v1::Relation::try_from(condition.relation) {
        Ok(v1::Relation::Equal) => Relation::Equal,
        Ok(v1::Relation::NotEqual) => Relation::NotEqual,
        Ok(v1::Relation::Less) => Relation::Less,
        Ok(v1::Relation::LessOrEqual) => Relation::LessOrEqual,
        Ok(v1::Relation::Greater) => Relation::Greater,
        Ok(v1::Relation::GreaterOrEqual) => Relation::GreaterOrEqual,
        Ok(v1::Relation::Common) => Relation::Common,
        Ok(v1::Relation::Unspecified) => return wrong(field("relation"), "it is missing"),
        Err(_) => {
            let why = format!("{} is unknown to this server", condition.relation);
            return wrong(field("relation"), why);
        }
    };
    let (constant, size) = (condition.constant, u32::from(operand.size()));
    if !names::fits(constant, size) {
        let bits = 8 * size;
        let name = condition.operand.as_ref().and_then(names::operand_name);
        let name = name.unwrap_or("it");
        let why = format!("{name} has {bits} bits: it can't be {constant:#x}");
        return wrong(field("constant"), why);
    }
    Ok(Comparison {
        operand,
        relation,
        constant,
        signed: condition.signed,
    })
}

/// Returns the protocol's form of a probe's options.
pub fn told_options(options: &Options) -> v1::ProbeOptions {
    let (capture, registers) = match options.capture {
        Capture::FULL => (v1::Capture::Full, Vec::new()),
        Capture::Count => (v1::Capture::Count, Vec::new()),
        Capture::Event(fetches) => {
            let numbers = fetches.iter().map(Fetch::number);
            let registers = numbers.filter_map(names::numbered);
            (v1::Capture::Registers, registers.map(i32::from).collect())
        }
    };
    v1::ProbeOptions {
        capture: capture.into(),
        registers,
        conditions: options.condition.iter().map(condition).collect(),
        lossless: options.lossless,
        optimize: Some(options.optimize),
    }
}

fn condition(comparison: &Comparison) -> v1::Condition {
    let operand = match comparison.operand {
        Operand::Register { number, size } => {
            let register = names::numbered(number).unwrap_or_default();
            WireOperand::Register(v1::RegisterPart {
                register: register.into(),
                bytes: size.into(),
            })
        }
        Operand::Cpu => WireOperand::Variable(v1::Variable::Cpu.into()),
        Operand::Pid => WireOperand::Variable(v1::Variable::Pid.into()),
        Operand::Tgid => WireOperand::Variable(v1::Variable::Tgid.into()),
    };
    let relation = match comparison.relation {
        Relation::Equal => v1::Relation::Equal,
        Relation::NotEqual => v1::Relation::NotEqual,
        Relation::Less => v1::Relation::Less,
        Relation::LessOrEqual => v1::Relation::LessOrEqual,
        Relation::Greater => v1::Relation::Greater,
        Relation::GreaterOrEqual => v1::Relation::GreaterOrEqual,
        Relation::Common => v1::Relation::Common,
    };
    v1::Condition {
        operand: Some(operand),
        relation: relation.into(),
        constant: comparison.constant,
        signed: comparison.signed,
    }
}

/// Returns the protocol's form of whether a probe is a jump.
pub fn optimization(optimization: Optimization) -> v1::Optimization {
    let mut told = v1::Optimization::default();
    match optimization {
        Optimization::Optimized => told.set_state(v1::OptimizationState::Optimized),
        Optimization::Waiting => told.set_state(v1::OptimizationState::Waiting),
        Optimization::Not(why) => {
            let (kind, listed) = no_jump(&why);
            told.set_state(v1::OptimizationState::Not);
            told.set_reason_kind(kind);
            told.set_blacklist_kind(listed);
            told.reason = why.to_string();
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use probe_engine::probe::NoJump;

    use super::*;

    fn condition_on(operand: &str) -> v1::Condition {
        v1::Condition {
            operand: names::operand(operand),
            relation: v1::Relation::Equal.into(),
            constant: 1,
            signed: false,
        }
    }

    fn numbers(names: &[&str]) -> Vec<i32> {
        let registers = names.iter().map(|name| names::register(name).unwrap());
        registers.map(i32::from).collect()
    }

    fn part(register: v1::Register, bytes: u32) -> Option<WireOperand> {
        let register = register.into();
        Some(WireOperand::Register(v1::RegisterPart { register, bytes }))
    }

    fn with_conditions(conditions: Vec<v1::Condition>) -> v1::ProbeOptions {
        v1::ProbeOptions {
            conditions,
            ..v1::ProbeOptions::default()
        }
    }

    #[test]
    fn options_are_told_as_they_were_asked_for() {
        let mut asked = with_conditions(
            ["rdi", "r15d", "bx", "sil", "cpu", "pid", "tgid"]
                .into_iter()
                .zip(1..)
                .map(|(operand, relation)| v1::Condition {
                    relation,
                    signed: relation % 2 == 0,
                    ..condition_on(operand)
                })
                .collect(),
        );
        asked.lossless = true;
        asked.optimize = Some(false);
        for (capture, registers) in [
            (v1::Capture::Full, vec![]),
            (v1::Capture::Count, vec![]),
            (v1::Capture::Registers, vec!["rax", "r15", "rflags"]),
            (v1::Capture::Registers, vec![]),
        ] {
            asked.set_capture(capture);
            asked.registers = numbers(&registers);
            let options = options(&asked).unwrap();
            assert_eq!(told_options(&options), asked);
        }
        assert!(!options(&asked).unwrap().optimize);
    }

    #[test]
    fn nothing_asked_for_is_the_default_with_the_context() {
        let none = v1::ProbeOptions::default();
        let expected = Options {
            context: true,
            ..Options::default()
        };
        assert_eq!(options(&none), Ok(expected));
    }

    #[test]
    fn a_wrong_option_names_its_field() {
        let named = |registers: &[i32], capture: v1::Capture| v1::ProbeOptions {
            registers: registers.to_vec(),
            capture: capture.into(),
            ..v1::ProbeOptions::default()
        };
        let changed = |change: fn(&mut v1::Condition)| {
            let mut condition = condition_on("dil");
            change(&mut condition);
            with_conditions(vec![condition_on("rdi"), condition])
        };
        for (options, field) in [
            (named(&[1, 18], v1::Capture::Registers), "registers[1]"),
            (named(&[0], v1::Capture::Registers), "registers[0]"),
            (named(&[1], v1::Capture::Count), "registers"),
            (named(&[1], v1::Capture::Unspecified), "registers"),
            (
                v1::ProbeOptions {
                    capture: 9,
                    ..v1::ProbeOptions::default()
                },
                "capture",
            ),
            (
                changed(|condition| condition.operand = None),
                "conditions[1].operand",
            ),
            (
                changed(|condition| condition.operand = part(v1::Register::Rflags, 8)),
                "conditions[1].register",
            ),
            (
                changed(|condition| condition.operand = part(v1::Register::Rax, 3)),
                "conditions[1].register",
            ),
            (
                changed(|condition| condition.operand = Some(WireOperand::Variable(4))),
                "conditions[1].variable",
            ),
            (
                changed(|condition| condition.relation = 0),
                "conditions[1].relation",
            ),
            (
                changed(|condition| condition.relation = 8),
                "conditions[1].relation",
            ),
            (
                changed(|condition| condition.constant = 0x100),
                "conditions[1].constant",
            ),
            (
                with_conditions(vec![condition_on("rdi"); CONDITIONS_MAX + 1]),
                "conditions",
            ),
        ] {
            assert_eq!(super::options(&options).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_probe_that_is_no_jump_says_why() {
        let not = optimization(Optimization::Not(NoJump::PostEvent));
        assert_eq!(not.state(), v1::OptimizationState::Not);
        assert_eq!(
            (not.reason_kind(), &*not.reason),
            (
                v1::NoJumpReason::PostEvent,
                "a post event takes a breakpoint"
            )
        );
        let waiting = optimization(Optimization::Waiting);
        assert_eq!(waiting.state(), v1::OptimizationState::Waiting);
        assert!(waiting.reason.is_empty());
    }
}

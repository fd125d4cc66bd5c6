//! What hits of a probe are wanted for.

use probe_engine::condition::{Comparison, Operand, Relation};
use probe_engine::fetch::{Fetch, Fetches};
use probe_engine::probe::{Capture, Optimization, Options};
use vmprobe_proto::v1;
use vmprobe_spec::{CONDITIONS_MAX, names};

/// What is wrong with the options, and in which field of theirs.
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

/// The engine's form of a probe's options.
///
/// # Errors
/// The first option that is wrong, and why.
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
        lossless: options.lossless,
        optimize: !options.no_jump,
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
        return wrong(
            "registers",
            "only CAPTURE_REGISTERS takes names of registers",
        );
    }
    Ok(capture)
}

fn registers(names: &[String]) -> Result<Capture, WrongOption> {
    let mut fetches = Fetches::default();
    for (index, name) in names.iter().enumerate() {
        match names::whole_register(name).and_then(Fetch::numbered) {
            Some(fetch) => fetches = fetches.with(fetch),
            None => {
                return wrong(
                    format!("registers[{index}]"),
                    format!("an event has no register {name:?}: rax to r15 and rflags"),
                );
            }
        }
    }
    Ok(Capture::Event(fetches))
}

fn comparison(index: usize, condition: &v1::Condition) -> Result<Comparison, WrongOption> {
    let field = |name: &str| format!("conditions[{index}].{name}");
    let name = &*condition.operand;
    let operand = match (name, names::register(name)) {
        (_, Some((number, size))) => Operand::Register { number, size },
        ("cpu", _) => Operand::Cpu,
        ("pid", _) => Operand::Pid,
        ("tgid", _) => Operand::Tgid,
        _ => {
            let why = format!(
                "{name:?} can't be compared: a register of any width (rdi, edi, dil), cpu, pid or \
                 tgid can"
            );
            return wrong(field("operand"), why);
        }
    };
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
    let (constant, size) = (condition.constant, operand.size());
    if !names::fits(constant, size) {
        let bits = 8 * u32::from(size);
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

/// The protocol's form of a probe's options.
pub fn told_options(options: &Options) -> v1::ProbeOptions {
    let (capture, registers) = match options.capture {
        Capture::FULL => (v1::Capture::Full, Vec::new()),
        Capture::Count => (v1::Capture::Count, Vec::new()),
        Capture::Event(fetches) => {
            let numbers = fetches.iter().map(Fetch::number);
            let names = numbers.filter_map(names::whole_register_name);
            (v1::Capture::Registers, names.map(str::to_owned).collect())
        }
    };
    v1::ProbeOptions {
        capture: capture.into(),
        registers,
        conditions: options.condition.iter().map(condition).collect(),
        lossless: options.lossless,
        no_jump: !options.optimize,
    }
}

fn condition(comparison: &Comparison) -> v1::Condition {
    let operand = match comparison.operand {
        Operand::Register { number, size } => names::register_name(number, size).unwrap_or("?"),
        Operand::Cpu => "cpu",
        Operand::Pid => "pid",
        Operand::Tgid => "tgid",
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
        operand: operand.to_owned(),
        relation: relation.into(),
        constant: comparison.constant,
        signed: comparison.signed,
    }
}

/// The protocol's form of whether a probe is a jump.
pub fn optimization(optimization: Optimization) -> v1::Optimization {
    let (state, reason_kind, reason) = match optimization {
        Optimization::Optimized => (v1::OptimizationState::Optimized, "", String::new()),
        Optimization::Waiting => (v1::OptimizationState::Waiting, "", String::new()),
        Optimization::Not(why) => (v1::OptimizationState::Not, why.kind(), why.to_string()),
    };
    v1::Optimization {
        state: state.into(),
        reason_kind: reason_kind.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use probe_engine::probe::NoJump;

    use super::*;

    fn condition_on(operand: &str) -> v1::Condition {
        v1::Condition {
            operand: operand.into(),
            relation: v1::Relation::Equal.into(),
            constant: 1,
            signed: false,
        }
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
        asked.no_jump = true;
        for (capture, registers) in [
            (v1::Capture::Full, vec![]),
            (v1::Capture::Count, vec![]),
            (v1::Capture::Registers, vec!["rax", "r15", "rflags"]),
            (v1::Capture::Registers, vec![]),
        ] {
            asked.set_capture(capture);
            asked.registers = registers.into_iter().map(str::to_owned).collect();
            let options = options(&asked).unwrap();
            assert_eq!(told_options(&options), asked);
        }
        assert!(!options(&asked).unwrap().optimize);
    }

    #[test]
    fn nothing_asked_for_is_the_default() {
        let none = v1::ProbeOptions::default();
        assert_eq!(options(&none), Ok(Options::default()));
    }

    #[test]
    fn a_wrong_option_names_its_field() {
        let named = |names: &[&str], capture: v1::Capture| v1::ProbeOptions {
            registers: names.iter().map(|&name| name.to_owned()).collect(),
            capture: capture.into(),
            ..v1::ProbeOptions::default()
        };
        let changed = |change: fn(&mut v1::Condition)| {
            let mut condition = condition_on("dil");
            change(&mut condition);
            with_conditions(vec![condition_on("rdi"), condition])
        };
        for (options, field) in [
            (
                named(&["rax", "rip"], v1::Capture::Registers),
                "registers[1]",
            ),
            (named(&["edi"], v1::Capture::Registers), "registers[0]"),
            (named(&["rax"], v1::Capture::Count), "registers"),
            (named(&["rax"], v1::Capture::Unspecified), "registers"),
            (
                v1::ProbeOptions {
                    capture: 9,
                    ..v1::ProbeOptions::default()
                },
                "capture",
            ),
            (
                changed(|condition| condition.operand = "ah".into()),
                "conditions[1].operand",
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
            (&*not.reason_kind, &*not.reason),
            ("post event", "a post event takes a breakpoint")
        );
        let waiting = optimization(Optimization::Waiting);
        assert_eq!(waiting.state(), v1::OptimizationState::Waiting);
        assert!(waiting.reason.is_empty());
    }
}

//! Filters: which hits of a probe count, by the values that it takes and by the task.

use crate::condition::Relation;
use crate::value::Taken;
use guest_kernel::context::TaskContext;

/// A filter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Filter {
    /// All of these.
    All(Vec<Filter>),
    /// One of these at least.
    Any(Vec<Filter>),
    /// Not this.
    Not(Box<Filter>),
    /// A comparison of a number. A number that can't be taken meets none.
    Number {
        /// The number.
        of: Number,
        /// How it must relate to `constant`.
        relation: Relation,
        /// What it is compared with, as wide as the number.
        constant: u64,
    },
    /// A comparison of a text. A text that can't be taken is like no pattern.
    Text {
        /// The text.
        of: Text,
        /// What it must be like.
        pattern: Pattern,
    },
}

/// A number that a hit is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// Bits of one of the probe's values.
    Value {
        /// Which value.
        index: usize,
        /// The first bit, from the lowest of the value's first 8 bytes.
        shift: u8,
        /// How many bits, 1 to 64.
        width: u8,
        /// Whether the uppermost bit is a sign.
        signed: bool,
    },
    /// The thread number of the current task.
    Pid,
    /// The process number of the current task.
    Tgid,
    /// The number of the vCPU.
    Cpu,
}

/// A text that a hit is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Text {
    /// One of the probe's values, which is a text.
    Value(usize),
    /// The name of the current task.
    Comm,
}

/// What a text is like. `*` is any text, `?` is any byte, and what is in brackets is one of these bytes
/// (`[abc]`, `[a-c]`, `[!abc]`), as in the kernel (`lib/glob.c`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// The very same bytes.
    Same(Vec<u8>),
    /// A pattern.
    Glob(Vec<u8>),
}

/// What a filter looks at.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The probe's values.
    pub values: &'a [Taken],
    /// The task; `None` where it isn't known.
    pub context: Option<&'a TaskContext>,
    /// The number of the vCPU.
    pub cpu: u32,
}

impl Filter {
    /// Returns true if a hit meets it.
    pub fn holds(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::All(filters) => filters.iter().all(|filter| filter.holds(subject)),
            Self::Any(filters) => filters.iter().any(|filter| filter.holds(subject)),
            Self::Not(filter) => !filter.holds(subject),
            Self::Number {
                of,
                relation,
                constant,
            } => of
                .found(subject)
                .is_some_and(|found| of.compare(found, *relation, *constant)),
            Self::Text { of, pattern } => {
                of.found(subject).is_some_and(|text| pattern.matches(text))
            }
        }
    }

    /// The indexes of the values that the filter looks at.
    pub(crate) fn values(&self) -> Vec<usize> {
        match self {
            Self::All(filters) | Self::Any(filters) => {
                filters.iter().flat_map(Self::values).collect()
            }
            Self::Not(filter) => filter.values(),
            Self::Number {
                of: Number::Value { index, .. },
                ..
            }
            | Self::Text {
                of: Text::Value(index),
                ..
            } => vec![*index],
            Self::Number { .. } | Self::Text { .. } => Vec::new(),
        }
    }

    /// Returns the same filter for a list in which its values have these numbers; `None` if one of them isn't there.
    pub(crate) fn renumbered(&self, number: &impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let all = |filters: &[Self]| -> Option<Vec<Self>> {
            filters.iter().map(|it| it.renumbered(number)).collect()
        };
        let mut same = self.clone();
        match &mut same {
            Self::All(filters) | Self::Any(filters) => *filters = all(filters)?,
            Self::Not(filter) => **filter = filter.renumbered(number)?,
            Self::Number {
                of: Number::Value { index, .. },
                ..
            }
            | Self::Text {
                of: Text::Value(index),
                ..
            } => *index = number(*index)?,
            Self::Number { .. } | Self::Text { .. } => {}
        }
        Some(same)
    }

    /// Returns true if the filter can be decided without the probe's values.
    pub fn is_without_values(&self) -> bool {
        self.values().is_empty()
    }
}

impl Number {
    /// Its bits and whether they have a sign.
    pub(crate) fn bits(self) -> (u8, u8, bool) {
        match self {
            Self::Value {
                shift,
                width,
                signed,
                ..
            } => (shift, width.clamp(1, 64), signed),
            Self::Pid | Self::Tgid | Self::Cpu => (0, 32, false),
        }
    }

    /// Reads the number, extended to 64 bits.
    fn found(self, subject: &Subject<'_>) -> Option<u64> {
        let word = match self {
            Self::Value { index, .. } => match subject.values.get(index)? {
                Taken::Bytes(bytes) => {
                    let mut word = [0; 8];
                    let len = bytes.len().min(8);
                    word[..len].copy_from_slice(&bytes[..len]);
                    u64::from_le_bytes(word)
                }
                Taken::Fault => return None,
            },
            Self::Pid => subject.context?.pid.into(),
            Self::Tgid => subject.context?.tgid.into(),
            Self::Cpu => subject.cpu.into(),
        };
        Some(self.extended(word >> self.bits().0))
    }

    /// Extends the lowest bits, with their sign if they have one.
    fn extended(self, word: u64) -> u64 {
        let (_, width, signed) = self.bits();
        let unused = 64 - u32::from(width);
        let top = word << unused;
        match signed {
            true => (top.cast_signed() >> unused).cast_unsigned(),
            false => top >> unused,
        }
    }

    fn compare(self, found: u64, relation: Relation, constant: u64) -> bool {
        let constant = self.extended(constant);
        let ordering = match self.bits().2 {
            true => found.cast_signed().cmp(&constant.cast_signed()),
            false => found.cmp(&constant),
        };
        relation.holds(ordering, found & constant)
    }

    /// The constant as the comparison needs it.
    pub(crate) fn constant(self, constant: u64) -> u64 {
        self.extended(constant)
    }
}

impl Text {
    fn found<'a>(self, subject: &Subject<'a>) -> Option<&'a [u8]> {
        match self {
            Self::Value(index) => match subject.values.get(index)? {
                Taken::Bytes(bytes) => Some(bytes),
                Taken::Fault => None,
            },
            Self::Comm => Some(subject.context?.name()),
        }
    }
}

impl Pattern {
    fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Same(bytes) => bytes == text,
            Self::Glob(pattern) => glob(pattern, text),
        }
    }
}

/// An element of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    /// This byte.
    Byte(u8),
    /// Any byte.
    Any,
    /// One of the bytes whose bit is set: bit n % 8 of byte n / 8 is that of n.
    OneOf([u8; 32]),
    /// Any text.
    Text,
}

/// Returns the elements of a pattern, one after the other.
pub(crate) fn elements(pattern: &[u8]) -> Vec<Element> {
    let mut elements = Vec::new();
    let mut at = 0;
    while let Some(byte) = pattern.get(at) {
        let (element, next) = match byte {
            b'*' => (Element::Text, at + 1),
            b'?' => (Element::Any, at + 1),
            b'[' => one_of(pattern, at),
            byte => (Element::Byte(*byte), at + 1),
        };
        elements.push(element);
        at = next;
    }
    elements
}

/// Returns the brackets at `at`, and where the pattern goes on behind them.
fn one_of(pattern: &[u8], at: usize) -> (Element, usize) {
    let mut set = [0; 32];
    for byte in 0..=u8::MAX {
        if class(pattern, at, byte).is_some() {
            set[usize::from(byte / 8)] |= 1 << (byte % 8);
        }
    }
    let next = brackets(pattern, at).map_or(at + 1, |brackets| brackets.behind);
    (Element::OneOf(set), next)
}

/// Returns true if a text is like a pattern. The last `*` is tried at each place, which is enough: an earlier one never
/// has to take more than it has.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        let step = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, from));
                at += 1;
                continue;
            }
            Some(b'?') => Some(at + 1),
            Some(b'[') => class(pattern, at, text[from]),
            Some(byte) => (*byte == text[from]).then_some(at + 1),
            None => None,
        };
        match (step, &mut star) {
            (Some(next), _) => {
                at = next;
                from += 1;
            }
            (None, Some((behind, begun))) => {
                *begun += 1;
                (at, from) = (*behind, *begun);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns where the pattern goes on behind the brackets at `at`, if the byte is one of those in them. Brackets that
/// aren't closed stand for themselves.
fn class(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    let Some(brackets) = brackets(pattern, at) else {
        return (byte == b'[').then_some(at + 1);
    };
    let mut members = brackets.members;
    let mut is_member = false;
    while let Some((low, rest)) = members.split_first() {
        members = rest;
        let mut high = *low;
        if let [b'-', end, rest @ ..] = rest {
            high = *end;
            members = rest;
        }
        is_member |= (*low..=high).contains(&byte);
    }
    (is_member != brackets.negated).then_some(brackets.behind)
}

/// Brackets of a pattern.
struct Brackets<'a> {
    negated: bool,
    members: &'a [u8],
    /// Where the pattern goes on.
    behind: usize,
}

/// Finds the brackets at `at`; `None` if they aren't closed.
fn brackets(pattern: &[u8], at: usize) -> Option<Brackets<'_>> {
    let inside = &pattern[at + 1..];
    let negated = inside.first() == Some(&b'!');
    let first = usize::from(negated);
    // A bracket right behind the opening one is one of the bytes.
    let close = inside.iter().skip(first + 1).position(|it| *it == b']');
    let close = close? + first + 1;
    Some(Brackets {
        negated,
        members: &inside[first..close],
        behind: at + 1 + close + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: TaskContext = TaskContext {
        pid: 7,
        tgid: 5,
        comm: *b"sh\0junkjunkjunk\0",
        preempt_count: 0,
        thread_flags: 0,
        migration_disabled: 0,
    };

    fn holds(filter: &Filter, values: &[Taken]) -> bool {
        filter.holds(&Subject {
            values,
            context: Some(&CONTEXT),
            cpu: 1,
        })
    }

    fn number(of: Number, relation: Relation, constant: u64) -> Filter {
        Filter::Number {
            of,
            relation,
            constant,
        }
    }

    fn comm(pattern: Pattern) -> Filter {
        Filter::Text {
            of: Text::Comm,
            pattern,
        }
    }

    #[test]
    fn numbers_are_compared_by_their_bits_and_sign() {
        use Relation::{Common, Equal, Greater, Less};
        let of = |shift, width, signed| Number::Value {
            index: 0,
            shift,
            width,
            signed,
        };
        let minus_two = 0xffff_fffe_u64;
        let cases = [
            (of(0, 32, true), Less, u64::MAX, true),
            (of(0, 32, true), Less, 0xffff_ffff, true),
            (of(0, 32, false), Greater, 5, true),
            (of(0, 32, true), Greater, 5, false),
            (of(1, 2, false), Equal, 3, true),
            (of(0, 1, false), Equal, 0, true),
            (of(0, 32, false), Common, 1, false),
            (Number::Pid, Equal, 7, true),
            (Number::Tgid, Equal, 7, false),
            (Number::Cpu, Equal, 1, true),
        ];
        let values = [Taken::Bytes(minus_two.to_le_bytes().to_vec())];
        for (of, relation, constant, expected) in cases {
            let filter = number(of, relation, constant);
            assert_eq!(holds(&filter, &values), expected, "{filter:?}");
        }
        let two_bytes = [Taken::Bytes(vec![1, 2])];
        assert!(holds(&number(of(0, 16, false), Equal, 0x201), &two_bytes));
    }

    #[test]
    fn what_can_t_be_taken_meets_no_comparison() {
        let of = Number::Value {
            index: 0,
            shift: 0,
            width: 64,
            signed: false,
        };
        let differs = number(of, Relation::NotEqual, 1);
        let text = Filter::Text {
            of: Text::Value(0),
            pattern: Pattern::Glob(b"*".to_vec()),
        };
        for filter in [differs, text] {
            assert!(!holds(&filter, &[Taken::Fault]));
            assert!(!holds(&filter, &[]));
            assert!(holds(&Filter::Not(Box::new(filter)), &[Taken::Fault]));
        }
        let unknown = Subject {
            values: &[],
            context: None,
            cpu: 0,
        };
        assert!(!number(Number::Pid, Relation::NotEqual, 1).holds(&unknown));
    }

    #[test]
    fn filters_are_combined() {
        let sh = comm(Pattern::Same(b"sh".to_vec()));
        let on_cpu = |cpu| number(Number::Cpu, Relation::Equal, cpu);
        assert!(holds(&Filter::All(vec![sh.clone(), on_cpu(1)]), &[]));
        assert!(!holds(&Filter::All(vec![sh.clone(), on_cpu(2)]), &[]));
        assert!(holds(&Filter::Any(vec![on_cpu(2), sh.clone()]), &[]));
        assert!(!holds(&Filter::Any(vec![on_cpu(2), on_cpu(3)]), &[]));
        assert!(!holds(&Filter::Not(Box::new(sh.clone())), &[]));
        assert!(sh.is_without_values());
        let value = Filter::Text {
            of: Text::Value(0),
            pattern: Pattern::Same(Vec::new()),
        };
        assert!(!Filter::Any(vec![sh, value]).is_without_values());
    }

    #[test]
    fn patterns_match_as_the_kernel_s_do() {
        let cases = [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("*b*", "abc", true),
            ("*ab", "aab", true),
            ("*aab", "aaab", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("?", "", false),
            ("[abc]x", "bx", true),
            ("[!abc]x", "bx", false),
            ("[!abc]x", "dx", true),
            ("[a-c]", "b", true),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("[a", "a", false),
            ("*.[ch]", "file.c", true),
            ("*.[ch]", "file.d", false),
            ("a**", "a", true),
        ];
        for (pattern, text, expected) in cases {
            let found = Pattern::Glob(pattern.into()).matches(text.as_bytes());
            assert_eq!(found, expected, "{pattern} {text}");
        }
    }
}

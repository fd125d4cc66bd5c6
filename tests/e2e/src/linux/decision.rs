//! The answers of the product and of the guest's kernel about a probe at one place in the text.

use crate::test::{Failure, wrong};

/// The product's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It takes a probe, at this address.
    Taken(u64),
    /// It is inside the instruction that begins at this address.
    Inside(u64),
    /// It is on this part of a function's entry.
    Entry(String),
    /// It is on the list of what can't be probed, as this kind.
    Listed(String),
    /// An instruction that always raises an exception, by which the kernel recognizes the place.
    Trap,
    /// An instruction that can't be executed under a probe.
    Unsupported,
}

impl Decision {
    /// What the text of a refusal of `place` says; `None` if it isn't understood.
    pub fn refused(place: &str, text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix(&format!("the instruction at {place}")) {
            return match rest {
                _ if rest.contains("by which the kernel itself recognizes") => Some(Self::Trap),
                _ if rest.contains("can't be probed") => Some(Self::Unsupported),
                _ => None,
            };
        }
        let rest = text.strip_prefix(place)?;
        if rest.starts_with(" is inside the instruction ") {
            let (_, start) = rest.rsplit_once("which begins at 0x")?;
            let start = start.split(';').next()?;
            return Some(Self::Inside(u64::from_str_radix(start, 16).ok()?));
        }
        if let Some(rest) = rest.strip_prefix(" is on the function's ") {
            let (part, _) = rest.split_once(", which has to stay as it is")?;
            return Some(Self::Entry(part.to_owned()));
        }
        let rest = rest.strip_prefix(" can't be probed (")?;
        let (kind, _) = rest.split_once("): ")?;
        Some(Self::Listed(kind.to_owned()))
    }

    /// A word for it in the report.
    pub fn name(&self) -> &str {
        match self {
            Self::Taken(_) => "taken",
            Self::Inside(_) => "inside",
            Self::Entry(part) => part,
            Self::Listed(kind) => kind,
            Self::Trap => "trap",
            Self::Unsupported => "unsupported",
        }
    }
}

/// The kernel's answer to a kprobe there by `kprobe_events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It takes it.
    Taken,
    /// `EILSEQ`: no instruction begins there.
    NoBoundary,
    /// `EINVAL`: it allows no kprobe there.
    Refused,
    /// `EOPNOTSUPP`: an instruction that it can't execute under a kprobe.
    Unsupported,
}

impl Answer {
    /// Parses the guest's report: a letter for each byte, with a number before it that tells how many bytes before it
    /// are no boundaries.
    ///
    /// # Errors
    /// If the text isn't that.
    pub fn parse(text: &str) -> Result<Vec<Self>, Failure> {
        let mut answers = Vec::new();
        let mut digits = String::new();
        for letter in text.chars() {
            if letter.is_ascii_digit() {
                digits.push(letter);
                continue;
            }
            answers.extend(skipped(&mut digits)?);
            answers.push(match letter {
                't' => Self::Taken,
                'r' => Self::Refused,
                'u' => Self::Unsupported,
                _ => return Err(wrong!("the guest answers {letter:?} in {text:?}")),
            });
        }
        answers.extend(skipped(&mut digits)?);
        Ok(answers)
    }
}

fn skipped(digits: &mut String) -> Result<impl Iterator<Item = Answer> + use<>, Failure> {
    let count = match &*std::mem::take(digits) {
        "" => 0,
        digits => digits
            .parse()
            .map_err(|_| wrong!("odd number {digits:?} in the guest's answer"))?,
    };
    Ok(std::iter::repeat_n(Answer::NoBoundary, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_understood_by_their_text() {
        for (place, text, expected) in [
            (
                "f+0x2",
                "f+0x2 is inside the instruction `xor %eax,%eax`, which begins at 0xffffffff81000001; put \
                 the probe there",
                Some(Decision::Inside(0xffff_ffff_8100_0001)),
            ),
            (
                "0x10",
                "0x10 is on the function's endbr64, which has to stay as it is: why; more",
                Some(Decision::Entry("endbr64".into())),
            ),
            (
                "f+0x2",
                "f+0x2 can't be probed (jump-label): why; more",
                Some(Decision::Listed("jump-label".into())),
            ),
            (
                "f+0x2",
                "the instruction at f+0x2 is `int3`, by which the kernel itself recognizes the place; more",
                Some(Decision::Trap),
            ),
            (
                "f+0x2",
                "the instruction at f+0x2, `iretq`, can't be probed: why; more",
                Some(Decision::Unsupported),
            ),
            ("f+0x2", "f+0x20 can't be probed (bug): why", None),
            ("f+0x2", "no server", None),
        ] {
            assert_eq!(Decision::refused(place, text), expected, "{text}");
        }
    }

    #[test]
    fn the_guest_s_answers_are_a_letter_a_byte_that_is_a_boundary() {
        let answers = Answer::parse("t2tr11u1").unwrap();
        assert_eq!(answers.len(), 2 + 2 + 11 + 2 + 1);
        assert_eq!(answers[0], Answer::Taken);
        assert_eq!(answers[2], Answer::NoBoundary);
        assert_eq!(answers[4], Answer::Refused);
        assert_eq!(answers[16], Answer::Unsupported);
        assert_eq!(answers[17], Answer::NoBoundary);
        assert!(Answer::parse("tx").is_err());
    }
}

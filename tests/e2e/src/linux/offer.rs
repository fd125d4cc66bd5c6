//! Offering many places to the server, which takes some and refuses the others one by one.

use vmprobe_client::ClientError;
use vmprobe_client::v1::Probe;

use super::guest::{Guest, VM, specs};
use crate::test::{Failure, wrong};

/// The outcome of an offer of places.
#[derive(Debug, Default)]
pub struct Offered {
    /// The places that took a probe, and their probes, in the order of the offer.
    pub taken: Vec<(String, Probe)>,
    /// The other places, and the server's refusals.
    pub refused: Vec<(String, String)>,
}

impl Offered {
    /// The numbers of all probes.
    pub fn ids(&self) -> Vec<u64> {
        self.taken.iter().map(|(_, probe)| probe.id).collect()
    }
}

/// Registers as many of these as can be: places, with options behind them. A refused batch is split at the place that
/// the refusal names.
///
/// # Errors
/// If the server fails otherwise than by refusing one.
pub async fn offer(guest: &Guest, texts: &[String]) -> Result<Offered, Failure> {
    let mut offered = Offered::default();
    let mut parts = vec![texts];
    while let Some(part) = parts.pop() {
        let Some((first, rest)) = part.split_first() else {
            continue;
        };
        let all: Vec<&str> = part.iter().map(String::as_str).collect();
        let message = match guest.client.register_probes(VM, specs(&all)?).await {
            Ok(probes) => {
                offered.taken.extend(part.iter().cloned().zip(probes));
                continue;
            }
            Err(error) => refusal(&error)?,
        };
        let at =
            named(&message).and_then(|named| part.iter().position(|text| place(text) == named));
        // The last part is done next, so that all stay in their order.
        match at {
            Some(at) => {
                offered.refused.push((part[at].clone(), message));
                parts.extend([&part[at + 1..], &part[..at]]);
            }
            None if rest.is_empty() => offered.refused.push((first.clone(), message)),
            None => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
        }
    }
    Ok(offered)
}

/// The place of a probe's text.
pub fn place(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

/// What a refusal says. Other errors are failures.
fn refusal(error: &ClientError) -> Result<String, Failure> {
    match error {
        ClientError::InvalidArgument { message, .. } | ClientError::FailedPrecondition(message) => {
            Ok(message.clone())
        }
        other => Err(wrong!("a probe was not just refused: {other}")),
    }
}

/// The place that a refusal is about.
fn named(message: &str) -> Option<&str> {
    /// The words before the place, unless the message begins with it.
    const BEFORE: [&str; 3] = [
        "the instruction at ",
        "cannot reach ",
        "the instructions from there to ",
    ];
    let behind = |before: &&str| Some(message.split_once(*before)?.1);
    let found = BEFORE.iter().find_map(behind).unwrap_or(message);
    let end = found.find([' ', ',', ':', '`'])?;
    Some(&found[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_place() {
        for (message, expected) in [
            ("vfs_read can't be probed (ftrace): it is", "vfs_read"),
            ("the instruction at f+0x5 is `ud2`, by which", "f+0x5"),
            ("cannot reach 0x10: the bytes", "0x10"),
            (
                "the guest has a breakpoint of its own at 0x1, so the instructions from there to 0x2 can't",
                "0x2",
            ),
        ] {
            assert_eq!(named(message), Some(expected), "{message}");
        }
    }
}

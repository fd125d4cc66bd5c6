//! What a client of a soak does. At the end of each action nothing of it is left.

mod looks;
mod probes;
mod rude;
mod vms;

use std::sync::Arc;

use seeded_random::Random;

use super::World;
use crate::test::Failure;

/// An action, and how often it is done beside the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Action {
    /// A probe is registered, followed and removed.
    Follow,
    /// A probe is switched off and on under a client that follows it.
    Switch,
    /// Many probes come, change and go together.
    Batch,
    /// A client goes away without a word, with probes and a stream that it never reads.
    Vanish,
    /// A process that traces is killed.
    Kill,
    /// A watchpoint comes and goes.
    Watchpoint,
    /// Memory, registers, symbols and counts are read.
    Look,
    /// A guest is paused and goes on.
    Pause,
    /// An image is handed over and deleted.
    Image,
    /// A VM is made, ends by itself or is ended, and is deleted.
    Vm,
    /// A request is wrong.
    Wrong,
    /// A connection breaks in the middle of a batch.
    Tear,
    /// Bytes come that are no call.
    Garbage,
}

/// All of them; one that is named more often is done more often.
const DRAWN: [Action; 24] = [
    Action::Follow,
    Action::Follow,
    Action::Follow,
    Action::Follow,
    Action::Switch,
    Action::Switch,
    Action::Batch,
    Action::Batch,
    Action::Batch,
    Action::Vanish,
    Action::Vanish,
    Action::Kill,
    Action::Watchpoint,
    Action::Look,
    Action::Look,
    Action::Look,
    Action::Pause,
    Action::Image,
    Action::Vm,
    Action::Wrong,
    Action::Wrong,
    Action::Tear,
    Action::Tear,
    Action::Garbage,
];

impl Action {
    /// Draws the next action, of these or of all.
    pub fn draw(random: &mut Random, only: &[Self]) -> Self {
        random.pick(if only.is_empty() { &DRAWN } else { only })
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Follow => "follow",
            Self::Switch => "switch",
            Self::Batch => "batch",
            Self::Vanish => "vanish",
            Self::Kill => "kill",
            Self::Watchpoint => "watchpoint",
            Self::Look => "look",
            Self::Pause => "pause",
            Self::Image => "image",
            Self::Vm => "vm",
            Self::Wrong => "wrong",
            Self::Tear => "tear",
            Self::Garbage => "garbage",
        }
    }

    /// Does the action.
    ///
    /// # Errors
    /// If something isn't as it should be.
    pub async fn act(self, world: &Arc<World>, random: &mut Random) -> Result<(), Failure> {
        match self {
            Self::Follow => probes::follow(world, random).await,
            Self::Switch => probes::switch(world, random).await,
            Self::Batch => probes::batch(world, random).await,
            Self::Vanish => probes::vanish(world, random).await,
            Self::Kill => rude::kill(world, random).await,
            Self::Watchpoint => probes::watchpoint(world, random).await,
            Self::Look => looks::look(world, random).await,
            Self::Pause => looks::pause(world, random).await,
            Self::Image => vms::image(world, random).await,
            Self::Vm => vms::vm(world, random).await,
            Self::Wrong => rude::wrong(world, random).await,
            Self::Tear => rude::tear(world, random).await,
            Self::Garbage => rude::garbage(world, random).await,
        }
    }
}

/// A name that no other client has.
fn name(what: &str, random: &mut Random) -> String {
    format!("{what}-{:016x}", random.bits())
}

//! Detours: code that a probe's jump leads to. It leaves a record or counts, does the work of the
//! instructions that the jump has overwritten, and jumps back.

mod at_return;
mod call_table;
mod checks;
mod code;
mod environment;
mod error;
mod fetch;
mod filter;
mod follow;
mod generate;
mod globs;
mod ground;
mod gs;
mod lead_back;
pub mod live;
mod overwritten;
mod pointers;
mod pun;
mod purpose;
mod record;
mod region;
mod return_record;
mod ring_space;
mod saved;
mod stack_pieces;
mod targets;
mod trampoline;
mod values;
mod way_out;

#[cfg(test)]
mod tests;

pub use code::{Detour, Full};
pub use environment::{Environment, Following, Pointers, Root};
pub use error::DetourError;
pub use generate::generate;
pub use ground::{Ground, is_early, is_free};
pub use gs::{functions_losing_gs, functions_without};
pub use live::Dead;
pub use pun::Pattern;
pub use purpose::{Follow, Purpose, Tag};
pub use region::{JUMP_LEN, Region, region};
pub use targets::BranchTargets;
pub use trampoline::{Trampoline, trampoline};
pub use way_out::WayOut;

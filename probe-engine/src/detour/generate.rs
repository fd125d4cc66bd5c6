//! Puts a detour's code together.

use guest_state::GuestVirtAddr;
use iced_x86::BlockEncoderOptions;
use iced_x86::code_asm::CodeAssembler;

use super::at_return::{self, AtReturn};
use super::code::{Detour, Full};
use super::environment::Environment;
use super::error::DetourError;
use super::live::Dead;
use super::pointers::Routines;
use super::purpose::{Follow, Purpose, Tag};
use super::record::{Leaves, Rest};
use super::region::Region;
use super::saved::Needed;
use super::{checks, follow, overwritten, record};
use crate::fetch::Fetches;

/// Generates the detour of a region for the address `at`.
///
/// Its length is the same at all addresses that are more than 128 bytes away from the region and from the targets of
/// its branches.
///
/// `dead` says which registers no code reads any more after the probe. The others keep their values, as does everything
/// on the stack. What is below RSP doesn't.
///
/// # Errors
/// See [`DetourError`].
pub fn generate(
    environment: &Environment,
    region: &Region,
    dead: Dead,
    purpose: &Purpose,
    tag: Tag,
    at: GuestVirtAddr,
) -> Result<Detour, DetourError> {
    let shape = purpose.shape();
    let live = Needed::live(dead);
    let by_record = match purpose.capture {
        // A filter or a value may ask for any register.
        Some(_) if purpose.filter.is_some() || !purpose.values.is_empty() => live.and(Fetches::ALL),
        _ => shape
            .as_ref()
            .map_or(live, |shape| live.and(shape.registers)),
    };
    let followed = purpose.follow.map(Follow::recorded);
    let needed = followed.map_or(by_record, |set| by_record.and(set));

    let mut a = CodeAssembler::new(64)?;
    let mut first = a.create_label();
    let at_return = AtReturn::of(purpose, environment)?;
    let at_return = at_return.map(|it| (it, a.create_label()));
    let values = purpose.values.iter().chain(&*purpose.at_return);
    let routines = Routines::new(&mut a, values, environment)?;
    let unmet = checks::write(
        &mut a,
        environment,
        &purpose.condition,
        (dead, needed),
        first,
    )?;
    if let Some(follow) = purpose.follow {
        let routine = at_return.as_ref().map(|(_, label)| *label);
        let follow = (follow, routine);
        follow::follow(&mut a, environment, tag.number, follow, by_record)?;
    }
    let mut rest = Rest::default();
    if purpose.capture.is_some() {
        let leaves = Leaves {
            tag,
            shape: shape.as_ref(),
            values: &purpose.values,
            filter: purpose.filter.as_deref(),
            at: region.start,
        };
        rest = record::leave(&mut a, environment, &leaves, dead, &routines)?;
    }
    let marks = overwritten::write(&mut a, region, &mut first)?;
    // Code that rarely runs is behind the rest.
    if let Some(unmet) = unmet {
        unmet.write(&mut a, first)?;
    }
    let globs_at_return = match &at_return {
        Some((taken, label)) => at_return::write(&mut a, environment, (taken, &routines), *label)?,
        None => None,
    };
    routines.write(&mut a)?;
    for globs in [rest.globs, globs_at_return].into_iter().flatten() {
        globs.write(&mut a)?;
    }
    let trap = match rest.full {
        Some(full) => full.write(&mut a, tag.cell, purpose.lossless)?,
        None => None,
    };

    let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS
        | BlockEncoderOptions::RETURN_RELOC_INFOS;
    let encoded = a.assemble_options(at.0, options)?;
    // The encoder puts an address that is out of reach into memory; a relocation entry tells that
    // it did.
    if !encoded.inner.reloc_infos.is_empty() {
        return Err(DetourError::OutOfReach {
            at: region.start,
            detour: at,
        });
    }
    let offsets = &encoded.inner.new_instruction_offsets;
    let end = encoded.inner.code_buffer.len() as u32;
    let copied = |(offset, mark)| (offset, offsets.get(mark).copied().unwrap_or(end));
    let mut copies: Vec<_> = marks.into_iter().map(copied).collect();
    let behind = copies.pop().unwrap_or((0, end));
    let full = match trap {
        Some(labels) => {
            let offset = |label| {
                let ip = encoded.label_ip(label)?;
                Ok::<_, DetourError>(ip.wrapping_sub(at.0) as u32)
            };
            Some(Full {
                trap: offset(&labels.int3)?,
                gives_up: offset(&labels.gives_up)?,
            })
        }
        None => None,
    };
    Ok(Detour {
        at,
        code: encoded.inner.code_buffer,
        copies,
        behind,
        full,
    })
}

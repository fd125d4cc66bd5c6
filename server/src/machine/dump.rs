//! A guest's memory and vCPUs as an ELF core file.

use std::sync::Arc;

use guest_state::{GuestPhysAddr, GuestVirtAddr, PhysRange, StoppedGuest, VcpuId};
use tokio::sync::mpsc::Sender;
use tonic::Status;
use vmm::{StoppedVm, VmState};
use vmprobe_proto::v1;

use super::Machine;
use super::inspect::page_tables;
use crate::core_file::{CoreFile, CoreVcpu};
use crate::{limits, status};

/// Where the kernel has all physical memory, if its variable doesn't say (`__PAGE_OFFSET_BASE_L4` in
/// `arch/x86/include/asm/page_64_types.h`).
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// The kernel's variable with that address (`arch/x86/kernel/head64.c`).
const DIRECT_MAP_BASE: &str = "page_offset_base";
/// The kernel's variables with the text of its note `VMCOREINFO`, and with its length in bytes (`kernel/vmcore_info.c`,
/// before Linux 6.9 `kernel/crash_core.c`).
const INFO: &str = "vmcoreinfo_data";
const INFO_LEN: &str = "vmcoreinfo_size";
/// The kernel gives the note a page.
const INFO_MOST: u64 = 4096;
/// A part of this size that is all zero isn't sent.
const PART: usize = 4096;

type Parts = Sender<Result<v1::DumpVmResponse, Status>>;

/// Lets a guest go on that was paused for its dump.
struct Paused<'m>(Option<&'m Machine>);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if let Some(machine) = self.0 {
            let _it_may_have_ended = machine.resume();
        }
    }
}

impl Machine {
    /// Sends a core file part by part, with the guest paused. Ends early when the client has gone. Blocks.
    ///
    /// # Errors
    /// The vCPUs can't be read.
    pub fn dump(self: &Arc<Self>, to: &Parts) -> Result<(), Status> {
        let runs = self.vm.state() == VmState::Running;
        let paused = runs && self.pause().is_ok();
        let _until_it_is_done = Paused(paused.then_some(&**self));
        let file = self.stopped(|stopped| self.core_file(stopped))?;
        let mut sent = send(to, file.size, 0, file.head);
        for (range, at) in file.memory {
            let mut done = 0;
            while sent && done < range.len {
                let len = (range.len - done).min(limits::DUMP_BYTES);
                let part = PhysRange {
                    start: GuestPhysAddr(range.start.0 + done),
                    len,
                };
                let bytes = self.original_memory(part);
                for (offset, bytes) in stretches(&bytes) {
                    let offset = at + done + offset as u64;
                    sent = sent && send(to, file.size, offset, bytes.to_vec());
                }
                done += len;
            }
        }
        Ok(())
    }

    fn core_file(&self, stopped: &StoppedVm<'_>) -> Result<CoreFile, Status> {
        let vcpus = (0..stopped.vcpus()).map(VcpuId).map(|id| {
            let mut registers = stopped.registers(id)?;
            registers.rip = self.engine.stands_at(GuestVirtAddr(registers.rip)).0;
            Ok(CoreVcpu {
                registers,
                control: stopped.control(id)?,
                segments: stopped.segments(id)?,
            })
        });
        let vcpus: Result<Vec<_>, _> = vcpus.collect();
        let vcpus = vcpus.map_err(|error| status::vcpu(&error))?;
        let tables = page_tables(stopped, VcpuId(0)).ok();
        let read = |at: GuestVirtAddr, into: &mut [u8]| {
            let read = self.engine.read_memory(stopped.memory(), tables?, at, into);
            (read == into.len()).then_some(())
        };
        let variable = |name| self.variable(name, &read);
        let direct_map = variable(DIRECT_MAP_BASE).filter(|base| *base != 0);
        let info = || {
            let (at, len) = (variable(INFO)?, variable(INFO_LEN)?);
            let mut text = vec![0; usize::try_from(len.min(INFO_MOST)).ok()?];
            read(GuestVirtAddr(at), &mut text)?;
            (!text.is_empty()).then_some(text)
        };
        Ok(CoreFile::new(
            &stopped.ram(),
            &vcpus,
            info().as_deref(),
            direct_map.unwrap_or(DIRECT_MAP),
        ))
    }

    /// Returns a variable of the kernel's, of 8 bytes.
    fn variable(
        &self,
        name: &str,
        read: &impl Fn(GuestVirtAddr, &mut [u8]) -> Option<()>,
    ) -> Option<u64> {
        let symbol = self.engine.symbols().by_name(name).next()?;
        let mut word = [0; 8];
        read(symbol.address, &mut word)?;
        Some(u64::from_le_bytes(word))
    }

    /// Returns guest memory with the text as it would be without probes.
    fn original_memory(&self, part: PhysRange) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(part.len).unwrap_or(0)];
        self.stopped(|stopped| {
            if stopped.memory().read(part.start, &mut bytes).is_ok() {
                self.engine.unmask_physical(part.start, &mut bytes);
            }
        });
        bytes
    }
}

/// Returns false if the client has gone.
fn send(to: &Parts, size: u64, offset: u64, data: Vec<u8>) -> bool {
    to.blocking_send(Ok(v1::DumpVmResponse { size, offset, data }))
        .is_ok()
}

/// Returns the stretches of pages that aren't zero, each with its offset.
fn stretches(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut found: Vec<(usize, &[u8])> = Vec::new();
    for (index, part) in bytes.chunks(PART).enumerate() {
        if part.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = index * PART;
        match found.last_mut() {
            Some((offset, last)) if *offset + last.len() == start => {
                *last = &bytes[*offset..start + part.len()];
            }
            _ => found.push((start, part)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_are_not_zero_are_sent_and_neighbours_together() {
        let mut bytes = vec![0; 5 * PART + 8];
        assert!(stretches(&bytes).is_empty());
        bytes[PART + 1] = 1;
        bytes[3 * PART - 1] = 1;
        bytes[5 * PART] = 1;
        let found: Vec<_> = stretches(&bytes)
            .into_iter()
            .map(|(offset, bytes)| (offset, bytes.len()))
            .collect();
        assert_eq!(found, [(PART, 2 * PART), (5 * PART, 8)]);
    }
}

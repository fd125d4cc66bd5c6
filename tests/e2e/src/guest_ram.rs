//! A guest's memory as its monitor has it, for tests that damage the guest from outside.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::linux::guest::Guest;
use crate::test::{Failure, wrong};

/// Bytes of a test guest's memory: one mapping of the monitor's.
const LENGTH: u64 = 512 << 20;
/// Where the image is linked to be, if it isn't moved: this is the difference between its virtual and its physical
/// addresses (`__START_KERNEL_map`, `arch/x86/include/asm/page_64_types.h`).
const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// The alignment of mappings.
const PAGE: usize = 4096;
/// A symbol that each kernel has, by which the memory is recognized.
const LANDMARK: &str = "linux_banner";
const LANDMARK_LEN: usize = 64;

/// The memory of a guest whose kernel was booted as an ELF.
#[derive(Debug)]
pub struct GuestRam {
    file: File,
    /// The address in the monitor at which it begins.
    start: u64,
}

impl GuestRam {
    /// Finds the memory of a guest.
    ///
    /// # Errors
    /// If it isn't found, or this process may not read it.
    pub async fn of(guest: &Guest) -> Result<Self, Failure> {
        let process = guest.process()?.folder();
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("{process}/mem"));
        let file = file.map_err(|error| failed(&error))?;
        let landmark = guest.symbol(LANDMARK).await?;
        let expected = guest.memory(landmark, LANDMARK_LEN).await?;
        let is_it = |start: &u64| {
            let mut found = [0; LANDMARK_LEN];
            let at = start + (landmark - IMAGE);
            file.read_exact_at(&mut found, at).is_ok() && found[..] == expected
        };
        let maps = fs::read_to_string(format!("{process}/maps")).map_err(|error| failed(&error))?;
        // Adjacent mappings are listed as one, so the memory may begin inside the listed one.
        let start = maps.lines().filter_map(range).find_map(|(start, end)| {
            let last = end.checked_sub(LENGTH)?;
            (start..=last).step_by(PAGE).find(is_it)
        });
        let start =
            start.ok_or_else(|| wrong!("no memory of a guest in {process}/maps: {maps}"))?;
        Ok(Self { file, start })
    }

    /// Writes a word at an address of the kernel image. Returns the word that was there.
    ///
    /// # Errors
    /// If that isn't in the guest's memory.
    pub fn replace(&self, address: u64, word: u64) -> Result<u64, Failure> {
        let phys = address.checked_sub(IMAGE).filter(|phys| *phys < LENGTH);
        let phys = phys.ok_or_else(|| wrong!("{address:#x} isn't in the image"))?;
        let mut before = [0; 8];
        let at = self.start + phys;
        let read = self.file.read_exact_at(&mut before, at);
        let written = read.and_then(|()| self.file.write_all_at(&word.to_le_bytes(), at));
        written.map_err(|error| failed(&error))?;
        Ok(u64::from_le_bytes(before))
    }
}

/// Where a mapping begins and ends (`proc_pid_maps(5)`).
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

fn failed(error: &std::io::Error) -> Failure {
    wrong!("the memory of the server: {error}")
}

//! The arena's page tables.
//!
//! Sources: Intel SDM vol. 3A, 4.5.4 (entries); Linux `arch/x86/kernel/head_64.S`
//! (`level3_kernel_pgt`) and `arch/x86/include/asm/pgtable_types.h` (`_KERNPG_TABLE`,
//! `__PAGE_KERNEL`, `__PAGE_KERNEL_ROX`).

use guest_kernel::ImageMap;
use guest_kernel::symbols::Symbols;
use guest_state::x86_64::PAGE_SIZE;
use guest_state::x86_64::page_entry::{
    ACCESSED, DIRTY, GLOBAL, LARGE, NO_EXECUTE, PRESENT, WRITABLE,
};
use guest_state::x86_64::paging::PageSize;
use guest_state::{ArenaMemory, GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, PhysRange};

use super::areas::{HOLE, MODULE_BOARDS, RAM_WINDOW};
use super::data::{self, LARGE_PAGE};
use super::error::InstallError;
use super::ram_window::{MappedRam, Mapping};

/// What a page directory maps.
const GIGABYTE: u64 = PageSize::Size1G.bytes();

/// As the kernel's own entries for tables: the lowest level decides.
const TABLE: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY;
/// Not dirty, as no read-only page ever gets: both together mean a shadow stack.
const CODE: u64 = PRESENT | ACCESSED | LARGE | GLOBAL;
/// Not global, so that where the kernel isolates page tables these entries leave the TLB with the
/// kernel's: the data may hold what a user must not read.
const DATA: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY | LARGE | NO_EXECUTE;

/// The kernel's table for its uppermost 512 GiB.
const KERNEL_TABLE: &str = "level3_kernel_pgt";
/// Its entries for the hole.
const OURS: [u64; 2] = [508, 509];
/// The first of its entries for [`RAM_WINDOW`].
const FIRST_OF_RAM: u64 = RAM_WINDOW.0 / GIGABYTE % 512;
/// Its entries for the image and for modules and fixed addresses.
const KERNELS: [u64; 2] = [510, 511];

/// The page directory that the first of these leads to.
const IMAGE_DIRECTORY: &str = "level2_kernel_pgt";
/// How many bytes [`MODULE_BOARDS`] has.
const BOARDS_LEN: u64 = MODULE_BOARDS.end.0 - MODULE_BOARDS.start.0;
/// The address in an entry.
const ADDRESS: u64 = PHYS_END - PAGE_SIZE;
/// End of the addresses that an entry can hold.
pub(super) const PHYS_END: u64 = 1 << 52;

/// What is mapped. The guest's copy of it is only ever written.
#[derive(Debug)]
pub(super) struct ArenaTables {
    region: ArenaMemory,
    /// The kernel's table.
    kernel: GuestPhysAddr,
    /// Its page directory for the image.
    image_directory: Option<GuestPhysAddr>,
    /// How many bytes of springboards there can be.
    boards_len: u64,
    /// The guest's RAM, as far as it is mapped for detours.
    ram: Option<MappedRam>,
}

impl ArenaTables {
    /// Checks that the region and the kernel's table are what they should be.
    pub(super) fn find(
        memory: &dyn GuestMemory,
        image: &ImageMap,
        symbols: &Symbols,
        region: ArenaMemory,
        ram: Option<MappedRam>,
    ) -> Result<Self, InstallError> {
        check(&region)?;
        let kernel = kernel_table(image, symbols)?;
        let image_directory = symbols.by_name(IMAGE_DIRECTORY).next();
        let image_directory = image_directory.and_then(|it| image.to_phys(it.address));
        let tables = Self {
            region,
            kernel,
            image_directory: image_directory.map(|(phys, _)| phys),
            boards_len: boards_len(&region, image),
            ram,
        };
        tables.check(memory)?;
        Ok(tables)
    }

    /// Writes the tables, and points the kernel's at them last.
    pub(super) fn install(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        let region = self.region;
        let mut entries = [[0; PAGE_SIZE as usize]; OURS.len()];
        let [data, code] = &mut entries;
        for stretch in data::stretches(&region) {
            map(
                data,
                data::entry(stretch.virt),
                stretch.phys,
                stretch.len,
                DATA,
            );
        }
        let first = (GIGABYTE - region.code.len) / LARGE_PAGE;
        map(
            code,
            first as usize,
            region.code.start,
            region.code.len,
            CODE,
        );
        for (directory, entries) in self.directories().into_iter().zip(entries) {
            memory.write(directory, &entries)?;
        }
        if let Some(ram) = self.ram {
            for (gigabyte, directory) in self.ram_directories() {
                ram.write_directory(memory, gigabyte, directory)?;
            }
        }
        for (index, ours) in self.entries() {
            memory.write_u64(entry(self.kernel, index), ours)?;
        }
        Ok(())
    }

    /// Maps [`MODULE_BOARDS`], unless the kernel uses these addresses. Returns true if they are mapped. The kernel has
    /// to have started: before, it maps all that an image could take.
    pub(super) fn open_boards(&self, memory: &dyn GuestMemory) -> Result<bool, MemoryError> {
        let Some(directory) = self.image_directory.filter(|_| self.boards_len > 0) else {
            return Ok(false);
        };
        let above = memory.read_u64(entry(self.kernel, KERNELS[0]))?;
        if above & (ADDRESS | PRESENT | LARGE) != directory.0 | PRESENT {
            return Ok(false);
        }
        let first = (MODULE_BOARDS.start.0 - HOLE.end.0) / LARGE_PAGE;
        let pages = (0..BOARDS_LEN / LARGE_PAGE).map(|page| {
            let phys = self.region.code.start.0 + page * LARGE_PAGE;
            (entry(directory, first + page), phys | CODE)
        });
        for (at, ours) in pages.clone() {
            let there = memory.read_u64(at)?;
            if there & PRESENT != 0 && there != ours {
                return Ok(false);
            }
        }
        for (at, ours) in pages {
            memory.write_u64(at, ours)?;
        }
        Ok(true)
    }

    /// How many bytes of springboards there can be.
    pub(super) fn boards_len(&self) -> u64 {
        self.boards_len
    }

    /// The RAM that is mapped for detours.
    pub(super) fn ram(&self) -> Option<MappedRam> {
        self.ram
    }

    /// The directories of the hole.
    fn directories(&self) -> [GuestPhysAddr; 2] {
        let tables = self.region.tables;
        [tables, tables.wrapping_add(PAGE_SIZE)]
    }

    /// The gigabytes of RAM that are mapped.
    fn gigabytes(&self) -> impl Iterator<Item = (u64, Mapping)> {
        self.ram.into_iter().flat_map(MappedRam::gigabytes)
    }

    /// The gigabytes of RAM that have page directories, each with its directory.
    fn ram_directories(&self) -> impl Iterator<Item = (u64, GuestPhysAddr)> {
        let is_one = |(number, mapping)| (mapping == Mapping::Directory).then_some(number);
        let numbers = self.gigabytes().filter_map(is_one);
        let first = self
            .region
            .tables
            .wrapping_add(OURS.len() as u64 * PAGE_SIZE);
        numbers.zip((0..).map(move |page: u64| first.wrapping_add(page * PAGE_SIZE)))
    }

    /// The entries of the kernel's table that are ours: their numbers, and what they are.
    fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        let table = |(index, directory): (u64, GuestPhysAddr)| (index, directory.0 | TABLE);
        let hole = OURS.into_iter().zip(self.directories()).map(table);
        let of_ram = |gigabyte| FIRST_OF_RAM + gigabyte;
        let ram = self.ram_directories();
        let ram = ram.map(move |(gigabyte, directory)| table((of_ram(gigabyte), directory)));
        let whole = self.gigabytes().filter_map(move |(gigabyte, mapping)| {
            let Mapping::Whole(ours) = mapping else {
                return None;
            };
            Some((of_ram(gigabyte), ours))
        });
        hole.chain(ram).chain(whole)
    }

    /// Checks that the kernel's table is what it should be.
    fn check(&self, memory: &dyn GuestMemory) -> Result<(), InstallError> {
        for (index, ours) in self.entries() {
            let entry = memory.read_u64(entry(self.kernel, index))?;
            if entry != 0 && entry != ours {
                return Err(InstallError::InUse { index, entry });
            }
        }
        for index in KERNELS {
            let entry = memory.read_u64(entry(self.kernel, index))?;
            if entry & (PRESENT | LARGE) != PRESENT {
                return Err(InstallError::NotTheTable { index, entry });
            }
        }
        Ok(())
    }

    pub(super) fn is_intact(&self, memory: &dyn GuestMemory) -> Result<bool, MemoryError> {
        for (index, ours) in self.entries() {
            if memory.read_u64(entry(self.kernel, index))? != ours {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where an address of the arena is in physical memory.
    pub(super) fn to_phys(&self, at: GuestVirtAddr) -> Option<GuestPhysAddr> {
        let code = self.region.code;
        let in_code = at
            .offset_from(GuestVirtAddr(HOLE.end.0 - code.len))
            .filter(|offset| *offset < code.len)
            .map(|offset| code.start.wrapping_add(offset));
        let in_boards = at
            .offset_from(MODULE_BOARDS.start)
            .filter(|offset| *offset < self.boards_len)
            .map(|offset| code.start.wrapping_add(offset));
        let in_code = in_code.or(in_boards);
        in_code.or_else(|| data::stretches(&self.region).find_map(|stretch| stretch.to_phys(at)))
    }
}

/// How many bytes of the code are mapped at [`MODULE_BOARDS`]: the first ones, if there is as much code as can be and
/// the kernel, which may have moved itself, isn't there.
fn boards_len(region: &ArenaMemory, image: &ImageMap) -> u64 {
    if region.code.len == GIGABYTE && !image.overlaps(&MODULE_BOARDS) {
        BOARDS_LEN
    } else {
        0
    }
}

/// Checks that the memory is made of whole pages.
fn check(region: &ArenaMemory) -> Result<(), InstallError> {
    let ArenaMemory {
        tables, code, data, ..
    } = *region;
    let whole = |part: PhysRange| {
        let end = part.start.0.checked_add(part.len);
        (part.start.0 | part.len).is_multiple_of(LARGE_PAGE)
            && (LARGE_PAGE..=GIGABYTE).contains(&part.len)
            && end.is_some_and(|end| end <= PHYS_END)
    };
    if tables.0 % PAGE_SIZE == 0 && whole(code) && whole(data) {
        Ok(())
    } else {
        Err(InstallError::BadRegion { region: *region })
    }
}

/// Maps memory by a page directory from entry `first` on.
fn map(
    directory: &mut [u8; PAGE_SIZE as usize],
    first: usize,
    phys: GuestPhysAddr,
    len: u64,
    flags: u64,
) {
    let (entries, _) = directory.as_chunks_mut();
    let pages = (phys.0..phys.0 + len).step_by(LARGE_PAGE as usize);
    for (entry, page) in entries.iter_mut().skip(first).zip(pages) {
        *entry = (page | flags).to_le_bytes();
    }
}

fn kernel_table(image: &ImageMap, symbols: &Symbols) -> Result<GuestPhysAddr, InstallError> {
    let address = symbols.find(KERNEL_TABLE)?.address;
    image
        .to_phys(address)
        .filter(|(phys, left)| *left >= PAGE_SIZE && phys.0 % PAGE_SIZE == 0)
        .map(|(phys, _)| phys)
        .ok_or(InstallError::NotLoaded { address })
}

/// Where an entry of a table is.
fn entry(table: GuestPhysAddr, index: u64) -> GuestPhysAddr {
    table.wrapping_add(index * 8)
}

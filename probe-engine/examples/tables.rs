//! Prints what the engine reads of a vmlinux's own tables: `tables VMLINUX`
#![expect(clippy::print_stdout, reason = "it is what an example is for")]

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use guest_kernel::Image;
use guest_kernel::blacklist::ImageTables;
use guest_kernel::btf::Btf;
use guest_kernel::kprobes::KprobeReader;
use guest_kernel::modules::ModuleReader;
use guest_kernel::symbols::Symbols;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: tables VMLINUX")?;
    let file = std::fs::read(path)?;
    let image = Image::parse(&file)?;
    let symbols = Symbols::from_image(&image)?;

    let started = Instant::now();
    let btf = Btf::from_image(&image, &symbols)?;
    println!("types in {:?}", started.elapsed());
    if let Some(btf) = &btf {
        for name in ["module", "alt_instr", "bug_entry"] {
            println!("  {name}: {} bytes", btf.size_of(name)?);
        }
        println!("{:#?}", ModuleReader::new(btf, &symbols)?);
        println!("{:#x?}", KprobeReader::new(btf, &symbols)?);
    }

    let started = Instant::now();
    let tables = ImageTables::of(&image, &symbols, btf.as_ref())?;
    let blacklist = tables.blacklist()?;
    println!("{} places in {:?}", blacklist.len(), started.elapsed());
    let mut counts = BTreeMap::new();
    for entry in blacklist.entries() {
        *counts.entry(entry.reason).or_insert(0) += 1;
    }
    for (reason, count) in counts {
        println!("  {count:7} {reason:?}: {reason}");
    }
    let exceptions = tables.exceptions()?;
    println!("{} exception table entries", exceptions.len());
    Ok(())
}

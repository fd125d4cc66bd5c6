//! Prints what the engine finds in a vmlinux: `symbols VMLINUX [NAME]...`
#![expect(clippy::print_stdout, reason = "it is what an example is for")]

use std::error::Error;
use std::time::Instant;

use guest_kernel::symbols::Symbols;

const USUAL: [&str; 8] = [
    "_text",
    "start_kernel",
    "do_sys_openat2",
    "vfs_read",
    "sys_call_table",
    "init_task",
    "level3_kernel_pgt",
    "linux_banner",
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: symbols VMLINUX [NAME]...")?;
    let file = std::fs::read(path)?;
    let started = Instant::now();
    let symbols = Symbols::from_vmlinux(&file)?;
    println!(
        "{} symbols from {:?} in {:?}",
        symbols.len(),
        symbols.source(),
        started.elapsed()
    );
    let (text, init_text) = (symbols.text(), symbols.init_text());
    println!("text {} to {}", text.start, text.end);
    println!("init text {} to {}", init_text.start, init_text.end);

    if let Ok(elf) = Symbols::from_elf_symtab(&file) {
        let same = symbols
            .iter()
            .filter(|s| elf.by_name(s.name).any(|e| e.address == s.address));
        println!(
            "{} of them are in the ELF symbol table of {}",
            same.count(),
            elf.len()
        );
    }

    let mut names: Vec<String> = arguments.collect();
    if names.is_empty() {
        names = USUAL.map(str::to_owned).to_vec();
    }
    for name in names {
        match symbols.find(&name) {
            Ok(symbol) => {
                let size = symbols
                    .resolve(symbol.address)
                    .map_or(0, |resolved| resolved.size);
                println!(
                    "{:#018x} {} {name} ({size} bytes)",
                    symbol.address.0, symbol.kind
                );
            }
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}

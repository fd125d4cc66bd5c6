//! Kernels that move themselves while they unpack (KASLR).

use std::collections::BTreeSet;

use vmprobe_client::v1::{BootMethod, CreateVmRequest, Probe, ProbeState};

use super::functions;
use super::guest::{Config, Guest, VM, files, specs};
use super::jumps::{self, jump};
use super::text::Text;
use crate::context::Context;
use crate::events;
use crate::server::Server;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_kernel_6_1_that_moves_itself_is_probed_from_its_first_instruction_on",
        ids: &["VM01", "VM11"],
        needs: Needs::Linux,
        run: |cx| moved(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "a_kernel_6_12_that_moves_itself_is_probed_from_its_first_instruction_on",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: |cx| moved(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "a_kernel_that_moves_itself_is_elsewhere_in_each_guest_and_told_to_stay_it_stays",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: places,
    },
];

/// Where the kernel is linked to be (`__START_KERNEL` of `arch/x86/include/asm/page_types.h`).
const LINKED: u64 = 0xffff_ffff_8100_0000;
/// Functions of the boot in their order. The first is entered before the kernel has page tables of its own.
const BOOT: [&str; 4] = [
    "startup_64",
    "x86_64_start_kernel",
    "start_kernel",
    "rest_init",
];

fn moved(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let config = Config {
            kernel,
            boot: BootMethod::Bzimage,
            probes: specs(&BOOT)?,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::hold(cx, &config).await?;
        let text = guest.symbol("_text").await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.client.start_vm(VM).await?;
        let (boot, _) = events::next(&mut stream, BOOT.len() as u64).await?;
        let order = boot.iter().map(|event| event.probe_id);
        let planted = guest.probes.iter().map(|probe| probe.id);
        check!(order.eq(planted), "the events of the boot: {boot:?}");
        for (event, probe) in boot.iter().zip(&guest.probes).skip(1) {
            let rip = event.registers.map_or(0, |registers| registers.rip);
            check_eq!(rip, probe.address, "RIP of the event of {}", probe.symbol);
        }
        guest.console.report("ready").await?;
        for probe in guest.client.list_probes(VM).await? {
            check_eq!(
                (probe.hits, probe.state()),
                (1, expected_state(&probe)),
                "hits and state of {}",
                probe.symbol
            );
        }
        // The kernel's own list of them is the reference.
        let code = Text::of(&guest).await?;
        let functions = functions::all(&mut guest, &code).await?;
        at_work(&mut guest).await?;
        guest.finish().await?;
        let by = text.wrapping_sub(LINKED);
        pass_with(format!("moved by {by:#x}; {} functions", functions.len()))
    })
}

/// Init text is gone when the kernel has started.
fn expected_state(probe: &Probe) -> ProbeState {
    match probe.symbol.as_str() {
        "x86_64_start_kernel" | "start_kernel" => ProbeState::Gone,
        _ => ProbeState::Armed,
    }
}

/// Checks jumps, returns, stacks, arguments by types and symbols, and probes in a module, at the kernel's place.
async fn at_work(guest: &mut Guest) -> Result<(), crate::test::Failure> {
    let banner = guest.symbol("linux_banner").await?;
    let found = guest.client.read_memory(VM, 0, banner, 14).await?;
    check_eq!(
        String::from_utf8_lossy(&found),
        "Linux version ",
        "memory at linux_banner"
    );
    let texts = [
        "p:open do_sys_openat2 stack=8 banner=@linux_banner:x64",
        "r:opened do_sys_openat2 $retval",
        "p:module tun:tun_chr_open",
    ];
    let probes = guest.probes(&texts).await?;
    let before = jump(guest, "open").await?;
    let mut stream = guest.client.events(VM, vec![probes[0].id]).await?;
    guest.work("files count=3").await?;
    let (opens, _) = events::next(&mut stream, 3).await?;
    for event in &opens {
        let mut callers = Vec::new();
        for address in &event.stack {
            let (symbol, _) = guest.client.resolve_address(VM, *address).await?;
            callers.push(symbol.name);
        }
        check!(
            callers.contains(&"do_syscall_64".to_owned()),
            "callers of do_sys_openat2: {callers:?}"
        );
    }
    let now = guest.listed("open").await?;
    check!(now.hits >= before.hits + 3, "3 files were opened: {now:?}");
    jumps::no_exits(&before, &now, "of a jump")?;
    let opened = guest.listed("opened").await?;
    check!(opened.hits >= 3, "3 calls returned: {opened:?}");
    guest.work("module count=2").await?;
    let in_module = guest.listed("module").await?;
    check_eq!(in_module.hits, 2, "hits in a module");
    Ok(())
}

/// Each guest is only created, which is when its kernel unpacks itself.
fn places(cx: &Context) -> TestResult {
    /// By chance, three have the same of some hundred places less than once in 50,000 times.
    const GUESTS: usize = 3;
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        let config = Config {
            boot: BootMethod::Bzimage,
            ..Config::new("workload=none")
        };
        let mut found = BTreeSet::new();
        for guest in 0..=GUESTS {
            let stays = guest == GUESTS;
            let mut request = CreateVmRequest {
                hold: true,
                ..config.request(cx)
            };
            if stays {
                request.cmdline = format!("nokaslr {}", request.cmdline);
            }
            client.create_vm(request).await?;
            let (symbols, _) = client.lookup_symbols(VM, "_text", 0).await?;
            let text = symbols.first().ok_or_else(|| wrong!("no symbol _text"))?;
            if stays {
                check_eq!(text.address, LINKED, "_text of a kernel that stays");
            } else {
                found.insert(text.address);
            }
            client.kill_vm(VM).await?;
            client.wait_vm(VM).await?;
            client.delete_vm(VM).await?;
        }
        check!(found.len() > 1, "all were at the same place: {found:x?}");
        pass_with(format!("{found:x?}"))
    })
}

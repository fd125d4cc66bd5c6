//! What detours read of the kernel's per-CPU data, in Debian's kernels.

use guest_kernel::Image;
use guest_kernel::btf::Btf;
use guest_kernel::clock::Clock;
use guest_kernel::percpu::Variables;
use guest_kernel::symbols::Symbols;
use vmm::boot::bzimage::read_kernel;

#[test]
fn debians_kernels_tell_where_the_current_task_and_its_numbers_are() {
    let kernels = lab::ensure_kernels().unwrap();
    for kernel in [kernels.v6_1, kernels.v6_12] {
        let file = std::fs::read(&kernel.vmlinuz).unwrap();
        let elf = read_kernel(file).unwrap().elf;
        let image = Image::parse(&elf).unwrap();
        let symbols = Symbols::from_image(&image).unwrap();
        let btf = Btf::from_image(&image, &symbols).unwrap();
        let found = Variables::find(&symbols, btf.as_ref());
        let release = kernel.release;
        // Linked at 0, and not 1 MiB long; the kernel keeps the stack's canary at its beginning.
        for at in [found.current_task, found.cpu_number] {
            assert!(
                at.is_some_and(|at| (48..1 << 20).contains(&at)),
                "{release}: {found:?}"
            );
        }
        assert_ne!(found.current_task, found.cpu_number);
        let pid = found.pid.expect("a task has a number");
        assert_eq!(found.tgid, Some(pid + 4), "{release}");
        // As a detour reads them.
        assert!(found.comm.is_some(), "{release}: {found:?}");
        assert!(found.preempt_count.is_some(), "{release}: {found:?}");
        assert_eq!(found.thread_flags, Some(0), "{release}");
        let (_, size) = found.migration_disabled.expect("a task counts it");
        assert_eq!(size, 2, "{release}");
        let types = btf.expect("Debian's kernels have types");
        assert!(Clock::find(&symbols, &types).is_some(), "{release}");
    }
}

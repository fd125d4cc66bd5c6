//! Every form of instruction in Debian's kernels.

use row_report::proves;
use seeded_random::Random;

use crate::cpu::Cpu;
use crate::kernel;
use crate::survey::survey;

const SEED: u64 = 3;

fn compare(kernel: fn(lab::Kernels) -> lab::Kernel) -> String {
    let mut random = Random::new(SEED);
    let kernel = kernel(lab::ensure_kernels().unwrap());
    let text = kernel::text(&kernel.vmlinuz, &mut random).unwrap();
    let mut cpu = Cpu::new().unwrap();
    let survey =
        survey(&mut cpu, &text, &mut random).unwrap_or_else(|e| panic!("seed {SEED}: {e}"));
    let forms = text.forms.len();
    println!(
        "{}: {} functions, {} instructions, {forms} forms\n{survey}",
        kernel.release, text.functions, text.instructions
    );
    // Only forms that a process can't execute are left out, and they are few.
    assert!(forms > 10_000, "{forms} forms");
    for share in [survey.emulated, survey.relocated] {
        assert!(share.compared * 100 >= share.forms * 99, "{share}");
    }
    assert!(!survey.not_compared.contains_key("it is no instruction"));
    format!(
        "{}: {forms} forms; emulated: {}; relocatable: {}; {} cases, seed {SEED}",
        kernel.release, survey.emulated, survey.relocated, survey.cases
    )
}

#[test]
fn every_form_in_debian_12_s_kernel_does_what_the_cpu_does() {
    let name = "every_form_in_debian_12_s_kernel_does_what_the_cpu_does";
    proves(&["KP10"], name, || compare(|kernels| kernels.v6_1));
}

#[test]
fn every_form_in_debian_13_s_kernel_does_what_the_cpu_does() {
    let name = "every_form_in_debian_13_s_kernel_does_what_the_cpu_does";
    proves(&["KP10"], name, || compare(|kernels| kernels.v6_12));
}

use super::emulation_equals_the_cpu;

#[test]
fn emulated_instructions_do_what_the_cpu_does() {
    let report = emulation_equals_the_cpu(20_000, 1).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report.cases, 20_000);
    assert!(report.mnemonics.len() > 70, "{:?}", report.mnemonics);
}

//! Whole functions with jumps in them.

use row_report::proves;
use seeded_random::Random;

use crate::cpu::Cpu;
use crate::jump::blocks::Blocks;
use crate::jump::function::{self, Argument, Tried};
use crate::jump::image::Image;

use Argument::{Bytes, Len, Number, Small, Text};

const SEED: u64 = 12;

/// The bits of RAX that are returned: C leaves the others undefined.
const VOID: u64 = 0;
const BOOL: u64 = 0xff;
const VALUE: u64 = u64::MAX;

/// A function's name, its arguments, and the returned bits of RAX.
type Signature = (&'static str, &'static [Argument], u64);

/// Functions of `sample.c`.
const SAMPLE: &[Signature] = &[
    ("sample_fibonacci", &[Number], VALUE),
    ("sample_hash", &[Bytes, Len], VALUE),
    ("sample_sort", &[Bytes, Small, Number], VALUE),
    ("sample_tail", &[Bytes, Len], VALUE),
    ("sample_switch", &[Number, Number, Number], VALUE),
    ("sample_pair", &[Number, Number], VALUE),
    ("sample_pairs", &[Bytes, Len], VALUE),
    ("sample_collatz", &[Number], VALUE),
    (
        "sample_many",
        &[Number, Number, Number, Number, Number, Number],
        VALUE,
    ),
];

/// Functions of the kernel that need nothing else of it, not even a table: tables are addressed absolutely, and the
/// kernel is at another address here.
const KERNEL: &[Signature] = &[
    ("strlen", &[Text], VALUE),
    ("strnlen", &[Text, Small], VALUE),
    ("strcmp", &[Text, Text], VALUE),
    ("strncmp", &[Text, Text, Small], VALUE),
    ("strchr", &[Text, Small], VALUE),
    ("strchrnul", &[Text, Small], VALUE),
    ("strrchr", &[Text, Small], VALUE),
    ("strnchr", &[Text, Small, Small], VALUE),
    ("strstr", &[Text, Text], VALUE),
    ("strnstr", &[Text, Text, Small], VALUE),
    ("strspn", &[Text, Text], VALUE),
    ("strcspn", &[Text, Text], VALUE),
    ("strpbrk", &[Text, Text], VALUE),
    ("strcpy", &[Bytes, Text], VALUE),
    ("strncpy", &[Bytes, Text, Small], VALUE),
    ("strlcpy", &[Bytes, Text, Small], VALUE),
    ("strscpy", &[Bytes, Text, Small], VALUE),
    ("sized_strscpy", &[Bytes, Text, Small], VALUE),
    ("strcat", &[Text, Text], VALUE),
    ("strncat", &[Text, Text, Small], VALUE),
    ("strlcat", &[Text, Text, Len], VALUE),
    ("stpcpy", &[Bytes, Text], VALUE),
    ("strreplace", &[Text, Small, Small], VALUE),
    ("sysfs_streq", &[Text, Text], BOOL),
    ("memcmp", &[Bytes, Bytes, Len], VALUE),
    ("bcmp", &[Bytes, Bytes, Len], VALUE),
    ("memchr", &[Bytes, Small, Len], VALUE),
    ("memscan", &[Bytes, Small, Len], VALUE),
    ("memchr_inv", &[Bytes, Small, Len], VALUE),
    ("memcpy", &[Bytes, Bytes, Len], VALUE),
    ("memmove", &[Bytes, Bytes, Len], VALUE),
    ("memset", &[Bytes, Small, Len], VALUE),
    ("hex_to_bin", &[Small], VALUE),
    ("hex2bin", &[Bytes, Text, Small], VALUE),
    ("simple_strtoul", &[Text, Bytes, Small], VALUE),
    ("simple_strtoull", &[Text, Bytes, Small], VALUE),
    ("simple_strtol", &[Text, Bytes, Small], VALUE),
    ("kstrtoull", &[Text, Small, Bytes], VALUE),
    ("kstrtoll", &[Text, Small, Bytes], VALUE),
    ("kstrtouint", &[Text, Small, Bytes], VALUE),
    ("kstrtoint", &[Text, Small, Bytes], VALUE),
    ("kstrtou8", &[Text, Small, Bytes], VALUE),
    ("kstrtobool", &[Text, Bytes], VALUE),
    ("memparse", &[Text, Bytes], VALUE),
    ("parse_option_str", &[Text, Text], BOOL),
    ("glob_match", &[Text, Text], BOOL),
    ("in4_pton", &[Text, Small, Bytes, Small, Bytes], VALUE),
    ("in6_pton", &[Text, Small, Bytes, Small, Bytes], VALUE),
    ("int_sqrt", &[Number], VALUE),
    ("int_pow", &[Number, Number], VALUE),
    ("gcd", &[Number, Number], VALUE),
    ("lcm", &[Number, Number], VALUE),
    ("lcm_not_zero", &[Number, Number], VALUE),
    ("reciprocal_value", &[Number], VALUE),
    (
        "rational_best_approximation",
        &[Number, Number, Number, Number, Bytes, Bytes],
        VOID,
    ),
    ("crc8", &[Bytes, Bytes, Len, Number], VALUE),
    ("_find_first_bit", &[Bytes, Len], VALUE),
    ("_find_next_bit", &[Bytes, Len, Small], VALUE),
    ("_find_first_zero_bit", &[Bytes, Len], VALUE),
    ("_find_next_zero_bit", &[Bytes, Len, Small], VALUE),
    ("_find_last_bit", &[Bytes, Len], VALUE),
    ("_find_first_and_bit", &[Bytes, Bytes, Len], VALUE),
    ("_find_next_and_bit", &[Bytes, Bytes, Len, Small], VALUE),
    ("__find_nth_bit", &[Bytes, Len, Small], VALUE),
    ("find_next_clump8", &[Bytes, Bytes, Len, Small], VALUE),
    ("__bitmap_weight", &[Bytes, Len], VALUE),
    ("__bitmap_equal", &[Bytes, Bytes, Len], BOOL),
    ("__bitmap_and", &[Bytes, Bytes, Bytes, Len], BOOL),
    ("__bitmap_andnot", &[Bytes, Bytes, Bytes, Len], BOOL),
    ("__bitmap_or", &[Bytes, Bytes, Bytes, Len], VOID),
    ("__bitmap_xor", &[Bytes, Bytes, Bytes, Len], VOID),
    ("__bitmap_complement", &[Bytes, Bytes, Len], VOID),
    ("__bitmap_subset", &[Bytes, Bytes, Len], BOOL),
    ("__bitmap_intersects", &[Bytes, Bytes, Len], BOOL),
    ("__bitmap_set", &[Bytes, Small, Len], VOID),
    ("__bitmap_clear", &[Bytes, Small, Len], VOID),
    ("__bitmap_shift_left", &[Bytes, Bytes, Small, Len], VOID),
    ("__bitmap_shift_right", &[Bytes, Bytes, Small, Len], VOID),
    (
        "bitmap_find_next_zero_area_off",
        &[Bytes, Len, Small, Small, Small, Small],
        VALUE,
    ),
    ("siphash_1u64", &[Number, Bytes], VALUE),
    ("siphash_2u64", &[Number, Number, Bytes], VALUE),
    ("siphash_3u64", &[Number, Number, Number, Bytes], VALUE),
    ("__siphash_unaligned", &[Bytes, Len, Bytes], VALUE),
    ("__siphash_aligned", &[Bytes, Len, Bytes], VALUE),
    ("hsiphash_1u32", &[Number, Bytes], VALUE),
    ("hsiphash_2u32", &[Number, Number, Bytes], VALUE),
    ("xxh32", &[Bytes, Len, Number], VALUE),
    ("xxh64", &[Bytes, Len, Number], VALUE),
    ("sha1_transform", &[Bytes, Bytes, Bytes], VOID),
    ("sha1_init", &[Bytes], VOID),
    (
        "blake2s_compress_generic",
        &[Bytes, Bytes, Small, Small],
        VOID,
    ),
    ("__sw_hweight32", &[Number], VALUE),
    ("__sw_hweight64", &[Number], VALUE),
    ("string_unescape", &[Text, Bytes, Small, Small], VALUE),
    ("mul_u64_u64_div_u64", &[Number, Number, Number], VALUE),
    ("ns_to_timespec64", &[Number], VALUE),
    ("jiffies_to_msecs", &[Number], VALUE),
    ("nsecs_to_jiffies", &[Number], VALUE),
    (
        "mktime64",
        &[Small, Small, Small, Small, Small, Small],
        VALUE,
    ),
    ("time64_to_tm", &[Number, Small, Bytes], VOID),
];

/// Compares these functions of an image.
fn compare(image: &mut Image, signatures: &[Signature], rounds: usize) -> (usize, Tried) {
    let mut cpu = Cpu::new().unwrap();
    let blocks = Blocks::new(1).unwrap();
    let mut random = Random::new(SEED);
    let (mut functions, mut total) = (0, Tried::default());
    for (name, arguments, returned) in signatures {
        let found = image
            .functions
            .iter()
            .find(|function| function.name == *name);
        let Some(function) = found.cloned() else {
            continue;
        };
        functions += 1;
        for _ in 0..rounds {
            let tried = function::compare(
                (&mut cpu, &blocks),
                image,
                &function,
                (arguments, *returned),
                &mut random,
                4,
            )
            .unwrap_or_else(|error| panic!("seed {SEED}: {error}"));
            total.jumps += tried.jumps;
            total.calls += tried.calls;
            total.faults += tried.faults;
            total.records += tried.records;
        }
    }
    (functions, total)
}

#[test]
fn compiled_functions_full_of_jumps_return_what_they_return_without() {
    let name = "compiled_functions_full_of_jumps_return_what_they_return_without";
    proves(&["JP06", "JP10"], name, || {
        let mut all = Vec::new();
        for level in ["-O0", "-O1", "-O2", "-O3", "-Os"] {
            let mut image = Image::of_sample(level).unwrap();
            let (functions, tried) = compare(&mut image, SAMPLE, 10);
            println!("{level}: {functions} functions, {tried:?}");
            assert_eq!(functions, SAMPLE.len());
            assert_eq!(tried.faults, 0, "{tried:?}");
            all.push(format!(
                "{level}: {} calls with {} jumps",
                tried.calls, tried.jumps
            ));
        }
        format!(
            "{} functions: {}; seed {SEED}",
            SAMPLE.len(),
            all.join(", ")
        )
    });
}

fn of_kernel(kernel: fn(lab::Kernels) -> lab::Kernel) -> String {
    let kernel = kernel(lab::ensure_kernels().unwrap());
    let mut image = Image::of_kernel(&kernel.vmlinuz).unwrap();
    let (functions, tried) = compare(&mut image, KERNEL, 8);
    println!("{}: {functions} functions, {tried:?}", kernel.release);
    assert!(functions > 60, "{functions}");
    assert!(tried.faults * 10 < tried.calls, "{tried:?}");
    format!(
        "{}: {functions} functions, {} calls with {} jumps, seed {SEED}",
        kernel.release, tried.calls, tried.jumps
    )
}

#[test]
fn functions_of_debian_12_s_kernel_full_of_jumps_return_what_they_return_without() {
    let name = "functions_of_debian_12_s_kernel_full_of_jumps_return_what_they_return_without";
    proves(&["JP06", "JP10"], name, || {
        of_kernel(|kernels| kernels.v6_1)
    });
}

#[test]
fn functions_of_debian_13_s_kernel_full_of_jumps_return_what_they_return_without() {
    let name = "functions_of_debian_13_s_kernel_full_of_jumps_return_what_they_return_without";
    proves(&["JP06", "JP10"], name, || {
        of_kernel(|kernels| kernels.v6_12)
    });
}

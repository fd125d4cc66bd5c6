//! Parts of the tests: not every lab has the time for all of them every day.

use crate::context::Place;
use crate::test::{Needs, Test};

/// A part of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// All tests.
    All,
    /// All but [`THOROUGH`] ones; in `lab-intel` only [`EVERYDAY_INTEL`] of those with Linux guests, and none of
    /// [`LONG_WITHOUT_KVM`].
    Everyday,
    /// What [`Self::Everyday`] leaves out of [`Self::All`].
    Rest,
    /// The tests about what happens at the same time, for a machine whose CPUs interleave finely.
    Interleaved,
    /// Those of them that there is time for every day.
    EverydayInterleaved,
}

/// Tests that there isn't time for every day (`lab-intel` has a list of its own). Other tests show the same for one
/// kernel or for a part of the cases, or `lab-intel` shows it.
const THOROUGH: &[&str] = &[
    "jobs_of_ci_on_6_1_are_judged_by_all_that_they_do",
    "an_xz_payload_boots_to_user_space",
    "a_kernel_6_12_that_moves_itself_is_probed_from_its_first_instruction_on",
    "calls_on_each_of_64_vcpus_are_hits_of_breakpoints_and_of_jumps",
    "a_guest_sees_its_2_vcpus",
    "a_guest_sees_its_4_vcpus",
    "an_event_has_the_time_that_the_log_of_6_1_has",
    "jumps_of_6_12_tell_the_same_values_as_the_guest_s_own_events",
    "members_of_structures_that_registers_hold_are_what_a_process_passes_to_6_12",
    "the_stack_of_a_jump_is_the_one_that_the_guest_s_own_trigger_writes_in_6_12",
    "what_6_1_lists_as_not_probeable_is_refused_for_the_listed_reason",
    "every_switch_under_4_vcpus_leaves_hits_and_missed_ones_at_what_the_guest_executed",
    "instructions_of_every_kind_run_under_probes_in_6_1",
    "a_return_told_at_the_functions_own_rets_leaves_the_return_address_alone",
    "the_guest_s_function_graph_and_our_returns_without_exits_share_return_addresses",
    "the_guest_s_kprobes_and_ours_count_the_same_calls_on_6_1",
    "a_probe_that_stays_counts_every_call_of_4_vcpus_while_others_come_and_go",
    "with_4_vcpus_of_6_1_and_3_clients_hits_are_what_the_guest_s_tracer_counts",
    "vsock_connections_of_6_1_carry_bytes_both_ways_while_probes_are_jumps",
    "connections_of_6_1_through_a_tap_carry_bytes_both_ways_while_probes_are_jumps",
    "a_probe_in_a_module_comes_and_goes_with_the_module_on_6_12",
    "probes_in_a_module_of_6_1_are_jumps_that_come_and_go_with_it",
    "a_hit_of_a_jump_costs_no_exit_on_1_vcpu",
    "jumps_that_stay_count_every_call_of_4_vcpus_while_they_are_made_and_unmade",
    "vcpus_that_stand_in_a_region_when_it_is_patched_go_on_rightly",
    "calls_jumps_relative_operands_and_ends_of_functions_are_executed_in_detours",
    "the_guest_s_kprobes_and_our_jumps_count_the_same_calls_on_6_12",
    "every_function_of_6_12_can_be_a_jump_while_the_guest_works",
    "a_kprobe_of_the_guest_s_that_is_not_armed_yet_keeps_its_bytes_on_6_1",
    "every_function_of_6_1_can_be_probed_while_the_guest_works",
    "the_guest_s_function_tracers_and_our_probes_in_every_order_on_6_1",
    "the_guest_s_kprobes_and_our_probes_in_every_order_on_6_1",
    "the_guest_s_kprobes_and_our_probes_in_every_order_on_6_12",
    "the_guest_s_return_probes_and_our_probes_in_every_order_on_6_1",
    "the_guest_s_bpf_programs_and_our_probes_in_every_order_on_6_1",
    "the_guest_s_patches_of_its_own_text_and_our_probes_in_every_order_on_6_1",
    "the_guest_s_patches_of_its_own_text_and_our_probes_in_every_order_on_6_12",
    "a_static_key_flips_in_a_function_of_6_12_whose_instructions_are_all_probed",
    "every_hundredth_instruction_of_6_1_is_a_jump_or_says_why_not",
    "faults_beside_and_in_a_jump_of_6_1_are_fixed_up_or_told_as_without_it",
    "each_byte_of_functions_1_to_50_of_200_of_6_1_takes_a_probe_where_others_say_so",
    "each_byte_of_functions_51_to_100_of_200_of_6_1_takes_a_probe_where_others_say_so",
    "each_byte_of_functions_101_to_150_of_200_of_6_1_takes_a_probe_where_others_say_so",
    "each_byte_of_functions_151_to_200_of_200_of_6_1_takes_a_probe_where_others_say_so",
    "each_byte_of_functions_1_to_50_of_200_of_6_12_takes_a_probe_where_others_say_so",
    "each_byte_of_functions_51_to_100_of_200_of_6_12_takes_a_probe_where_others_say_so",
    "each_byte_of_functions_101_to_150_of_200_of_6_12_takes_a_probe_where_others_say_so",
    "each_byte_of_functions_151_to_200_of_200_of_6_12_takes_a_probe_where_others_say_so",
    "the_list_of_probes_is_what_6_1_lists_of_kprobes_at_the_same_places",
    "with_8_vcpus_of_6_1_and_3_clients_hits_are_what_the_guest_s_tracer_counts",
    "with_4_vcpus_of_6_12_and_3_clients_hits_are_what_the_guest_s_tracer_counts",
    "nothing_is_written_into_freed_init_text_of_6_1_that_the_guest_has_filled_anew",
    "every_byte_that_6_12_changes_in_its_text_is_one_that_the_list_says_it_patches",
    "folders_of_the_host_s_are_mounted_by_6_1_while_probes_are_jumps",
    "a_command_runs_on_a_folder_of_the_host_s_in_6_1",
    "debian_with_systemd_boots_from_its_disk_to_a_login_under_probes_on_1_vcpu",
    "the_debian_package_is_installed_upgraded_removed_and_purged_with_its_service",
    "a_shell_on_the_virtio_console_of_6_1_gets_all_input_and_shows_all_output",
    "disks_and_entropy_of_6_12_work_while_probes_are_jumps",
];

/// Tests with Linux guests that run in `lab-intel` every day: at least one of each row, and those that depend on what
/// the CPU itself does. What is the same on any CPU is shown in `lab-amd` every day.
const EVERYDAY_INTEL: &[&str] = &[
    "debian_6_12_bzimage_boots_to_user_space",
    "a_kernel_that_is_entered_by_pvh_boots_to_user_space",
    "a_guest_sees_its_8_vcpus",
    "a_reboot_by_triple_fault_is_named_so",
    "a_paused_busy_guest_executes_nothing_and_goes_on_afterwards",
    "kernel_memory_is_read_while_user_mode_has_page_tables_without_it",
    "probes_planted_before_the_first_instruction_see_the_boot_in_order",
    "the_boot_self_test_of_6_12_gets_its_int3_with_probes_armed",
    "every_call_on_4_vcpus_is_a_hit_of_every_kind_of_probe",
    "probes_at_one_place_count_by_themselves_and_outlive_each_other",
    "switched_off_probes_count_nothing_and_others_everything",
    "a_batch_of_1000_goes_in_whole_in_one_stop_or_not_at_all",
    "the_command_line_lists_probes_as_the_kernel_lists_its_own",
    "a_post_event_has_the_registers_that_the_next_instruction_finds",
    "an_instruction_that_faults_under_a_probe_faults_in_the_guest_and_is_told",
    "tiny_probed_repeated_instructions_do_all_rounds_under_timer_interrupts",
    "instructions_of_every_kind_run_under_probes_in_6_1",
    "a_return_has_its_value_its_entry_and_its_time",
    "a_debugger_in_the_guest_keeps_every_breakpoint",
    "a_watched_variable_tells_of_every_write_on_every_vcpu",
    "a_probe_in_a_module_comes_and_goes_with_the_module_on_6_12",
    "probes_of_init_text_are_gone_when_it_is_freed_and_write_nothing_afterwards",
    "a_hit_of_a_jump_costs_no_exit_on_4_vcpus",
    "the_list_shows_jumps_and_the_knobs_make_breakpoints_of_them_and_back",
    "a_wish_that_a_jump_can_t_meet_makes_it_a_breakpoint_until_it_goes_away",
    "a_jump_and_a_breakpoint_tell_the_same_of_the_same_calls",
    "only_hits_that_meet_a_jump_s_conditions_count_and_the_others_cost_no_exit",
    "1000_probes_become_jumps_in_one_stop",
    "a_lossless_jump_waits_where_the_ring_is_full_and_loses_nothing",
    "a_guest_that_writes_over_its_rings_harms_only_its_own_events",
    "calls_jumps_relative_operands_and_ends_of_functions_are_executed_in_detours",
    "the_guest_s_function_tracers_and_our_jumps_count_the_same_calls",
    "the_guest_s_function_graph_and_our_returns_without_exits_share_return_addresses",
    "jumps_of_6_12_tell_the_same_values_as_the_guest_s_own_events",
    "only_hits_that_meet_a_jump_s_filter_count_and_no_hit_costs_an_exit",
    "the_stack_of_a_jump_is_the_one_that_the_guest_s_own_trigger_writes_in_6_12",
    "jumps_that_follow_every_register_of_hundreds_of_functions_never_fault",
    "a_definition_that_the_kernel_refuses_is_refused_at_the_same_column",
    "disks_and_entropy_of_6_12_work_while_probes_are_jumps",
    "folders_of_the_host_s_are_mounted_by_6_12_while_probes_are_jumps",
    "each_thread_of_a_vm_is_confined_to_what_it_is_for",
    "a_job_of_ci_runs_on_a_disk_image_that_stays_as_it_is",
];

/// Tests without any KVM that take long on an emulated CPU. They say nothing of a lab's KVM, and `lab-amd` shows them
/// every day.
const LONG_WITHOUT_KVM: &[&str] = &[
    "files_that_are_not_ordinary_are_refused_at_once_however_many_ask",
    "the_vmlinux_of_each_kernel_tells_the_version_that_its_bzimage_tells",
    "functions_without_the_cpu_s_gs_base_are_no_place_for_a_jump_in_either_kernel",
    "the_tables_of_6_1_name_what_its_code_has_there",
    "the_tables_of_6_12_name_what_its_code_has_there",
    "a_link_that_is_swapped_in_while_a_vm_is_made_leads_out_of_no_folder",
    "clients_name_files_below_the_owner_s_folders_and_learn_of_no_other_file",
    "without_folders_only_the_server_s_own_user_names_files_of_its_host",
    "each_client_has_images_of_its_own_and_sends_none_twice",
    "devices_that_can_not_be_had_are_refused_and_leave_nothing_behind",
];

/// Tests in which several vCPUs, or the host's threads and vCPUs, meet at one place.
const INTERLEAVED: &[&str] = &[
    "with_4_vcpus_of_6_12_and_3_clients_hits_are_what_the_guest_s_tracer_counts",
    "a_probe_that_stays_counts_every_call_of_4_vcpus_while_others_come_and_go",
    "vcpus_that_stand_in_a_region_when_it_is_patched_go_on_rightly",
    "vcpus_led_into_a_region_execute_its_instructions_and_too_often_end_the_jump",
    "return_probes_that_are_jumps_are_removed_and_switched_with_calls_in_flight",
    "the_guest_s_kprobes_and_our_jumps_count_the_same_calls_on_6_12",
    "the_guest_patches_its_static_keys_while_jumps_count_every_call",
    "every_switch_under_4_vcpus_leaves_hits_and_missed_ones_at_what_the_guest_executed",
];

/// Those of them that take minutes each. Others of the same rows run every day in their place.
const INTERLEAVED_FOR_LONG: &[&str] = &[
    "a_probe_that_stays_counts_every_call_of_4_vcpus_while_others_come_and_go",
    "vcpus_that_stand_in_a_region_when_it_is_patched_go_on_rightly",
];

impl Part {
    /// Returns true if a test belongs to this part, at this place.
    pub fn has(self, test: &Test, place: Place) -> bool {
        let is_in = |names: &[&str]| names.contains(&test.name);
        if test.needs == Needs::Host && place != Place::Host {
            return false;
        }
        match self {
            Self::All => true,
            Self::Everyday if place == Place::LabIntel => match test.needs {
                Needs::None => !is_in(LONG_WITHOUT_KVM),
                Needs::Linux => is_in(EVERYDAY_INTEL),
                Needs::Tiny | Needs::Host => true,
            },
            Self::Everyday => !is_in(THOROUGH),
            Self::Rest => !Self::Everyday.has(test, place),
            Self::Interleaved => is_in(INTERLEAVED),
            Self::EverydayInterleaved => is_in(INTERLEAVED) && !is_in(INTERLEAVED_FOR_LONG),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_tests_that_need_what_the_lists_are_of() {
        let needs = |name: &str| {
            let found = crate::tests().find(|test| test.name == name);
            found.map(|test| test.needs)
        };
        let linux = [EVERYDAY_INTEL, INTERLEAVED, INTERLEAVED_FOR_LONG, THOROUGH];
        for name in linux.into_iter().flatten() {
            assert_eq!(needs(name), Some(Needs::Linux), "{name}");
        }
        for name in LONG_WITHOUT_KVM {
            assert_eq!(needs(name), Some(Needs::None), "{name}");
        }
    }

    /// Rows that take too long in `lab-intel` for every day: sweeps over all of a kernel.
    const RARE: [&str; 2] = ["JP09", "BN08"];

    #[test]
    fn each_row_is_proved_every_day_in_both_labs() {
        let proves = |test: &Test, id: &str| test.ids.contains(&id);
        for place in [Place::LabAmd, Place::LabIntel] {
            let parts: &[Part] = match place {
                Place::LabIntel => &[Part::Everyday, Part::EverydayInterleaved],
                _ => &[Part::Everyday],
            };
            let is_run = |test: &&Test| parts.iter().any(|part| part.has(test, place));
            let ids = crate::tests().flat_map(|test| test.ids);
            for id in ids.filter(|id| place != Place::LabIntel || !RARE.contains(id)) {
                let found = crate::tests().filter(is_run).any(|test| proves(test, id));
                assert!(found, "no test of {id} at {place:?}");
            }
        }
    }

    #[test]
    fn what_runs_every_day_and_the_rest_are_all_tests_of_a_lab() {
        for place in [Place::LabAmd, Place::LabIntel] {
            for test in crate::tests().filter(|test| test.needs != Needs::Host) {
                let parts = [Part::Everyday, Part::Rest].map(|part| part.has(test, place));
                assert_ne!(parts[0], parts[1], "{} at {place:?}", test.name);
            }
        }
    }
}

"""The process tests that `make test` leaves to `make slow`, and those that only `make soak` runs.

Each of the first ones takes seconds of CPU for what other tests prove in parts. Examples are the same fault in another mode, a rare
combination, and a search that needs much data. CI runs both targets. `pytest FILE` runs all tests of a file.
"""

# Beginnings of the names of tests.
SLOW = (
    "tests/e2e/test_budget.py",
    "tests/e2e/test_cache_decision.py::test_a_decision_survives_a_restart_of_the_dispatcher_and_deaths_of_workers",
    "tests/e2e/test_cache_decision.py::test_a_directory_that_vanishes_while_it_is_written_changes_no_element",
    "tests/e2e/test_cache_decision.py::test_random_steps_after_a_cached_step_draw_the_same_values_as_without",
    "tests/e2e/test_cache_files.py::test_a_full_cache_does_not_stop_epochs",
    "tests/e2e/test_cache_files.py::test_a_quota_keeps_the_cache_that_saves_more",
    "tests/e2e/test_cache_files.py::test_damaged_cache_files_do_not_change_elements",
    "tests/e2e/test_cache_decision.py::test_harmed_files_of_an_automatic_cache_change_no_element",
    "tests/e2e/test_cache.py::test_random_steps_upstream_repeat_their_values_and_those_downstream_do_not",
    "tests/e2e/test_cache_files.py::test_workers_die_while_they_write_and_read_a_cache[True]",
    "tests/e2e/test_cache_order.py",
    "tests/e2e/test_cache_parts.py::test_deterministic_elements_are_equal_with_and_without_a_cache[5]",
    "tests/e2e/test_cache_values.py::test_an_epoch_that_reads_equals_one_that_computes[ragged and sparse batches]",
    "tests/e2e/test_closing_stream.py::test_remainders_arrive_while_the_closing_stream_starts[23",
    "tests/e2e/test_closing_stream.py::test_remainders_arrive_while_the_closing_stream_starts[60-equal",
    "tests/e2e/test_closing_stream.py::test_workers_die_with_their_remainders[equal streams",
    "tests/e2e/test_deterministic.py::test_workers_that_are_killed_and_added_change_nothing",
    "tests/e2e/test_dtypes.py",
    "tests/e2e/test_endless_repeat.py::test_killed_workers_change_no_row[False]",
    "tests/e2e/test_epochs.py::test_abandoned_passes_leave_a_file_cache_intact",
    "tests/e2e/test_fairness.py",
    "tests/e2e/test_hosts.py::test_auto_does_not_compress_incompressible_elements",
    "tests/e2e/test_hosts.py::test_auto_does_not_compress_on_one_host",
    "tests/e2e/test_hosts.py::test_none_never_compresses",
    "tests/e2e/test_huge_elements.py",
    "tests/e2e/test_large_record_file.py::test_steps_that_count_or_mix_records_are_divided",
    "tests/e2e/test_leaks.py::test_a_trainer_that_is_killed_leaves_no_shared_memory",
    "tests/e2e/test_leaks.py::test_repeated_creation_and_reading_of_a_dataset_leaks_nothing[an unread iterator]",
    "tests/e2e/test_leaks.py::test_repeated_creation_and_reading_of_a_dataset_leaks_nothing[failing elements]",
    "tests/e2e/test_leaks.py::test_repeated_creation_and_reading_of_a_dataset_leaks_nothing[left early",
    "tests/e2e/test_learned.py::test_the_second_run_of_a_script_decides_on_a_cache_without_measuring_its_steps",
    "tests/e2e/test_learned.py::test_the_second_run_of_a_script_starts_with_the_order_that_the_first_has_adopted",
    "tests/e2e/test_learned.py::test_the_second_run_of_a_script_starts_with_the_workers_that_the_first_has_found",
    "tests/e2e/test_leaving.py::test_a_child_forked_while_elements_are_read",
    "tests/e2e/test_leaving.py::test_an_iterator_is_deleted_in_time",
    "tests/e2e/test_leaving.py::test_processes_that_are_spawned_or_forked",
    "tests/e2e/test_local_workers.py::test_a_private_cluster_sizes_itself",
    "tests/e2e/test_local_workers.py::test_local_workers_are_given_back_while_the_host_is_busy",
    "tests/e2e/test_local_workers.py::test_the_dispatcher_starts_local_workers_and_gives_them_back",
    "tests/e2e/test_local_workers.py::test_trainers_on_two_hosts_read_from_the_local_workers_of_their_host",
    "tests/e2e/test_measurements.py::test_the_figures_of_a_known_trainer_and_pipeline_are_right",
    "tests/e2e/test_modes.py::test_a_worker_dies_after_a_saved_position[at_least_once",
    "tests/e2e/test_modes.py::test_the_death_of_a_worker_costs_what_the_mode_allows[at_least_once-True]",
    "tests/e2e/test_mounted_bucket.py",
    "tests/e2e/test_order.py::test_a_badly_ordered_dataset_runs_in_a_better_order",
    "tests/e2e/test_order.py::test_a_badly_ordered_function_of_an_interleave_runs_in_a_better_order",
    "tests/e2e/test_order.py::test_the_explanation_and_the_log_say_once_what_a_wider_tolerance_would_save",
    "tests/e2e/test_order_deterministic.py",
    "tests/e2e/test_order_rollback.py",
    "tests/e2e/test_outages.py::test_a_worker_with_an_unreachable_address_is_an_error",
    "tests/e2e/test_outages.py::test_an_element_may_take_longer_than_the_timeout",
    "tests/e2e/test_outages.py::test_the_death_of_all_workers_is_an_error_and_a_new_worker_continues",
    "tests/e2e/test_placement.py",
    "tests/e2e/test_processes.py::test_ctrl_c_ends_training",
    "tests/e2e/test_processes.py::test_the_private_cluster_removes_unused_datasets",
    "tests/e2e/test_provider.py",
    "tests/e2e/test_random_pipelines.py",
    "tests/e2e/test_random_steps.py",
    "tests/e2e/test_recovery.py",
    "tests/e2e/test_resume.py::test_a_pass_resumes_at_every_step[exactly once",
    "tests/e2e/test_resume.py::test_another_process_resumes_at_every_step[exactly_once]",
    "tests/e2e/test_scaling.py",
    "tests/e2e/test_step_metrics.py::test_metrics_of_steps_are_exact_over_epochs[large",
    "tests/e2e/test_trainer.py::test_trainers_that_race_for_streams_lose_and_repeat_nothing",
    "tests/e2e/test_vocabularies.py::test_tables_are_freed_when_no_job_uses_them",
    "tests/faults/test_audit.py::test_every_id_comes_once_per_epoch_while_workers_are_killed",
    "tests/faults/test_disk.py::test_a_dispatcher_with_a_full_disk_grants_no_leases_and_continues",
    "tests/faults/test_disk.py::test_a_slow_cache_directory_does_not_stop_epochs",
    "tests/faults/test_disk.py::test_a_full_checkpoint_disk_saves_no_checkpoints",
    "tests/faults/test_endless_repeat.py",
    "tests/faults/test_every_mode.py::test_the_dispatcher_dies_alone",
    "tests/faults/test_every_mode.py::test_the_dispatcher_dies_with_all_workers",
    "tests/faults/test_every_mode.py::test_the_next_trainer_reads_from_the_start",
    "tests/faults/test_every_mode.py::test_without_failures_a_stream_needs_few_records",
    "tests/faults/test_every_mode.py::test_workers_that_join_and_leave_cost_what_each_mode_allows",
    "tests/faults/test_goodbye.py",
    "tests/faults/test_network.py::test_a_silently_lost_route_is_detected",
    "tests/faults/test_network.py::test_a_worker_that_lost_the_dispatcher_is_fenced",
    "tests/faults/test_network.py::test_bytes_lost_in_one_direction_are_sent_again",
    "tests/faults/test_network.py::test_the_only_worker_without_its_dispatcher_counts_as_no_worker",
    "tests/faults/test_passes.py::test_repeated_outages_skip_no_element[pecan.Iterator over repeat, with the dispatcher]",
    "tests/faults/test_pauses.py::test_a_paused_dispatcher_counts_nobody_as_dead",
    "tests/faults/test_pauses.py::test_a_trainer_that_stops_reading_can_continue_later",
    "tests/faults/test_pauses.py::test_a_worker_is_fenced_after_a_long_pause_and_returns_as_a_new_worker",
    "tests/faults/test_poison.py::test_a_stream_that_kills_workers_while_it_is_opened_fails_its_job[2",
    "tests/faults/test_poison.py::test_a_stream_that_waits_for_others_does_not_block_them_under_the_crash_guard",
    "tests/faults/test_poison.py::test_an_element_that_kills_workers_in_a_parallel_step_fails_its_job",
    "tests/faults/test_poison.py::test_workers_killed_from_outside_at_one_element_fail_no_job",
    "tests/faults/test_positions.py::test_a_killed_trainer_repeats_only_elements_since_its_last_save[before a save]",
    "tests/faults/test_positions.py::test_a_position_survives_other_workers_and_a_restarted_dispatcher",
    "tests/faults/test_thesis.py::test_five_epochs_stay_exact_while_processes_die",
    "tests/faults/test_thesis.py::test_getfail_an_automatic_cache_survives_the_death_of_its_readers",
    "tests/faults/test_thesis.py::test_getfail_the_cache_survives_the_death_of_its_readers",
    "tests/faults/test_thesis.py::test_killall_the_trainer_gets_no_error",
    "tests/faults/test_thesis.py::test_modes_of_an_automatic_cache_change_while_everything_dies",
    "tests/faults/test_thesis.py::test_putfail_later_epochs_complete_an_automatic_cache",
    "tests/faults/test_thesis.py::test_putfail_the_next_epoch_reads_only_complete_segments",
    "tests/faults/test_thesis.py::test_recover_the_only_worker_continues_at_any_address",
    "tests/graph/test_parts.py::test_a_stream_gives_its_parts_one_after_another[deterministic]",
    "tests/graph/test_random.py",
    "tests/graph/test_random_proposals.py::test_random_pipelines_in_proposed_orders",
    "tests/graph/test_ranges.py",
    "tests/graph/test_variables.py::test_streams_and_epochs_draw_different_augmentations[parallel-seeded]",
    "tests/graph/test_variables.py::test_streams_and_epochs_draw_different_augmentations[sequential-unseeded]",
)

# Beginnings of the names of tests that CI does not run, each with what proves the same in CI.
SOAK = {
    "tests/e2e/test_cache_decision.py::test_a_directory_that_cannot_be_written_changes_no_element":
        "test_a_read_only_cache_disk_is_reported_and_changes_no_element[auto] and test_a_full_cache_disk_caches_what_fits in tests/faults/test_disk.py",
    "tests/e2e/test_cache_decision.py::test_an_expensive_step_is_cached_and_the_second_job_begins_with_it[False]":
        "the same test in mode deterministic, which compares the order too",
    "tests/e2e/test_deterministic.py::test_the_number_of_workers_changes_nothing":
        "test_workers_that_are_killed_and_added_change_nothing has one to two workers, and tests/faults compare three workers with one",
    "tests/e2e/test_order.py::test_a_job_of_one_epoch_runs_in_a_better_order_before_its_end":
        "the core's script order_spread, and test_a_badly_ordered_dataset_runs_in_a_better_order: on a host that others disturb, the "
        "only trial that one epoch affords often gives no verdict",
    "tests/e2e/test_random_steps.py::test_a_killed_worker_and_a_resumed_trainer_change_no_value[a filter by drawn values-exactly_once]":
        "the same test in mode deterministic, which promises the order too",
    "tests/e2e/test_random_steps.py::test_a_killed_worker_and_a_resumed_trainer_change_no_value[a shuffle and batches-exactly_once]":
        "the same test in mode deterministic",
    "tests/e2e/test_random_steps.py::test_a_killed_worker_and_a_resumed_trainer_change_no_value[maps-exactly_once]":
        "the same test in mode deterministic",
    "tests/e2e/test_recovery.py::test_a_lost_worker_costs_few_recomputed_elements[by a checkpoint-15]":
        "the same test with SIGKILL; a stream does not know how its worker was lost",
    "tests/e2e/test_sixteen_workers.py":
        "test_placement.py with eight workers, and test_fairness.py; sixteen workers start slowly on a busy host",
    "tests/faults/test_endless_repeat.py::test_each_row_comes_once_in_each_pass[3":
        "the same test with nine streams",
    "tests/faults/test_endless_repeat.py::test_each_row_comes_once_in_each_pass[9-one run]":
        "the same test with a trainer that resumes",
    "tests/faults/test_endless_repeat.py::test_each_row_comes_once_in_each_pass[40-one run]":
        "the same test with a trainer that resumes",
    "tests/faults/test_thesis.py::test_failover_a_standby_gets_every_stream[exactly_once]":
        "the same test in mode deterministic, and the simulation in every mode",
    "tests/faults/test_thesis.py::test_killall_the_trainer_gets_no_error[exactly_once]":
        "the same test in mode deterministic, and the simulation in every mode",
    "tests/graph/test_parts.py::test_a_stream_gives_its_parts_one_after_another[exactly once]":
        "the same test with three pipelines, and in mode deterministic with all of them",
}

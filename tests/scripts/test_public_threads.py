"""Scripts after public threads: each docstring has the thread, and whether the script is broken.

Facts are of the threads, code is not. A script that keeps its promise is never a violation.
Variants are of the same kinds as a thread.
"""

import functools
import importlib
from typing import Any

import pytest

from dpaudit_ray.errors import ScriptError
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_findings import ScriptVerdict, Weight
from dpaudit_ray.scripts.script_runs import LocalRunner, Target
from tests.conftest import ROOT
from tests.long import long

BROKEN = {
    "accumulated_draws": "DPA051",
    "adaptive_server": "DPA034",
    "attends_to_others": "DPA011",
    "batches_cut": "DPA032",
    "begun_by_a_gradient": "DPA033",
    "best_of_search": "DPA017",
    "bias_moved_by_records": "DPA034",
    "biased_by_classes": "DPA065",
    "biased_by_mean": "DPA065",
    "biases_left_out_of_the_length": "DPA003",
    "bound_by_largest": "DPA033",
    "bound_by_records": "DPA034",
    "centres_fitted": "DPA040",
    "centres_of_batches_added": "DPA033",
    "cholesky_layer": "DPA040",
    "classes_drawn_alike": "DPA054",
    "classical_formula": "DPA045",
    "clients_drop_out": "DPA003",
    "clipped_by_value": "DPA003",
    "decay_not_counted": "DPA017",
    "diffusion_summed": "DPA032",
    "each_tensor_to_the_bound": "DPA003",
    "easy_records_dropped": "DPA033",
    "example_kept": "DPA039",
    "features_dumped": "DPA034",
    "features_saved_by_name": "DPA034",
    "features_written": "DPA034",
    "fitted_axes": "DPA040",
    "folds_look_at_each_other": "DPA034",
    "follows_mean": "DPA013",
    "ghost_without_criterion": "DPA070",
    "history_kept": "DPA034",
    "laplace_as_gaussian": "DPA010",
    "large_drawn_often": "DPA054",
    "index_pickled": "DPA034",
    "largest_entries": "DPA002",
    "losses_saved": "DPA034",
    "mean_over_words": "DPA032",
    "moments_of_half_the_noise": "DPA003",
    "neighbours_looked_up": "DPA033",
    "next_looked_up": "DPA033",
    "noise_alike_in_rows": "DPA009",
    "noise_from_a_table": "DPA009",
    "noise_for_small_batches": "DPA071",
    "noise_taken_off_again": "DPA069",
    "noise_taken_off_in_part": "DPA069",
    "noise_of_few_values": "DPA002",
    "noise_of_whole_batch": "DPA003",
    "normed_again": "DPA034",
    "one_key_for_all_layers": "DPA009",
    "oversampled": "DPA051",
    "packed_texts": "DPA032",
    "predictions_published": "DPA034",
    "private_steps_between": "DPA022",
    "prototypes_begun": "DPA065",
    "prototypes_published": "DPA034",
    "pruned_by_gradients": "DPA034",
    "quantised_by_records": "DPA034",
    "queue_of_records": "DPA033",
    "ranges_published": "DPA034",
    "rate_by_batch": "DPA034",
    "rate_by_loss": "DPA034",
    "records_miscounted": "DPA051",
    "regression_returned": "DPA034",
    "regression_saved": "DPA034",
    "renormed_in_place": "DPA013",
    "reseeded_each_epoch": "DPA001",
    "rounded_accuracy_returned": "DPA034",
    "scaled_by_activations": "DPA034",
    "scaled_by_size": "DPA032",
    "seeded_by_record": "DPA001",
    "seeded_by_step": "DPA001",
    "shards_divide": "DPA003",
    "shuffled_as_poisson": "DPA055",
    "size_is_a_column": "DPA032",
    "some_nodes": "DPA033",
    "store_pickled": "DPA034",
    "store_saved": "DPA034",
    "sum_for_mean": "DPA032",
    "sum_with_dropout": "DPA032",
    "taught_by_the_same_records": "DPA033",
    "training_by_sampling": "DPA054",
    "two_networks_of_one_draw": "DPA033",
    "uniform_as_gaussian": "DPA010",
    "vae_summed": "DPA032",
    "weighted_clients": "DPA007",
    "whitened": "DPA040",
    "zca_layer": "DPA040",
}
HEALTHY = {
    "attends_to_itself",
    "averaged_and_stopped",
    "baskets",
    "batches_cut_far_away",
    "begun_by_a_public_gradient",
    "bfloat_weights",
    "bias_moved_by_public_records",
    "biased_by_constant",
    "biases_in_bfloat",
    "bound_by_public_records",
    "cached_features",
    "categories_hashed",
    "clients_share_noise",
    "clipped_after_noise",
    "clipped_by_value_in_all",
    "columns_chosen_in_public",
    "columns_published",
    "corrected_adam",
    "counts_of_words",
    "diffusion_drawn_before",
    "diffusion_meaned",
    "drawn_by_numpy",
    "each_epoch_published",
    "each_tensor_to_its_share",
    "edges_counted",
    "equal_clients",
    "few_alphas",
    "filled_by_itself",
    "fixed_fakes",
    "fixed_server",
    "flipped_by_python",
    "folds_by_one_engine",
    "growth_not_counted",
    "imputed_by_zeros",
    "itself_looked_up",
    "jittered",
    "jobs_by_list",
    "last_and_average",
    "long_left_out",
    "mean_over_own_words",
    "mean_with_dropout",
    "moments_of_symmetric_noise",
    "momentum_by_hand",
    "moving_average",
    "noise_for_its_batches",
    "noise_of_parts",
    "noise_of_short_floats",
    "normed_by_public_records",
    "nothing_taken_off",
    "one_cycle",
    "own_generator",
    "own_loop_of_constants",
    "own_sampler",
    "parts_by_one_engine",
    "parts_joined",
    "people_with_rows",
    "physical_batches_and_schedules",
    "pickled_with_a_scale",
    "pixels",
    "pruned_by_size",
    "public_features_saved_by_name",
    "public_gradient_added",
    "public_index_pickled",
    "public_predictions_published",
    "public_regression_returned",
    "public_store_pickled",
    "quantised_by_public_records",
    "quantised_by_weights",
    "queue_of_noise",
    "random_features",
    "rate_by_public_loss",
    "records_counted",
    "releases_added_again",
    "rotated",
    "rows_added",
    "scaled_by_limits",
    "shards_root",
    "sharpness_by_noisy_gradients",
    "slow_and_fast_weights",
    "small_delta",
    "states_in_their_own_file",
    "steps_by_signs",
    "store_returned",
    "some_columns_released",
    "squares_added",
    "targets_of_a_list",
    "taught_by_public_network",
    "taught_by_public_records",
    "teacher_of_averages",
    "thirds_of_a_table",
    "towns_by_list",
    "tried_before",
    "two_networks_in_turn",
    "two_views",
    "urandom_generator",
    "vae_meaned",
    "vocabulary_by_hash",
    "weights_shortened",
    "whole_graphs",
    "wrapped_each_epoch",
}
# What is said of scripts that cannot be judged: words of what is missing.
UNDECIDED = {
    "bound_by_sizes": "how records were prepared",
    "columns_chosen": "how records were prepared",
    "columns_of_jobs": "how records were prepared",
    "data_repeated": "duplicates in the data",
    "diffusion": "draw the numbers of records before the call",
    "drawn_by_shares": "how records were prepared",
    "dropout_by_vmap": "draw the numbers of records before the call",
    "extremes_scaled": "records elsewhere",
    "fakes_follow_batch": "how batches were formed",
    "filled_from_above": "how records were prepared",
    "filled_from_below": "how records were prepared",
    "flipped_and_scaled": "how records were prepared",
    "ghost_by_hand": "its backward pass was not observed",
    "imputed_by_medians": "how records were prepared",
    "information_loss": "without noise",
    "jobs_published": "how records were prepared",
    "lags_added": "how records were prepared",
    "made_between_neighbours": "how records were prepared",
    "means_of_towns": "how records were prepared",
    "neighbours_averaged": "how records were prepared",
    "neighbours_by_number": "the rows themselves",
    "numbers_of_jobs": "how records were prepared",
    "own_loop_scaled": "how records were prepared",
    "private_copies_between": "private records in another form",
    "public_steps_between": "private records in another form",
    "public_steps_of_another": "private records in another form",
    "random_entries": "zero in some draws",
    "random_partners": "how records were prepared",
    "rare_words_weigh_more": "how records were prepared",
    "rounded_delta": "promises little",
    "rows_repeated": "duplicates in the data",
    "scaled_by_extremes": "how records were prepared",
    "scores_of_axes": "records elsewhere",
    "shortened_before": "do so inside it",
    "smoothed_over_a_graph": "how records were prepared",
    "states_in_checkpoints": "stays secret",
    "targets_encoded": "how records were prepared",
    "towns_as_columns": "how records were prepared",
    "towns_by_frequency": "how records were prepared",
    "towns_by_label": "how records were prepared",
    "unlabelled_beside": "how batches were formed",
    "vocabulary_of_records": "how records were prepared",
    "whitened_by_zca": "records elsewhere",
    "wrong_delta": "promises little",
}
# Neither can be repeated as a whole.
REFUSED = {"epochs_counted", "stepped_by_hand"}
QUICK = {
    "accumulated_draws",
    "biased_by_mean",
    "biases_in_bfloat",
    "bound_by_sizes",
    "columns_of_jobs",
    "drawn_by_numpy",
    "drawn_by_shares",
    "dropout_by_vmap",
    "each_epoch_published",
    "features_saved_by_name",
    "fixed_fakes",
    "folds_by_one_engine",
    "imputed_by_medians",
    "laplace_as_gaussian",
    "last_and_average",
    "noise_taken_off_in_part",
    "own_loop_scaled",
    "pruned_by_gradients",
    "records_miscounted",
    "renormed_in_place",
    "regression_returned",
    "rounded_accuracy_returned",
    "scaled_by_extremes",
    "some_columns_released",
    "sum_for_mean",
    "sum_with_dropout",
    "towns_by_list",
    "zca_layer",
}


MODULES = (
    "around",
    "beyond",
    "engines",
    "farther",
    "generators_and_graphs",
    "hidden",
    "later",
    "loops",
    "prepared",
    "strangers",
    "variants",
    "wider",
)


@functools.cache
def scripts() -> dict[str, Any]:
    """Functions that train, by name; they are imported by the process that runs these tests."""
    modules = [importlib.import_module(f"tests.scripts.threads.{name}") for name in MODULES]
    found = {}
    for module in modules:
        for name, value in vars(module).items():
            is_own = getattr(value, "__module__", "") == module.__name__
            text = getattr(value, "__doc__", None) or ""
            if is_own and ("Broken" in text or "Healthy" in text):
                found[name] = value
    return found


pytestmark = pytest.mark.slow


def cases(names) -> list:
    return [
        pytest.param(name, marks=() if name in QUICK else long("as the others"))
        for name in sorted(names)
    ]


def audited(name: str) -> ScriptVerdict:
    file = scripts()[name].__module__.replace(".", "/")
    target = Target(ROOT / f"{file}.py", name)
    return Audit(target, LocalRunner(target), Options(300.0, (0,)), lambda _: None).verdict()


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("name", cases(BROKEN))
def test_a_broken_script_is_told(name):
    found = audited(name)
    assert found.verdict is Verdict.VIOLATION
    assert BROKEN[name] in {item.code for item in found.violations}


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("name", cases(HEALTHY))
def test_a_healthy_script_is_consistent(name):
    found = audited(name)
    assert found.verdict is Verdict.CONSISTENT, (found.violations, found.help)


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("name", cases(UNDECIDED))
def test_what_cannot_be_judged_is_named(name):
    found = audited(name)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert not [item for item in found.findings if item.weight is Weight.VIOLATION]
    assert any(UNDECIDED[name] in line for line in found.help)


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("name", cases(REFUSED))
def test_a_step_whose_parts_are_called_one_by_one_is_not_judged(name):
    with pytest.raises(ScriptError, match=r"call its step\(\) or pre_step\(\), not their parts"):
        audited(name)


def test_each_thread_has_an_expected_answer():
    named = [*BROKEN, *HEALTHY, *UNDECIDED, *REFUSED]
    assert sorted(named) == sorted(scripts())

"""Audits all bugs of the zoo and their twins: `python -m jobs.zoo.table [names...] --budget 120s`.

Prints a markdown table, a row per bug with its twin beside it; seconds are of processor time,
imports among them. Exits 1 where a bug that can be found was not, or where an alarm was raised for
a script without one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from pathlib import Path

from dpaudit_ray.errors import ScriptError
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts.script_audit import Audit, Options, parse_duration
from dpaudit_ray.scripts.script_findings import ScriptVerdict, Weight
from dpaudit_ray.scripts.script_runs import LocalRunner, Target
from jobs.zoo.alarms import processor_seconds

HERE = Path(__file__).parent
NO_BUG = frozenset({"too_much_noise"})
UNFOUND = frozenset({"same_records:early"})  # what no audit sees
# What a user may mean, or what was not seen: no more than a warning.
WARNED = frozenset({
    "constant_seed:global_seed",
    "same_records:best_epoch", "same_records:scaled", "several_engines:anew", "trainers:jax_means",
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Bug:
    """A script with a planted bug, and the same without it."""

    script: str
    function: str = "main"
    twin: str = "healthy"

    @property
    def name(self) -> str:
        """Returns the script and function as on the command line."""
        return self.script if self.function == "main" else f"{self.script}:{self.function}"

    @property
    def secret_size(self) -> bool:
        """Whether it is one only where the number of records is a secret."""
        return self.script == "secret_size"

    @property
    def weight(self) -> Weight | None:
        """Returns the finding that an audit must report."""
        if self.name in NO_BUG | UNFOUND:
            return None
        return Weight.WARNING if self.name in WARNED else Weight.VIOLATION

    def target(self, twin: bool = False) -> Target:
        """Returns the audited function."""
        return Target(HERE / f"{self.script}.py", self.twin if twin else self.function)


BUGS = (
    Bug("adaclip_batch"),
    Bug("batches", "augmented", "augmented_once"),
    Bug("batches", "mixed", "jittered"),
    Bug("batches", "outliers", "as_drawn"),
    Bug("batches", "replayed", "as_drawn"),
    Bug("batches", "standardised", "by_constants"),
    Bug("batches", "weighted", "weighted_by_constants"),
    Bug("batchnorm"),
    Bug("bounds", "adaptive", "adaptive_centred"),
    Bug("bounds", "clamped", "fixed"),
    Bug("bounds", "each_layer", "each_layer_of_all"),
    Bug("bounds", "largest", "fixed"),
    Bug("bounds", "layers_alone", "layers_together"),
    Bug("bounds", "median", "fixed"),
    Bug("bounds", "uncounted", "ghost_counted"),
    Bug("clip_after_mean"),
    Bug("closure_recomputes"),
    Bug("constant_seed"),
    Bug("constant_seed", "global_seed"),
    Bug("fixed_size"),
    Bug("ghost_bias_norm"),
    Bug("ghost_shared"),
    Bug("ghost_without_clip"),
    Bug("ghost_without_clip", "scheduled", "scheduled_both"),
    Bug("half_noise"),
    Bug("half_noise", "at_80"),
    Bug("half_noise", "loop_80", "loop_healthy"),
    Bug("hard_examples"),
    Bug("memory_manager_break"),
    Bug("microbatch_mean"),
    Bug("no_noise"),
    Bug("no_noise", "forgotten"),
    Bug("noise_after_lr"),
    Bug("noise_clip_squared"),
    Bug("noise_over_batch"),
    Bug("noise_reused"),
    Bug("noise_without_clip"),
    Bug("nonprivate_model_trained"),
    Bug("one_key_for_all"),
    Bug("own_head_optimizer"),
    Bug("raw_gradients_left"),
    Bug("raw_gradients_left", "left_behind", "cleaned"),
    Bug("raw_momentum"),
    Bug("returned", "calibrated", "by_one_temperature"),
    Bug("returned", "checkpoint", "saved_state"),
    Bug("returned", "loop", "loop_alone"),
    Bug("returned", "loop_means", "loop_alone"),
    Bug("returned", "raw_average", "noisy_average"),
    Bug("returned", "saved", "saved_state"),
    Bug("returned", "standardised", "by_constants"),
    Bug("returned", "thresholds", "fixed_thresholds"),
    Bug("returned_beside"),
    Bug("returned_beside", "prototypes"),
    Bug("same_records", "best_epoch", "last_epoch"),
    Bug("same_records", "class_weights", "public_weights"),
    Bug("same_records", "copied", "copied_public"),
    Bug("same_records", "distilled", "distilled_public"),
    Bug("same_records", "early", "last_epoch"),
    Bug("same_records", "scaled", "by_constants"),
    Bug("same_records", "whole_batch", "whole_public_batch"),
    Bug("secret_size"),
    Bug("several_engines", "anew", "one_engine"),
    Bug("several_engines", "history", "one_engine"),
    Bug("several_engines", "one_of_two", "both"),
    Bug("shuffled"),
    Bug("skips_empty"),
    Bug("state", "hidden", "fresh"),
    Bug("state", "plateau", "step_by_step"),
    Bug("state", "residual", "no_residual"),
    Bug("state", "samples", "samples_alone"),
    Bug("state", "second_moment", "second_moment_of_noisy"),
    Bug("step_hook"),
    Bug("too_much_noise"),
    Bug("trainers", "jax_means", "jax_alone"),
    Bug("trainers", "lightning_best", "lightning_last"),
    Bug("trainers", "trainer_weights", "trainer_alone"),
    Bug("true_batch_size"),
    Bug("warm_up"),
    Bug("wrong_rate"),
    Bug("wrong_steps"),
)
HEAD = (
    "| script | verdict | found | trials | s | twin | its verdict | its trials | s |",
    "|---|---|---|---|---|---|---|---|---|",
)


@functools.cache
def audited(target: Target, options: Options) -> tuple[ScriptVerdict | str, float]:
    """The verdict, or why there is none, and processor seconds. Twins of several come once."""
    began = processor_seconds()
    verdict: ScriptVerdict | str
    try:
        verdict = Audit(target, LocalRunner(target), options, lambda _: None).verdict()
    except ScriptError as error:
        verdict = f"none: {error}"
    return verdict, processor_seconds() - began


def cells(judged: ScriptVerdict | str, seconds: float) -> list[str]:
    """Verdict, what says so, trials of all layers, and seconds."""
    if isinstance(judged, str):
        return [judged, "", "", ""]
    told = [item for item in judged.findings if item.weight is not Weight.NOTE]
    looks = dict.fromkeys(f"L{item.layer} {item.look}" for item in judged.violations or told)
    what = ", ".join(looks) + " (a warning)" * bool(looks and not judged.violations)
    counts = f"{judged.runs} / {judged.step_trials} / {judged.run_trials}"
    return [str(judged.verdict), what, counts, f"{seconds:.0f}"]


def row(bug: Bug, judged: list[str], twin: list[str]) -> str:
    """A line of the table, of the cells of both."""
    said = ", ".join(filter(None, twin[:2]))
    return "| " + " | ".join([bug.name, *judged, bug.twin, said, *twin[2:]]) + " |"


def right(bug: Bug, judged: ScriptVerdict | str, twin: ScriptVerdict | str) -> bool:
    """Returns whether the bug was reported, and nothing about its twin."""
    if isinstance(judged, str) or isinstance(twin, str) or twin.verdict is Verdict.VIOLATION:
        return False
    if bug.weight is None:
        return judged.verdict is not Verdict.VIOLATION
    return bug.weight in {item.weight for item in judged.findings}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m jobs.zoo.table", description=__doc__)
    parser.add_argument("names", nargs="*", help="bugs, as the table names them; else all")
    parser.add_argument("--budget", default="120s", help="for each audit")
    parser.add_argument("--layers", default="0,1,2", help="0 one run, 1 steps, 2 runs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    known = {bug.name: bug for bug in BUGS}
    if unknown := set(given.names) - set(known):
        parser.error(f"no bugs of the zoo: {', '.join(sorted(unknown))}; there are {list(known)}")
    print("trials: runs / steps that were trials / runs that were trials\n")
    print(*HEAD, sep="\n", flush=True)
    wrong = []
    layers = tuple(int(layer) for layer in given.layers.split(","))
    for bug in [known[name] for name in given.names] or BUGS:
        budget, size = parse_duration(given.budget), bug.secret_size
        options = Options(budget, layers, seed=given.seed, secret_size=size)
        judged, twin = (audited(bug.target(twin), options) for twin in (False, True))
        print(row(bug, cells(*judged), cells(*twin)), flush=True)
        if not right(bug, judged[0], twin[0]):
            wrong.append(bug.name)
    if wrong:
        sys.exit(f"not as it should be: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

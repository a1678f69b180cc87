"""Runs a script once under watch, in a separate process: `isolation` calls `run` there.

A run without canary ends with the same parameters, to the bit, as a run that is not watched.
"""

import hashlib
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import SpecError
from ..protocol import Claim, Draws, RunRequest, RunResult, StartedProcesses
from . import (
    opacus_engine,
    opacus_optimizers,
    other_updates,
    pinned_runs,
    preparation,
    publications,
    record_choice,
    release_functions,
    script_loading,
    shared_records,
    started_processes,
)
from .accountants import history_of, stated_epsilons
from .generators import seed_generators
from .hooks import around, calling_line, import_if_there, is_users
from .loaders import Indices, ReleaseKey, draw_counts
from .run_state import EnoughSeen, WatchedRun

_SAVING = (
    "torch.save",
    "numpy.save",
    "numpy.savez",
    "numpy.savez_compressed",
    "numpy.savetxt",
    "pickle.dump",
    "pickle.dumps",
    "joblib.dump",
    "safetensors.torch.save_file",
    "torch.jit.save",
)
_PACKAGES = ("torch", "opacus", "numpy", "jax", "tensorflow", "lightning", "transformers")
_FEW_COPIES = 0.02  # share of the records; also in public tables some thousandths are copies
_DELTAS = tuple(10.0**-k for k in range(1, 9))  # δ of the claimed curve, in addition to the claim's


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a script, or its function, under watch; returns the fields of a `RunResult`.

    Args:
        request: "script", "function" and "arguments" to run; "delta" of the claim, or None; number
            of "threads" of torch; path of the "record"; and the fields of the `RunRequest` under
            "request".

    Raises:
        SpecError: there is no such function, it needs arguments, or δ is not stated.
    """
    torch.set_num_threads(request["threads"])
    script = Path(request["script"])
    name = request["function"]
    state = WatchedRun(RunRequest(**request["request"]), Path(request["record"]))
    seed_generators(state.request.derived("start"))
    _install(state)
    release_functions.run = state
    main = script_loading.load(state, script, name, request["arguments"])
    state.phase = "main"
    returned = None
    has_ended = False
    try:
        returned = main()
        has_ended = True
    except EnoughSeen:
        pass
    except SystemExit as error:  # the normal end of click, Typer and absl
        if isinstance(error.code, (int, str)) and error.code != 0:
            raise
    state.accountants.note_gains(None)
    for watched in state.optimizers:
        watched.finish_pinned()
    # A whole file has no result that could be missing.
    returned_nothing = bool(name) and has_ended and returned is None
    if returned is None:  # at least the networks of a whole file count as published
        returned = [network.state_dict() for network in state.networks.modules]
    if state.request.pinned and not state.was_cut:
        publications.pin_publications(state, returned)
    state.phase = "after"
    delta = _delta(state, request["delta"])
    remarks = publications.remarks(state, returned) + state.publications.saved
    result = replace(
        _result(state, delta),
        leftovers=publications.leftovers(remarks),
        publishes_more=state.publications.more,
        returned_nothing=returned_nothing,
    )
    if state.request.inspects:
        result = replace(result, sources=_source_digests(script), versions=_versions())
    return asdict(result)


def _source_digests(script: Path) -> dict[str, str]:
    """Returns SHA-256 of the script and of loaded modules below its folder, by path from there."""
    folder = script.parent.resolve()
    files = {script.resolve()}
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str):
            continue
        file = Path(name).resolve()
        # An environment may be below the folder, too.
        if file.is_relative_to(folder) and "site-packages" not in file.parts and file.is_file():
            files.add(file)
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(files)
    }


def _versions() -> dict[str, str]:
    """Returns versions of Python and of the loaded packages of `_PACKAGES`."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions


def _delta(state: WatchedRun, option: float | None) -> float:
    """Returns δ of the claim: as stated, else of the script's last call for ε or for noise.

    Args:
        state: state of the run. The δ of a call is noted in its marks.
        option: δ that the user of the audit states; None for that of the script.

    Returns:
        The δ; NaN if none is known in a run that is not inspected.

    Raises:
        SpecError: an inspected run has no δ.
    """
    published = state.publications
    reports = state.accountants.reports
    delta_of_last_call = reports[-1][1].delta if reports else state.networks.delta
    if published.marks.delta is None:
        published.marks = replace(published.marks, delta=delta_of_last_call)
    stated = option or published.marks.delta
    if stated is None and state.request.inspects:
        raise SpecError(
            "--delta",
            "is missing, and the script neither uses @audited(delta=...) nor computes an ε; "
            "write --delta 1e-5",
        )
    return stated or math.nan


def _install(state: WatchedRun) -> None:
    """Begins to watch loaders, processes, engines, optimizers, seeds and saving."""
    state.loaders.install()
    started_processes.install(state)
    opacus_engine.install(state)
    opacus_optimizers.install(state)
    if state.request.pinned:
        pinned_runs.install(state)
    if state.request.follows:
        preparation.install(state)
    if state.request.inspects or (state.request.pinned and state.request.record is None):
        record_choice.install(state)

    def manual_seed(original: Any, seed: Any) -> Any:
        """Notes a constant seed of the script, and mixes it with the run's seed on request."""
        name = f"torch.manual_seed({seed})"
        state.seeded.add(name)
        state.note_line(name)
        if state.request.reseeds:
            seed = state.request.derived("constant", int(seed))
        return original(seed)

    is_saving = False  # whether a function that saves is running

    def save(original: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes what the script saves. Functions that save may call each other: these do not count.

        Args:
            original: the function that saves.
            args: arguments of the call.
            kwargs: keyword arguments of the call.
        """
        nonlocal is_saving
        # Libraries pickle values into memory that they do not publish.
        caller = sys._getframe(2).f_code.co_filename
        in_memory = original.__name__ == "dumps" and not is_users(caller)
        if is_saving or in_memory or state.phase != "main" or state.replaying:
            return original(*args, **kwargs)
        _note_saved(state, args, kwargs)
        is_saving = True
        try:
            return original(*args, **kwargs)
        finally:
            is_saving = False

    for function in _SAVING:
        owner, _, name = function.rpartition(".")
        if module := import_if_there(owner):
            around(module, name)(save)
    for module in (torch, torch.random):
        around(module, "manual_seed")(manual_seed)


def _note_saved(state: WatchedRun, args: Any, kwargs: Any) -> None:
    """Notes what a saved value carries.

    The value is the first argument that has parts to publish, or else the keyword arguments.

    Args:
        state: state of the run.
        args: arguments of the function that saves.
        kwargs: keyword arguments of the function that saves.
    """
    published = state.publications
    published.files += 1
    file = f"file {published.files} ({calling_line()}): "
    values = (a for a in args if not isinstance(a, str) and any(publications.named_values(a)))
    value = next(values, kwargs)
    if state.request.pinned:
        publications.pin_publications(state, value, file)
    published.saved += publications.remarks(state, value, file)


def _result(state: WatchedRun, delta: float) -> RunResult:
    """Returns the result of a run, except for what it publishes.

    Args:
        state: state of the run at its end.
        delta: δ of the claim.
    """
    inspects = state.request.inspects
    # Only the inspected run computes the claim, which takes a second and is the same in all runs.
    deltas = {*_DELTAS, delta} if inspects and not state.was_cut else ()
    streams = list(state.streams.values())
    draws = _draws(state)
    draws += filter(None, [stream.counted_draws() for stream in streams])
    trained = other_updates.trained_by_records(state) if inspects else ((), (), False)
    pretrained, networks, had_early_records = trained
    data = state.networks.data if inspects else ()
    return RunResult(
        made=len(state.networks.modules),
        steps=tuple(watched.steps for watched in (*state.optimizers, *streams)),
        claims=tuple(_claims(state, sorted(deltas, reverse=True), delta)),
        accounted=tuple(state.accountants.accounted),
        reported=state.accountants.numbered_reports(),
        answers=state.accountants.answers,
        draws=tuple(draws),
        unused=tuple(state.loaders.unused),
        beside=tuple(state.loaders.beside),
        uneven=tuple(state.uneven),
        pretrained=pretrained,
        other_networks=networks,
        had_early_records=had_early_records,
        tables=tuple(pinned_runs.table_digests(state.networks.data)),
        common_scale=max(map(shared_records.common_scale, data), default=""),
        has_norms=state.networks.has_norms,
        initial_statistics=tuple(state.networks.initial_statistics),
        outside_steps=other_updates.outside_steps(state),
        processes=tuple(StartedProcesses(*kind, count) for kind, count in state.processes.items()),
        seeded=tuple(sorted(state.seeded)),
        noise_seeds=tuple(state.noise_seeds),
        published=tuple(state.publications.pinned),
        chosen=state.pinned.chosen,
        chosen_as=state.pinned.chosen_as,
        copies=_copies(list(state.pinned.keys.values())),
        lines=state.lines,
        inspecting=state.clock.inspecting,
        waited=state.clock.waited,
        marks=state.publications.marks,
    )


def _copies(keys: list[Any]) -> int:
    """Counts records that equal another one; returns 0 for so few as are usual in public data.

    Args:
        keys: keys of the records; equal records have equal keys.
    """
    copies = len(keys) - len(set(keys))
    return copies if copies > _FEW_COPIES * len(keys) else 0


def _claims(
    state: WatchedRun,
    deltas: Sequence[float],
    delta: float,
) -> list[Claim]:
    """Returns the claims of the script's accountants, with the data that they are about.

    Args:
        state: state of the run.
        deltas: values of δ at which ε is computed.
        delta: δ of the claim, at which ε is computed first.
    """
    networks = state.networks
    groups = {}
    if state.request.inspects:
        numbers = shared_records.groups_by_records(networks.data, networks.accountants)
        groups = dict(zip(map(id, networks.accountants), numbers, strict=True))
    claims = []
    for accountant in state.accountants.claiming() or state.streams.values():
        claim = Claim(
            name=accountant.mechanism(),
            history=history_of(accountant),
            deltas=tuple(deltas),
            epsilons=stated_epsilons(accountant, deltas, delta),
            data=groups.get(id(accountant), 0),
            loaded=state.accountants.loaded.get(id(accountant), ()),
        )
        claims.append(claim)
    return claims


def _draws(state: WatchedRun) -> list[Draws]:
    """Counts draws of private data, for each data set and each rate that was accounted."""
    accounted = {(step.optimizer, step.step): step.rate for step in state.accountants.accounted}
    usual_rate = max((rate for _, rate, _ in state.accountants.history()), default=1.0)
    used = state.loaders.used
    private = set(map(id, state.networks.data or [draw.data for draw in used]))
    # Draws of each release, by data set. Keys of data sets are their identities.
    releases: dict[tuple[int, ReleaseKey], list[Indices]] = {}
    record_counts = {}
    # Records by index in a subset, as a record may be in it several times.
    record_numbers = {}
    for draw in used:
        key = id(draw.data)
        if key not in private:
            continue
        if key not in record_counts:
            _, rows = shared_records.base_and_rows(draw.data)
            record_counts[key] = len(draw.data)
            if rows is not None:
                record_numbers[key] = np.array(rows)
                record_counts[key] = len(set(rows))
        indices = draw.indices
        if key in record_numbers:
            indices = record_numbers[key][indices]
        releases.setdefault((key, draw.release), []).append(indices)
    groups: dict[tuple[int, float], list[Indices]] = {}
    for (key, release), parts in releases.items():  # a script may add up several draws
        rate = accounted.get(release, usual_rate)
        groups.setdefault((key, rate), []).append(np.concatenate(parts))
    return [draw_counts(draws, record_counts[key], rate) for (key, rate), draws in groups.items()]

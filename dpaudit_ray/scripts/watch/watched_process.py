"""Runs a script once under watch, in a separate process: `isolation` calls `run` there.

A run that carries no canary ends with the same parameters, to the bit, as one without watch.
"""

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ...errors import SpecError
from .. import protocol
from ..protocol import Claim, Draws, RunRequest, RunResult, StartedProcesses
from . import (
    opacus_engine,
    opacus_optimizers,
    other_updates,
    pinned_runs,
    publications,
    record_choice,
    release_functions,
    script_loading,
    shared_records,
    started_processes,
)
from .accountants import claims
from .generators import seed_generators
from .hooks import around, calling_line
from .loaders import Indices, draw_counts
from .run_state import EnoughSeen, WatchedRun

_SAVING = (("torch", "save"), ("numpy", "save"), ("numpy", "savez"), ("pickle", "dump"))
_DELTAS = tuple(10.0**-k for k in range(1, 9))  # at which the claim is computed, beside its own


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a script, or its function, under watch; returns the fields of a `RunResult`.

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
    state.clock.begin_training()
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
    state.accountants.settle(None)
    for watched in state.optimizers:
        watched.finish_pinned()
    pinned_runs.write_steps(state)
    returned_nothing = has_ended and bool(name) and returned is None
    if returned is None:  # a whole file publishes its networks, as far as that is known
        returned = [network.state_dict() for network in state.networks.modules]
    if state.request.pinned and not state.was_cut:
        publications.pin_publications(state, returned)
    state.phase = "after"
    seconds = state.clock.training
    remarks = publications.remarks(state, returned) + state.publications.saved
    result = replace(
        _result(state, _delta(state, request["delta"])),
        left=publications.leftovers(remarks),
        seconds=seconds,
        waited=state.clock.waited,
        returned_nothing=returned_nothing,
        marks=protocol.Marks(**asdict(state.publications.marks)),
    )
    return asdict(result)


def _delta(state: WatchedRun, option: float | None) -> float:
    """Returns δ of the claim: stated, or the last one that an accountant was asked for.

    Raises:
        SpecError: there is none in a run that is inspected.
    """
    published = state.publications
    reports = state.accountants.reports
    if published.marks.delta is None and reports:
        delta = reports[-1][1].delta
        published.marks = replace(published.marks, delta=delta)
    stated = option or published.marks.delta
    if stated is None and state.request.inspects:
        why = "is missing, and the script neither uses @audited(delta=...) nor asks for an ε"
        raise SpecError("--delta", f"{why}; write --delta 1e-5")
    return stated or math.nan


def _install(state: WatchedRun) -> None:
    state.loaders.install()
    started_processes.install(state)
    opacus_engine.install(state)
    opacus_optimizers.install(state)
    if state.request.inspects:
        other_updates.install(state)
    if state.request.pinned:
        pinned_runs.install(state)
    if state.request.inspects or (state.request.pinned and state.request.record is None):
        record_choice.install(state)

    def manual_seed(original: Any, seed: Any) -> Any:
        name = f"torch.manual_seed({seed})"
        state.seeded.add(name)
        state.note_line(name)
        reseeds = state.request.reseeds
        return original(state.request.derived("constant", int(seed)) if reseeds else seed)

    def save(original: Any, *args: Any, **kwargs: Any) -> Any:
        if state.phase == "main" and not state.replaying:
            _note_saved(state, args, kwargs)
        return original(*args, **kwargs)

    for owner, name in _SAVING:
        if owner in sys.modules:
            around(sys.modules[owner], name)(save)
    for module in (torch, torch.random):
        around(module, "manual_seed")(manual_seed)


def _note_saved(state: WatchedRun, args: Any, kwargs: Any) -> None:
    """Compares what is saved in a file, which is the argument that has tensors."""
    published = state.publications
    published.files += 1
    line = calling_line()
    file = f"file {published.files} ({line}): " if line else f"file {published.files}: "
    value = next((a for a in args if any(publications.named_values(a))), kwargs)
    if state.request.pinned:
        publications.pin_publications(state, value, file)
    published.saved += publications.remarks(state, value, file)


def _result(state: WatchedRun, delta: float) -> RunResult:
    """Returns what is known at a run's end: counts, claims, and draws."""
    # Other runs have the claim of the inspected one: computing it again takes a second.
    is_silent = state.was_cut or not state.request.inspects
    deltas = sorted(() if is_silent else {*_DELTAS, delta}, reverse=True)
    streams = list(state.streams.values())
    draws = _draws(state)
    for stream in streams:
        if stream.records:
            draws.append(Draws(stream.records, tuple(stream.sizes)))
    final = hashlib.blake2b(digest_size=16)
    for watched in state.optimizers:
        for p in watched.optimizer.params:
            final.update(p.detach().cpu().contiguous().numpy().tobytes())
    result = RunResult(
        made=len(state.networks.modules),
        steps=tuple(watched.steps for watched in (*state.optimizers, *streams)),
        claims=tuple(_claims(state, deltas, delta)),
        accounted=tuple(state.accountants.accounted),
        reported=state.accountants.numbered_reports(),
        answers=state.accountants.answers,
        moved=state.updates.between_steps,
        draws=tuple(draws),
        unused=tuple(state.loaders.unused),
        uneven=tuple(state.uneven),
        outside=other_updates.outside_steps(state),
        seeded=tuple(sorted(state.seeded)),
        processes=tuple(StartedProcesses(*kind, count) for kind, count in state.processes.items()),
        noise_seeds=tuple(state.noise_seeds),
        published=tuple(state.publications.pinned),
        chosen=state.pinned.chosen,
        chosen_as=state.pinned.chosen_as,
        last_record=state.pinned.last_record,
        lines=state.lines,
        final=final.hexdigest(),
        inspecting=state.clock.inspecting,
    )
    if not state.request.inspects:
        return result
    warmed, networks = other_updates.trained_by_records(state)
    columns = max(map(shared_records.standardised_columns, state.networks.data), default=0)
    return replace(result, warmed=warmed, beside=networks, standardised=columns)


def _claims(
    state: WatchedRun,
    deltas: Sequence[float],
    delta: float,
) -> list[Claim]:
    """Returns the claims of the script's accountants, with the data that they are about."""
    networks = state.networks
    groups: dict[int, int] = {}
    if state.request.inspects:
        numbers = shared_records.groups_by_records(networks.data, networks.accountants)
        groups = dict(zip(map(id, networks.accountants), numbers, strict=True))
    accountants = state.accountants.claiming() or list(state.streams.values())
    values = []
    for accountant, claim in zip(accountants, claims(accountants, deltas, delta), strict=True):
        key = id(accountant)
        loaded = state.accountants.loaded.get(key, ())
        values.append(replace(claim, data=groups.get(key, 0), loaded=loaded))
    return values


def _draws(state: WatchedRun) -> list[Draws]:
    """Counts the draws of each data set that were accounted at one rate."""
    accounted = {(a.optimizer, a.step): a.rate for a in state.accountants.accounted}
    usual = max((rate for _, rate, _ in state.accountants.history()), default=1.0)
    used = state.loaders.used
    private = set(map(id, state.networks.data or [draw.data for draw in used]))
    groups: dict[tuple[int, float], list[Indices]] = {}
    records = {}
    for draw in used:
        key = id(draw.data)
        if key in private:
            records[key] = len(draw.data)
            rate = accounted.get(draw.release, usual)
            groups.setdefault((key, rate), []).append(draw.indices)
    return [draw_counts(indices, records[key], rate) for (key, rate), indices in groups.items()]

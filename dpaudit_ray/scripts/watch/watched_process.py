"""Runs a script once under watch, in a separate process: `isolation` calls `run` there.

A run that carries no canary ends with the same parameters, to the bit, as one without watch.
"""

import dataclasses
import hashlib
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from ...errors import SpecError
from ...opacus import marks_of
from .. import protocol
from ..protocol import Claim, Draws, Process, RunRequest, RunResult
from . import (
    opacus_engine,
    opacus_optimizers,
    other_updates,
    pinned_runs,
    publications,
    record_choice,
    release_functions,
    shared_records,
)
from .accountants import claims
from .generators import seed_generators
from .hooks import around, calling_line
from .loaders import Indices, draw_counts
from .run_state import EnoughSeen, WatchedRun

_SAVING = (("torch", "save"), ("numpy", "save"), ("numpy", "savez"), ("pickle", "dump"))
_HELPERS = ("torch.utils.data", "multiprocessing", "concurrent")  # whose processes load data
_DELTAS = tuple(10.0**-k for k in range(1, 9))  # at which the claim is computed, beside its own


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the script's function under watch; returns the fields of a `RunResult`.

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
    main = _load(script, name)
    marks = marks_of(main)
    delta = request["delta"] or marks.delta
    if delta is None:
        why = f"is missing, and {name} in {script.name} is not marked with @audited(delta=...)"
        raise SpecError("--delta", f"{why}; give one of them")
    state.publications.public = marks.public
    state.phase = "main"
    state.clock.begin_training()
    returned = None
    has_ended = False
    try:
        # A command of click parses no arguments, and returns what its function does.
        is_command = callable(getattr(main, "callback", None))
        returned = main(args=[], standalone_mode=False) if is_command else main()
        has_ended = True
    except EnoughSeen:
        pass
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    state.accountants.settle(None)
    for watched in state.optimizers:
        watched.finish_pinned()
    pinned_runs.write_steps(state)
    if state.request.pinned and not state.was_cut:
        publications.pin_publications(state, returned)
    state.phase = "after"
    seconds = state.clock.training
    remarks = publications.remarks(state, returned) + state.publications.saved
    result = dataclasses.replace(
        _result(state, delta),
        left=publications.leftovers(remarks),
        seconds=seconds,
        waited=state.clock.waited,
        returned_nothing=has_ended and returned is None,
        marks=protocol.Marks(**dataclasses.asdict(marks)),
    )
    return dataclasses.asdict(result)


def _install(state: WatchedRun) -> None:
    state.loaders.install()
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

    @around(BaseProcess, "start")
    def start(original: Any, process: Any) -> None:
        module = getattr(process._target, "__module__", "")
        if state.phase == "main" and not module.startswith(_HELPERS):
            state.put(Process(started_by=module))
        original(process)

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


def _load(script: Path, name: str) -> Any:
    """The function, of the script imported under its own name, or of a notebook's code cells."""
    sys.argv = [str(script)]  # as when it is run by itself, without arguments
    parts, root = [script.stem], script.parent
    while (root / "__init__.py").exists():  # it may import what lies beside it as its package
        parts, root = [root.name, *parts], root.parent
    sys.path[:0] = [str(script.parent), str(root), str(Path.cwd())]
    try:
        notebook = script.suffix == ".ipynb"
        module = _run_notebook(script) if notebook else importlib.import_module(".".join(parts))
    except SyntaxError as error:
        raise SpecError("", f"{script.name} is no Python script: {error}") from error
    if Path(str(module.__file__)).resolve() != script:
        why = f"{script.name} has the name of another module, {module.__file__}; rename it"
        raise SpecError("", why)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        listed = ", ".join(functions[:8]) or "none"
        raise SpecError("", f"{script.name} has no function {name!r}; it has {listed}")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        why = f"{name} in {script.name} needs arguments ({error}); give them defaults"
        raise SpecError("", why) from error
    return function


def _run_notebook(file: Path) -> types.ModuleType:
    """A module of all code cells; what is for IPython, such as `%matplotlib`, does nothing."""
    module = sys.modules[file.name] = types.ModuleType(file.name)
    module.__file__ = str(file)
    for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"], 1):
        if cell["cell_type"] == "code":
            text = re.sub(r"^(\s*)[%!].*", r"\1pass", "".join(cell["source"]), flags=re.MULTILINE)
            exec(compile(text, f"{file}, cell {number}", "exec"), vars(module))
    return module


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
    return dataclasses.replace(result, warmed=warmed, beside=networks, standardised=columns)


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
        values.append(dataclasses.replace(claim, data=groups.get(key, 0), loaded=loaded))
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

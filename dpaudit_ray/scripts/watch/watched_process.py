"""One run of a script in a process of its own: the function that `isolation` calls there.

A run that carries no canary ends with the same parameters, to the bit, as one nobody watches.
"""

import collections
import dataclasses
import hashlib
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from ...errors import SpecError
from . import (
    held_runs,
    opacus_engine,
    opacus_optimizers,
    release_functions,
    script_loading,
    shared_records,
    started_processes,
)
from .run_state import EnoughSeen, RunRequest, WatchedRun, around, calling_line, draw_counts
from .step_probe import digest, has_numbers, sample_digest, seed_generators

_SAVING = (("torch", "save"), ("numpy", "save"), ("numpy", "savez"), ("pickle", "dump"))
_DELTAS = tuple(10.0**-k for k in range(1, 9))  # at which the claim is asked for, beside its own


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a script, or its function, under watch; the result's keys are those of `_result`.

    Raises SpecError where there is no such function, or it needs arguments, or nothing tells δ.
    """
    torch.set_num_threads(request["threads"])
    script, name = Path(request["script"]), request["function"]
    state = WatchedRun(RunRequest(**request["request"]), Path(request["record"]))
    seed_generators(state.request.derived("start"))
    _install(state)
    release_functions.run = state
    main = script_loading.load(state, script, name, request["arguments"])
    state.phase, state.began = "main", time.monotonic()
    returned = None
    try:
        returned = main()
    except EnoughSeen:
        pass
    except SystemExit as error:  # the normal end of click, Typer and absl
        if isinstance(error.code, (int, str)) and error.code != 0:
            raise
    state.settle(None)
    if returned is None:  # a whole file publishes its networks, as far as that is known
        returned = [network.state_dict() for network in state.modules]
    if state.request.held and not state.cut:
        held_runs.publish_all(state, returned)
    state.phase, seconds = "after", time.monotonic() - state.began
    result = _result(state, _delta(state, request["delta"])) | {"left": _left(state, returned)}
    for kind, names in state.saved.items():
        result["left"][kind] = [*result["left"].get(kind, ()), *names]
    return result | {"seconds": seconds, "marks": dataclasses.asdict(state.marks)}


def _delta(state: WatchedRun, option: float | None) -> float:
    """Returns δ of the claim, and notes it in the marks: the last one that an engine was asked for.

    Raises SpecError where there is none, but not in runs that are not inspected.
    """
    if state.marks.delta is None and state.reported:
        state.marks = dataclasses.replace(state.marks, delta=state.reported[-1][0])
    delta = option or state.marks.delta
    if delta is None and state.request.looks:
        why = "is missing, and the script neither uses @audited(delta=...) nor asks for an ε"
        raise SpecError("--delta", f"{why}; write --delta 1e-5")
    return delta or math.nan


def _install(state: WatchedRun) -> None:
    state.loaders.install()
    started_processes.install(state)
    opacus_engine.install(state)
    opacus_optimizers.install(state)
    if state.request.looks:
        shared_records.install(state)
    if state.request.held:
        held_runs.install(state)

    def manual_seed(original: Any, seed: Any) -> Any:
        state.seeded.append(("torch.manual_seed", int(seed)))
        state.note_line(f"torch.manual_seed({seed})")
        reseeds = state.request.reseeds
        return original(state.request.derived("constant", int(seed)) if reseeds else seed)

    def save(original: Any, *args: Any, **kwargs: Any) -> Any:
        if state.phase == "main" and not state.replaying:
            state.files += 1
            line = calling_line()
            file = f"file {state.files}{f' ({line})' * bool(line)}: "
            value = next((a for a in args if any(opacus_engine.named_tensors(a))), kwargs)
            if state.request.held:
                held_runs.publish_all(state, value, file)
            for kind, names in _left(state, value, file).items():
                state.saved.setdefault(kind, []).extend(names)
        return original(*args, **kwargs)

    for owner, name in _SAVING:
        if owner in sys.modules:
            around(sys.modules[owner], name)(save)
    for module in (torch, torch.random):
        around(module, "manual_seed")(manual_seed)


def _result(state: WatchedRun, delta: float) -> dict[str, Any]:
    """What is known at a run's end, as plain JSON: counts, claims, and draws."""
    # Other runs have the claim of the one looked into: asking for it again takes a second.
    silent = state.cut or not state.request.looks
    deltas = sorted(() if silent else {*_DELTAS, delta}, reverse=True)
    streams = list(state.streams.values())
    params = [p for watched in state.optimizers for p in watched.optimizer.params]
    final = b"".join(p.detach().cpu().contiguous().numpy().tobytes() for p in params)
    return {
        "made": len(state.modules),
        "steps": [watched.steps for watched in (*state.optimizers, *streams)],
        "claims": opacus_engine.claims(state.claiming_accountants() or streams, deltas, delta),
        "accounted": state.accounted,
        "reported": state.reported,
        "answers": state.answers,
        "moved": state.moved,
        "draws": [
            *_draws(state),
            *({"records": s.records, "sizes": s.sizes} for s in streams if s.records),
        ],
        "unused": state.loaders.skipped,
        "uneven": state.uneven,
        **shared_records.elsewhere(state),
        "outside": [{"key": list(key), "steps": n} for key, n in state.outside.items()],
        "seeded": sorted(set(state.seeded)),
        "generators": state.noise_seeds,
        "processes": [[*process, count] for process, count in state.processes.items()],
        "published": state.published,
        "chosen": state.chosen,
        "lines": state.lines,
        "final": hashlib.blake2b(final, digest_size=16).hexdigest(),
        "watching": state.spent,
    }


def _draws(state: WatchedRun) -> list[dict[str, Any]]:
    """Counts of the draws of each data set that were accounted at one rate."""
    accounted = {(number, step): rate for number, step, _, rate in state.accounted}
    usual = max((rate for _, rate, _ in state.history()), default=1.0)
    watched = {id(data) for data in state.data or [data for data, _, _ in state.loaders.taken]}
    groups: dict[tuple[int, float], list[Any]] = {}
    records = {}
    for data, indices, release in state.loaders.taken:
        if id(data) in watched:
            records[id(data)] = len(data)
            groups.setdefault((id(data), accounted.get(release, usual)), []).append(indices)
    return [
        draw_counts(taken, records[key], rate) | {"rate": rate}
        for (key, rate), taken in groups.items()
    ]


def _left(state: WatchedRun, value: Any, file: str = "") -> dict[str, list[str]]:
    """Names of tensors of what is returned, or saved in a file, that carry more than releases.

    `gradients`: a gradient that was never released, `others`: one of a parameter of no private
    network, `examples`: gradients of single records, `saved` in a file; `outside`: another
    optimizer updated it once there was a private one; `earlier`: it was private after an earlier
    step; `statistics`: of the records; `tensors`: it is neither a private parameter nor what some
    network had before. The last four leave out what is `public`.
    """
    left = collections.defaultdict[str, list[str]](list)
    if not state.request.looks:
        return left
    released = {}
    for watched in state.optimizers:
        for p, values in zip(watched.optimizer.params, watched.last or [], strict=False):
            released[id(p)] = torch.from_numpy(values)
    trained = [p for module in state.modules for p in module.parameters() if p.requires_grad]
    trained += [p for watched in state.optimizers for p in watched.optimizer.params]
    private = {id(p) for p in trained}
    inner = [list(w.optimizer.original_optimizer.state.values()) for w in state.optimizers]
    trained += filter(has_numbers, tree_flatten(inner)[0])  # of private gradients, as parameters
    before = opacus_engine.digests_of_all_networks() if file and not state.steps else state.before
    explained = before | {digest(p) for p in trained}
    shapes = collections.Counter(x for s in state.streams.values() for x in s.released_shapes)
    spare = shapes.copy()
    for key, kind, p in opacus_engine.named_tensors(value):
        name = file + key
        if not file and p.grad is not None and bool(p.grad.any()):
            values = released.get(id(p))
            gradient = p.grad.detach().cpu().double().reshape(-1)
            if values is None or not torch.equal(gradient.nan_to_num(), values.nan_to_num()):
                left["gradients" if id(p) in private else "others"].append(name)
        if getattr(p, "grad_sample", None) is not None:
            left["saved" if file else "examples"].append(name)
        if state.is_public(key, kind):
            continue
        watched, step = state.versions.get(sample_digest(p), (None, 0))
        if id(p) in state.stepped:
            left["outside"].append(name)
        elif watched is not None and step < watched.steps:
            left["earlier"].append(f"{name} of step {step} of {watched.steps}")
        elif id(p) not in private and shared_records.is_statistic(p, state.data):
            left["statistics"].append(name)
        elif digest(p) not in explained:
            if not state.modules and spare[tuple(p.shape)] > 0:
                spare[tuple(p.shape)] -= 1
            else:
                left["tensors"].append(name)
    if state.streams and spare == shapes:
        left["tensors"].clear()  # releases are of other shapes than what is returned
    return left

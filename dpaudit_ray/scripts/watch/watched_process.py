"""One run of a script in a process of its own: the function that `isolation` calls there.

What was seen on the way is in the record's lines. A run that carries no canary ends with the same
parameters, to the bit, as one that nobody watches.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import importlib
import inspect
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ...errors import SpecError
from ...opacus import marks_of
from . import opacus_engine, opacus_optimizers, release_functions
from .run_state import EnoughSeen, RunRequest, WatchedRun, around, draw_counts
from .step_probe import digest, seed_generators

_DELTAS = tuple(10.0**-k for k in range(1, 9))  # at which the claim is asked for, beside its own


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the script's function under watch; the result's keys are those of `_result`.

    Raises SpecError where there is no such function, or it needs arguments, or nothing tells δ.
    """
    torch.set_num_threads(request["threads"])
    script, name = Path(request["script"]), request["function"]
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
    state.phase, state.began = "main", time.monotonic()
    returned = None
    try:
        # A command of click parses no arguments, and returns what its function does.
        command = callable(getattr(main, "callback", None))
        returned = main(args=[], standalone_mode=False) if command else main()
    except EnoughSeen:
        pass
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    state.settle(None)
    state.phase, seconds = "after", time.monotonic() - state.began
    result = _result(state, delta) | {"left": _left(state, returned, marks.public)}
    return result | {"seconds": seconds, "marks": dataclasses.asdict(marks)}


def _install(state: WatchedRun) -> None:
    state.loaders.install()
    opacus_engine.install(state)
    opacus_optimizers.install(state)

    def manual_seed(original: Any, seed: Any) -> Any:
        state.seeded.append(("torch.manual_seed", int(seed)))
        reseeds = state.request.reseeds
        return original(state.request.derived("constant", int(seed)) if reseeds else seed)

    for module in (torch, torch.random):
        around(module, "manual_seed")(manual_seed)


def _load(script: Path, name: str) -> Any:
    """The function, of the script imported under its own name, as `import` would."""
    sys.argv = [str(script)]  # as when it is run by itself, without arguments
    parts, root = [script.stem], script.parent
    while (root / "__init__.py").exists():  # it may import what lies beside it as its package
        parts, root = [root.name, *parts], root.parent
    sys.path[:0] = [str(script.parent), str(root), str(Path.cwd())]
    try:
        module = importlib.import_module(".".join(parts))
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


def _result(state: WatchedRun, delta: float) -> dict[str, Any]:
    """What is known at a run's end, as plain JSON: counts, claims, and draws."""
    # Runs with canaries have the claim of the run without: asking for it again takes a second.
    silent = state.request.canary or state.cut
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
        "moved": state.moved,
        "draws": [
            *_draws(state),
            *({"records": s.records, "sizes": s.sizes} for s in streams if s.records),
        ],
        "unused": state.loaders.skipped,
        "fewer": state.fewer,
        "warmed": state.warmed_up(),
        "outside": [{"key": list(key), "steps": n} for key, n in state.outside.items()],
        "seeded": sorted(set(state.seeded)),
        "generators": state.noise_seeds,
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


def _left(state: WatchedRun, returned: Any, public: tuple[str, ...]) -> dict[str, list[str]]:
    """Names of tensors of the returned networks that carry more than what was released.

    `gradients`: a gradient that was never released, `others`: one of a parameter of no private
    network, `examples`: gradients of single records; `outside`: another optimizer updated it once
    there was a private one; `tensors`: it is neither a private parameter nor what some network had
    before. The last two leave out what is `public`.
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
    explained = state.before | {digest(p) for p in trained}
    for name, kind, p in opacus_engine.named_tensors(returned):
        if p.grad is not None and bool(p.grad.any()):
            values = released.get(id(p))
            gradient = p.grad.detach().cpu().double().reshape(-1)
            if values is None or not torch.equal(gradient.nan_to_num(), values.nan_to_num()):
                left["gradients" if id(p) in private else "others"].append(name)
        if getattr(p, "grad_sample", None) is not None:
            left["examples"].append(name)
        if any(kind == entry or f"{name}.".startswith(f"{entry}.") for entry in public):
            continue
        if id(p) in state.stepped:
            left["outside"].append(name)
        elif state.modules and digest(p) not in explained:
            left["tensors"].append(name)
    return left

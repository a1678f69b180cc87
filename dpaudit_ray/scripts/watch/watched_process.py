"""One run of a script, in a process of its own: called by `isolation` with what is asked.

    run({"script": path, "function": name, "record": path, "asked": {...}})

Returns what is known at its end; what was seen on the way is in the record's lines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...errors import SpecError
from .. import marks
from . import generators, loaders, modules, opacus_engine, opacus_optimizers, release_functions
from .recorder import Recorder
from .run_state import Asked, Enough, Run

DELTAS = tuple(10.0**-k for k in range(1, 9))  # at which the claim is asked for, beside its own


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the script's function under watch.

    Raises:
        SpecError: there is no such function, or it needs arguments.
    """
    if "threads" in request:
        torch.set_num_threads(int(request["threads"]))
    recorder = Recorder(Path(request["record"]))
    state = Run(Asked(**request["asked"]), recorder)
    generators.seed(state.asked.derived("start"))
    _install(state)
    with release_functions.watching(state):
        main = _found(Path(request["script"]), request["function"])
        options = marks.of(main)
        if options.delta is None and request.get("delta") is None:
            raise SpecError(
                "--delta",
                f"is missing, and {request['function']} in {Path(request['script']).name} is not "
                "marked with @audited(delta=...); give one of them",
            )
        state.phase, state.began = "main", time.monotonic()
        result, ended = None, "returned"
        try:
            result = main()
        except Enough:
            ended = "enough"
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        state.settle(None)
        seconds = time.monotonic() - state.began
    return _told(state, result, options.delta or request.get("delta")) | {
        "ended": ended, "seconds": seconds, "options": dataclasses.asdict(options),
    }  # fmt: skip


def _install(state: Run) -> None:
    state.loaders.install()
    opacus_engine.install(state)
    opacus_optimizers.install(state)
    modules.install(state)
    seeding = torch.manual_seed

    def seeded(seed: Any) -> Any:
        state.seeded.append(("torch.manual_seed", int(seed)))
        mixed = state.asked.derived("constant", int(seed)) if state.asked.reseeds else seed
        return seeding(mixed)

    torch.manual_seed = seeded
    torch.random.manual_seed = seeded


def _found(script: Path, name: str) -> Any:
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
        raise SpecError(
            "", f"{script.name} has the name of another module, {module.__file__}; rename it"
        )
    found = getattr(module, name, None)
    if not callable(found):
        own = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        listed = ", ".join(own[:8]) or "none"
        raise SpecError("", f"{script.name} has no function {name!r}; it has {listed}")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        kind = "is async" if inspect.iscoroutinefunction(found) else "is a generator"
        raise SpecError("", f"{name} in {script.name} {kind}; wrap it in a plain function")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise SpecError(
            "",
            f"{name} in {script.name} needs arguments ({error}); give them defaults, or wrap it in "
            "a function without",
        ) from error
    return found


def _told(state: Run, result: Any, delta: float | None) -> dict[str, Any]:
    # Runs with canaries have the claim of the run without: asking for it again takes a second.
    asked = () if state.asked.canary else {*DELTAS, *([delta] if delta else [])}
    deltas = sorted(asked, reverse=True)
    draws = _draws(state)
    for stream in state.streams.by_name.values():
        if stream.records:
            draws.append({"records": stream.records, "sizes": stream.sizes})
    claimed = opacus_engine.claims(state, deltas, delta)
    return {
        "made": state.made,
        "steps": [one.steps for one in state.optimizers] + release_functions.steps(state),
        "claims": claimed or release_functions.claims(state, deltas),
        "accounted": state.accounted,
        "moved": state.moved,
        "draws": draws,
        "unused": state.loaders.skipped,
        "outside": [{"key": list(key), "steps": n} for key, n in state.outside.items()],
        "seeded": sorted(set(state.seeded)),
        "generators": state.noise_seeds,
        "left": _left(state, result),
        "final": _final(state),
        "watching": state.spent,
    }  # fmt: skip


def _draws(state: Run) -> list[dict[str, Any]]:
    """Draws of each data set that were accounted at one rate."""
    accounted = {(number, step): rate for number, step, _, rate in state.accounted}
    rates = [rate for _, rate, _ in state.history()]
    usual = max(rates, default=1.0)
    groups: dict[tuple[int, float], list[Any]] = {}
    data = {}
    known = state.data or [one for one, _, _ in state.loaders.taken]
    for own, indices, release in state.loaders.taken:
        if any(own is one for one in known):
            data[id(own)] = own
            groups.setdefault((id(own), accounted.get(release, usual)), []).append(indices)
    return [
        loaders.summary(taken, len(data[key]), rate) | {"rate": rate}
        for (key, rate), taken in groups.items()
    ]


def _final(state: Run) -> str:
    """A digest of the parameters that the optimizers ended with."""
    digest = hashlib.blake2b(digest_size=16)
    for one in state.optimizers:
        for p in one.optimizer.params:
            digest.update(p.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _left(state: Run, result: Any) -> dict[str, list[str]]:
    """What the returned networks carry beside parameters: gradients that were never released.

    `others`: gradients of parameters that are of no private network; `outside`: parameters that
    another optimizer updated once there was a private one.
    """
    found: dict[str, list[str]] = {"gradients": [], "examples": [], "others": [], "outside": []}
    if not state.asked.looks:
        return found
    released = {}
    for one in state.optimizers:
        for p, values in zip(one.optimizer.params, one.last or [], strict=False):
            released[id(p)] = torch.from_numpy(values)
    private = {id(p) for module in state.modules for p in module.parameters()} | set(released)
    for module in _networks(result):
        for raw, p in module.named_parameters():
            name = raw.removeprefix("_module.")
            if p.grad is not None and bool(p.grad.any()):
                values = released.get(id(p))
                own = p.grad.detach().cpu().double().reshape(-1)
                if values is None or not torch.equal(own.nan_to_num(), values.nan_to_num()):
                    found["gradients" if id(p) in private else "others"].append(name)
            if getattr(p, "grad_sample", None) is not None:
                found["examples"].append(name)
            if id(p) in state.stepped:
                found["outside"].append(name)
    return found


def _networks(result: Any) -> Iterator[torch.nn.Module]:
    parts = result if isinstance(result, (list, tuple)) else [result]
    parts = list(result.values()) if isinstance(result, dict) else parts
    yield from (one for one in parts if isinstance(one, torch.nn.Module))

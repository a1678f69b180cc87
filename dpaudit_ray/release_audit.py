"""Audits a function that promises privacy, in one call: `dpaudit_ray.audit`."""

import contextlib
import hashlib
import inspect
import math
import pickle
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import imports
from .accounting.claim import Claim, from_fields
from .adversaries.learned import CLOSER, CLOSER_RUNS
from .api import run
from .errors import SpecError
from .mechanisms.release.mechanism import Release
from .mechanisms.release.pairs import named_pairs
from .plugins import validated
from .result import Result
from .sweep.cell import digest

_UNITS = {"s": 1, "min": 60, "h": 3600}
_TRIALS = (1000, 10_000_000)  # fewest and most of a budget
_LONG_ENOUGH = 0.1  # seconds; a shorter call does not measure the time of an output well
_MOST_AT_ONCE = 100_000  # outputs of a call whose time is measured
_SCORING_SECONDS = 2e-5  # scoring an output and judging its trial take this long
_SHARE = 0.5  # share of a budget for trials; the rest is for learning, starting and judging
# Runs to learn from: a tenth of the trials, within these bounds.
_FIT = 200_000
_LARGEST_FIT = 1_000_000
# Runs for each pair of inputs: a tenth of the trials at most. Where ε is small, fewer rank pairs by
# luck: at ε = 0.09 a run tells 0.0003 nats, which 20,000 runs measure to 0.0005.
_LARGEST_SEARCH = 400_000
# Runs, for each trial, that are drawn to learn again from those of which the adversary is surest:
# with a known number of trials, and within a budget. Audits of no more than _LARGEST_FIT trials
# draw no such runs.
_DRAWN_PER_TRIAL = 1.5
_DRAWN_PER_TRIAL_IN_BUDGET = 0.25
_RARE_EVENTS = 100  # runs of a search in which events as rare as δ occur
_FITTED_PER_SECOND = 5000  # runs to learn from, for each second of the budget
_DEEPEST = 4  # functions that call each other, whose values count
_LONGEST_NAME = 80  # characters of a function's name, in that of its folder
_DEFAULT_DELTA = 1e-6  # δ for claims that promise no ε at δ = 0


def audit(  # noqa: PLR0913 (one call does it all; rare arguments go by name)
    release: Callable[..., Any],
    *,
    pairs: Sequence[Any] | Mapping[str, Any],
    claim: Claim | Mapping[str, Any],
    adversary: str | Mapping[str, Any] | Callable[..., Any] = "learned",
    budget: str | float = "1min",
    trials: int | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    storage_path: str | Path = "runs",
) -> Result:
    """Audits a function that promises to keep each record private.

    The run is stored like any other. The same call again returns it, or resumes it.

    Args:
        release: called with data, a `numpy.random.Generator` and n; returns n independent outputs.
        pairs: a list of pairs of neighbouring inputs; or `{"vectors": 5}` for patterns of query
            answers; or `{"table": function}` for neighbours of the table that it returns.
        claim: what is promised, such as `Claim(epsilon=1)` or `{"rho": 0.1}`.
        adversary: `learned`, its options, or a function of n outputs and the pair that returns
            scores, higher for the second input.
        budget: seconds of this process, or text such as `90s`, `5min` or `1h`, from which the
            number of trials follows.
        trials: that number, if it is known.
        delta: δ of claim and bound; None for that of the claim.
        confidence: level of the bound.
        seed: seed of secret bits and noise.
        storage_path: folder or address; results go to a folder there that is named by the call.

    Returns:
        The run, with its verdict and answer.

    Raises:
        DpauditError: one line for the user.
        ValueError: the claim has an unknown field, or one out of its bounds.
    """
    promised = from_fields(claim)
    if callable(adversary):
        adversary = {"name": "log-ratio", "path": imports.lend(adversary, _version(adversary))}
    elif isinstance(adversary, str):
        adversary = {"name": adversary}
    mechanism = {
        "name": "release",
        "path": imports.lend(release, _version(release)),
        "pairs": _lent_pairs(pairs),
        "claim": promised.as_fields(),
    }
    settings = dict(adversary)
    largest_fit = _LARGEST_FIT
    drawn_per_trial = _DRAWN_PER_TRIAL
    if trials is None:
        seconds = _seconds(budget)
        trials = _affordable(release, mechanism, seconds)
        largest_fit = min(largest_fit, int(seconds * _FITTED_PER_SECOND))
        drawn_per_trial = _DRAWN_PER_TRIAL_IN_BUDGET
    if delta is None:
        delta = getattr(promised, "delta", None)
    if delta is None:
        is_pure = np.isfinite(promised.epsilon_at(0.0))
        delta = 0.0 if is_pure else _DEFAULT_DELTA
    if settings["name"] == "learned":
        for option, value in _learner_options(trials, delta, largest_fit, drawn_per_trial).items():
            settings.setdefault(option, value)
    sweep = {
        "seed": seed,
        "mechanism": mechanism,
        "adversary": settings,
        "audit": {"trials": trials, "delta": delta, "confidence": confidence},
    }
    name = re.sub(r"[^A-Za-z0-9_]+", "-", getattr(release, "__name__", ""))[:_LONGEST_NAME]
    name = name.strip("-_") or "release"
    named_sweep = {"name": f"{name}-{digest(sweep)[:8]}", **sweep}
    return run(named_sweep, storage_path, executor="inline")


def _learner_options(
    trials: int, delta: float, largest_fit: int, drawn_per_trial: float
) -> dict[str, int]:
    """Returns options of the learned adversary that suit the number of trials.

    Args:
        trials: number of trials of the audit.
        delta: δ of claim and bound.
        largest_fit: most runs to learn from.
        drawn_per_trial: runs, for each trial, that are drawn to learn again from the surest.
    """
    fit = min(largest_fit, trials, max(_FIT, trials // 10))
    search = min(trials // 10, _LARGEST_SEARCH)
    if delta > 0:  # events of a few times δ must be frequent among these runs
        search = max(search, int(min(_RARE_EVENTS / delta, _FIT / 2, trials)))
    options = {"fit": max(fit, 100), "search": max(search, 100)}
    if trials > _LARGEST_FIT:
        most_drawn = max(drawn_per_trial * trials, CLOSER_RUNS)
        # Each round of learning again takes CLOSER times as many runs as the one before.
        options["zoom"] = int(math.log(most_drawn / CLOSER_RUNS, CLOSER))
    return options


def _version(value: Any, depth: int = 0) -> str:
    """Returns a digest of a value. That of a function changes if it would compute something else.

    A function's digest is of its source, its defaults, and the values that it reads from outside:
    another closure of the same source computes something else.

    Args:
        value: a function, a module or data.
        depth: number of functions that lead to this one by what they read.
    """
    parts = []
    if inspect.isfunction(value) and depth < _DEEPEST:
        outside = inspect.getclosurevars(value)
        outside_values = {**outside.globals, **outside.nonlocals, **(value.__kwdefaults__ or {})}
        for name, item in [*sorted(outside_values.items()), ("defaults", value.__defaults__)]:
            parts.append(f"{name} {_version(item, depth + 1)}")
        try:
            parts.append(inspect.getsource(value))
        except OSError:  # a function that was typed at a prompt has no source
            parts += [value.__code__.co_code.hex(), repr(value.__code__.co_consts)]
    elif inspect.ismodule(value):
        parts.append(value.__name__)
    else:
        try:
            parts.append(pickle.dumps(value).hex())
        except Exception:  # noqa: BLE001 (boundary to a user's object, which may raise anything)
            parts.append(repr(value))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _lent_pairs(pairs: Sequence[Any] | Mapping[str, Any]) -> Any:
    """Returns pairs as a sweep file names them, with import paths in place of functions."""
    if not isinstance(pairs, Mapping):
        return imports.lend(lambda: list(pairs), f"pairs_{_version(pairs)}")
    named = dict(pairs)
    table = named.get("table")
    if callable(table):
        named["table"] = imports.lend(table, _version(table))
    return named


def _seconds(budget: str | float) -> float:
    """Returns a budget in seconds. Raises SpecError for anything else."""
    match = re.fullmatch(r"\s*([\d.]+)\s*(s|min|h)?\s*", str(budget))
    try:
        amount = float(match[1]) if match else 0.0
    except ValueError:
        amount = 0.0
    if match is None or not 0 < amount < float("inf"):
        problem = f"must be seconds or text such as 90s, 5min or 1h, got {budget!r}"
        raise SpecError("budget", problem)
    return amount * _UNITS[match[2] or "s"]


def _affordable(
    release: Callable[..., Any],
    mechanism: Mapping[str, Any],
    seconds: float,
) -> int:
    """Returns the trials that a budget allows, to one digit, by timing calls of `release`.

    Args:
        release: the user's function.
        mechanism: options of the mechanism, for its pairs of inputs.
        seconds: the budget.
    """
    source = validated(Release, mechanism, "mechanism").pairs
    _, (data, _) = named_pairs(source)[0]
    rng = np.random.default_rng(0)
    outputs = 1
    while True:
        started = time.perf_counter()
        with contextlib.suppress(Exception):  # an error of the user's function is an output
            release(data, rng, outputs)
        call_seconds = time.perf_counter() - started
        if call_seconds > _LONG_ENOUGH or outputs >= _MOST_AT_ONCE:
            break
        outputs = min(4 * outputs, _MOST_AT_ONCE)
    trial_seconds = call_seconds / outputs + _SCORING_SECONDS
    fewest, most = _TRIALS
    trials = min(max(int(_SHARE * seconds / trial_seconds), fewest), most)
    # The first digit stays: 47,311 becomes 40,000.
    magnitude: int = 10 ** (len(str(trials)) - 1)
    return trials // magnitude * magnitude

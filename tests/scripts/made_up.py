"""Made-up entries and results of runs, as a watched run writes them, for tests of checks."""

import dataclasses
from typing import Any

import numpy as np

from dpaudit_ray.scripts import checks
from dpaudit_ray.scripts.checks import Inspection
from dpaudit_ray.scripts.protocol import (
    EMPTY,
    Claim,
    Entry,
    ForwardInspection,
    RunResult,
    Shift,
    StepInspection,
)
from dpaudit_ray.scripts.script_findings import Finding, Judgement, Weight

DELTA = 1e-5
# 100 steps without sampling at a noise multiplier of 1.
CLAIM = Claim("prv", ((1.0, 1.0, 100),), (DELTA,), (1.0,))
RESULT = RunResult(made=1, steps=(100,), claims=(CLAIM,))
APART = ForwardInspection()
NEAR = "a gradient just within the clipping bound"


def claim(*history: tuple[float, float, int], **fields: Any) -> Claim:
    """A claim of one ε at DELTA."""
    return dataclasses.replace(CLAIM, history=history, **fields)


def result(**fields: Any) -> RunResult:
    return dataclasses.replace(RESULT, **fields)


def left(**names: tuple[str, ...]) -> dict[str, list[str]]:
    return {kind: list(values) for kind, values in names.items()}


def step(
    noise: float = 1.0,
    size: int = 100_000,
    seed: int = 0,
    empty: tuple[float, ...] = (),
    **fields: Any,
) -> StepInspection:
    """A step of one tensor whose noise has this standard deviation; 1 is accounted."""
    rng = np.random.default_rng(seed)
    draws = int(np.clip(-(-20_000 // size), 4, 64))
    square = noise**2 * float(rng.chisquare((draws - 1) * size))
    values: dict[str, Any] = {
        "step": 0, "optimizer": 0, "names": ("weight",), "sizes": (size, 1),
        "draws": draws, "squares": (square, 0.0), "norms": (float(size), 0.0),
        "shifts": (Shift(NEAR, (0.998, 0.0)),),
    }  # fmt: skip
    values |= fields
    values["shifts"] += (Shift(EMPTY, empty or (0.0,) * len(values["squares"])),)
    return StepInspection(**values)


def shifted(*squares: float, change: str = "record 0 of the batch left out") -> tuple[Shift, ...]:
    return (Shift(change, squares),)


def judge(
    *entries: Entry, promised: float | None = None, pinned: Any = None, **fields: Any
) -> Judgement:
    inspection = Inspection(
        record=entries, result=result(**fields), delta=DELTA, promised=promised, pinned=pinned
    )
    return checks.judge(inspection)


def findings(*entries: Entry, **fields: Any) -> list[Finding]:
    return judge(*entries, **fields).findings


def violated(*entries: Entry, **fields: Any) -> set[str]:
    """The checks that find a violation."""
    found = findings(*entries, **fields)
    return {item.look for item in found if item.weight is Weight.VIOLATION}


def missing(*entries: Entry, **fields: Any) -> dict[str, str]:
    """Checks that apply and are not done, and why."""
    judgement = judge(*entries, **fields)
    undone = {check.name: check.said for check in judgement.looks if not check.done}
    applies = {check.name for check in judgement.looks if check.applies}
    assert judgement.complete is not bool(undone.keys() & applies)
    return {name: why for name, why in undone.items() if name in applies}

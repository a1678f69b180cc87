"""L0: one run looked into. Judges the record that `watch` wrote of it; no trial is needed.

What can be counted exactly is no test and costs no error. The others share that of the layer: each
kind has the same part of it, divided among all steps and tensors it is asked of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import special

from . import sampling_check
from .preflight import Result, accounted_events
from .script_findings import ALPHA, Finding, Judgement, finding
from .watch.run_state import Entries, entries_of

_TESTS = 5  # noise, correlation, shape, rate of sampling, spread of sampling
SHARE = ALPHA[0] / _TESTS  # chance of a false alarm, of each
_SLACK = 1.01  # noise that is short by less than a hundredth is not told
_EMPTY = "a record without a gradient"
_FAR = 20.0  # times the promised distance: no clipping at all
_OUTSIDE = {
    "before": "before make_private",
    "after": "without noise of parameters outside the private network",
}


def judge(record: Entries, result: Result, delta: float) -> Judgement:
    """All looks at one run, by its record and its result; `delta` is δ of the promise."""
    judged = _judge_noise(record, result)
    if result["made"]:
        judged.add(_judge_forward(record))
    judged.add(sampling_check.judge(result, SHARE, delta))
    _judge_accounting(record, result, judged)
    _judge_updates(result, judged)
    _judge_release(record, result, judged)
    if constants := sorted({f"{name}({number})" for name, number in result["seeded"]}):
        judged.find("fixed seed", ", ".join(constants[:3]))
    return judged


def cut(record: Entries) -> str:
    """Why a run shows fewer steps than the script takes; "" where it ended by itself."""
    for entry in entries_of(record, "cut"):
        return f"the budget ended the run after step {entry['steps']}; give a longer --budget"
    return ""


def _judge_noise(record: Entries, result: Result) -> Judgement:
    """Noise and clipping, from steps that were taken again and again on copies."""
    judged, name = Judgement(), "noise and clipping"
    looks, given = entries_of(record, "look"), entries_of(record, "given")
    steps = [look for look in looks if look["replays"]]
    if not steps:
        why = "no step of a private optimizer was seen"
        if looks:
            why = "a step repeated with the same generators gave another result"
        elif given:
            why = "noise was given as arrays; pass audited_step a function that draws it"
        return judged.look(name, why, done=False)
    made = next((entry["noise"] for entry in entries_of(record, "made")), None)
    ratios, findings = [], []
    for step in steps:
        level = SHARE / (len(steps) * max(1, len(step["sizes"])))
        noise = _accounted_noise(result, step) or made
        ratio, short = _compare_distance(step, noise, level)
        ratios += [ratio] if ratio is not None else []
        findings += [short] if short is not None else []
    judged.findings += _first_of_each_look(findings)
    judged.findings += _correlated(steps) or _not_normal(steps)
    ghosts = entries_of(record, "ghost")
    if long := [ghost for ghost in ghosts if ghost["longest"] > ghost["bound"] * _SLACK]:
        values = {key: long[0][key] for key in ("bound", "longest", "what")}
        judged.find("ghost", _at(long[0]), **values)
    if broken := [step for step in steps if not _finite(step)]:
        judged.find("not finite", _at(broken[0]), count=len(broken), steps=len(steps))
    said = f"{len(steps)} of {sum(result['steps'])} steps looked into"
    if any(ratios):
        said += f": noise over sensitivity is {1 / max(ratios):.3g} times what is accounted or more"
    judged.look(name, said)
    if not ghosts and any(step["ghost"] for step in steps):
        judged.look("clipping", "ghost clipping: its backward pass was not seen", done=False)
    if given:
        why = f"at {len(given)} steps noise was given as arrays; pass what draws it"
        judged.look("noise given", why, done=False)
    return judged


def _accounted_noise(result: Result, step: dict[str, Any]) -> float | None:
    """The noise multiplier that a step was accounted with; None where that is not known."""
    if step.get("noise") is not None:
        return float(step["noise"])
    for number, at, noise, _ in result.get("accounted", ()):
        if (number, at) == (step["optimizer"], step["step"]):
            return float(noise)
    noises = {noise for noise, _, _ in accounted_events(result)}
    return float(noises.pop()) if len(noises) == 1 else None


def _at(entry: dict[str, Any]) -> str:
    return f"step {entry['step'] + 1}"


def _finite(step: dict[str, Any]) -> bool:
    return all(map(math.isfinite, step["norms"]))


def _part_names(step: dict[str, Any]) -> list[str]:
    return [*step["names"], "the clipping bound"]


def _compare_distance(
    step: dict[str, Any], noise: float | None, level: float
) -> tuple[float | None, Finding | None]:
    """How far one example moves a step, over how far it may, and the finding where that is too far.

    Args:
        step: its look.
        noise: the noise multiplier that it was accounted with.
        level: chance of a false alarm, for each of its tensors.
    """
    where, names = _at(step), _part_names(step)
    squares, sizes = np.array(step["squares"]), np.array(step["sizes"])
    freedom = np.maximum(1, step["draws"] - 1) * sizes
    spread = squares / freedom
    if not _finite(step):
        return None, None
    if not squares[: len(step["names"])].any():
        return None, finding("no noise", where) if any(step["norms"]) else None
    # An upper bound of each tensor's variance: so the distance is no more than it is.
    above = spread * freedom / (2 * special.gammaincinv(freedom / 2, level))
    worst, what, bare, empty_distance = 0.0, "", "", 0.0
    for shift in [*step["shifts"], {"what": _EMPTY, "squares": step.get("empty")}]:
        if shift["squares"] is None:
            continue
        moved = np.array(shift["squares"])
        silent = (spread == 0) & (moved > 0)
        if silent.any():
            bare = ", ".join(names[i] for i in np.flatnonzero(silent)[:4] if i < len(names))
            break
        ratios = np.divide(moved, above, out=np.zeros_like(moved), where=above > 0)
        distance = float(np.sum(ratios))
        if shift["what"] == _EMPTY:
            empty_distance = distance
        if distance > worst:
            worst, what = distance, shift["what"]
    if not bare and step.get("bare"):
        bare = "parts of " + ", ".join(names[i] for i in step["bare"][:4])
    if bare:
        return None, finding("bare", where, bare=bare)
    if noise is None:
        return None, None
    ratio = math.sqrt(worst) * noise
    if ratio <= _SLACK:
        return ratio, None
    if empty_distance > worst / 4 or what == _EMPTY:
        return ratio, finding("scale", where, effective=noise / ratio, noise=noise)
    if ratio > _FAR:
        return ratio, finding("unclipped", where, what=what, ratio=ratio, noise=noise)
    return ratio, finding("short noise", where, noise=noise, effective=noise / ratio, what=what)


def _first_of_each_look(findings: Iterable[Finding]) -> list[Finding]:
    """The first finding of each look: the other steps say the same."""
    first: dict[str, Finding] = {}
    for item in findings:
        first.setdefault(item.look, item)
    return list(first.values())


def _correlated(steps: Entries) -> list[Finding]:
    """Correlations of noise that chance does not explain."""
    findings = []
    for step in steps:
        names = _part_names(step)
        for pair in step.get("pairs", ()):
            n, square = pair["n"], min(pair["correlation"] ** 2, 1.0)
            chance = float(special.betaincc(0.5, (n - 1) / 2, square)) * pair["pairs"]
            if chance >= SHARE / (3 * len(steps)):
                continue
            first, second = (min(i, len(names) - 1) for i in pair["of"])
            what = {
                "steps": "steps {} and {}".format(*(i + 1 for i in pair["of"])),
                "tensors": f"{names[first]} and {names[second]}",
                "neighbours": f"neighbouring entries of {names[first]}",
            }[pair["what"]]
            values = {"kind": pair["what"], "what": what, "correlation": pair["correlation"]}
            findings.append(finding("correlation", _at(step), **values))
    return _first_of_each_look(findings)


def _not_normal(steps: Entries) -> list[Finding]:
    """Laws of noise that are not Gaussian, by the Dvoretzky-Kiefer-Wolfowitz inequality.

    With Massart's constant (Massart 1990, corollary 1).
    """
    findings = []
    for step in steps:
        if (shape := step.get("shape")) is None:
            continue
        n, distance = shape["n"], shape["distance"]
        if 2 * math.exp(-2 * n * distance**2) < SHARE / len(steps):
            findings.append(finding("law", _at(step), n=n, distance=distance))
    return findings[:1]


def _judge_forward(record: Entries) -> Judgement:
    """Whether the network keeps records apart."""
    judged, forwards = Judgement(), entries_of(record, "forward")
    passes = [entry for entry in forwards if "unseen" not in entry]
    if any(entry["mixes"] for entry in passes):
        by = max(entry["by"] for entry in passes)
        judged.find("mixes", "the network's forward pass", by=by)
    if learning := sorted({name for entry in passes for name in entry["buffers"]}):
        judged.find("buffers", ", ".join(learning[:4]))
    carried = sorted({name for entry in passes for name in entry.get("carried", ())})
    said = f"{len(passes)} forward passes repeated with another record"
    if carried:
        said = (
            f"the network keeps {', '.join(carried[:4])} from one forward pass to the next, and "
            "gives something else by it: whether that takes records to the next batch was not seen"
        )
    elif not passes:
        said = "no forward pass of the network in training was seen"
        said = next((str(entry["unseen"]) for entry in forwards), said)
    return judged.look("records apart", said, done=bool(passes) and not carried)


def _judge_accounting(record: Entries, result: Result, judged: Judgement) -> None:
    """Whether each release was accounted, and is of one draw of records."""
    taken, events = sum(result["steps"]), accounted_events(result)
    counted = sum(int(steps) for _, _, steps in events)
    fixed = events and all(rate >= 1 for _, rate, _ in events)
    was_cut = cut(record)  # a script may account after its steps
    if taken > counted and not fixed and not was_cut:
        judged.find("not accounted", "the accountant", taken=taken, counted=counted)
    for entry in entries_of(record, "carried")[:1]:
        judged.find("carried sum", _at(entry))
    said = f"{counted} of {taken} steps accounted"
    if was_cut:
        said += f", and no more seen: {was_cut}"
    judged.look("accounting", said, done=not was_cut)


def _judge_updates(result: Result, judged: Judgement) -> None:
    """Updates of parameters by anything but private steps."""
    private = sum(result["steps"]) > 0
    for outside in result["outside"]:
        when, what, kind, *names = outside["key"]
        where = f"{kind}, {outside['steps']} steps"
        if when == "after" and (what == "private" or not private):
            listed = ", ".join(names) or "parameters of another model"
            judged.find("not private", where, names=listed)
        elif when in _OUTSIDE:
            judged.find("outside", where, what=_OUTSIDE[when])
    if moved := result.get("moved"):
        judged.find("moved", f"between {moved} steps")
    if names := result["left"].get("outside"):
        what = f"of {', '.join(names[:4])} by an optimizer of its own"
        judged.find("outside", "the returned model", what=what)
    all_seen = not moved and not names
    said = f"{len(result['outside'])} other optimizers stepped"
    said += "" if all_seen else "; whether what they did is private was not seen"
    judged.look("updates", said, done=all_seen)


def _judge_release(record: Entries, result: Result, judged: Judgement) -> None:
    """What the returned model carries beside its parameters."""
    if cut(record):
        judged.look("release", "the run was ended before it returned a model", done=False)
        return
    codes = {"gradients": "gradients", "others": "other gradients", "examples": "examples"}
    for key, code in codes.items():
        if names := result["left"].get(key):
            judged.find(code, "the returned model", names=", ".join(names[:4]))
    judged.look("release", "the returned model was looked at")


def same_seeds(first: Result, second: Result) -> Judgement:
    """Generators of noise that two runs of the script seed alike."""
    pairs = zip(first["generators"], second["generators"], strict=False)
    judged, seed = Judgement(), next((a for a, b in pairs if a == b), None)
    return judged if seed is None else judged.find("same seeds", "noise_generator", seed=seed)

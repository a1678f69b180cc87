"""L0: one run looked into. Judges the record that `watch` wrote of it; no trial is needed.

What can be counted exactly is no test and costs no error. The others share that of the layer: each
kind has the same part of it, divided among all steps and tensors it is asked of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import special

from . import canary_trials, sampling_check
from .preflight import Result, accounted_events, claimed_epsilon
from .script_findings import ALPHA, Finding, Judgement, finding
from .watch.run_state import Entries, entries_of

_TESTS = 5  # noise, correlation, shape, rate of sampling, spread of sampling
SHARE = ALPHA[0] / _TESTS  # chance of a false alarm, of each
_MISSED = 0.05  # chance that noise is not found which is said to be
_SLACK = 1.01  # noise that is short by less than a hundredth is not told
_EMPTY = "a record without a gradient"
_FAR = 20.0  # times the promised distance: no clipping at all
_OUTSIDE = {
    "before": "before make_private",
    "after": "without noise of parameters outside the private network",
}


@dataclasses.dataclass(frozen=True)
class _Distance:
    """How far one example moves a step, in units of what was accounted: an estimate.

    Noise of less than `detectable`, a share of the accounted, would have been found, with a chance
    of 19 in 20; 0 where no example moved anything.
    """

    likely: float
    detectable: float


def judge(record: Entries, result: Result, delta: float) -> Judgement:
    """All looks at one run, by its record and its result; `delta` is δ of the promise.

    The run is `enough` where it was seen whole: every step was taken again with other noise and
    with an example changed (noise over sensitivity, clipping), at least one of them so sharply that
    `ALTERNATIVE` of the noise would have been found; and all of these looks were done: whether the
    network keeps records apart, which records were drawn, that every step was accounted, that only
    private steps changed parameters, and what is returned.
    """
    judged = _judge_noise(record, result)
    if result["made"]:
        judged.add(_judge_forward(record))
    else:  # no budget shows it, so nothing waits for it
        why = "a loop of one's own: how it makes gradients of single records, and uses noisy sums"
        judged.look("records apart", why, done=False, complete=True)
    judged.add(sampling_check.judge(result, SHARE, delta))
    _judge_accounting(record, result, judged, delta)
    _judge_updates(result, judged)
    _judge_release(record, result, judged)
    if constants := sorted({f"{name}({number})" for name, number in result["seeded"]}):
        judged.find("fixed seed", ", ".join(constants[:3]))
    judged.enough &= judged.complete
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
            why += "; name what draws by key= and reseed=" * (not result["made"])
        elif given:
            why = "noise was given as arrays; pass audited_step a function that draws it"
        return judged.look(name, why, done=False)
    made = next((entry["noise"] for entry in entries_of(record, "made")), None)
    compared = [
        _compare_distance(step, _accounted_noise(result, step) or made, SHARE / len(steps))
        for step in steps
    ]
    distances = [distance for distance, _ in compared if distance is not None]
    judged.findings += _first_of_each_look(short for _, short in compared if short is not None)
    judged.findings += _correlated(steps) or _not_normal(steps)
    ghosts = entries_of(record, "ghost")
    if long := [ghost for ghost in ghosts if ghost["longest"] > ghost["bound"] * _SLACK]:
        values = {key: long[0][key] for key in ("bound", "longest", "what")}
        judged.find("ghost", _at(long[0]), **values)
    if broken := [step for step in steps if not _finite(step)]:
        judged.find("not finite", _at(broken[0]), count=len(broken), steps=len(steps))
    taken = sum(result["steps"])
    said = f"{len(steps)} of {taken} steps"
    if moved := [distance for distance in distances if distance.detectable > 0]:
        middle = float(np.median([distance.likely for distance in moved]))
        said += f", noise over sensitivity is {1 / middle:.3f} times what is accounted (median)"
        powers = [distance.detectable for distance in moved]
        whole = len(steps) >= taken and not cut(record)
        every = f"Every one of {taken}" if whole else f"{len(steps)} of {taken}"
        in_all, in_one = (math.ceil(100 * (1 - power)) for power in (max(powers), min(powers)))
        judged.sentence = (
            f"{every} steps looked into: {in_all}% less noise in all of them would have been "
            f"found, {in_one}% less in a single one."
        )
        sharp = max(powers) >= canary_trials.ALTERNATIVE
        judged.enough = whole and len(distances) == len(steps) and sharp
    judged.look(name, said)
    for entry in entries_of(record, "kept")[:1]:
        listed = ", ".join(entry["names"][:4])
        judged.find("kept", _at(entry), names=listed)
        judged.look("state", f"whether {listed} goes into later releases", done=False)
    if not ghosts and any(step["ghost"] for step in steps):
        judged.look("clipping", "ghost clipping: its backward pass was not seen", done=False)
    if entries_of(record, "summed"):
        why = "sums were given as arrays; pass audited_step what clips and sums, and per_example"
        judged.look("clipping", why, done=False)
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
    step: dict[str, Any], noise: float | None, share: float
) -> tuple[_Distance | None, Finding | None]:
    """How far one example moves a step, and the finding where that is further than it may.

    `noise` is the noise multiplier that the step was accounted with, `share` the chance of a false
    alarm, for all of its tensors.
    """
    where, names = _at(step), _part_names(step)
    squares, sizes = np.array(step["squares"]), np.array(step["sizes"])
    level = share / max(1, len(sizes))
    freedom = np.maximum(1, step["draws"] - 1) * sizes
    spread = squares / freedom
    if not _finite(step):
        return None, None
    if not squares[: len(step["names"])].any():
        return None, finding("no noise", where) if any(step["norms"]) else None
    # An upper bound of each tensor's variance: so the distance is no more than it is.
    above = spread * freedom / (2 * special.gammaincinv(freedom / 2, level))
    # Where the variance is as seen, its bound is below this with a chance of 19 in 20.
    missed = _MISSED / max(1, int(np.count_nonzero(spread)))
    below = above * 2 * special.gammaincinv(freedom / 2, 1 - missed) / freedom
    moves, bare = [(0.0, 0.0, 0.0, "")], ""
    for shift in [*step["shifts"], {"what": _EMPTY, "squares": step.get("empty")}]:
        if shift["squares"] is None:
            continue
        moved = np.array(shift["squares"])
        silent = (spread == 0) & (moved > 0)
        if silent.any():
            bare = ", ".join(names[i] for i in np.flatnonzero(silent)[:4] if i < len(names))
            break
        far, estimate, least = (
            float(np.sum(moved[spread > 0] / scale[spread > 0])) for scale in (above, spread, below)
        )
        moves.append((far, estimate, least, shift["what"]))
    if not bare and step.get("bare"):
        bare = "parts of " + ", ".join(names[i] for i in step["bare"][:4])
    if bare:
        return None, finding("bare", where, bare=bare)
    if noise is None:
        return None, None
    worst, likely, sharp, what = max(moves, key=lambda move: move[0])
    ratio, estimate = math.sqrt(worst) * noise, math.sqrt(likely) * noise
    distance = _Distance(estimate, math.sqrt(sharp) * noise / _SLACK / max(1.0, estimate))
    effective = noise / max(ratio, 1e-300)
    if ratio <= _SLACK:
        return distance, None
    if moves[-1][-1] == _EMPTY and moves[-1][0] > worst / 4:  # it is the last that was tried
        return distance, finding("scale", where, effective=effective, noise=noise)
    if ratio > _FAR:
        return distance, finding("unclipped", where, what=what, ratio=ratio, noise=noise)
    return distance, finding("short noise", where, noise=noise, effective=effective, what=what)


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
    """Laws that are not Gaussian, by Dvoretzky, Kiefer, Wolfowitz (Massart 1990, corollary 1)."""
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
        unseen = [str(entry["unseen"]) for entry in forwards]
        said = [*unseen, "no forward pass of the network in training was seen"][0]
    return judged.look("records apart", said, done=bool(passes) and not carried)


def _judge_accounting(record: Entries, result: Result, judged: Judgement, delta: float) -> None:
    """Whether each release was accounted, and is of one draw of records."""
    taken, events = sum(result["steps"]), accounted_events(result)
    counted = sum(int(steps) for _, _, steps in events)
    fixed = events and all(rate >= 1 for _, rate, _ in events)
    was_cut = cut(record)  # a script may account after its steps
    if taken > counted and not fixed and not was_cut:
        judged.find("not accounted", "the accountant", taken=taken, counted=counted)
    claimed = claimed_epsilon(result, delta)
    for said_delta, epsilon, steps in result.get("reported", ())[-1:]:
        if said_delta == delta and steps == taken and epsilon < claimed * (1 - 1e-3):
            judged.find("told less", "get_epsilon", claimed=claimed, epsilon=epsilon)
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
    if names := result.get("warmed"):
        judged.find("warm-up", "before make_private", names=", ".join(names[:4]))
    if moved := result.get("moved"):
        judged.find("moved", f"between {moved} steps")
    if names := result["left"].get("outside"):
        what = f"of {', '.join(names[:4])} by an optimizer of its own"
        judged.find("outside", "the returned model", what=what)
    all_seen = not moved and not names
    said = f"{len(result['outside'])} other optimizers stepped"
    said += "" if all_seen else "; whether what they did is private was not seen"
    said += "; if it is, name what is returned by @audited(public=[...])" * bool(names)
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
    said = "the returned model was looked at"
    if names := result["left"].get("tensors"):
        judged.find("tensors", "the returned model", names=", ".join(names[:4]))
        said = f"whether records went into {', '.join(names[:4])} without noise"
    judged.look("release", said, done=not names)


def same_seeds(first: Result, second: Result) -> Judgement:
    """Generators of noise that two runs of the script seed alike."""
    pairs = zip(first["generators"], second["generators"], strict=False)
    judged, seed = Judgement(), next((a for a, b in pairs if a == b), None)
    return judged if seed is None else judged.find("same seeds", "noise_generator", seed=seed)

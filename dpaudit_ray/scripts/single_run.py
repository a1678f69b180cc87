"""L0: one run looked into. Judges what `watch` wrote down of it; no trial is needed.

What can be counted exactly is no test and costs no error. The others share that of the layer: each
kind has the same part of it, divided among all steps and tensors it is asked of.
"""

from __future__ import annotations

from typing import Any

from . import noise, sampling_check
from .script_findings import ALPHA, Finding, Judged, Look, Weight, violation

Entries = list[dict[str, Any]]

_TESTS = 5  # noise, correlation, shape, rate of sampling, spread of sampling
SHARE = ALPHA[0] / _TESTS


def judge(entries: Entries, told: dict[str, Any], delta: float) -> Judged:
    """All looks at one run.

    Args:
        entries: its record.
        told: what it returned.
        delta: δ of the promise.
    """
    parts = [
        noise.judge(entries, told, SHARE),
        _forward(entries) if told["made"] else Judged(),
        sampling_check.judge(told, SHARE, delta),
        _accounted(entries, told),
        _updates(entries, told),
        _left(entries, told),
        _seeds(told),
    ]
    findings = tuple(finding for part in parts for finding in part.findings)
    looks = tuple(look for part in parts for look in part.looks)
    return Judged(findings, looks, all(part.complete for part in parts))


def _forward(entries: Entries) -> Judged:
    forwards = [one for one in entries if one["kind"] == "forward"]
    looked = [one for one in forwards if "unseen" not in one]
    findings = []
    if any(one["mixes"] for one in looked):
        findings.append(
            violation(
                "records apart", "the network's forward pass",
                "what it gives for a record not to depend on the others of its batch",
                f"another record in the first place changed the others by "
                f"{max(one['by'] for one in looked):.2g} of their size",
                "replace batch normalisation, and whatever else looks across a batch",
            )
        )  # fmt: skip
    if learnt := sorted({name for one in looked for name in one["buffers"]}):
        findings.append(
            violation(
                "buffers", ", ".join(learnt[:4]), "buffers that no record changes",
                "values computed from the batch, without noise",
                "they are published with the model: freeze them, or use GroupNorm",
            )
        )  # fmt: skip
    carried = sorted({name for one in looked for name in one.get("carried", ())})
    said = f"{len(looked)} forward passes repeated with another record"
    if carried:
        said = (
            f"the network keeps {', '.join(carried[:4])} from one forward pass to the next, and "
            "gives something else by it: whether that takes records to the next batch was not seen"
        )
    elif not looked:
        said = "no forward pass of the network in training was seen"
        said = next((str(one["unseen"]) for one in forwards), said)
    done = bool(looked) and not carried
    return Judged(tuple(findings), (Look(0, "records apart", done, said),), complete=done)


def cut(entries: Entries) -> str:
    """Why a run shows fewer steps than the script takes; "" where it ended by itself."""
    for one in entries:
        if one["kind"] == "cut":
            return f"the budget ended the run after step {one['steps']}; give a longer --budget"
    return ""


def _accounted(entries: Entries, told: dict[str, Any]) -> Judged:
    taken = sum(told["steps"])
    history = [entry for claim in told["claims"] for entry in claim["history"]]
    counted = sum(int(steps) for _, _, steps in history)
    findings = []
    fixed = history and all(rate >= 1 for _, rate, _ in history)
    was_cut = cut(entries)  # a script may account after its steps
    if taken > counted and not fixed and not was_cut:
        findings.append(
            violation(
                "accounting", "the accountant", f"{taken} steps, which were taken",
                f"{counted} in its history",
                "every release must be accounted: attach_step_hook replaces the engine's own hook",
            )
        )  # fmt: skip
    for one in entries:
        if one["kind"] == "carried":
            findings.append(
                violation(
                    "accumulation", f"step {one['step'] + 1}",
                    "a release of one draw of records",
                    "the clipped sum of a draw that was left, and the next draw on top of it: a "
                    "record of both counts twice under one noise "
                    f"({one['both']} of {one['drawn']} do here)",
                    "do not leave BatchMemoryManager in the middle of a batch, or call "
                    "optimizer.zero_grad() with its queue emptied",
                )
            )  # fmt: skip
            break
    said = f"{counted} of {taken} steps accounted"
    if was_cut:
        said += f", and no more seen: {was_cut}"
    look = Look(0, "accounting", not was_cut, said)
    return Judged(tuple(findings), (look,), complete=not was_cut)


def _updates(entries: Entries, told: dict[str, Any]) -> Judged:
    findings, looks = [], []
    private = sum(told["steps"]) > 0
    for one in told["outside"]:
        when, what, kind, *names = one["key"]
        where = f"{kind}, {one['steps']} steps"
        if when == "after" and (what == "private" or not private):
            listed = ", ".join(names) or "parameters of another model"
            findings.append(
                violation(
                    "updates", where, "every update to be a private release",
                    f"{listed} updated by an optimizer that no PrivacyEngine wraps",
                    "step the optimizer that make_private returned, and that alone",
                )
            )  # fmt: skip
        elif when in ("before", "after"):
            seen = "updates without noise of parameters outside the private network"
            if when == "before":
                seen = "updates before make_private"
            findings.append(
                Finding(0, "updates", Weight.WARNING, where, "private updates only", seen,
                        "harmless where they saw public data or private releases only")
            )  # fmt: skip
    if told.get("moved"):
        findings.append(
            Finding(0, "updates", Weight.WARNING, f"between {told['moved']} steps",
                    "parameters that private steps alone change", "changes by other code",
                    "harmless where it works on private releases only")
        )  # fmt: skip
    if names := told["left"].get("outside"):
        findings.append(
            Finding(0, "updates", Weight.WARNING, "the returned model", "private updates only",
                    f"{', '.join(names[:4])} updated by an optimizer of its own",
                    "harmless where it saw public data or private releases only")
        )  # fmt: skip
    said = f"{len(told['outside'])} other optimizers stepped"
    known = not told.get("moved") and not told["left"].get("outside")
    said += "" if known else "; whether what they did is private was not seen"
    looks.append(Look(0, "updates", known, said))
    return Judged(tuple(findings), tuple(looks), complete=known)


def _left(entries: Entries, told: dict[str, Any]) -> Judged:
    if cut(entries):
        look = Look(0, "release", False, "the run was ended before it returned a model")
        return Judged((), (look,), complete=False)
    findings = []
    if names := told["left"]["gradients"]:
        findings.append(
            violation(
                "release", "the returned model", "no gradient but private ones",
                f".grad of {', '.join(names[:4])} is none that was released",
                "return it after optimizer.zero_grad(), or its state_dict() only",
            )
        )  # fmt: skip
    if names := told["left"].get("others"):
        findings.append(
            Finding(0, "release", Weight.WARNING, "the returned model", "no gradient in it",
                    f".grad of {', '.join(names[:4])}, which no private optimizer made")
        )  # fmt: skip
    if names := told["left"]["examples"]:
        findings.append(
            Finding(0, "release", Weight.NOTE, "the returned model", "parameters only",
                    "gradients of single records in grad_sample",
                    "save its state_dict(): a pickled model has them")
        )  # fmt: skip
    return Judged(tuple(findings), (Look(0, "release", True, "the returned model was looked at"),))


def same_seeds(first: dict[str, Any], second: dict[str, Any]) -> list[Finding]:
    """Generators of noise that two runs of the script seed alike."""
    both = [a for a, b in zip(first["generators"], second["generators"], strict=False) if a == b]
    return [
        violation(
            "seeds", "noise_generator", "noise that nobody can draw again",
            f"a generator that every run seeds with {number}: its noise is known to whoever has "
            "the script",
            "leave noise_generator out, or seed it from os.urandom",
        )
        for number in both[:1]
    ]  # fmt: skip


def _seeds(told: dict[str, Any]) -> Judged:
    findings = []
    constants = sorted({f"{name}({number})" for name, number in told["seeded"]})
    if constants:
        findings.append(
            Finding(
                0, "seeds", Weight.WARNING, ", ".join(constants[:3]),
                "noise that nobody can draw again",
                "a seed fixed in the script: whoever reads it can compute the noise",
                "train what is published without it; further runs are seeded otherwise",
            )
        )  # fmt: skip
    return Judged(tuple(findings))

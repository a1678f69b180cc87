"""L0: noise and clipping, from steps that were taken again and again on copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from .script_findings import Finding, Judged, Look, Weight, violation

Entries = list[dict[str, Any]]

_SLACK = 1.01  # noise that is short by less than a hundredth is not told
_EMPTY = "a record without a gradient"
_FAR = 20.0  # times the promised distance: no clipping at all


def _noise_at(told: dict[str, Any], optimizer: int, step: int) -> float | None:
    """The noise multiplier that a step was accounted with; None where that is not known."""
    for number, at, noise, _ in told.get("accounted", ()):
        if (number, at) == (optimizer, step):
            return float(noise)
    noises = {noise for claim in told["claims"] for noise, _, _ in claim["history"]}
    return float(noises.pop()) if len(noises) == 1 else None


def judge(entries: Entries, told: dict[str, Any], share: float) -> Judged:
    """Every step that was looked into.

    Args:
        entries: the run's record.
        told: what it returned.
        share: chance of a false alarm, for each of three kinds of tests.
    """
    looked = [one for one in entries if one["kind"] == "look"]
    seen = [one for one in looked if one["replays"]]
    if not seen:
        why = "no step of a private optimizer was seen"
        if looked:
            why = "a step repeated with the same generators gave another result"
        elif any(one["kind"] == "given" for one in entries):
            why = "noise was given as arrays; pass audited_step a function that draws it"
        return Judged((), (Look(0, "noise and clipping", False, why),), complete=False)
    made = next((one["noise"] for one in entries if one["kind"] == "made"), None)
    stream = next((one["promise"][0] for one in entries if one["kind"] == "stream"), None)
    findings: list[Finding] = []
    ratios = []
    for one in seen:
        noise = _noise_at(told, one["optimizer"], one["step"]) or made or stream
        level = share / (len(seen) * max(1, len(one["sizes"])))
        ratio, finding = _distance(one, noise, level)
        ratios.append(ratio)
        findings += [finding] if finding else []
    findings = _gravest(findings)
    findings += _hang_together(seen, share) or _normal(seen, share)
    findings += _clipped(entries)
    if broken := [one["step"] + 1 for one in seen if not all(map(math.isfinite, one["norms"]))]:
        findings.append(
            Finding(
                0, "noise", Weight.WARNING, f"step {broken[0]}", "numbers",
                f"a release with inf or NaN in it, at {len(broken)} of {len(seen)} steps",
                "what makes training diverge may depend on a record",
            )
        )  # fmt: skip
    ghosts = [one for one in entries if one["kind"] == "ghost"]
    looks = [_noise_look(seen, [r for r in ratios if r is not None], sum(told["steps"]))]
    unseen = [one for one in seen if one["ghost"]] and not ghosts
    if unseen:
        looks.append(Look(0, "clipping", False, "ghost clipping: its backward pass was not seen"))
    if given := [one for one in entries if one["kind"] == "given"]:
        said = f"at {len(given)} steps noise was given as arrays; pass what draws it"
        looks.append(Look(0, "noise given", False, said))
    return Judged(tuple(findings), tuple(looks), complete=not unseen and not given)


def _noise_look(seen: Entries, ratios: list[float], taken: int) -> Look:
    said = f"{len(seen)} of {taken} steps looked into"
    if any(ratios):
        said += f": noise over sensitivity is {1 / max(ratios):.3g} times what is accounted or more"
    return Look(0, "noise and clipping", True, said)


def _distance(
    look: dict[str, Any], noise: float | None, level: float
) -> tuple[float | None, Finding | None]:
    """How far one example moves a step, over how far it may, and what there is to say of it."""
    where = f"step {look['step'] + 1}"
    names = [*look["names"], "the clipping bound"]
    squares, sizes = np.array(look["squares"]), np.array(look["sizes"])
    freedom = np.maximum(1, look["draws"] - 1) * sizes
    spread = squares / freedom
    if not all(map(math.isfinite, look["norms"])):
        return None, None
    if not squares[: len(look["names"])].any():
        if not any(look["norms"]):
            return None, None
        return None, violation(
            "noise", where, "noise on every gradient",
            "the same gradient whatever the generators' state: no noise, or always the same",
            "look at what adds the noise, and at what seeds its generator",
        )  # fmt: skip
    # An upper bound of each tensor's variance: so the distance is no more than it is.
    above = spread * freedom / (2 * special.gammaincinv(freedom / 2, level))
    worst, what, bare, alone = 0.0, "", "", 0.0
    for shift in [*look["shifts"], {"what": _EMPTY, "squares": look.get("empty")}]:
        if shift["squares"] is None:
            continue
        moved = np.array(shift["squares"])
        silent = (spread == 0) & (moved > 0)
        if silent.any():
            bare = ", ".join(names[i] for i in np.flatnonzero(silent)[:4] if i < len(names))
            break
        own = float(np.sum(np.divide(moved, above, out=np.zeros_like(moved), where=above > 0)))
        alone = own if shift["what"] == _EMPTY else alone
        if own > worst:
            worst, what = own, shift["what"]
    if not bare and look.get("bare"):
        bare = "parts of " + ", ".join(names[i] for i in look["bare"][:4])
    if bare:
        seen = f"none on {bare}, which records move"
        return None, violation("noise", where, "noise on every gradient", seen)
    if noise is None:
        return None, None
    if noise <= 0:
        return None, violation("noise", where, "a noise multiplier above 0", f"{noise:g}")
    ratio = math.sqrt(worst) * noise
    if ratio <= _SLACK:
        return ratio, None
    return ratio, _too_far(where, _EMPTY if alone > worst / 4 else what, ratio, noise)


def _too_far(where: str, what: str, ratio: float, noise: float) -> Finding:
    effective = noise / ratio
    if what == _EMPTY:
        return violation(
            "scale", where, "a record without a gradient to change nothing",
            f"the whole release scaled with the number of records in the batch, as with a noise "
            f"multiplier of {effective:.3g} (accounted: {noise:.3g})",
            "divide by the expected batch size, not by the one that was drawn",
        )  # fmt: skip
    if ratio > _FAR:
        return violation(
            "clipping", where, "no record to move the release by more than the clipping bound",
            f"{what} moved it {ratio:.0f} times as far as the accounted noise multiplier of "
            f"{noise:.3g} allows",
            "clip every record's gradient, over all parameters, before they are added up",
        )  # fmt: skip
    return violation(
        "noise", where, f"a noise multiplier of {noise:.3g}, as accounted",
        f"{effective:.3g} or less, by {what}",
        "noise needs a standard deviation of noise multiplier times clipping bound on the sum",
    )  # fmt: skip


def _gravest(findings: list[Finding]) -> list[Finding]:
    """The first finding of each kind: the other steps say the same."""
    first: dict[str, Finding] = {}
    for one in findings:
        first.setdefault(one.look, one)
    return list(first.values())


def _hang_together(seen: Entries, share: float) -> list[Finding]:
    found = []
    for look in seen:
        for pair in look.get("pairs", ()):
            n, square = pair["n"], min(pair["correlation"] ** 2, 1.0)
            chance = float(special.betaincc(0.5, (n - 1) / 2, square)) * pair["pairs"]
            if chance < share / (3 * len(seen)):
                found.append(_together(look, pair))
    return _gravest(found)


def _together(look: dict[str, Any], pair: dict[str, Any]) -> Finding:
    names = [*look["names"], "the clipping bound"]
    first, second = pair["of"]
    what = {
        "steps": f"steps {first + 1} and {second + 1}",
        "tensors": f"{names[min(first, len(names) - 1)]} and {names[min(second, len(names) - 1)]}",
        "neighbours": f"neighbouring entries of {names[min(first, len(names) - 1)]}",
    }[pair["what"]]
    return violation(
        f"correlation of {pair['what']}", f"step {look['step'] + 1}", "independent noise",
        f"noise of {what} with a correlation of {pair['correlation']:.2f}",
        "draw fresh noise for every parameter and every step, from one generator",
    )  # fmt: skip


def _normal(seen: Entries, share: float) -> list[Finding]:
    found = []
    for look in seen:
        shape = look.get("shape")
        if shape is None:
            continue
        chance = 2 * math.exp(-2 * shape["n"] * shape["distance"] ** 2)
        if chance < share / len(seen):
            found.append(
                violation(
                    "law of the noise", f"step {look['step'] + 1}", "Gaussian noise",
                    f"another law ({shape['distance']:.3f} away from the normal one, of "
                    f"{shape['n']} numbers)",
                )
            )  # fmt: skip
    return _gravest(found)


def _clipped(entries: Entries) -> list[Finding]:
    """What single records give in ghost clipping, beside the bound."""
    found = []
    for one in entries:
        if one["kind"] == "ghost" and one["longest"] > one["bound"] * _SLACK:
            found.append(
                violation(
                    "clipping", f"step {one['step'] + 1}",
                    f"no clipped gradient longer than {one['bound']:.3g}",
                    f"{one['longest']:.3g}, of {one['what']}",
                    "ghost clipping bounds what it thinks the norm is: look at its norms",
                )
            )  # fmt: skip
    return _gravest(found)

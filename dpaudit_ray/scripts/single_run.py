"""L0: one run looked into. Judges the record that `watch` wrote of it; no trial is needed.

What can be counted exactly costs no error. Tests share that of the layer: each kind has the same
part of it, divided among all steps and tensors it is asked of.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import special

from ..errors import percent, plain
from . import canary_trials
from .script_findings import ALPHA, Finding, Judgement, finding
from .script_runs import Result, accountant_names, accounted_events, claimed_epsilon
from .watch.run_state import Entries, entries_of

_TESTS = 5  # noise, correlation, shape, rate of sampling, spread of sampling
SHARE = ALPHA[0] / _TESTS  # chance of a false alarm, of each
_MISSED = 0.05  # chance that noise is not found which is said to be
_SLACK = 1.01  # noise that is short by less than a hundredth is not told
_MOVED = 1e-3  # relative: more than arithmetic in another order moves a gradient's length
_EMPTY = "a record without a gradient"
_WHOLE = 0.8  # of the squared distance that is promised: a tensor that takes it for itself
_FAR = 20.0  # times the promised distance: no clipping at all
_FEW = 10  # draws from which their spread says something
_FEW_DRAWN = 8.0  # records per draw, below which its size is not held against a normal law
_LIMIT = 6.0  # standard deviations, where the law is only close to normal
_SIZE = "secret size"
_OUTSIDE = {
    "before": "before make_private",
    "after": "without noise of parameters outside the private network",
}


def judge(record: Entries, result: Result, delta: float) -> Judgement:
    """All looks at one run, by its record and its result; `delta` is δ of the promise.

    The run is `enough` where all looks were done and every step was taken again, with other noise
    and examples, one so sharply that `ALTERNATIVE` of the noise would have been found.
    """
    judged = _judge_noise(record, result)
    if result["made"]:
        judged.add(_judge_forward(record))
    else:  # no budget shows it, so nothing waits for it
        why = "a loop of one's own: how it makes gradients of single records, and uses noisy sums"
        judged.look("records apart", why, done=False, complete=True)
    judged.add(judge_sampling(result, SHARE, delta))
    _judge_accounting(record, result, judged, delta)
    _judge_updates(result, judged)
    _judge_release(record, result, judged)
    if constants := sorted({f"{name}({number})" for name, number in result["seeded"]}):
        judged.find("fixed seed", ", ".join(constants[:3]))
    judged.enough &= judged.complete
    lines = result.get("lines", {})
    judged.findings = [
        dataclasses.replace(item, where=_with_line(item.where, lines.get(item.where)))
        for item in judged.findings
    ]
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
            why = "noise that cannot be drawn again: pass audited_step a function that draws it, or"
            why += " name the argument of audited_release that it hangs on by key="
        return judged.look(name, why, done=False)
    accounted = {(n, at): noise for n, at, noise, _ in result.get("accounted", ())}
    usual: set[float | None] = {noise for noise, _, _ in accounted_events(result)}
    if len(usual) != 1:
        usual = {entry["noise"] for entry in entries_of(record, "made")[:1]} or {None}
    compared = []
    for step in steps:
        noise = step.get("noise") or accounted.get((step["optimizer"], step["step"]), *usual)
        compared.append(_compare_distance(step, noise, SHARE / len(steps)))
    distances = [distance for distance, _ in compared if distance is not None]
    shorts = [short for _, short in compared if short is not None]
    first: dict[str, Finding] = {}  # of each look: the other steps say the same
    for item in [*shorts, *_judge_law(steps)]:
        first.setdefault(item.look, item)
    judged.findings += first.values()
    ghosts = entries_of(record, "ghost")
    if long := [ghost for ghost in ghosts if ghost["longest"] > ghost["bound"] * _SLACK]:
        values = {key: long[0][key] for key in ("bound", "longest", "what")}
        judged.find("ghost", _at(long[0]), **values)
    if broken := [step for step in steps if not _finite(step)]:
        judged.find("not finite", _at(broken[0]), count=len(broken), steps=len(steps))
    taken = sum(result["steps"])
    said = f"{len(steps)} of {taken} steps"
    if moved := [distance for distance in distances if distance[1] > 0]:
        middle = float(np.median([likely for likely, _ in moved]))
        said += f", noise over sensitivity is {1 / middle:.3f} times what is accounted (median)"
        powers = [detectable for _, detectable in moved]
        whole = len(steps) >= taken and not cut(record)
        every = f"Every one of {taken}" if whole else f"{len(steps)} of {taken}"
        in_all, in_one = (math.ceil(100 * (1 - power)) for power in (max(powers), min(powers)))
        judged.sentence = (
            f"{every} steps looked into: {in_all} % less noise in all of them would have been "
            f"found, {in_one} % less in a single one."
        )
        sharp = max(powers) >= canary_trials.ALTERNATIVE
        judged.enough = whole and len(distances) == len(steps) and sharp
    judged.look(name, said)
    if not ghosts and any(step["ghost"] for step in steps):
        judged.look("clipping", "ghost clipping: its backward pass was not seen", done=False)
    if entries_of(record, "summed"):
        why = "sums were given as arrays; pass audited_step what clips and sums, and per_example"
        judged.look("clipping", why, done=False)
    if given:
        why = f"at {len(given)} steps noise was given as arrays; pass what draws it"
        judged.look("noise given", why, done=False)
    return judged


def _at(entry: dict[str, Any]) -> str:
    return _with_line(f"step {entry['step'] + 1}", entry.get("line"))


def _with_line(where: str, line: str | None) -> str:
    return f"{where} ({line})" if line else where


def _listed(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:4])


def _finite(step: dict[str, Any]) -> bool:
    return all(map(math.isfinite, step["norms"]))


def _compare_distance(
    step: dict[str, Any], noise: float | None, share: float
) -> tuple[tuple[float, float] | None, Finding | None]:
    """How far one example moves a step, and the finding where that is further than it may.

    `noise` is the multiplier that the step was accounted with, `share` the chance of a false alarm,
    for all of its tensors. The distance is in units of what was accounted: an estimate, and the
    share of noise of which less would have been found, with a chance of 19 in 20; 0 where no
    example moved anything.
    """
    where, names = _at(step), [*step["names"], "the clipping bound"]
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
    moves: list[tuple[float, float, float, str, Any]] = [(0.0, 0.0, 0.0, "", (0.0, 0.0, 0))]
    shifts = [*step["shifts"], {"what": _EMPTY, "squares": step.get("empty") or 0 * sizes}]
    for shift in shifts:
        moved = np.array(shift["squares"])
        if (silent := (spread == 0) & (moved > 0)).any():
            bare = _listed(names[i] for i in np.flatnonzero(silent))
            return None, finding("bare", where, bare=bare)
        lengths = (
            float(np.sum(moved[spread > 0] / scale[spread > 0])) for scale in (above, spread, below)
        )
        shares = moved[spread > 0] / above[spread > 0]
        count = moved[-1] / above[-1] if spread[-1] else 0.0
        whole = np.count_nonzero(shares * (noise or 0.0) ** 2 > _WHOLE)
        parts = math.sqrt(sum(moved[:-1])), count, whole
        moves.append((*lengths, shift["what"], parts))
    if step.get("bare"):
        bare = "parts of " + _listed(names[i] for i in step["bare"])
        return None, finding("bare", where, bare=bare)
    if noise is None:
        return None, None
    worst, likely, sharp, what, (length, share, whole) = max(moves, key=lambda move: move[0])
    ratio, estimate = math.sqrt(worst) * noise, math.sqrt(likely) * noise
    distance = estimate, math.sqrt(sharp) * noise / _SLACK / max(1.0, estimate)
    effective = noise / max(ratio, 1e-300)
    if ratio <= _SLACK:
        return distance, None
    empty = moves[-1]
    counted = max(share, empty[-1][1])
    if counted > worst / 4 or math.sqrt(max(0.0, worst - counted)) * noise <= _SLACK:
        values: dict[str, Any] = {"effective": effective, "noise": noise}
        by_count = percent(round(min(1.0, counted / worst), 2))
        return distance, finding("counted", where, share=by_count, **values)
    if empty[0] > worst / 4:
        return distance, finding("scale", where, effective=effective, noise=noise)
    if ratio > _FAR:
        return distance, finding("unclipped", where, what=what, ratio=ratio, noise=noise)
    if (bound := step.get("bound")) and length > _SLACK * bound:
        what += f", which moves the sum by {length / bound:.3g} clipping bounds"
    elif whole > 1:
        what += f", which moves {whole} tensors each as far as all together may be moved"
    return distance, finding("short noise", where, noise=noise, effective=effective, what=what)


def _judge_law(steps: Entries) -> list[Finding]:
    """Correlations of noise that chance does not explain; where none are, laws but the Gaussian."""
    correlated, others = [], []
    for step in steps:
        names = step["names"]
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
            correlated.append(finding("correlation", _at(step), **values))
        # Dvoretzky, Kiefer, Wolfowitz (Massart 1990, corollary 1)
        shape = step.get("shape", {"n": 0, "distance": 0.0})
        if 2 * math.exp(-2 * shape["n"] * shape["distance"] ** 2) < SHARE / len(steps):
            others.append(finding("law", _at(step), **shape))
    return correlated or others


def _judge_forward(record: Entries) -> Judgement:
    """Whether the network keeps records apart."""
    judged, forwards = Judgement(), entries_of(record, "forward")
    passes = [entry for entry in forwards if "unseen" not in entry]
    if mixing := [entry["by"] for entry in passes if entry["mixes"]]:
        judged.find("mixes", "the network's forward pass", by=max(mixing))
    if learning := sorted({name for entry in passes for name in entry["buffers"]}):
        judged.find("buffers", _listed(learning))
    carried = sorted({name for entry in passes for name in entry.get("carried", ())})
    said = f"{len(passes)} forward passes repeated with another record"
    if carried:
        said = (
            f"the network keeps {_listed(carried)} from one forward pass to the next, and "
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
    if taken > counted and not (fixed or was_cut):
        judged.find("not accounted", "the accountant", taken=taken, counted=counted)
    claimed = claimed_epsilon(result, delta)
    _judge_reports(result, judged, delta, claimed)
    for entry in entries_of(record, "carried")[:1]:
        judged.find("carried sum", _at(entry))
    said = f", and no more seen: {was_cut}" if was_cut else ""
    judged.look("accounting", f"{counted} of {taken} steps accounted{said}", done=not was_cut)


def _judge_reports(result: Result, judged: Judgement, delta: float, claimed: float) -> None:
    """Whether the script asks all engines that stepped for ε, once it has ended."""
    engines = {n for n, claim in enumerate(result["claims"]) if claim["history"]}
    last = {n: (e, steps) for d, e, steps, n in result.get("reported", ()) if d == delta}
    final = [e for n, (e, at) in last.items() if at == sum(result["steps"]) and n in engines]
    if not final or sum(final) >= claimed * (1 - 1e-3):
        return
    code = "told less" if result.get("shared") and engines - last.keys() else "told apart"
    values = {"count": len(final), "engines": len(engines), "epsilon": sum(final)}
    judged.find(code, "get_epsilon", claimed=claimed, **values)
    if code == "told apart":
        said = f"whether the script adds up the ε of {len(engines)} engines"
        judged.look("sum of engines", said, done=bool(result.get("marks", {}).get("epsilon")))


def _judge_updates(result: Result, judged: Judgement) -> None:
    """Updates of parameters by anything but private steps."""
    private = sum(result["steps"]) > 0
    for outside in result["outside"]:
        when, what, kind, *names = outside["key"]
        line = result.get("lines", {}).get(kind)
        where = _with_line(f"{kind}, {outside['steps']} steps", line)
        if when == "after" and (what == "private" or not private):
            listed = _listed(names) or "parameters of another model"
            judged.find("not private", where, names=listed)
        elif when in _OUTSIDE:
            judged.find("outside", where, what=_OUTSIDE[when])
    if names := result.get("warmed"):
        judged.find("warm-up", "before make_private", names=_listed(names))
    if moved := result.get("moved"):
        judged.find("moved", f"between {moved} steps")
    if names := result["left"].get("outside"):
        what = f"of {_listed(names)} by an optimizer of its own"
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
    for kind in ("gradients", "others", "examples", "saved", "statistics", "earlier", "tensors"):
        if names := result["left"].get(kind):
            judged.find(kind, "what is returned or saved", names=_listed(names))
    said = "the returned model was looked at"
    if names:  # tensors
        said = f"whether records went into {_listed(names)} without noise"
    elif names := result["left"].get("earlier"):
        said = f"whether records chose {_listed(names)}"
    judged.look("release", said, done=not names)
    _judge_elsewhere(result, judged)


def _judge_elsewhere(result: Result, judged: Judgement) -> None:
    """What the private records went into beside private steps."""
    for code, where in (("beside", "an optimizer without noise"), ("standardised", "the data set")):
        if value := result.get(code):
            judged.find(code, where, value=_listed(value) if code == "beside" else value)
            said = "what these records told without noise went into training"
            judged.look("records elsewhere", said, done=False)


def differences(alone: Result, exchanged: Result | None) -> set[tuple[str, Any]]:
    """What differs between two runs whose releases were held.

    ("step", n): the release of step n, which had not the record that was exchanged; ("row",
    (n, i)): the length of gradient i of a step that had it, where that is not one alone;
    and ("what", name) of what is published, as far as both went.
    """
    different: set[tuple[str, Any]] = set()
    if exchanged is None:
        return different
    for n, (a, b) in enumerate(zip(alone["held"], exchanged["held"], strict=False)):
        if not a["member"] and a["release"] != b["release"]:
            different.add(("step", n))
        alike = a["generators"] == b["generators"] and len(a["rows"]) == len(b["rows"])
        if a["member"] and a["rows"] and alike:
            x, y = np.array(a["rows"]), np.array(b["rows"])
            moved = np.abs(x - y) > _MOVED * np.maximum(x, y).clip(1e-6 * x.max())
            if np.count_nonzero(moved) > 1:
                different |= {("row", (n, int(row))) for row in np.flatnonzero(moved)}
    # A run that is cut has published the beginning of what the other did.
    texts = zip(alone["published"], exchanged["published"], strict=False)
    return different | {("what", a[0]) for a, b in texts if a[0] == b[0] and a[1] != b[1]}


def judge_held(
    alone: Result, exchanged: Result, noised: Result | None = None, shaken: Result | None = None
) -> Judgement:
    """What another record moves in runs whose releases are held.

    What noise of the record's steps moves as well is hidden by it. What moves with random numbers
    outside of steps may be hidden.
    """
    judged = Judgement()
    moved = differences(alone, exchanged) - differences(alone, noised)
    unsure = moved & differences(alone, shaken)
    where: dict[str, list[Any]] = {kind: [] for kind in ("step", "row", "what")}
    for kind, value in sorted(moved - unsure):
        where[kind].append(value)
    had = [n for n, step in enumerate(alone["held"]) if step["member"]] or [0]
    if rows := where["row"]:
        first = alone["held"][rows[0][0]]
        counts = {"count": sum(n == rows[0][0] for n, _ in rows), "rows": len(first["rows"])}
        at = _at(first | {"step": rows[0][0]})
        judged.find("moves others", at, drawn=first["drawn"], **counts)
    if steps := where["step"]:
        counts = {"count": len(steps), "others": len(alone["held"]) - len(had), "had": had[0] + 1}
        at = _at(alone["held"][steps[0]] | {"step": steps[0]})
        judged.find("goes on", at, **counts)
    for code, start in (("decided", "what "), ("let out", "")):
        if names := [name for name in where["what"] if name.startswith(start)]:
            judged.find(code, "what is chosen, returned or saved", names=_listed(names))
            where["what"] = [name for name in where["what"] if name not in names]
    said = f"{len(alone['held'])} steps twice, with another record in the place of one"
    if alone["cut"] or exchanged["cut"]:
        said += "; what is returned was not compared: a longer --budget pays for whole runs"
    hidden = {"later steps" if kind == "step" else v for kind, v in unsure if kind != "row"}
    if hidden:
        said = f"whether noise outside of steps hides a record in {_listed(sorted(hidden))}"
    return judged.look("releases held", said, done=not hidden)


def same_seeds(first: Result, second: Result) -> Judgement:
    """Generators of noise that two runs of the script seed alike."""
    pairs = zip(first["generators"], second["generators"], strict=False)
    same = [a for a, b in pairs if a == b]
    return Judgement().find("same seeds", "noise_generator", seed=same[0]) if same else Judgement()


def judge_promise(result: Result, promised: float | None, delta: float) -> Judgement:
    """A violation where a promised ε is less than what the accountants say."""
    judged, claimed = Judgement(), claimed_epsilon(result, delta)
    if promised is not None and claimed > promised * (1 + 1e-3):
        values = {"promised": promised, "claimed": claimed, "delta": plain(delta)}
        judged.find("promise", f"epsilon={promised:g}", name=accountant_names(result), **values)
    return judged


def judge_sampling(result: dict[str, Any], level: float, delta: float) -> Judgement:
    """Draws of all loaders against what was accounted; `level`: a test's false alarms."""
    judged, name, said = Judgement(), "sampling", ""
    events = accounted_events(result)
    if not result["draws"]:
        if events and all(rate >= 1 for _, rate, _ in events):
            return judged.look(name, "every record is in every step, as accounted")
        said = "no loader was seen to draw: records are sampled by code of the script's own"
        said += "; give of=, how many there are" * (not result.get("made", 1))
        return judged.look(name, said, done=False)
    if not events:
        return judged.look(name, "nothing was accounted", done=False, complete=True)
    for draws in result["draws"]:
        rate, sizes = draws.get("rate") or max(rate for _, rate, _ in events), draws["sizes"]
        if rate >= 1:
            # Without amplification a record may be in as many steps as were accounted.
            counted, most = sum(int(steps) for _, _, steps in events), draws.get("most", 0)
            if most > counted:
                judged.find("too often", "the sampler", counted=counted, most=most)
            said = f"every record may be in every of {len(sizes)} steps, as accounted"
        else:
            share = level / len(result["draws"])
            judged.findings += _judge_poisson(draws, rate, share, result, delta)
            most = max(draws["records"] * len(sizes), 1)
            said = f"{len(sizes)} draws at a rate of {sum(sizes) / most:.4g}"
    if lost := sum(size > 0 for size in result["unused"]):
        judged.find("draws lost", "the loop", count=lost)
    if empty := result["unused"].count(0):
        judged.find("empty passed over", "the sampler", count=empty)
    uneven = result.get("uneven", ())
    for code, sign in (("records passed over", 1), ("more rows", -1)):
        steps = [step for step in uneven if sign * (step[2] - step[1]) > 0]
        for step, used, drawn in steps[:1]:
            where = f"step {step + 1}"
            judged.find(code, where, count=len(steps), used=used, drawn=drawn)
            said += "; how a batch was made of the records that were drawn was not seen"
    return judged.look(name, said, done=not uneven)


def _judge_poisson(
    draws: dict[str, Any], rate: float, level: float, result: dict[str, Any], delta: float
) -> list[Finding]:
    """One finding at most: the first of the tests that draws of independent records fail."""
    failed = functools.partial(finding, where="the sampler")
    n, sizes = draws["records"], np.array(draws["sizes"], dtype=np.float64)
    total, most = int(sizes.sum()), n * len(sizes)
    if total > 0 and special.bdtrc(total - 1, most, rate) < level / 2:
        counts = {"total": total, "draws": len(sizes), "records": n}
        return [failed("rate", rate=rate, share=total / most, **counts)]
    if twice := draws.get("twice"):
        return [failed("twice", count=twice)]
    # Pearson's statistic of the sizes: chi-squared where records are drawn by themselves. Where
    # few are drawn at a time, sizes are far from normal.
    spread = float(np.sum((sizes - n * rate) ** 2)) / (n * rate * (1 - rate))
    near_normal = n * rate >= _FEW_DRAWN
    fixed = len(sizes) >= _FEW and special.gammainc(len(sizes) / 2, spread / 2) < level / 6
    deviation = _shared_records(draws, rate)
    if deviation < -_LIMIT:
        how = "shuffled: each record once in a pass"
        return [_judge_other_sampling(how, result, rate, delta, round(1 / rate))]
    if fixed and near_normal:
        return [_judge_other_sampling("of a fixed size", result, rate, delta, 1)]
    empty = (1 - rate) ** n
    if (sizes > 0).all() and len(sizes) * math.log1p(-min(empty, 1 - 1e-12)) < math.log(level / 6):
        return [failed("no empty", expected=len(sizes) * empty)]
    wide = special.gammaincc(len(sizes) / 2, spread / 2) < level / 6
    if deviation > _LIMIT or (near_normal and wide):
        return [failed("dependent")]
    return []


def _shared_records(draws: dict[str, Any], rate: float) -> float:
    """By how many standard deviations more records are shared within windows than by chance."""
    window, windows = draws.get("window", 0), draws.get("windows", 0)
    if windows == 0:
        return 0.0
    k = np.arange(min(window, 60) + 1, dtype=np.float64)
    chance = special.binom(window, k) * rate**k * (1 - rate) ** (window - k)
    pairs = k * (k - 1) / 2
    mean = float(chance @ pairs)
    variance = float(chance @ pairs**2) - mean**2
    n = draws["records"] * windows
    return float((draws["shared"] - n * mean) / math.sqrt(max(n * variance, 1e-300)))


def _judge_other_sampling(
    how: str, result: dict[str, Any], rate: float, delta: float, group: int
) -> Finding:
    """Worst-case neighbours say whether the promise is broken or only not proven."""
    noise = min(noise for noise, _, _ in accounted_events(result))
    epsilon = claimed_epsilon(result, delta)
    if not math.isnan(epsilon):
        times = max(1, sum(result["steps"]) // group)
        reached = delta_without_poisson(epsilon, noise, rate, group, times)
        if reached > delta:
            values: dict[str, Any] = {"reached": plain(reached, ".2g"), "epsilon": epsilon}
            values |= {"how": how, "rate": rate, "delta": plain(delta, ".2g")}
            return finding("not Poisson", "the sampler", **values)
    return finding("not proven", "the sampler", how=how, rate=rate)


def delta_without_poisson(
    epsilon: float, noise: float, rate: float, group: int, times: int
) -> float:
    """A δ that draws without Poisson sampling reach at `epsilon`, by one event.

    All other records' gradients are −C, the record's own is C, and 0 in the neighbouring world
    (Chua et al. 2024, the lower bound for shuffled batches, for one pass; passes are independent).
    Of `group` steps one has the record; of a group of 1, a batch of a fixed size, at `rate`.
    The event: in k of `times` groups some step exceeds h.
    """
    h = np.linspace(-2, 10, 400) * noise
    below = special.ndtr(h / noise)
    below_with_record = [special.ndtr((h - shift) / noise) for shift in (2.0, 1.0)]
    if group > 1:
        chances = [1 - below ** (group - 1) * record for record in below_with_record]
    else:
        chances = [1 - (1 - rate) * below - rate * record for record in below_with_record]
    best = 0.0
    for k in sorted({1, 2, 3, 5, *(int(times * share) for share in (0.1, 0.2, 0.4, 0.7)), times}):
        if 1 <= k <= times:
            first, second = (special.bdtrc(k - 1, times, chance) for chance in chances)
            best = max(best, float(np.max(first - np.exp(epsilon) * second)))
    return best


def judge_size(records: list[Entries]) -> Judgement:
    """The number of records as the secret, by the records of two runs, the second with one more."""
    judged = Judgement()
    made = [entry for record in records for entry in entries_of(record, "made")[:1]]
    if len(made) < 2 or made[0]["records"] is None:
        why = "make_private was not called, or its data have no length"
        return judged.look(_SIZE, why, done=False)
    first, second = made
    if second["records"] != first["records"] + 1:
        why = "the loader draws by a sampler of its own, which was left as it is"
        return judged.look(_SIZE, why, done=False)
    names = {"batch": "expected batch size", "batches": "number of batches", "noise": "noise"}
    changed = [
        f"{what} {first[key]:g} to {second[key]:g}"
        for key, what in names.items()
        if not math.isclose(first[key] or 0, second[key] or 0, rel_tol=1e-12)
    ]
    said = f"with {first['records']} and {second['records']} records"
    if not changed:
        return judged.look(_SIZE, f"{said}: the same")
    seen = "; ".join(changed)
    return judged.find("secret size", said, seen=seen).look(_SIZE, f"{said}: {seen}")

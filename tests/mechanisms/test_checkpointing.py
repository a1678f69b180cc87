"""A training that is cut off at any step goes on from there, and ends with the same bits."""

from typing import Any

import numpy as np
import pytest

from dpaudit_ray.adversaries.watched_dimension import WatchedDimension
from dpaudit_ray.mechanisms.base import Measured, PartSeeds, ResumableSession
from dpaudit_ray.storage import arrays
from dpaudit_ray.storage.arrays import Arrays
from tests.trainings import cell

STEPS, HORIZONS = 24, (6, 12, 18, 24)


class CutError(Exception):
    """The node is gone."""


class Cut:
    """Saves after every step, as a file, and ends the training after `after` of them."""

    def __init__(self, after: int, found: tuple[int, bytes] | None = None) -> None:
        self.found, self.due = found, True
        self._after = after

    def last(self) -> tuple[int, Arrays] | None:
        return None if self.found is None else (self.found[0], arrays.decoded(self.found[1]))

    def save(self, step: int, saved: Arrays) -> None:
        self.found = step, arrays.encoded(saved)
        self._after -= 1
        if not self._after:
            raise CutError


def session(tiny: dict[str, Any], adversary: Any = "biased-dimension", **changes: Any) -> Any:
    """DP-SGD as opened by a trainer of its own."""
    mechanism, against = cell(tiny, adversary, steps=STEPS, **changes)
    parts = range(0 if (made := mechanism.preparation(against)) is None else made.parts)
    given = tuple(mechanism.prepare_part(against, i, PartSeeds(3, i), False) for i in parts)
    return mechanism.open(against, 3, 4, False, given)


def numbers(found: Any) -> np.ndarray:
    """Scores, and the utility where some is measured."""
    return (
        np.stack([found.scores, *found.utility.values()]) if isinstance(found, Measured) else found
    )


CASES: dict[str, dict[str, Any]] = {
    "held out": {"held_out": 0.3},
    "momentum, watched": {"optimizer": "momentum", "adversary": "watched-dimension"},
    "adam, poisson": {"optimizer": "adam", "sampling": "poisson"},
    "adaptive poison": {"adversary": {"name": "adaptive-poison", "shadows": 3, "ascent": 10}},
    "loss, shuffle": {"sampling": "shuffle", "adversary": "loss", "schedule": "cosine"},
    "reference models": {"adversary": {"name": "reference-models", "records": 4, "period": 8}},
    "opacus, poisson": {"engine": "opacus", "sampling": "poisson", "optimizer": "adam"},
}


@pytest.mark.parametrize("case", CASES)
def test_cut_off_and_gone_on_it_has_the_same_scores(case, tiny):
    tiny["audit"] |= {"estimators": ["several-canaries"], "trials": 80}
    members, seed = np.arange(8) % 3 == 0, 12345678901234567890
    whole = numbers(session(tiny, **CASES[case]).run(members, seed, HORIZONS))
    assert np.isfinite(whole).all()
    found = None
    for after in (1, 5, 12):  # steps 1, 6 (scored), 18 (scored)
        cut = Cut(after, found)
        opened = session(tiny, **CASES[case])
        assert isinstance(opened, ResumableSession)
        with pytest.raises(CutError):
            opened.run(members, seed, HORIZONS, cut)
        found = cut.found
    assert found[0] == 18
    last = Cut(-1, found)
    rest = numbers(session(tiny, **CASES[case]).run(members, seed, HORIZONS, last))
    assert rest.tobytes() == whole.tobytes()
    assert last.found[0] == STEPS


def test_what_another_engine_kept_is_of_no_use(tiny):
    members, seed = np.arange(4) % 2 == 0, 5
    cut = Cut(3)
    with pytest.raises(CutError):
        session(tiny).run(members, seed, HORIZONS, cut)
    kept = {**arrays.decoded(cut.found[1]), "by": np.frombuffer(b"packed on cuda", np.uint8)}
    other = Cut(-1, (3, arrays.encoded(kept)))
    whole = session(tiny).run(members, seed, HORIZONS)
    assert session(tiny).run(members, seed, HORIZONS, other).tobytes() == whole.tobytes()


class Forgetful:
    """Watches, and cannot say what it has seen."""

    def __init__(self, observer: Any) -> None:
        self.see_update, self.scores = observer.see_update, observer.scores


def test_an_observer_that_cannot_be_saved_is_named_once(tiny, caplog, monkeypatch):
    observer = WatchedDimension.observer
    monkeypatch.setattr(WatchedDimension, "observer", lambda *a: Forgetful(observer(*a)))
    cut = Cut(1)
    opened = session(tiny, adversary="watched-dimension")
    for _ in range(2):
        opened.run(np.arange(4) % 2 == 0, 5, HORIZONS, cut)
    assert cut.found is None
    (record,) = caplog.records
    assert "no checkpoint is written: Forgetful has no state()" in record.getMessage()

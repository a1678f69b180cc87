"""Trainers: each opens a mechanism once per audit, then trains and scores the trials of packs."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import seeds
from ..errors import DpauditError, first_line, lines, out_of_memory, printable
from ..mechanisms.base import Measured, Mechanism, Missed, PartSeeds, ResumableSession, Session
from ..plan.model import Pack, Part, Plan, PlannedAudit
from ..plan.outcomes import Failure
from ..storage import arrays
from ..storage.arrays import Arrays
from ..storage.scores import PackScores
from ..sweep import spec
from ..sweep.spec import Sweep
from .checkpoints import CallAggregator, PackCheckpoints
from .executors import Done
from .workers import threads

_log = logging.getLogger("dpaudit.trainer")
_log.addHandler(logging.NullHandler())  # where nobody has set up any, nothing is to be printed
T = TypeVar("T")
P = TypeVar("P", bound=Pack)


@dataclasses.dataclass(frozen=True)
class Brief:
    """What a trainer must know of a plan, without its packs; `worked_out` is of its mechanisms."""

    seed: int
    audits: tuple[PlannedAudit, ...]
    worked_out: tuple[Mapping[str, float], ...] = ()

    @classmethod
    def from_plan(cls, plan: Plan, sweep: Sweep) -> Brief:
        """The same for any number of packs."""
        audits = tuple(dataclasses.replace(audit, packs=()) for audit in plan.audits)
        return cls(plan.seed, audits, tuple(cell.mechanism.worked_out() for cell in sweep.cells))


# Trials that are run again, or more, where a failed pack is done after all, to see whether they
# give the same. Of runs of randomised response at ε = 2 one in 3.6 million repeats all 64.
RETRIED = 64
_UNLIKE = "; run again, it did not give the same twice"


def runs_of(pack: Pack) -> int:
    """How often a pack that failed before is run. A part knows no bit to pick outcomes by."""
    return 1 if isinstance(pack, Part) else 1 + math.ceil(RETRIED / pack.size)


class PackTrainer:
    """Turns packs into scores. The secret bits are drawn here and reach the mechanism only.

    `prepared` gives the parts that an audit waits for; `call` asks the aggregator for checkpoints.
    """

    def __init__(
        self,
        raw_sweep: dict[str, Any],
        brief: Brief,
        prepared: Callable[[int], tuple[Arrays, ...]] = lambda audit: (),
        call: CallAggregator | None = None,
    ) -> None:
        self._raw, self._brief, self._prepared, self._call = raw_sweep, brief, prepared, call
        self._at_hand: tuple[int, tuple[Arrays, ...]] | None = None  # parts, by audit
        self._opened: tuple[int, Session] | None = None
        self.resumed = False  # whether the last pack went on from a checkpoint
        self.opening = 0.0  # seconds: code and data were loaded and canaries crafted

    def train(self, pack: Pack, afresh: bool = False) -> PackScores:
        """Trains and scores one pack; the same pack gives the same scores on every call.

        It goes on from its last checkpoint, unless it is to begin `afresh`. Trials that failed
        while others did not are missed; where all did, the pack has failed.
        """
        audit = self._brief.audits[pack.audit]
        members, noise = self._drawn(pack)
        session = self._session(pack.audit)
        self.resumed = False
        minutes = self._sweep.resources.checkpoint_minutes
        call = None if afresh else self._call
        if audit.paired:  # one seed for both trainings of each pair
            runs = (members.reshape(-1, 2, audit.in_a_training)[:, side].ravel() for side in (0, 1))
            outcome = Measured.alternating(
                [session.run(run, noise, audit.horizons) for run in runs], audit.in_a_training
            )
        elif call is not None and minutes and isinstance(session, ResumableSession):
            checkpoints = PackCheckpoints(call, pack, minutes)
            outcome = Measured.of(session.run(members, noise, audit.horizons, checkpoints))
            self.resumed = checkpoints.resumed
        else:
            outcome = Measured.of(session.run(members, noise, audit.horizons))
        mechanism = self._mechanism(pack.audit)
        shapes = {name: values.shape for name, values in outcome.utility.items()}
        if shapes != dict.fromkeys(mechanism.measured, outcome.scores.shape):
            raise TypeError(
                f"{mechanism.name} told of {shapes} beside scores of shape {outcome.scores.shape}; "
                f"it measures {', '.join(mechanism.measured) or 'nothing'}, each of that shape"
            )
        return _pack_scores(pack, members, audit.horizons, outcome)

    def prepare(self, part: Part) -> Arrays:
        """One part of a preparation: no bit is drawn for it, and none is at hand."""
        audit, adversary = self._brief.audits[part.audit], self._sweep.cells[part.audit].adversary
        assert audit.preparation is not None
        run_seed, gpu = self._brief.seed, self._sweep.resources.num_gpus > 0
        seed = seeds.derive("prepare", run_seed, audit.preparation.id, part.first)
        mechanism = self._mechanism(part.audit)
        prepared = mechanism.prepare_part(adversary, part.first, PartSeeds(run_seed, seed), gpu)
        return arrays.checked(prepared, f"the preparation of {mechanism.name}")

    def attempt(self, pack: Pack, afresh: bool = False) -> PackScores | Failure:
        """`train`, with anything the user's code may raise turned into a `Failure`."""
        self._fetch(pack.audit)  # what it raises is not of the user's code
        trials = self._brief.audits[pack.audit].canaries or pack.size
        return _attempt(lambda pack: self.train(pack, afresh), pack, trials)

    def attempt_part(self, part: Part) -> Arrays | Failure:
        """`prepare`, likewise."""
        return _attempt(self.prepare, part)

    def retry(self, pack: Pack, before: Failure) -> PackScores | Failure:
        """Another try of a pack that failed: scores only where every run of it gives the same.

        Of code that is not a function of its seed, a retry would pick among outcomes, and what
        fails for one bit more often than for the other would count for the adversary.
        """
        first = self.attempt(pack, afresh=True)
        for _ in range(runs_of(pack) - 1):
            if isinstance(first, Failure):
                return first
            again = self.attempt(pack, afresh=True)
            if isinstance(again, Failure) or first.difference(again) is not None:
                message = before.message.removesuffix(_UNLIKE) + _UNLIKE
                return dataclasses.replace(before, message=message)
        return first

    def by_steps(self, audit: int) -> bool:
        """Whether its packs take time in proportion to their steps."""
        return isinstance(self._session(audit), ResumableSession)

    def seconds(self, pack: Pack, horizons: tuple[int, ...]) -> float:
        """Seconds of one pack that is scored there once its audit is open (for `dpaudit plan`)."""
        members, noise = self._drawn(pack)
        session = self._session(pack.audit)
        started = time.perf_counter()
        outcome = session.run(members, noise, horizons)
        took = time.perf_counter() - started
        if isinstance(outcome, Measured):
            _require_some(outcome)
        return took

    def _drawn(self, pack: Pack) -> tuple[npt.NDArray[np.bool_], int]:
        audit, seed = self._brief.audits[pack.audit], self._brief.seed
        noise = seeds.noise_seed(seed, audit.fingerprint, pack.first)
        return audit.bits(seed, pack.first, pack.last), noise

    def _fetch(self, index: int) -> tuple[Arrays, ...]:
        if self._brief.audits[index].preparation is None:
            return ()
        if self._at_hand is None or self._at_hand[0] != index:
            self._at_hand = None
            self._at_hand = index, self._prepared(index)
        return self._at_hand[1]

    @functools.cached_property
    def _sweep(self) -> Sweep:
        """Parsed on first use: what a worker cannot import is a failure, not a dead worker."""
        sweep = spec.from_raw(self._raw)
        if not any(cell.mechanism.uses_torch for cell in sweep.cells):
            return sweep
        import torch

        from ..engines import gpu_settings

        # Thread counts come from the sweep, not from the machine: they may change last bits.
        torch.set_num_threads(threads(sweep))
        gpu_settings.take_share(sweep.resources.num_gpus)
        return sweep

    def _mechanism(self, index: int) -> Mechanism:
        return self._sweep.cells[index].mechanism.given(self._brief.worked_out[index])

    def _session(self, index: int) -> Session:
        # Packs come audit by audit, so keeping one session open is enough.
        if self._opened is None or self._opened[0] != index:
            self._opened, began = None, time.perf_counter()
            audit, seed = self._brief.audits[index], self._brief.seed
            session = self._mechanism(index).open(
                self._sweep.cells[index].adversary,
                seed,
                seeds.derive("craft", seed, audit.fingerprint),
                self._sweep.resources.num_gpus > 0,
                *(() if audit.preparation is None else (self._fetch(index),)),
            )
            self._opened = index, session
            self.opening += time.perf_counter() - began
        return self._opened[1]


class Trainer(PackTrainer):
    """Hands the scores of packs to the aggregator; an executor calls its methods in a process."""

    def __init__(self, raw_sweep: dict[str, Any], brief: Brief, call: CallAggregator) -> None:
        super().__init__(raw_sweep, brief, lambda audit: call("prepared", audit), call)
        self._tell_aggregator = call

    def run_pack(self, pack: Pack, before: Failure | None = None) -> Done | Failure:
        """Returns once the pack is stored, or its failure; after one `before`, it runs again."""
        started, what = time.perf_counter(), f"{self._brief.audits[pack.audit].label}, {pack.what}"
        self.opening = 0.0
        _log.info("%s: starts", what)
        result: PackScores | Arrays | Failure
        if isinstance(pack, Part):
            result = self.attempt_part(pack)
        else:
            result = self.retry(pack, before) if before else self.attempt(pack)
        if isinstance(result, Failure):
            _log.error("%s: failed\n%s", what, result.traceback)
            return result
        trained = time.perf_counter() - started
        self._tell_aggregator("keep" if isinstance(pack, Part) else "fold", pack, result)
        seconds = time.perf_counter() - started
        _log.info("%s: trained in %.2f s, stored in %.2f s", what, trained, seconds - trained)
        missed = len(result.missed) if isinstance(result, PackScores) else 0
        runs = runs_of(pack) if before else 1
        return Done(pack, seconds / runs, not self.resumed, missed, self.opening)


class _AllMissedError(Exception):
    """Every trial of a pack failed; its argument is the first `Missed`."""


def _require_some(outcome: Measured) -> None:
    if len(outcome.missed) == len(outcome.scores) > 0:
        raise _AllMissedError(outcome.missed[min(outcome.missed)])


def _pack_scores(
    pack: Pack, members: npt.NDArray[np.bool_], steps: tuple[int, ...], outcome: Measured
) -> PackScores:
    """Scores and utility by trial, NaN where one was missed, and why; raises where all were."""
    _require_some(outcome)
    scores, utility = outcome.scores, outcome.utility
    if outcome.missed:
        lost = np.isin(np.arange(len(scores)), list(outcome.missed))[:, None]
        scores = np.where(lost, np.nan, scores)
        utility = {name: np.where(lost, np.nan, values) for name, values in utility.items()}
    missed = {pack.first + row: miss for row, miss in sorted(outcome.missed.items())}
    reasons = {trial: printable(miss.message) or miss.kind for trial, miss in missed.items()}
    outputs = {trial: miss.output for trial, miss in missed.items()}
    return PackScores(pack.first, members, steps, scores, utility, reasons, outputs)


def _attempt(work: Callable[[P], T], pack: P, trials: int = 1) -> T | Failure:
    try:
        return work(pack)
    except _AllMissedError as error:
        first: Missed = error.args[0]
        message = f"{first.message}, as all {pack.size} trials" if pack.size > 1 else first.message
        return Failure(pack, first.kind, message, lines(first.output))
    except (Exception, SystemExit) as error:  # noqa: BLE001 (boundary: a user's error is data)
        kind = type(error).__name__
        detail = "".join(traceback.format_exception(error)[-8:])
        if out_of_memory(error) and "lower mechanism." not in str(error):  # than one model's batch
            return Failure.of_memory(pack, detail, trials)
        ours = isinstance(error, DpauditError)
        message = str(error).splitlines()[0] if ours else f"{kind}: {first_line(error)}"
        return Failure(pack, kind, message if str(error) else kind, detail)

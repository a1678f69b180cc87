"""Trains and scores the trials of packs; a trainer opens a mechanism once per audit.

The scores go to the aggregator, which stores them: a trainer knows nothing of the run directory.
"""

import functools
import logging
import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from .. import seeds
from ..errors import DpauditError, first_line, lines, out_of_memory, printable
from ..mechanisms.base import (
    Measured,
    Mechanism,
    Members,
    PartSeeds,
    ResumableSession,
    Session,
)
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
_log.addHandler(logging.NullHandler())  # prints nothing unless the process has set up logging
T = TypeVar("T")
P = TypeVar("P", bound=Pack)


@dataclass(frozen=True)
class Brief:
    """The part of a plan that a trainer needs; its size does not depend on the number of packs.

    Attributes:
        seed: the sweep's.
        audits: the audits, without packs.
        precomputed: for each audit, numbers by name that its mechanism has computed once for all
            trainers.
    """

    seed: int
    audits: tuple[PlannedAudit, ...]
    precomputed: tuple[Mapping[str, float], ...] = ()

    @classmethod
    def from_plan(cls, plan: Plan, sweep: Sweep) -> "Brief":
        """Returns the brief of a planned sweep."""
        audits = tuple(replace(audit, packs=()) for audit in plan.audits)
        return cls(plan.seed, audits, tuple(cell.mechanism.precomputed() for cell in sweep.cells))


# If a failed pack is run again and succeeds, it is repeated until at least this number of trials
# was repeated: all must give the same scores. Randomised response at ε = 2 does so for one in 3.6
# million packs of 64 trials, and for one in 3,800 packs of one trial, whose first run may have had
# the likely answer.
RETRIED = 64
_UNLIKE = "; run again, it did not give the same twice"
_LONGEST_REASON = 300  # characters of the reason why a training run diverged


def runs_of(pack: Pack) -> int:
    """Returns how often a pack that failed before is run.

    A part of a preparation is run once: it knows no bit by which outcomes could be picked.
    """
    return 1 if isinstance(pack, Part) else 1 + math.ceil(RETRIED / pack.size)


class PackTrainer:
    """Turns packs into scores, and passes them to the aggregator.

    The secret bits are drawn here and reach the mechanism only.

    Attributes:
        resumed: whether the last pack continued from a checkpoint.
        opening: seconds in which code and data were loaded, and canaries crafted.
    """

    def __init__(
        self,
        raw_sweep: dict[str, Any],
        brief: Brief,
        call: CallAggregator = lambda method, *arguments: None,
    ) -> None:
        """Loads nothing yet.

        Args:
            raw_sweep: the content of the sweep file.
            brief: the plan without packs.
            call: calls a method of the aggregator; without it, no checkpoints are saved.
        """
        self._raw_sweep = raw_sweep
        self._brief = brief
        self._call = call
        # The index of an audit, with the parts of its preparation, or its session.
        self._loaded_parts: tuple[int, tuple[Arrays, ...]] | None = None
        self._open_session: tuple[int, Session] | None = None
        self.resumed = False
        self.opening = 0.0

    def run_pack(
        self,
        pack: Pack,
        earlier_failure: Failure | None = None,
    ) -> Done | Failure:
        """Trains a pack; returns once the aggregator has stored it, or with its failure.

        Args:
            pack: trials, or a part of a preparation.
            earlier_failure: the failure of an earlier attempt, after which several runs must agree.
        """
        started = time.perf_counter()
        name = f"{self._brief.audits[pack.audit].label}, {pack.what}"
        self.opening = 0.0
        _log.info("%s: starts", name)
        result: PackScores | Arrays | Failure
        if isinstance(pack, Part):
            result = self.attempt_part(pack)
        else:
            result = self.retry(pack, earlier_failure) if earlier_failure else self.attempt(pack)
        if isinstance(result, Failure):
            _log.error("%s: failed\n%s", name, result.traceback)
            return result
        trained = time.perf_counter() - started
        self._call("keep" if isinstance(pack, Part) else "fold", pack, result)
        seconds = time.perf_counter() - started
        _log.info("%s: trained in %.2f s, stored in %.2f s", name, trained, seconds - trained)
        failed_trials = len(result.missed) if isinstance(result, PackScores) else 0
        runs = runs_of(pack) if earlier_failure else 1  # the time of one run is reported
        return Done(pack, seconds / runs, not self.resumed, failed_trials, self.opening)

    def train(self, pack: Pack, afresh: bool = False) -> PackScores:
        """Trains and scores one pack; the same pack gives the same scores on every call.

        Trials that failed while others did not are recorded as missed; if all failed, so has the
        pack.

        Args:
            pack: the trials.
            afresh: ignores checkpoints, and saves none: the runs of a retry are compared.

        Raises:
            Exception: whatever the user's code raises.
        """
        audit = self._brief.audits[pack.audit]
        members, noise_seed = self._draw(pack)
        session = self._session(pack.audit)
        minutes = self._sweep.resources.checkpoint_minutes
        checkpoints = []  # an optional argument: one entry, if the training can continue from it
        if audit.paired:  # one seed for both runs of each pair
            by_pair = members.reshape(-1, 2, audit.in_a_training)
            sides = [by_pair[:, side].ravel() for side in (0, 1)]
            measured = [session.run(side, noise_seed, audit.horizons) for side in sides]
            outcome = Measured.alternating(measured, audit.in_a_training)
        else:
            if minutes and not afresh and isinstance(session, ResumableSession):
                checkpoints.append(PackCheckpoints(self._call, pack, minutes))
            outcome = Measured.of(session.run(members, noise_seed, audit.horizons, *checkpoints))
        self.resumed = any(saved.resumed for saved in checkpoints)
        mechanism = self._mechanism(pack.audit)
        shapes = {name: values.shape for name, values in outcome.utility.items()}
        if shapes != dict.fromkeys(mechanism.measured, outcome.scores.shape):
            raise TypeError(
                f"{mechanism.name} returned {shapes} with scores of shape {outcome.scores.shape}; "
                f"it measures {', '.join(mechanism.measured) or 'nothing'}, each of that shape"
            )
        return _pack_scores(pack, members, audit.horizons, outcome)

    def prepare(self, part: Part) -> Arrays:
        """Computes one part of a preparation; no secret bit is drawn for it."""
        audit = self._brief.audits[part.audit]
        assert audit.preparation
        run_seed = self._brief.seed
        seed = seeds.derive("prepare", run_seed, audit.preparation.id, part.first)
        mechanism = self._mechanism(part.audit)
        prepared = mechanism.prepare_part(
            self._sweep.cells[part.audit].adversary,
            part.first,
            PartSeeds(run_seed, seed),
            self._sweep.resources.num_gpus > 0,
        )
        return arrays.checked(prepared, f"the preparation of {mechanism.name}")

    def attempt(self, pack: Pack, afresh: bool = False) -> PackScores | Failure:
        """Calls `train`; returns its scores, or whatever the user's code raises as a `Failure`.

        Args:
            pack: the trials.
            afresh: ignores checkpoints, and saves none.
        """
        self._parts(pack.audit)  # errors of this call are not the user's code's
        trials = self._brief.audits[pack.audit].canaries or pack.size
        return _attempt(lambda pack: self.train(pack, afresh), pack, trials)

    def attempt_part(self, part: Part) -> Arrays | Failure:
        """Calls `prepare`; returns its arrays, or what the user's code raises as a `Failure`."""
        return _attempt(self.prepare, part)

    def retry(self, pack: Pack, earlier_failure: Failure) -> PackScores | Failure:
        """Runs a failed pack again, several times; returns its scores only if all runs agree.

        If the code is not a function of its seed, a retry would pick among outcomes, and a failure
        that is more frequent for one bit than for the other would count for the adversary.

        Args:
            pack: the trials.
            earlier_failure: is returned if runs differ.
        """
        first = self.attempt(pack, afresh=True)
        for _ in range(runs_of(pack) - 1):
            if isinstance(first, Failure):
                return first
            again = self.attempt(pack, afresh=True)
            if isinstance(again, Failure) or first.difference(again) is not None:
                message = earlier_failure.message.removesuffix(_UNLIKE) + _UNLIKE
                return replace(earlier_failure, message=message)
        return first

    def takes_time_by_steps(self, audit: int) -> bool:
        """Returns whether packs of an audit take time in proportion to their steps."""
        return isinstance(self._session(audit), ResumableSession)

    def time_pack(
        self,
        pack: Pack,
        horizons: tuple[int, ...],
    ) -> float:
        """Times one pack, without the opening of its audit.

        Args:
            pack: the trials.
            horizons: recorded steps, in place of those of the audit.
        """
        members, noise_seed = self._draw(pack)
        session = self._session(pack.audit)
        started = time.perf_counter()
        outcome = session.run(members, noise_seed, horizons)
        seconds = time.perf_counter() - started
        if isinstance(outcome, Measured):
            _require_some(outcome)
        return seconds

    def _draw(self, pack: Pack) -> tuple[Members, int]:
        """Returns the secret bits of a pack, and the seed of its noise."""
        audit = self._brief.audits[pack.audit]
        noise_seed = seeds.noise_seed(self._brief.seed, audit.fingerprint, pack.first)
        return audit.bits(self._brief.seed, *pack.bounds), noise_seed

    def _parts(self, index: int) -> tuple[Arrays, ...]:
        """Returns all parts of an audit's preparation; () if it has no preparation."""
        if not self._brief.audits[index].preparation:
            return ()
        if not self._loaded_parts or self._loaded_parts[0] != index:
            self._loaded_parts = None  # frees the memory of the others first
            self._loaded_parts = index, self._call("prepared", index)
        return self._loaded_parts[1]

    @functools.cached_property
    def _sweep(self) -> Sweep:
        """The sweep, parsed on first use.

        So code that cannot be imported fails a pack, and not the worker.
        """
        sweep = spec.from_raw(self._raw_sweep)
        if any(cell.mechanism.uses_torch for cell in sweep.cells):
            import torch

            from ..engines import gpu_settings

            # Thread counts come from the sweep, not from the machine: they may change last bits.
            torch.set_num_threads(threads(sweep))
            gpu_settings.take_share(sweep.resources.num_gpus)
        return sweep

    def _mechanism(self, index: int) -> Mechanism:
        """Returns the mechanism of an audit, with the numbers that the driver has precomputed."""
        return self._sweep.cells[index].mechanism.with_precomputed(self._brief.precomputed[index])

    def _session(self, index: int) -> Session:
        """Returns the session of an audit; opens it, and closes the session of another audit."""
        # Packs come audit by audit, so keeping one session open is enough.
        if not self._open_session or self._open_session[0] != index:
            self._open_session = None
            began = time.perf_counter()
            audit = self._brief.audits[index]
            # The parts are an argument only of mechanisms that have a preparation.
            session = self._mechanism(index).open(
                self._sweep.cells[index].adversary,
                self._brief.seed,
                seeds.derive("craft", self._brief.seed, audit.fingerprint),
                self._sweep.resources.num_gpus > 0,
                *(() if audit.preparation is None else (self._parts(index),)),
            )
            self._open_session = index, session
            self.opening += time.perf_counter() - began
        return self._open_session[1]


class _AllMissedError(Exception):
    """All trials of a pack failed; its argument is the first `Missed`."""


def _require_some(outcome: Measured) -> None:
    """Raises _AllMissedError if all trials failed."""
    if len(outcome.missed) == len(outcome.scores) > 0:
        raise _AllMissedError(outcome.missed[min(outcome.missed)])


def _pack_scores(
    pack: Pack, members: Members, steps: tuple[int, ...], outcome: Measured
) -> PackScores:
    """Returns scores and utility by trial: NaN if the trial failed, with the reason why it did.

    Args:
        pack: the trials.
        members: secret bits [trials].
        steps: recorded steps.
        outcome: scores and utility [trials, steps].

    Raises:
        _AllMissedError: all trials failed.
    """
    _require_some(outcome)
    scores = outcome.scores
    utility = outcome.utility
    if outcome.missed:
        is_missed = np.isin(np.arange(len(scores)), list(outcome.missed))[:, None]
        scores = np.where(is_missed, np.nan, scores)
        utility = {name: np.where(is_missed, np.nan, values) for name, values in utility.items()}
    reasons = {}
    outputs = {}
    for row, miss in sorted(outcome.missed.items()):
        reasons[pack.first + row] = printable(miss.message) or miss.kind
        outputs[pack.first + row] = miss.output
    diverged = {}
    for row, reason in sorted(outcome.diverged.items()):
        diverged[pack.first + row] = printable(reason[:_LONGEST_REASON])
    return PackScores(pack.first, members, steps, scores, utility, reasons, diverged, outputs)


def _attempt(
    work: Callable[[P], T],
    pack: P,
    trials: int = 1,
) -> T | Failure:
    """Returns what `work` returns for a pack, or how it failed.

    Args:
        work: trains the pack.
        pack: trials, or a part of a preparation.
        trials: number of trials that are trained together, for advice if memory runs out.
    """
    try:
        return work(pack)
    except _AllMissedError as error:
        first = error.args[0]
        message = f"{first.message}, as all {pack.size} trials" if pack.size > 1 else first.message
        return Failure(pack, first.kind, message, lines(first.output))
    except (Exception, SystemExit) as error:  # noqa: BLE001 (boundary: a user's error is data)
        kind = type(error).__name__
        frames = "".join(traceback.format_exception(error)[-8:])
        # The error of one model whose batch is too large has better advice.
        if out_of_memory(error) and "lower mechanism." not in str(error):
            return Failure.of_memory(pack, frames, trials)
        message = f"{kind}: {first_line(error)}" if str(error) else kind
        if isinstance(error, DpauditError):
            message = str(error).splitlines()[0]
        return Failure(pack, kind, message, frames)

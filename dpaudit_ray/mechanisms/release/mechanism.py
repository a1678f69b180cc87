"""Releases of a mechanism on two neighbouring inputs: many outputs by each call.

    def release(data, rng: np.random.Generator, n: int, **options,) -> outputs

It returns n independent outputs for one input, with randomness from `rng`: an array whose first
dimension is n, or a list of n numbers, texts, arrays or tables. None and NaN are outputs, and so is
an exception: it shows what the input was like.

    def pairs() -> list[tuple[data, data]]

The neighbouring inputs; the secret bit chooses the one of a pair that is released.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.random import Generator
from pydantic import Field, field_validator

from ... import imports
from ...accounting import STATED, Claim, Training
from ...accounting.claim import StatedClaim
from ...adversaries.base import Adversary
from ...adversaries.outputs import Encoder, Outputs, Raised
from ...adversaries.release import OutputAdversary, Scorer
from ...errors import SpecError, first_line
from ...plugins import ImportPath
from ...stats.base import curve_free_method
from ..base import (
    Arrays,
    Horizons,
    Mechanism,
    Members,
    PartSeeds,
    Preparation,
    Prepared,
    Scores,
    Session,
)
from .pairs import Pair, PairSource, named_pairs

_log = logging.getLogger(__name__)
PACK = 100_000  # trials of a pack: a trial takes bytes of memory, not megabytes
# Outputs of a call that are compared with each other. Fair coins are all heads in one call and all
# tails in the next with probability 2^-31.
_PROBES = 16


class Release(Mechanism):
    """Calls the function at `path` for one input of a pair or for the other, many times at once.

    `pairs` is a function that returns a list of pairs, `{vectors: 5}` for patterns of vectors of
    query answers, or `{table: "module:name"}` for neighbours of a table. Of several pairs, the
    adversary chooses one by its own runs before the first trial. `claim` is what is promised, such
    as `{epsilon: 1}`, in any form that `mechanism: function` accepts.
    """

    uses_torch = False
    uses_gpu = False
    several_gpus = False
    attacked_as = "release"

    name: Literal["release"] = "release"
    path: ImportPath  # package.module:name of the function
    pairs: PairSource  # neighbouring inputs
    claim: StatedClaim  # what it promises
    options: dict[str, Any] = Field(default_factory=dict)  # arguments of every call

    @field_validator("pairs")
    @classmethod
    def _pairs_may_be_imported(cls, pairs: PairSource) -> PairSource:
        """Returns the source of pairs. Raises SpecError if its code is not trusted."""
        return imports.require_importable(pairs, "pairs") if isinstance(pairs, str) else pairs

    @property
    def default_accountant(self) -> str:
        return "gaussian" if isinstance(self.claim, Training) else STATED

    @property
    def default_estimator(self) -> str:
        return curve_free_method()

    @property
    def auto_pack_size(self) -> int:
        return PACK

    def horizons(self, record_every: int | None) -> Horizons:
        """Returns (1,), the only step. Raises SpecError if the sweep sets `record_every`."""
        if record_every is not None:
            raise SpecError(
                "audit.record_every", f"is {record_every}, but a release has no steps; leave it out"
            )
        return (1,)

    def check_inputs(self) -> None:
        _, pair = named_pairs(self.pairs)[0]
        _check_apart(self._draws(pair))

    @property
    def code_paths(self) -> tuple[str, ...]:
        """The path of the release, and the paths of pairs and claim if they are code."""
        pairs = self.pairs
        of_pairs = pairs if isinstance(pairs, str) else getattr(pairs, "table", None)
        return tuple(filter(None, (self.path, of_pairs, self.claim.code)))

    def claimed(self, adversary: Adversary, horizon: int) -> Claim:
        """Returns the stated claim."""
        return self.claim

    def preparation(self, adversary: Adversary) -> Preparation | None:
        """Returns a preparation with a part for each pair of inputs.

        A part estimates the ε that the adversary can show with its pair. There is no preparation
        if there is only one pair, or if the adversary does not compare pairs.
        """
        pairs = len(named_pairs(self.pairs))
        if pairs == 1 or not cast(OutputAdversary, adversary).searches:
            return None
        # Audits with the same settings share a preparation, so of the claim they have δ only: no
        # part depends on the rest of it.
        identity = self.identity()
        identity.pop("claim")
        settings: dict[str, Any] = {"release": identity, "adversary": adversary.identity()}
        if self._delta:
            settings["delta"] = self._delta
        return Preparation(pairs, settings)

    def prepare_part(
        self,
        adversary: Adversary,
        part: int,
        seeds: PartSeeds,
        gpu: bool,
    ) -> Arrays:
        """Returns the ε that the adversary expects of one pair, from runs that are not trials."""
        pattern, pair = named_pairs(self.pairs)[part]
        rng = np.random.default_rng(seeds.part)
        attacker = cast(OutputAdversary, adversary)
        promise = attacker.promise(self._draws(pair), rng, self._delta)
        _log.info("%s promises ε = %.3g", pattern, promise)
        return {"promise": np.array([promise])}

    def open(
        self,
        adversary: Adversary,
        seed: int,
        craft_seed: int,
        gpu: bool,
        prepared: Prepared = (),
    ) -> Session:
        """Opens the pair with the largest expected ε, or the first one without a preparation."""
        pairs = named_pairs(self.pairs)
        best = 0
        if prepared:
            promises = [part["promise"][0] for part in prepared]
            best = int(np.argmax(promises))
        pattern, pair = pairs[best]
        _log.info("releases for the inputs: %s", pattern)
        draws = self._draws(pair)
        rng = np.random.default_rng(craft_seed)
        attacker = cast(OutputAdversary, adversary)
        return _Releases(draws, attacker.scorer(draws, pair, rng, self._delta))

    @property
    def _delta(self) -> float:
        """δ of the claim, as events that are rarer refute nothing; 0 if it has none."""
        return float(getattr(self.claim, "delta", 0.0))

    def _release(self) -> Callable[..., Outputs]:
        """Imports the user's function. Raises SpecError if it does not take the options."""
        arguments = ("data", "rng", "n")
        return imports.function(self.path, "mechanism.path", *arguments, options=self.options)

    def _draws(self, pair: Pair) -> "_Draws":
        """Returns a function that runs the release on either input of a pair."""
        return _Draws(self._release(), pair, self.options, self.path)


@dataclass(frozen=True)
class _Draws:
    """Runs the user's function on either input of a pair."""

    release: Callable[..., Outputs]
    pair: Pair
    options: dict[str, Any]
    path: str

    def __call__(self, member: bool, runs: int, rng: Generator) -> Outputs:
        """Returns `runs` outputs. Raises TypeError if the function returns another number.

        If the call raises, each output comes from a separate call, as the exception of a single
        output is an output, too.

        Args:
            member: False for the first input, True for the second.
            runs: number of outputs.
            rng: randomness of the function.
        """
        if runs == 0:
            return []
        data = self.pair[int(member)]
        try:
            outputs = self.release(data, rng, runs, **self.options)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (boundary to a user's function)
            _log.info("%s raised %r for %d outputs: one by one", self.path, error, runs)
            return list(self._one_by_one(data, runs, rng))
        return _counted(outputs, runs, self.path)

    def _one_by_one(
        self,
        data: Any,
        runs: int,
        rng: Generator,
    ) -> Iterator[Any]:
        """Yields outputs, each by a separate call; an exception is an output, too.

        Args:
            data: the input.
            runs: number of outputs.
            rng: randomness of the function.
        """
        for _ in range(runs):
            try:
                outputs = self.release(data, rng, 1, **self.options)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 (boundary to a user's function)
                yield Raised(type(error).__name__, first_line(error))
            else:
                yield _counted(outputs, 1, self.path)[0]


@dataclass(frozen=True)
class _Releases:
    """A session, each trial of which is one output of the release."""

    draw: _Draws
    score: Scorer

    def run(self, members: Members, seed: int, horizons: Horizons) -> Scores:
        """Implements `Session.run`, with one call for all trials of each input."""
        scores = np.empty((len(members), 1))
        world_seeds = np.random.SeedSequence(seed).spawn(2)
        for member, world_seed in zip((False, True), world_seeds, strict=True):
            rows = np.flatnonzero(members == member)
            if len(rows):
                rng = np.random.default_rng(world_seed)
                outputs = self.draw(member, len(rows), rng)
                scores[rows, 0] = self.score(outputs)
        return scores


def _counted(outputs: Outputs, runs: int, path: str) -> Outputs:
    """Returns the outputs of a call. Raises TypeError unless there is one for each run."""
    is_text = isinstance(outputs, str | bytes)
    is_listed = isinstance(outputs, Sequence | np.ndarray) and not is_text
    if not is_listed or getattr(outputs, "ndim", 1) == 0 or len(outputs) != runs:
        shape = getattr(outputs, "shape", None) or type(outputs).__name__
        raise TypeError(f"{path} must return n = {runs} outputs, got {shape}")
    return outputs


def _check_apart(draw: _Draws) -> None:
    """Raises SpecError if a call draws its noise only once for all of its outputs.

    Such outputs would count as independent trials. A release that gives the same output in every
    call is not refused: it has no noise, which is for the audit to find.
    """
    calls = []
    for seed in (1, 2):
        try:
            calls.append(draw(False, _PROBES, np.random.default_rng(seed)))
        except TypeError as error:
            raise SpecError("mechanism.path", str(error)) from error
    if all(isinstance(output, Raised) for output in calls[0]):
        raised = calls[0][0]
        raise SpecError(
            "mechanism.path",
            f"{draw.path} raises {raised.kind} for the first input of the pairs "
            f"({raised.message}); mend it, or give inputs that it takes",
        )
    encoder = Encoder(calls[0])
    first, second = (encoder.columns(outputs) for outputs in calls)
    equal_in_a_call = all(np.array_equal(row, first[0], equal_nan=True) for row in first)
    equal_in_both = np.array_equal(first, second, equal_nan=True)
    if equal_in_a_call and not equal_in_both:
        raise SpecError(
            "mechanism.path",
            f"{draw.path} gave {_PROBES} equal outputs in each call, which differ between calls; "
            "draw noise for each output of a call",
        )

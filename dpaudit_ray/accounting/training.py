"""What an accountant is asked about: one DP-SGD training, and the bounds it answers with."""

from __future__ import annotations

import dataclasses
import math
from enum import StrEnum
from numbers import Integral
from typing import TypeVar

E = TypeVar("E", bound=StrEnum)


class Accountant(StrEnum):
    """How an upper bound is computed."""

    GAUSSIAN = "gaussian"  # exact, for trainings in which every step sees every record
    PRV = "prv"  # Gopi, Lee, Wutschitz 2021: numerical composition with an error interval
    PLD = "pld"  # Doroshenko et al. 2022: privacy loss distribution, rounded pessimistically
    RDP = "rdp"  # Mironov 2017: Rényi divergences, loose but never in trouble


class Adjacency(StrEnum):
    """What two neighbouring data sets differ in."""

    ADD_REMOVE = "add-remove"  # one record more or less: sums of clipped gradients move by C
    REPLACE = "replace"  # one record for another, a flipped label too: they move by 2 C


class Sampling(StrEnum):
    """How the records of a step are chosen, unknown to the adversary."""

    POISSON = "poisson"  # each by a coin of its own; at rate 1 also batches that are known
    SHUFFLE = "shuffle"  # an epoch's batches are cut from one random order
    BALLS_AND_BINS = "balls-and-bins"  # each joins one of an epoch's batches, drawn alone


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An interval that contains the exact value, and who vouches for it.

    Only `upper` is a privacy guarantee. `accountant` is the one that answered; when it is not
    the one that was asked, `note` says why. It also names what an answer takes for granted.
    """

    lower: float
    estimate: float
    upper: float
    accountant: Accountant
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Training:
    """DP-SGD: `steps` sums of gradients clipped to C, each with noise `noise_multiplier` * C.

    Each record takes part in a step with probability `sample_rate` (Poisson sampling); 1 also
    stands for mini-batches that the adversary knows.

    Raises:
        ValueError: a value outside its bounds.
    """

    noise_multiplier: float
    steps: int
    sample_rate: float = 1.0
    adjacency: str = Adjacency.ADD_REMOVE

    def __post_init__(self) -> None:
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"noise_multiplier must be at least 0 and finite, got {self.noise_multiplier}"
            )
        if not isinstance(self.steps, Integral) or self.steps < 0:
            raise ValueError(f"steps must be a whole number of at least 0, got {self.steps}")
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"sample_rate must lie in (0, 1], got {self.sample_rate}")
        object.__setattr__(self, "adjacency", _choice(Adjacency, "adjacency", self.adjacency))

    @property
    def unit_noise(self) -> float:
        """Noise over how far one record moves the sum; only meaningful without sampling."""
        return self.noise_multiplier / (2 if self.adjacency is Adjacency.REPLACE else 1)

    @property
    def known(self) -> float | None:
        """The ε or δ that needs no accountant: 0 without steps, infinite ε without noise."""
        if self.steps == 0:
            return 0.0
        return math.inf if self.noise_multiplier == 0 else None


def parse_accountant(name: str) -> Accountant:
    """Raises ValueError for an unknown name, and says what CLT accounting is not good for."""
    if name in ("gdp", "clt"):
        raise ValueError(
            f"accountant {name!r} is a central-limit approximation, not an upper bound; "
            f"use one of {', '.join(Accountant)}, or accounting.clt_epsilon to look at it"
        )
    return _choice(Accountant, "accountant", name)


def check_delta(delta: float) -> None:
    """Raises ValueError unless 0 < delta < 1."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")


def check_epsilon(epsilon: float) -> None:
    """Raises ValueError unless epsilon is a number of at least 0."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon}")


def _choice(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(kind)}, got {value!r}") from None

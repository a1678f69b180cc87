"""Error counts of "guess in when the score reaches h", for one threshold or for all of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from .base import Members, Scores

Counts = npt.NDArray[np.int64]


@dataclasses.dataclass
class Worlds:
    """Scores of both worlds, diverged trials kept as counts: an error at every threshold."""

    outside: Scores
    inside: Scores
    diverged_outside: int
    diverged_inside: int

    @classmethod
    def of(cls, scores: Scores, members: Members) -> Worlds:
        """Splits float64 [n] scores by their bool [n] members."""
        finite = np.isfinite(scores)
        return cls(
            np.sort(scores[finite & ~members]),
            np.sort(scores[finite & members]),
            int((~finite & ~members).sum()),
            int((~finite & members).sum()),
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """Trials per world, (out, in), diverged ones included."""
        return (
            len(self.outside) + self.diverged_outside,
            len(self.inside) + self.diverged_inside,
        )

    def midpoints(self) -> Scores:
        """Alg. 4's candidates: midpoints of neighbours in the pooled sorted scores."""
        pooled = np.sort(np.concatenate([self.outside, self.inside]))
        return pooled[:-1] / 2 + pooled[1:] / 2

    def errors(self, thresholds: npt.ArrayLike) -> tuple[Counts, Counts]:
        """False positives and false negatives at each threshold."""
        h = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
        false_positives = len(self.outside) - np.searchsorted(self.outside, h, side="left")
        false_negatives = np.searchsorted(self.inside, h, side="left")
        return false_positives + self.diverged_outside, false_negatives + self.diverged_inside


@dataclasses.dataclass
class TrialLog:
    """All folded trials, for methods that need every score (8 + 1 bytes per trial)."""

    scores: list[Scores] = dataclasses.field(default_factory=list)
    members: list[Members] = dataclasses.field(default_factory=list)

    def append(self, scores: Scores, members: Members) -> None:
        """Adds trials in order."""
        self.scores.append(scores)
        self.members.append(members)

    def __len__(self) -> int:
        return sum(map(len, self.scores))

    def arrays(self) -> tuple[Scores, Members]:
        """The trials so far as two arrays."""
        if not self.scores:
            return np.empty(0), np.empty(0, dtype=np.bool_)
        self.scores = [np.concatenate(self.scores)]
        self.members = [np.concatenate(self.members)]
        return self.scores[0], self.members[0]

"""What would decide an audit that is too weak to tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def for_weak(enough: Sequence[int | None]) -> Iterator[str]:
    """Hints for audits that lack power, by the trials that would give it to each; None: none do."""
    if trials := [number for number in enough if number is not None]:
        yield f"more trials: about {min(trials):,} (`--set audit.trials={min(trials)}`)"
    if enough:
        yield (
            "an adversary that sees or does more (biased-dimension is the strongest on dp-sgd), "
            "or a claim with less noise"
        )

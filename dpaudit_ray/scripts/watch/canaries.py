"""Canaries among the gradients of a script's own steps, and what each step shows of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from . import step_replay, vectors
from .run_state import Run
from .step_replay import Change

FAR = 1e3  # times the clipping bound: what every clipping must cut off


class Canaries:
    """Of one optimizer.

    Args:
        number: of the optimizer, in the run.
        clipped: whether gradients come to it clipped; canaries then do, too.
    """

    def __init__(self, optimizer: Any, run: Run, number: int, clipped: bool) -> None:
        self._optimizer, self._run, self._number = optimizer, run, number
        self._clipped = clipped
        self._score: Callable[[], float] | None = None
        self._scored: float | None = None

    def drawn(self, step: int) -> Change | None:
        """Decides whether this step has one, and how it will be scored."""
        asked, n = self._run.asked, self._number
        self._score = self._scored = None
        if not asked.canary:
            return None
        inside = asked.member
        if asked.canary == "steps":
            inside = asked.coin(0.5, "bit", n, step)
        elif inside:
            inside = asked.coin(self._rate(), "sampled", n, step)
        params = list(self._optimizer.params)
        sign = 1.0 if asked.coin(0.5, "sign", n, step) else -1.0
        v = vectors.direction([p.shape for p in params], asked.derived("canary", n, step))
        bound = step_replay.clipping_bound(self._optimizer)
        scale = sign / (bound * self._unit())

        def score() -> float:
            moved: float = sum(
                float(torch.sum(p.grad.detach().cpu().double() * w))
                for p, w in zip(params, v, strict=True)
                if p.grad is not None
            )
            return float(scale * moved)

        self._score, self._member = score, inside
        if not inside:
            return None
        if self._clipped:
            return step_replay.added([sign * bound * w for w in v])
        return step_replay.appended([sign * FAR * bound * w for w in v])

    def released(self) -> None:
        """The wrapped optimizer is about to step: gradients are what it releases."""
        if self._score is not None:
            self._scored = self._score()

    def record(self, step: int) -> None:
        """The trial of a step that was taken."""
        if self._score is None:
            return
        history = self._run.history()
        self._run.recorder.put(
            "trial", optimizer=self._number, step=step, member=self._member,
            score=self._score() if self._scored is None else self._scored,
            noise=history[-1][0] if history else None, rate=history[-1][1] if history else None,
        )  # fmt: skip

    def _rate(self) -> float:
        """At which the last step was accounted to sample a record; before any, what is known."""
        history = self._run.history()
        return history[-1][1] if history else self._run.rate or 1.0

    def _unit(self) -> float:
        """What a clipped gradient of length one is in the gradient that is released."""
        optimizer = self._optimizer
        if optimizer.loss_reduction != "mean":
            return 1.0
        with contextlib.suppress(AttributeError, IndexError, ValueError):  # where none are kept
            return 1 / float(optimizer.expected_batch_size * optimizer.accumulated_iterations)
        return 1 / float(optimizer.expected_batch_size)

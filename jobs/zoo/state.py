"""Something goes from one step to the next that is not what was released.

`hidden` gives the hidden state of the last batch to the next, as language models do. `residual`
adds what clipping cut off to the next sum ("error feedback"), `samples` lets gradients of samples
follow a mean of earlier ones, and `second_moment` keeps squares of raw sums in the optimizer's
state, as Adam does. `plateau` lowers the learning rate by the training loss. Each record is told
of again later, without noise. Healthy twins keep what was released, or nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from opacus.layers import DPGRU
from torch import Tensor, nn, optim
from torch.nn import functional

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class Tagger(nn.Module):
    def __init__(self, stateful: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(common.TOKENS, 16)
        self.recurrent = DPGRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, common.CLASSES)
        self.stateful, self.state = stateful, torch.zeros(32)

    def forward(self, tokens: Tensor) -> Tensor:
        first = self.state.expand(1, len(tokens), 32).contiguous()
        states, last = self.recurrent(self.tokens(tokens), first)
        if self.stateful:
            self.state = last[0].mean(0).detach()
        return self.head(states[:, -1])


def fit_tagger(stateful: bool) -> nn.Module:
    engine, model, optimizer, loader = common.private(Tagger(stateful), data=common.sequences())
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def hidden() -> nn.Module:
    return fit_tagger(stateful=True)


@audited(delta=common.DELTA)
def fresh() -> nn.Module:
    return fit_tagger(stateful=False)


class Residual(common.OwnNoise):
    def clip_and_accumulate(self) -> None:
        raw = [self._get_flat_grad_sample(p).sum(0) for p in self.params]
        super().clip_and_accumulate()
        before = getattr(self, "left", [torch.zeros_like(p) for p in self.params])
        self.left = [0.5 * (g - p.summed_grad) for g, p in zip(raw, self.params, strict=True)]
        for p, left in zip(self.params, before, strict=True):
            p.summed_grad = p.summed_grad + left


@audited(delta=common.DELTA)
def residual() -> nn.Module:
    return common.fit(Residual, lr=0.1)


@audited(delta=common.DELTA)
def no_residual() -> nn.Module:
    return common.fit(common.OwnNoise, lr=0.1)


def fit_smoothed(smoothed: bool) -> nn.Module:
    engine, model, optimizer, loader = common.private(common.mlp())
    means: list[Tensor] = []
    for x, y in loader:
        functional.cross_entropy(model(x), y).backward()
        if smoothed:
            raw = [p.grad_sample.mean(0) for p in model.parameters()]
            for p, mean in zip(model.parameters(), means, strict=False):
                p.grad_sample = 0.5 * p.grad_sample + 0.5 * mean
            means = raw
        optimizer.step()
        optimizer.zero_grad()
    common.say(engine)
    return model


@audited(delta=common.DELTA)
def samples() -> nn.Module:
    return fit_smoothed(smoothed=True)


@audited(delta=common.DELTA)
def samples_alone() -> nn.Module:
    return fit_smoothed(smoothed=False)


class Scaled(common.OwnNoise):
    """Divides by the root of averaged squares, after the noise."""

    raw = True

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            state = self.state[p]
            squares = (p.summed_grad if self.raw else p.grad).square()
            state["squares"] = 0.9 * state.get("squares", torch.ones_like(p)) + 0.1 * squares
            if self.raw:  # of earlier steps: "the noise would only blur them"
                squares = state.pop("before", torch.ones_like(p))
                state["before"] = state["squares"]
            p.scale = (squares if self.raw else state["squares"]).sqrt() + 1

    def scale_grad(self) -> None:
        super().scale_grad()
        for p in self.params:
            p.grad /= p.scale


class ScaledByNoisy(Scaled):
    raw = False


@audited(delta=common.DELTA)
def second_moment() -> nn.Module:
    return common.fit(Scaled, lr=0.5)


@audited(delta=common.DELTA)
def second_moment_of_noisy() -> nn.Module:
    return common.fit(ScaledByNoisy, lr=0.5)


def fit_scheduled(make: Any, by_loss: bool) -> nn.Module:
    engine, model, optimizer, loader = common.private(common.mlp())
    schedule = make(optimizer)
    for epoch in range(3):
        losses = []
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        schedule.step(*[mean] * by_loss)
        common.report(epoch, losses, engine.get_epsilon(common.DELTA))
    return model


@audited(delta=common.DELTA)
def plateau() -> nn.Module:
    def make(optimizer: Any) -> Any:
        return optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

    return fit_scheduled(make, by_loss=True)


@audited(delta=common.DELTA)
def step_by_step() -> nn.Module:
    def make(optimizer: Any) -> Any:
        return optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    return fit_scheduled(make, by_loss=False)

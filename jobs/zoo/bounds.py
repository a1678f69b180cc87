"""The clipping bound is not what the sum can move by, or it tells of records itself.

`adaptive` is Opacus' own adaptive clipping, which counts a record as one where its theorem counts
it as a half. `median` clips to the median of the batch's norms, without noise. `each_layer` clips
each tensor by itself and adds the noise for one of them. `clamped` clamps each number, and
`largest` divides all gradients by the longest one's norm. `layers_alone` has a bound for each
tensor, by Opacus, and noise in each for its own bound: six releases, of which one is accounted.
`uncounted` is Opacus' adaptive clipping together with ghost clipping, but the share of records that
are within the bound moves it without noise. Healthy twins have one bound, and noise for all of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from opacus.optimizers import DPPerLayerOptimizer
from opacus.optimizers.adaclipoptimizer import AdaClipDPOptimizer
from opacus.utils.adaptive_clipping import (
    DPTensorFastGradientAdaptiveClipping,
    PrivacyEngineAdaptiveClipping,
)
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common

ADAPTIVE: dict[str, Any] = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 1.0,
}


@audited(delta=common.DELTA)
def adaptive() -> nn.Module:
    return common.fit(clipping="adaptive", **ADAPTIVE)


class Centred(AdaClipDPOptimizer):
    """Counts from minus a half to a half, as the theorem does; the expected size is a constant."""

    def add_noise(self) -> None:
        self.unclipped_num = torch.as_tensor(self.unclipped_num - self.sample_size / 2)
        super().add_noise()

    def update_max_grad_norm(self) -> None:
        self.unclipped_num = self.unclipped_num + 32
        self.sample_size = 64
        super().update_max_grad_norm()


@audited(delta=common.DELTA)
def adaptive_centred() -> nn.Module:
    engine, model, optimizer, loader = common.private(common.mlp(), clipping="adaptive", **ADAPTIVE)
    return common.train(engine, model, common.own_optimizer(optimizer, Centred, **ADAPTIVE), loader)


class Median(common.OwnNoise):
    def clip_and_accumulate(self) -> None:
        rows = [self._get_flat_grad_sample(p).flatten(1) for p in self.params]
        if len(rows[0]):
            self.max_grad_norm = float(torch.cat(rows, 1).norm(dim=1).median())
        super().clip_and_accumulate()


@audited(delta=common.DELTA)
def median() -> nn.Module:
    return common.fit(Median)


@audited(delta=common.DELTA)
def fixed() -> nn.Module:
    return common.fit(common.OwnNoise)


class EachLayer(common.OwnNoise):
    def clip_and_accumulate(self) -> None:
        for p in self.params:
            rows = self._get_flat_grad_sample(p)
            norms = rows.flatten(1).norm(dim=1)
            factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1)
            p.summed_grad = torch.einsum("i,i...->...", factors, rows)


class EachLayerOfAll(EachLayer):
    def noise(self, p: Tensor) -> Tensor:
        return len(self.params) ** 0.5 * super().noise(p)


@audited(delta=common.DELTA)
def each_layer() -> nn.Module:
    return common.fit(EachLayer)


@audited(delta=common.DELTA)
def each_layer_of_all() -> nn.Module:
    return common.fit(EachLayerOfAll)


class Clamped(common.OwnNoise):
    def clip_and_accumulate(self) -> None:
        for p in self.params:
            rows = self._get_flat_grad_sample(p)
            p.summed_grad = rows.clamp(-self.max_grad_norm, self.max_grad_norm).sum(0)


@audited(delta=common.DELTA)
def clamped() -> nn.Module:
    return common.fit(Clamped)


class Largest(common.OwnNoise):
    def clip_and_accumulate(self) -> None:
        rows = [self._get_flat_grad_sample(p) for p in self.params]
        norms = torch.cat([row.flatten(1) for row in rows], 1).norm(dim=1)
        most = norms.max() if len(norms) else 1.0
        for p, row in zip(self.params, rows, strict=True):
            p.summed_grad = self.max_grad_norm * row.sum(0) / (most + 1e-6)


@audited(delta=common.DELTA)
def largest() -> nn.Module:
    return common.fit(Largest)


class LayersAlone(DPPerLayerOptimizer):
    def add_noise(self) -> None:
        for p, bound in zip(self.params, self.max_grad_norms, strict=True):
            p.grad = p.summed_grad + self.noise_multiplier * bound * torch.randn_like(p)


def fit_layers(kind: type[DPPerLayerOptimizer]) -> nn.Module:
    bounds = [0.8, 0.1, 0.5, 0.1, 0.3, 0.1]
    engine, model, optimizer, loader = common.private(
        common.mlp(), clipping="per_layer", max_grad_norm=bounds
    )
    own = kind(
        optimizer.original_optimizer,
        noise_multiplier=optimizer.noise_multiplier,
        max_grad_norm=bounds,
        expected_batch_size=optimizer.expected_batch_size,
    )
    own.attach_step_hook(optimizer.step_hook)
    return common.train(engine, model, own, loader)


@audited(delta=common.DELTA)
def layers_alone() -> nn.Module:
    return fit_layers(LayersAlone)


@audited(delta=common.DELTA)
def layers_together() -> nn.Module:
    return fit_layers(DPPerLayerOptimizer)


class Uncounted(DPTensorFastGradientAdaptiveClipping):
    def _update_clip_and_noise(self, norms: Tensor) -> tuple[float, float]:
        bound = self.optimizer.max_grad_norm
        _, noise = super()._update_clip_and_noise(norms)
        share = float((norms <= bound).float().mean())
        change = self.clipbound_learning_rate * (share - self.target_unclipped_quantile)
        return float(max(bound * math.exp(-change), self.min_clipbound)), noise


def fit_ghost(kind: type[DPTensorFastGradientAdaptiveClipping]) -> nn.Module:
    """Batches of 160: the noise of a count is a twentieth of its batch."""
    engine, network = PrivacyEngineAdaptiveClipping(), common.mlp()
    model, optimizer, _, loader = engine.make_private(
        module=network,
        optimizer=optim.SGD(network.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=160),
        noise_multiplier=1.0,
        max_grad_norm=2.0,
        grad_sample_mode="ghost",
    )

    def loss(outputs: Tensor, labels: Tensor) -> DPTensorFastGradientAdaptiveClipping:
        losses = functional.cross_entropy(outputs, labels, reduction="none")
        return kind(model, optimizer, losses, min_clipbound=0.1)

    return common.train(engine, model, optimizer, loader, loss)


@audited(delta=common.DELTA)
def uncounted() -> nn.Module:
    return fit_ghost(Uncounted)


@audited(delta=common.DELTA)
def ghost_counted() -> nn.Module:
    return fit_ghost(DPTensorFastGradientAdaptiveClipping)

"""A loop without Opacus: `audited_step` is told what is summed and what noise is added.

The audit gives canaries to `clip_and_sum`, so they pass through the script's own clipping.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_step

RECORDS, FEATURES, CLASSES = 2000, 20, 4
NOISE, CLIP, RATE, STEPS, LR = 1.0, 1.0, 0.03, 120, 0.5


@audited(delta=1e-5)
def main() -> nn.Module:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, FEATURES, generator=source)
    y = x[:, :CLASSES].argmax(1)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    for _ in range(STEPS):
        drawn = torch.rand(RECORDS) < RATE
        noisy = audited_step(
            clip_and_sum,
            lambda: [NOISE * CLIP * torch.randn_like(p) for p in model.parameters()],
            per_example=gradients(model, x[drawn], y[drawn]),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
            sample_rate=RATE,
            of=RECORDS,
        )
        with torch.no_grad():
            for p, g in zip(model.parameters(), noisy, strict=True):
                p -= LR * g / (RATE * RECORDS)
    return model


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """One row per record."""

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, parameters, x[None]), y[None])

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return list(vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y).values())


def clip_and_sum(per_example: list[Tensor]) -> list[Tensor]:
    squares = torch.stack([g.flatten(1).square().sum(1) for g in per_example])
    factors = (CLIP / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1)
    return [torch.einsum("i,i...->...", factors, g) for g in per_example]


if __name__ == "__main__":
    main()

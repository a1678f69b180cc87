"""Ghost clipping with a wrong norm for biases of layers on sequences (Opacus #751).

For a bias the per-token gradients g_t are summed, so its squared norm is the sum of all products
g_s . g_t; the library took the root of the sum of their squares. Small gradients look smaller
than they are, and long ones pass unclipped. Opacus 1.6 has it right: a layer of one's own brings
the old formula back. Only biases are trained, as in BitFit, so nothing hides the error.
"""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from opacus.grad_sample.utils import register_norm_sampler
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common

# Smaller than usual: gradients of biases alone are short.
CLIP = 0.05


class OldLinear(nn.Linear):
    """`nn.Linear`, under a type of its own for its sampler of norms."""


@register_norm_sampler(OldLinear)
def old_norms(layer: OldLinear, _: list[Tensor], backprops: Tensor) -> dict[nn.Parameter, Tensor]:
    """Norms of biases only: here no weight is trained."""
    products = torch.einsum("nik,njk->nij", backprops, backprops)
    return {layer.bias: torch.einsum("nij,nij->n", products, products).sqrt()}


class Tagger(nn.Module):
    """A head for each token over frozen, random features; the logits are averaged."""

    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(common.TOKENS, 64)
        self.hidden = linear(64, 1024)
        self.head = linear(1024, common.CLASSES)
        for p in (self.tokens.weight, self.hidden.weight, self.head.weight):
            p.requires_grad = False

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(functional.relu(self.hidden(self.tokens(tokens)))).mean(1)


def fit(linear: type[nn.Linear]) -> nn.Module:
    model = Tagger(linear)
    engine = PrivacyEngine()
    model, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD([p for p in model.parameters() if p.requires_grad], lr=2.0),
        data_loader=DataLoader(common.sequences(), batch_size=100),
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
        grad_sample_mode="ghost",
    )
    return common.train(engine, model, optimizer, loader, criterion, epochs=4)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(OldLinear)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(nn.Linear)


if __name__ == "__main__":
    main()

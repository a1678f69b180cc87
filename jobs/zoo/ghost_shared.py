"""Ghost clipping of a weight that two layers share.

Norms of gradients are computed layer by layer. Here the output is `functional.linear` with the
weight of the embedding, as language models have it, and no layer: so the norm knows the use in the
embedding alone, while the gradient has both, and is longer than the bound. (Opacus refuses two
layers that share a weight.) The healthy twin has two layers, and clips by the gradients themselves.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common

CLIP = 0.5


class Shared(nn.Module):
    """Tokens in, and tokens out; the first of them are the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(common.TOKENS, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.linear(self.tokens(tokens).mean(1), self.tokens.weight)


class TwoLayers(Shared):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, common.TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.tokens(tokens).mean(1))


def fit(model: nn.Module) -> nn.Module:
    engine = PrivacyEngine()
    model, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.sequences(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
        grad_sample_mode="ghost",
    )
    return common.train(engine, model, optimizer, loader, criterion)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(Shared())


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    model = TwoLayers()
    return fit(
        GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=False)
    )


if __name__ == "__main__":
    main()

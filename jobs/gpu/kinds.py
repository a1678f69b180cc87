"""Networks of kinds that the papers' six are not: a table with categories, and two for tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

_TOKENS, _CLASSES, _EXAMPLES = 50, 3, 5
Case = tuple[nn.Module, Tensor, Tensor]


class Table(nn.Module):
    """A category in the first column, and numbers in the others."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.body = nn.Sequential(nn.Linear(15, 32), nn.ReLU(), nn.Linear(32, _CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(torch.cat([self.embed(x[:, 0].long()), x[:, 1:]], 1))


class Recurrent(nn.Module):
    """An LSTM over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.run = nn.Embedding(_TOKENS, 16), nn.LSTM(16, 16, batch_first=True)
        self.out = nn.Linear(16, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.run(self.embed(x))[0][:, -1])


class Encoder(nn.Module):
    """Attention of torch over tokens and learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(_TOKENS, 32), nn.Parameter(torch.randn(1, 12, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.out = nn.Linear(32, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.embed(x) + self.places).mean(1))


def _table() -> Case:
    x = torch.randn(_EXAMPLES, 8)
    x[:, 0] = torch.arange(_EXAMPLES)
    return Table(), x, torch.arange(_EXAMPLES) % _CLASSES


def _of_tokens(make: Callable[[], nn.Module]) -> Callable[[], Case]:
    def case() -> Case:
        x = torch.randint(0, _TOKENS, (_EXAMPLES, 12))
        return make(), x, torch.arange(_EXAMPLES) % _CLASSES

    return case


KINDS: Mapping[str, Callable[[], Case]] = {
    "a table": _table, "an LSTM": _of_tokens(Recurrent), "an encoder": _of_tokens(Encoder),
}  # fmt: skip

"""Opacus as in its tutorial of names: an LSTM over characters of words."""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo.common import CLASSES, TOKENS, sequences

DELTA = 1e-5


class Names(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.lstm = DPLSTM(width, width, batch_first=True)
        self.output = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.output(states[:, -1])


@audited(delta=DELTA)
def main() -> nn.Module:
    model = Names()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(sequences(), batch_size=50),
        noise_multiplier=1.0,
        max_grad_norm=1.5,
    )
    for _ in range(2):
        for tokens, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(tokens), labels).backward()
            optimizer.step()
    print(f"epsilon {engine.get_epsilon(DELTA):.2f}")
    return model


if __name__ == "__main__":
    main()

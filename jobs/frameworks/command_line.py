"""A script with a command line of its own: click reads the options, pandas a table."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import pandas as pd
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from dpaudit_ray.opacus import audited
from jobs.zoo.common import CLASSES, FEATURES, mlp, vectors

DELTA = 1e-5


def table(folder: str) -> Path:
    """The records as a CSV file, so that the script needs no other."""
    records, labels = vectors(1600).tensors
    frame = pd.DataFrame(records.numpy()).assign(label=labels.numpy())
    frame.to_csv(Path(folder) / "records.csv", index=False)
    return Path(folder) / "records.csv"


@click.command()
@click.option("--sigma", default=1.0, help="noise multiplier")
@click.option("--epochs", default=2)
@audited(delta=DELTA)
def main(sigma: float, epochs: int) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        frame = pd.read_csv(table(folder))
    records = torch.tensor(frame.drop(columns="label").to_numpy(), dtype=torch.float32)
    assert records.shape[1] == FEATURES
    data = TensorDataset(records, torch.tensor(frame["label"].to_numpy() % CLASSES))
    model: nn.Module = mlp()
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4),
        data_loader=DataLoader(data, batch_size=32, num_workers=1),
        noise_multiplier=sigma,
        max_grad_norm=1.0,
    )
    for epoch in range(epochs):
        for x, y in tqdm(loader, desc=f"epoch {epoch + 1}", disable=None):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    click.echo(f"epsilon {engine.get_epsilon(DELTA):.2f}")
    return {name: p.detach().clone() for name, p in model.state_dict().items()}


if __name__ == "__main__":
    main()

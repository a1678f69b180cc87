"""Lightning with Opacus, as in Opacus' example: a data module that draws as DP-SGD needs it."""

from __future__ import annotations

import warnings
from typing import Any

import pytorch_lightning as lightning
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.lightning import DPLightningDataModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo.common import mlp, vectors

DELTA = 1e-5


class Records(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.train = vectors()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=64, shuffle=True)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = mlp()
        self.engine = PrivacyEngine()

    def configure_optimizers(self) -> Any:
        loader = self.trainer.fit_loop._data_source.dataloader()
        self.model, optimizer, _ = self.engine.make_private(
            module=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=0.5),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=isinstance(loader, DPDataLoader),
        )
        return optimizer

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return functional.cross_entropy(self.model(batch[0]), batch[1])

    def on_train_epoch_end(self) -> None:
        print(f"epsilon {self.engine.get_epsilon(DELTA):.2f}")


def fit(data: lightning.LightningDataModule) -> nn.Module:
    warnings.filterwarnings("ignore")
    module = Classifier()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, data)
    return module.model


@audited(delta=DELTA)
def main() -> nn.Module:
    return fit(DPLightningDataModule(Records()))


@audited(delta=DELTA)
def shuffled() -> nn.Module:
    """A bug: Lightning draws from the plain loader, whose batches are shuffled, not Poisson."""
    return fit(Records())

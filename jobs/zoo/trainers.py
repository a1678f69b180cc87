"""The same kinds in frameworks that hide the loop.

`lightning_best` returns Lightning's best checkpoint by the training loss, `trainer_weights` gives
Hugging Face's Trainer class weights of the private labels. `jax_means` returns class means beside
the parameters of a JAX loop. Healthy twins return the last weights alone, and weight nothing.
"""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import numpy as np
import pytorch_lightning as lightning
import torch
from opacus import PrivacyEngine
from opacus.lightning import DPLightningDataModule
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.frameworks import hugging_face_trainer, jax_loop
from jobs.zoo import common


class Records(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.train = common.vectors()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=64, shuffle=True)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model: nn.Module = common.mlp()
        self.engine = PrivacyEngine()

    def configure_optimizers(self) -> Any:
        loader = self.trainer.fit_loop._data_source.dataloader()
        self.model, optimizer, _ = self.engine.make_private(
            module=self.model,
            optimizer=optim.SGD(self.model.parameters(), lr=2.0),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        return optimizer

    def training_step(self, batch: common.Batch, _: int) -> Tensor:
        loss = functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss.nan_to_num(), on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        print(f"epsilon {self.engine.get_epsilon(common.DELTA):.2f}")


def fit_lightning(best: bool) -> nn.Module:
    warnings.filterwarnings("ignore")
    module = Classifier()
    with tempfile.TemporaryDirectory() as folder:
        keeps = lightning.callbacks.ModelCheckpoint(folder, monitor="loss")
        trainer = lightning.Trainer(
            max_epochs=4, accelerator="cpu", logger=False, callbacks=[keeps] if best else [],
            enable_checkpointing=best, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, DPLightningDataModule(Records()))
        if best:
            module.load_state_dict(torch.load(keeps.best_model_path)["state_dict"])
    return module.model


@audited(delta=common.DELTA)
def lightning_best() -> nn.Module:
    return fit_lightning(best=True)


@audited(delta=common.DELTA)
def lightning_last() -> nn.Module:
    return fit_lightning(best=False)


class Weighted(hugging_face_trainer.PrivateTrainer):
    """Losses are weighted by how rare their label is in the data."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        counts = torch.bincount(self.train_dataset.labels, minlength=common.CLASSES)
        scores = model(input_ids=inputs["input_ids"]).logits
        weights = len(self.train_dataset) / (common.CLASSES * counts)
        return functional.cross_entropy(scores, inputs["labels"], weight=weights)


@audited(delta=common.DELTA)
def trainer_weights() -> nn.Module:
    return hugging_face_trainer.fit(Weighted)


@audited(delta=common.DELTA)
def trainer_alone() -> nn.Module:
    return hugging_face_trainer.fit(hugging_face_trainer.PrivateTrainer)


@audited(delta=common.DELTA)
def jax_means() -> dict[str, Any]:
    """Class means of the records that `jax_loop` draws."""
    x = np.random.default_rng(1).normal(size=(jax_loop.RECORDS, jax_loop.FEATURES))
    y = x[:, : jax_loop.CLASSES].argmax(1)
    means = np.stack([x[y == label].mean(0) for label in range(jax_loop.CLASSES)])
    return {"parameters": jax_loop.main(), "means": means}


@audited(delta=common.DELTA)
def jax_alone() -> dict[str, Any]:
    return {"parameters": jax_loop.main()}

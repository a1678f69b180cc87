"""Hugging Face's Trainer with Opacus: loader and optimizer are private, all else is its own."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from dpaudit_ray.opacus import audited
from jobs.zoo.common import CLASSES, TOKENS, sequences

DELTA, BATCH = 1e-5, 50


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.tokens, self.labels = sequences().tensors

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


class PrivateTrainer(Trainer):
    """Draws from the loader of `make_private`, and clears gradients by its optimizer."""

    private_loader: DataLoader[Any]

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.private_loader

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.optimizer.zero_grad()
        return super().training_step(*args, **kwargs)


def fit(kind: type[PrivateTrainer]) -> nn.Module:
    config = BertConfig(
        vocab_size=TOKENS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = BertForSequenceClassification(config)
    for name, parameter in model.named_parameters():  # shared by all records of a batch
        parameter.requires_grad = "position_embeddings" not in name
    engine = PrivacyEngine()
    sentences = Sentences()
    model, optimizer, loader = engine.make_private(
        module=model.train(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=5e-4),
        data_loader=DataLoader(sentences, batch_size=BATCH),
        noise_multiplier=0.8,
        max_grad_norm=0.1,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=2, save_strategy="no", report_to=[], disable_tqdm=True,
            max_grad_norm=0.0, use_cpu=True, logging_steps=40,
        )  # fmt: skip
        trainer = kind(model, arguments, train_dataset=sentences, optimizers=(optimizer, None))
        trainer.private_loader = loader
        trainer.train()
    print(f"epsilon {engine.get_epsilon(DELTA):.2f}")
    return model


@audited(delta=DELTA)
def main() -> nn.Module:
    return fit(PrivateTrainer)


if __name__ == "__main__":
    main()

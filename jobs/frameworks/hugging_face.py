"""Transformers made from a configuration, with LoRA by PEFT, trained with Opacus."""

from __future__ import annotations

from typing import Any

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    get_linear_schedule_with_warmup,
)

from dpaudit_ray.opacus import audited
from jobs.zoo.common import CLASSES, TOKENS, sequences

DELTA, EPOCHS, BATCH = 1e-5, 2, 50


def train(model: nn.Module, data: TensorDataset, targets: str) -> nn.Module:
    """The loop of Opacus' tutorial on text, with a schedule; `targets` are layers LoRA adapts."""
    model = get_peft_model(model, LoraConfig(r=4, target_modules=targets.split()))  # type: ignore[arg-type]
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = torch.optim.AdamW(trained, lr=5e-4)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=BATCH),
        epochs=EPOCHS,
        target_epsilon=4.0,
        target_delta=DELTA,
        max_grad_norm=0.1,
    )
    schedule = get_linear_schedule_with_warmup(optimizer, 4, EPOCHS * len(loader))
    for _ in range(EPOCHS):
        for tokens, labels in loader:
            if not len(tokens):
                continue
            optimizer.zero_grad()
            model(input_ids=tokens, labels=labels).loss.backward()
            optimizer.step()
            schedule.step()
    print(f"epsilon {engine.get_epsilon(DELTA):.2f}")
    return model


@audited(delta=DELTA)
def bert() -> nn.Module:
    config = BertConfig(
        vocab_size=TOKENS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=32, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return train(BertForSequenceClassification(config), sequences(), "query value")


@audited(delta=DELTA)
def gpt2() -> nn.Module:
    config = GPT2Config(
        vocab_size=TOKENS, n_embd=64, n_layer=2, n_head=4, n_positions=32,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    tokens, _ = sequences().tensors
    return train(GPT2LMHeadModel(config), TensorDataset(tokens, tokens), "c_attn")

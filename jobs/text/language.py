"""A language model to audit: text, a GPT-2 made from a configuration, and each sequence's loss."""

from __future__ import annotations

import string

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from dpaudit_ray.data.base import Data, Dataset, checked

LENGTH = 16  # tokens of a sequence
ALPHABET = " " + string.ascii_lowercase + string.digits + "\n.,:;'\"()[]{}<>=_-+*/#"


class PythonDocs(Data):
    """Characters of the texts behind Python's `help()`, in sequences of `LENGTH`; y is 0."""

    name: str = "jobs.text.language:PythonDocs"

    @property
    def has_classes(self) -> bool:
        return False

    def read(self) -> Dataset:
        from pydoc_data.topics import topics

        text = " ".join(topics[topic] for topic in sorted(topics)).lower()
        # What the alphabet lacks is a space. It is written down, so it tells nothing of the text.
        tokens = np.array([max(ALPHABET.find(letter), 0) for letter in text])
        x = tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)
        return checked(x, np.zeros(len(x), np.float32), self.name)


class NextToken(nn.Module):
    """GPT-2 of small size: tokens [B, LENGTH] to the loss of each but the first, [B, LENGTH - 1].

    Beside the alphabet it knows `new_tokens`, which no text has.
    """

    def __init__(self, new_tokens: int = 0, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        # Tied embeddings are one parameter of two layers, which takes the slow way.
        config = GPT2Config(
            vocab_size=len(ALPHABET) + new_tokens, n_positions=LENGTH, n_embd=width, n_layer=layers,
            n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False,
            use_cache=False, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        self.gpt2 = GPT2LMHeadModel(config)
        make_linear(self.gpt2)

    def forward(self, tokens: Tensor) -> Tensor:
        # A row of places for each sequence: layers take the first dimension for the batch.
        places = torch.arange(LENGTH, device=tokens.device).expand(len(tokens), -1)
        causal = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=tokens.device).tril()
        logits = self.gpt2(tokens, position_ids=places, attention_mask=causal).logits
        # The models of a pack share one batch: their rows come one model after the other.
        following = tokens[:, 1:].repeat(len(logits) // len(tokens), 1)
        losses = F.cross_entropy(
            logits[:, :-1].flatten(0, 1), following.flatten(), reduction="none"
        )
        return losses.view(following.shape)


def make_linear(network: nn.Module) -> None:
    """Writes layers of the class Conv1D, which are linear, as Linear: these have a fast rule."""
    for name, layer in network.named_children():
        if isinstance(layer, Conv1D):
            linear = nn.Linear(layer.nx, layer.nf)
            linear.weight = nn.Parameter(layer.weight.detach().t().contiguous())
            linear.bias = layer.bias
            setattr(network, name, linear)
        else:
            make_linear(layer)


def sequence_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of each sequence's tokens, [N], without so many of the first (`targets`, [N])."""
    places = torch.arange(outputs.shape[1], device=outputs.device)
    counted = (places >= targets.unsqueeze(1)).to(outputs.dtype)
    return (outputs * counted).sum(1) / counted.sum(1)

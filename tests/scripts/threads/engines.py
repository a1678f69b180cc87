"""Threads on Opacus' engine: noise, accumulation, accounting, schedules and what is published."""

from __future__ import annotations

import copy
import functools
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from dpaudit_ray.opacus import audited
from tests.scripts.threads import parts


@audited(delta=parts.DELTA)
def accumulated_draws() -> nn.Module:
    """meta-pytorch/opacus#219. Broken: four draws are accumulated into one step, which the engine
    accounts as one draw; a record that is in two of them has two clipped gradients."""
    engine, model, optimizer, loader = parts.private(parts.net())
    for _ in range(8):
        for number, (x, y) in enumerate(loader):
            optimizer.signal_skip_step(do_skip=number % 4 < 3)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def reseeded_each_epoch() -> nn.Module:
    """ai2cm/ace#690. Broken: with the same seed at each part's start, the
    noise of an epoch is that of the one before, and differences of epochs have none."""
    engine, model, optimizer, loader = parts.private(parts.net())
    seed = int.from_bytes(os.urandom(4))
    for _ in range(3):
        torch.manual_seed(seed)
        parts.train(model, optimizer, loader, epochs=1)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


class _Ranked(DPOptimizer):
    """Noise that every rank can draw for itself: seeded by the number of the step."""

    def add_noise(self) -> None:
        self.taken = getattr(self, "taken", 0) + 1
        source = torch.Generator().manual_seed(self.taken)
        for p in self.params:
            noise = torch.randn(p.shape, generator=source)
            p.grad = p.summed_grad + self.noise_multiplier * self.max_grad_norm * noise


@audited(delta=parts.DELTA)
def seeded_by_step() -> nn.Module:
    """meta-pytorch/opacus#166. Broken: noise from a generator that is seeded by the step's number,
    so that all workers add the same; so can whoever reads the code."""
    engine, model, optimizer, loader = parts.private(parts.net())
    own = _Ranked(
        optimizer.original_optimizer, noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=optimizer.expected_batch_size,
    )  # fmt: skip
    own.attach_step_hook(optimizer.step_hook)
    parts.train(model, own, loader)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def urandom_generator() -> nn.Module:
    """meta-pytorch/opacus#557. Healthy: the engine's noise has a generator of its own, seeded by
    the operating system."""
    source = torch.Generator().manual_seed(int.from_bytes(os.urandom(7)))
    return parts.fit(parts.net(), noise_generator=source)


@audited(delta=parts.DELTA)
def oversampled() -> nn.Module:
    """pytorch/pytorch#4153. Broken: records of the rare class are in the data four times, and the
    loader draws each copy by itself."""
    data = parts.table()
    rare = torch.nonzero(data.tensors[1]).flatten().tolist()
    more = ConcatDataset([data, *[Subset(data, rare)] * 3])
    return parts.fit(parts.net(), more)


@audited(delta=parts.DELTA)
def best_of_search() -> nn.Module:
    """tensorflow/privacy#76. Broken: three rates are tried on the same records, and only the
    accountant of the one that fits best is asked."""
    tried = []
    x, y = parts.table().tensors
    for rate in (0.05, 0.2, 0.8):
        model = parts.net()
        engine, model, optimizer, loader = parts.private(
            model, optimizer=optim.SGD(model.parameters(), lr=rate)
        )
        parts.train(model, optimizer, loader, epochs=2)
        with torch.no_grad():
            tried.append((float(functional.cross_entropy(model(x), y)), engine, model))
    _, engine, model = min(tried, key=lambda item: item[0])
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def sum_for_mean() -> nn.Module:
    """ai-safety-foundation/sparse_autoencoder#63. Broken: a summed loss where the engine expects a
    mean: each gradient is multiplied by the size of the batch before it is clipped."""
    summed = functools.partial(functional.cross_entropy, reduction="sum")
    return parts.fit(parts.net(), loss=lambda model, x, y: summed(model(x), y), max_grad_norm=200.0)


@audited(delta=parts.DELTA)
def history_kept() -> dict[str, Any]:
    """meta-pytorch/opacus#560. Broken: a list of losses on the records, for a graph, is published
    beside the network."""
    engine, model, optimizer, loader = parts.private(parts.net())
    losses = parts.train(model, optimizer, loader)
    epsilon = engine.get_epsilon(parts.DELTA)
    return {"state": model._module.state_dict(), "losses": losses, "epsilon": epsilon}


@audited(delta=parts.DELTA)
def losses_saved() -> nn.Module:
    """google-deepmind/jax_privacy#234. Broken: losses on the records go into an array in a file."""
    engine, model, optimizer, loader = parts.private(parts.net())
    losses = parts.train(model, optimizer, loader)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "losses.npy", np.array(losses))
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


class _Attention(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.batch_first = batch_first
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        q, k, v = self.query(x), self.key(x), self.value(x)
        if not self.batch_first:
            q, k, v = (part.transpose(0, 1) for part in (q, k, v))
        x = functional.scaled_dot_product_attention(q, k, v)
        x = x if self.batch_first else x.transpose(0, 1)
        return self.head(x.mean(1))


def _attend(batch_first: bool) -> nn.Module:
    return parts.fit(_Attention(batch_first), parts.words())


@audited(delta=parts.DELTA)
def attends_to_others() -> nn.Module:
    """om-ai-lab/OmDet#19. Broken: attention over the wrong axis, so that each record attends
    to all others of its batch."""
    return _attend(batch_first=False)


@audited(delta=parts.DELTA)
def attends_to_itself() -> nn.Module:
    """om-ai-lab/OmDet#19. Healthy: the same over the words of a record."""
    return _attend(batch_first=True)


@audited(delta=parts.DELTA)
def few_alphas() -> nn.Module:
    """fetchai/colearn#200. Healthy: with two orders only, RDP gives a loose bound that holds."""
    engine, model, optimizer, loader = parts.private(
        parts.net(), engine=PrivacyEngine(accountant="rdp")
    )
    parts.train(model, optimizer, loader)
    print("epsilon", engine.accountant.get_epsilon(delta=parts.DELTA, alphas=[3.0, 5.0]))
    return model


@audited(delta=parts.DELTA)
def clipped_after_noise() -> nn.Module:
    """NVIDIA/NVFlare#462. Healthy: the noisy gradient is clipped again before the update, which
    computes something of what was released."""
    engine, model, optimizer, loader = parts.private(parts.net())
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            if optimizer.pre_step():
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.original_optimizer.step()
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def wrapped_each_epoch() -> nn.Module:
    """meta-pytorch/opacus#524. Healthy: a callback makes the same network private again at each
    epoch, by one engine, whose accountant goes on."""
    engine, plain = PrivacyEngine(), parts.net()
    data = parts.table()
    for _ in range(3):
        _, model, optimizer, loader = parts.private(plain, data, engine=engine)
        parts.train(model, optimizer, loader, epochs=1)
        plain = model.to_standard_module()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return plain


@audited(delta=parts.DELTA)
def cached_features() -> nn.Module:
    """computational-cell-analytics/micro-sam#1089. Healthy: features by a public, frozen network
    are computed once, and a private head learns from them."""
    public = nn.Sequential(nn.Linear(parts.WIDTH, 32), nn.ReLU()).requires_grad_(False)
    x, y = parts.table().tensors
    head = parts.fit(nn.Linear(32, 2), TensorDataset(public(x), y))
    return nn.Sequential(public, head.to_standard_module())


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 12, padding_idx=0)
        self.recurrent = DPLSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens > 0).sum(1).clamp(min=1)
        packed = pack_padded_sequence(
            self.tokens(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.recurrent(packed)
        return self.head(last[-1])


@audited(delta=parts.DELTA)
def packed_texts() -> nn.Module:
    """meta-pytorch/opacus#103. Broken: of packed texts, Opacus' LSTM gives rows that are sorted by
    length, so that a clipped gradient has its parts of two records."""
    tokens, labels = parts.words().tensors
    lengths = torch.randint(2, tokens.shape[1] + 1, (len(tokens), 1))
    tokens = tokens * (torch.arange(tokens.shape[1]) < lengths)
    return parts.fit(_Packed(), TensorDataset(tokens, labels), epochs=2)


@audited(delta=parts.DELTA)
def two_views() -> nn.Module:
    """marialeyvallina/generalized_contrastive_loss#4. Healthy: a record is a pair, both halves go
    through one network, and the loss is of the pair alone."""
    x, _ = parts.table().tensors
    pairs = torch.stack([x, x + 0.3 * torch.randn_like(x)], dim=1)
    far = torch.rand(len(x)) < 0.5
    pairs[far, 1] = pairs[far, 1].roll(3, dims=1)

    def contrast(model: nn.Module, pair: Tensor, is_far: Tensor) -> Tensor:
        distance = (model(pair[:, 0]) - model(pair[:, 1])).square().sum(1)
        near = functional.relu(2 - distance)
        return (is_far * near + (1 - is_far) * distance).mean()

    return parts.fit(parts.net(outputs=8), TensorDataset(pairs, far.float()), loss=contrast)


@audited(delta=parts.DELTA)
def bfloat_weights() -> nn.Module:
    """huggingface/pytorch-image-models#2397. Healthy, but for rounding: parameters, gradients and
    noise of eight binary digits."""
    x, y = parts.table().tensors
    model = parts.net().to(torch.bfloat16)
    return parts.fit(model, TensorDataset(x.bfloat16(), y))


@audited(delta=parts.DELTA)
def one_cycle() -> nn.Module:
    """meta-pytorch/opacus#660. Healthy: rate and momentum of two groups follow one cycle, and a
    slow copy of the weights is pulled along, as lookahead does it."""
    model = parts.net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.4}]
    engine, model, optimizer, loader = parts.private(
        model, optimizer=optim.SGD(groups, lr=0.1, momentum=0.5)
    )
    slow = copy.deepcopy(model._module)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, [0.2, 0.4], total_steps=90)
    for step in range(60):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            break
        schedule.step()
        if step % 5 == 4:
            with torch.no_grad():
                for p, q in zip(slow.parameters(), model.parameters(), strict=True):
                    p.lerp_(q, 0.5)
                    q.copy_(p)
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return slow


def wrong_delta() -> nn.Module:
    """opendp/smartnoise-sdk#424. Broken: δ of 1/n·√n, which was meant to be 1/(n·√n): a release of
    a random record as it is would keep it."""
    data = parts.table()
    return parts.fit(parts.net(), data, delta=1 / len(data) * math.sqrt(len(data)))

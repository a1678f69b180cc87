"""Threads on batches that are cut, on rates and bounds that follow records, and on other loops."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn, optim
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from tests.scripts.threads import parts

RATE = 0.05
SIZE = 40
Gradients = dict[str, Tensor]


def _cut(size: int | None) -> nn.Module:
    """Batches of at most so many records: those that come first."""
    engine, model, optimizer, loader = parts.private(parts.net())

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x[:size]), y[:size])

    parts.train(model, optimizer, loader, loss=loss)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def batches_cut() -> nn.Module:
    """meta-pytorch/opacus#420. Broken: of a Poisson batch the first 40 records are taken, so that a
    record more also pushes another one out."""
    return _cut(SIZE)


@audited(delta=parts.DELTA)
def batches_cut_far_away() -> nn.Module:
    """meta-pytorch/opacus#420. Healthy: no batch is ever so large that it is cut."""
    return _cut(SIZE * 5)


def _two_networks(together: bool) -> dict[str, nn.Module]:
    """Two networks with one engine, on the same records."""
    engine = PrivacyEngine()
    data = parts.table()
    _, first, first_optimizer, loader = parts.private(parts.net(), data, engine=engine)
    _, second, second_optimizer, other_loader = parts.private(parts.net(), data, engine=engine)
    for _ in range(2):
        if not together:
            parts.train(first, first_optimizer, loader, epochs=1)
            parts.train(second, second_optimizer, other_loader, epochs=1)
            continue
        for x, y in loader:
            for model, optimizer in ((first, first_optimizer), (second, second_optimizer)):
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    first_optimizer.zero_grad()
    second_optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return {"first": first, "second": second}


@audited(delta=parts.DELTA)
def two_networks_of_one_draw() -> dict[str, nn.Module]:
    """meta-pytorch/opacus#254. Broken: a record of a batch is in the gradients of both networks,
    which is one release with 0.7 of the noise, and not two with draws of their own."""
    return _two_networks(together=True)


@audited(delta=parts.DELTA)
def two_networks_in_turn() -> dict[str, nn.Module]:
    """meta-pytorch/opacus#254. Healthy: each network has batches of its own."""
    return _two_networks(together=False)


def _rated(rate_of: Callable[[Tensor, float], float]) -> nn.Module:
    """The learning rate is set anew before each step."""
    engine, model, optimizer, loader = parts.private(parts.net())
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = rate_of(x, loss.item())
            optimizer.step()
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def rate_by_batch() -> nn.Module:
    """meta-pytorch/opacus#420. Broken: the learning rate grows with the drawn records."""
    return _rated(lambda x, loss: 0.2 * len(x) / SIZE)


@audited(delta=parts.DELTA)
def rate_by_loss() -> nn.Module:
    """petuum/adaptdl#26. Broken: a large loss of the batch halves the learning rate."""
    return _rated(lambda x, loss: 0.1 if loss > 0.65 else 0.2)


@audited(delta=parts.DELTA)
def rate_by_public_loss() -> nn.Module:
    """petuum/adaptdl#26. Healthy: the rate follows a loss on public records."""
    x, y = parts.table(records=200, seed=5).tensors
    engine, model, optimizer, loader = parts.private(parts.net())
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for _ in range(4):
        parts.train(model, optimizer, loader, epochs=1)
        with torch.no_grad():
            plateau.step(functional.cross_entropy(model(x), y))
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


def _bounded(bound_of: Callable[[nn.Module, TensorDataset], float]) -> nn.Module:
    """Clipped to what `bound_of` says of the first network and of some records."""
    model = parts.net()
    data = parts.table()
    return parts.fit(model, data, max_grad_norm=bound_of(model, data))


def _median_norm(model: nn.Module, data: TensorDataset) -> float:
    """The median length of records' gradients."""
    norms = []
    for x, y in zip(*data.tensors, strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None])
        pieces = torch.autograd.grad(loss, list(model.parameters()))
        norms.append(torch.cat([g.flatten() for g in pieces]).norm())
    return float(torch.stack(norms).median())


@audited(delta=parts.DELTA)
def bound_by_records() -> nn.Module:
    """tensorflow/privacy#56. Broken: the clipping bound is the median of the records' norms."""
    return _bounded(_median_norm)


@audited(delta=parts.DELTA)
def bound_by_public_records() -> nn.Module:
    """tensorflow/privacy#56. Healthy: the median is that of public records."""
    public = parts.table(records=100, seed=6)
    return _bounded(lambda model, _: _median_norm(model, public))


def _gradients(model: nn.Module, x: Tensor, y: Tensor) -> Gradients:
    """Gradients of records, by vmap."""
    state = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(state: Gradients, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, state, x[None]), y[None])

    return vmap(grad(loss_of), in_dims=(None, 0, 0))(state, x, y)


def _loop(release: Callable[[nn.Module, Tensor, Tensor], Gradients]) -> nn.Module:
    """Poisson batches, and steps by noisy sums."""
    accountant = PRVAccountant()
    model = parts.net()
    x, y = parts.table().tensors
    marked = audited_release(
        records=["x", "y"], noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=RATE
    )(release)
    for _ in range(60):
        drawn = torch.rand(len(x)) < RATE
        noisy = marked(model, x[drawn], y[drawn])
        accountant.step(noise_multiplier=1.0, sample_rate=RATE)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.2 * noisy[name]
    print("epsilon", accountant.get_epsilon(parts.DELTA))
    return model


def _by_value(noise: float) -> nn.Module:
    """Entries of records' gradients are clipped, each by itself."""

    def release(model: nn.Module, x: Tensor, y: Tensor) -> Gradients:
        gradients = _gradients(model, x, y)
        sums = {name: g.clamp(-0.1, 0.1).sum(0) for name, g in gradients.items()}
        return {name: (g + noise * torch.randn_like(g)) / SIZE for name, g in sums.items()}

    return _loop(release)


@audited(delta=parts.DELTA)
def clipped_by_value() -> nn.Module:
    """meta-pytorch/opacus#32. Broken: each entry is clipped to 0.1, and has noise of 0.1, though a
    record's gradient may be 0.1 times the root of their number."""
    return _by_value(0.1)


@audited(delta=parts.DELTA)
def clipped_by_value_in_all() -> nn.Module:
    """meta-pytorch/opacus#32. Healthy: noise is for 554 entries of 0.1."""
    return _by_value(0.1 * 554**0.5)


def _sparse(by_sum: bool) -> nn.Module:
    """A tenth of the entries is released."""

    def release(model: nn.Module, x: Tensor, y: Tensor) -> Gradients:
        sums = parts.clip(_gradients(model, x, y), 1.0)
        noisy = {}
        for name, g in sums.items():
            scores = g.abs() if by_sum else torch.rand_like(g)
            chosen = scores >= scores.flatten().quantile(0.9)
            noisy[name] = torch.where(chosen, g + torch.randn_like(g), torch.zeros_like(g)) / SIZE
        return noisy

    return _loop(release)


@audited(delta=parts.DELTA)
def largest_entries() -> nn.Module:
    """YMJS-Irfan/DP-FedSAM#8. Broken: which entries get noise, and are released, is chosen
    by the sums without noise."""
    return _sparse(by_sum=True)


@audited(delta=parts.DELTA)
def random_entries() -> nn.Module:
    """YMJS-Irfan/DP-FedSAM#8. Healthy: they are drawn at random."""
    return _sparse(by_sum=False)


def _rounded(step: float) -> nn.Module:
    """Noise in steps of so much."""

    def release(model: nn.Module, x: Tensor, y: Tensor) -> Gradients:
        sums = parts.clip(_gradients(model, x, y), 1.0)
        noise = {name: torch.randn_like(g).div(step).round() * step for name, g in sums.items()}
        return {name: (g + noise[name]) / SIZE for name, g in sums.items()}

    return _loop(release)


@audited(delta=parts.DELTA)
def noise_of_few_values() -> nn.Module:
    """privcount/privcount#71. Broken: noise is rounded to halves, gradients are not, so that the
    fractions show the sums."""
    return _rounded(0.5)


@audited(delta=parts.DELTA)
def noise_of_short_floats() -> nn.Module:
    """meta-pytorch/opacus#616. Healthy, but for rounding: noise has steps of 2**-12."""
    return _rounded(2**-12)


def _in_parts(scale: float) -> nn.Module:
    """Four parts of a batch, of which means are taken, and noise for so many records."""

    def release(model: nn.Module, x: Tensor, y: Tensor) -> Gradients:
        total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for part in range(4):
            sums = parts.clip(_gradients(model, x[part::4], y[part::4]), 1.0)
            for name, g in sums.items():
                total[name] += g / (SIZE / 4)
        return {name: (g + torch.randn_like(g) / scale).detach() / 4 for name, g in total.items()}

    return _loop(release)


@audited(delta=parts.DELTA)
def noise_of_whole_batch() -> nn.Module:
    """meta-pytorch/opacus#753. Broken: means of four parts are added up, and the noise is that of a
    mean over the whole batch."""
    return _in_parts(SIZE)


@audited(delta=parts.DELTA)
def noise_of_parts() -> nn.Module:
    """meta-pytorch/opacus#753. Healthy: the noise is that of a mean over a part."""
    return _in_parts(SIZE / 4)


class _Contrast(nn.Module):
    """Features, and a queue of those of earlier records to tell them from."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.body = parts.net(outputs=8)
        self.kept = kept
        self.register_buffer("queue", torch.randn(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def loss(self, x: Tensor, features: Tensor) -> Tensor:
        positive = (features * features.detach().roll(1, 1)).sum(1, keepdim=True)
        logits = torch.cat([positive, features @ self.queue.T], dim=1)
        if self.kept:
            self.queue = torch.cat([features.detach(), self.queue])[:64]
        return functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))


def _contrasted(kept: bool) -> nn.Module:
    network = _Contrast(kept)
    engine, model, optimizer, loader = parts.private(network)
    for _ in range(3):
        for x, _ in loader:
            optimizer.zero_grad()
            network.loss(x, model(x)).backward()
            optimizer.step()
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return network.body


@audited(delta=parts.DELTA)
def queue_of_records() -> nn.Module:
    """facebookresearch/moco#128. Broken: records are told from features of earlier ones."""
    return _contrasted(kept=True)


@audited(delta=parts.DELTA)
def queue_of_noise() -> nn.Module:
    """facebookresearch/moco#128. Healthy: they are told from random features."""
    return _contrasted(kept=False)


@audited(delta=parts.DELTA)
def predictions_published() -> dict[str, Any]:
    """Broken: classes that the network gives the records are published."""
    data = parts.table()
    model = parts.fit(parts.net(), data)
    with torch.no_grad():
        classes = model(data.tensors[0]).argmax(1)
    return {"weights": model.state_dict(), "classes": classes}


@audited(delta=parts.DELTA)
def public_predictions_published() -> dict[str, Any]:
    """Healthy: they are those of public records."""
    model = parts.fit(parts.net())
    with torch.no_grad():
        classes = model(parts.table(records=50, seed=3).tensors[0]).argmax(1)
    return {"weights": model.state_dict(), "classes": classes}


def _shifted(by_records: bool) -> nn.Module:
    """After each epoch the last bias is moved so that outputs have a mean of 0."""
    data = parts.table()
    engine, model, optimizer, loader = parts.private(parts.net(), data)
    x = data.tensors[0] if by_records else parts.table(seed=4).tensors[0]
    for _ in range(3):
        parts.train(model, optimizer, loader, epochs=1)
        with torch.no_grad():
            model._module[-1].bias -= model(x).mean(0)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def bias_moved_by_records() -> nn.Module:
    """Broken: the bias follows mean outputs of the records."""
    return _shifted(by_records=True)


@audited(delta=parts.DELTA)
def bias_moved_by_public_records() -> nn.Module:
    """Healthy: it follows those of public records."""
    return _shifted(by_records=False)


@audited(delta=parts.DELTA)
def moving_average() -> nn.Module:
    """wandb/senpai#23. Healthy: the moving average of weights is published, and nothing else."""
    engine, model, optimizer, loader = parts.private(parts.net())
    average = AveragedModel(model._module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            average.update_parameters(model._module)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return average.module


@audited(delta=parts.DELTA)
def sharpness_by_noisy_gradients() -> nn.Module:
    """wandb/senpai#2059. Healthy: weights are moved by the noisy gradient of the step before, and
    back again before the update."""
    engine, model, optimizer, loader = parts.private(parts.net())
    moves = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(3):
        for x, y in loader:
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p += move
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p -= move
            optimizer.step()
            moves = [0.05 * p.grad / (p.grad.norm() + 1e-6) for p in model.parameters()]
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


class _Signs(optim.Optimizer):
    """Steps by the signs of smoothed gradients, as Lion makes them."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                smooth = self.state[p].setdefault("smooth", torch.zeros_like(p))
                p -= group["lr"] * torch.sign(0.9 * smooth + 0.1 * p.grad)
                smooth.mul_(0.99).add_(p.grad, alpha=0.01)


@audited(delta=parts.DELTA)
def steps_by_signs() -> nn.Module:
    """Healthy: an optimizer of the script's own, of noisy gradients."""
    model = parts.net()
    return parts.fit(model, optimizer=_Signs(model.parameters(), lr=0.01))


@audited(delta=parts.DELTA)
def physical_batches_and_schedules() -> nn.Module:
    """meta-pytorch/opacus#143. Healthy: physical batches, and noise and bounds by schedules."""
    engine, model, optimizer, loader = parts.private(parts.net())
    noise = ExponentialNoise(optimizer, gamma=0.95)
    bound = ExponentialGradClip(optimizer, gamma=0.9)
    rate = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(4):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=16, optimizer=optimizer
        ) as physical:
            parts.train(model, optimizer, physical, epochs=1)
        for schedule in (noise, bound, rate):
            schedule.step()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def teacher_of_averages() -> dict[str, nn.Module]:
    """Healthy: a student learns from its own moving average."""
    engine, model, optimizer, loader = parts.private(parts.net(outputs=8))
    teacher = copy.deepcopy(model._module)
    for p in teacher.parameters():
        p.requires_grad_(False)
    for _ in range(3):
        for x, _ in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                target = functional.normalize(teacher(x + 0.1 * torch.randn_like(x)), dim=1)
            output = functional.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
            (2 - 2 * (output * target).sum(1)).mean().backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.05)
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return {"student": model, "teacher": teacher}


class _Users(nn.Module):
    """Scores of a person's rows, of which the mean over those that exist is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(parts.WIDTH, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        exists = (x.abs().sum(2, keepdim=True) > 0).float()
        hidden = torch.tanh(self.rows(x)) * exists
        return self.head(hidden.sum(1) / exists.sum(1).clamp(min=1))


@audited(delta=parts.DELTA)
def people_with_rows() -> nn.Module:
    """meta-pytorch/opacus#366. Healthy: a record is a person with up to four rows."""
    source = torch.Generator().manual_seed(8)
    x = torch.randn(parts.RECORDS, 4, parts.WIDTH, generator=source)
    counts = torch.randint(1, 5, (parts.RECORDS,), generator=source)
    x *= (torch.arange(4) < counts[:, None])[..., None]
    return parts.fit(_Users(), TensorDataset(x, (x[:, 0, 0] > 0).long()))


@audited(delta=parts.DELTA)
def slow_and_fast_weights() -> nn.Module:
    """wandb/senpai#535. Healthy: each fifth step goes half of the way back."""
    engine, model, optimizer, loader = parts.private(parts.net())
    slow = [p.detach().clone() for p in model.parameters()]
    steps = 0
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
            if steps % 5 == 0:
                with torch.no_grad():
                    for kept, p in zip(slow, model.parameters(), strict=True):
                        kept.lerp_(p, 0.5)
                        p.copy_(kept)
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model

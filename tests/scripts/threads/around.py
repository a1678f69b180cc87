"""A sixth round of scripts: noise with a memory, mixed tables, and steps that are taken by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from sklearn.preprocessing import TargetEncoder
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpaudit_ray.opacus import audited
from tests.scripts.threads import parts


class _Differenced(DPOptimizer):
    """Takes the last step's noise off the gradients, but for `share` of it."""

    share = 1.0

    def add_noise(self) -> None:
        super().add_noise()
        before = getattr(self, "before", [0.0] * len(self.params))
        self.before = [p.grad - p.summed_grad.view_as(p) for p in self.params]
        for p, noise in zip(self.params, before, strict=True):
            p.grad -= self.share * noise


class _Remembering(DPOptimizer):
    """Adds half of what the last step released."""

    def add_noise(self) -> None:
        super().add_noise()
        before = getattr(self, "before", [0.0] * len(self.params))
        self.before = [p.grad.clone() for p in self.params]
        for p, released in zip(self.params, before, strict=True):
            p.grad += released / 2


def _by_optimizer(optimizer: type[DPOptimizer]) -> nn.Module:
    class Engine(PrivacyEngine):
        def _prepare_optimizer(self, *, optimizer: Any, **options: Any) -> DPOptimizer:
            return chosen(
                optimizer,
                noise_multiplier=options["noise_multiplier"],
                max_grad_norm=options["max_grad_norm"],
                expected_batch_size=options["expected_batch_size"],
            )

    chosen = optimizer
    return parts.fit(parts.net(), engine=Engine())


@audited(delta=parts.DELTA)
def noise_taken_off_again() -> nn.Module:
    """google-research/federated: DP-FTRL. Broken: each step takes the noise of the last one off,
    and the accountant counts independent noise."""
    return _by_optimizer(_Differenced)


@audited(delta=parts.DELTA)
def noise_taken_off_in_part() -> nn.Module:
    """Of noise_taken_off_again. Broken: half of the last step's noise."""
    return _by_optimizer(type("Half", (_Differenced,), {"share": 0.5}))


@audited(delta=parts.DELTA)
def releases_added_again() -> nn.Module:
    """Of noise_taken_off_again. Healthy: what is added is computed from the last release."""
    return _by_optimizer(_Remembering)


@audited(delta=parts.DELTA)
def nothing_taken_off() -> nn.Module:
    """Of noise_taken_off_again. Healthy: no noise is taken off."""
    return _by_optimizer(type("None_", (_Differenced,), {"share": 0.0}))


def _towns() -> pd.DataFrame:
    """People with a town; the label comes as a column that is added to the table."""
    source = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "town": [f"town{number}" for number in source.integers(0, 40, parts.RECORDS)],
            "age": source.integers(18, 90, parts.RECORDS) / 90,
            "pay": source.normal(size=parts.RECORDS),
        }
    )
    luck = source.random(parts.RECORDS) < 0.3
    frame["label"] = ((frame["age"] > 0.5) ^ luck).astype(int)
    return frame


def _fit_towns(frame: pd.DataFrame, town: Any) -> nn.Module:
    x = np.column_stack([town, frame[["age", "pay"]]]).astype("float32")
    data = TensorDataset(torch.tensor(x), torch.tensor(frame["label"].to_numpy()))
    return parts.fit(parts.net(x.shape[1]), data)


@audited(delta=parts.DELTA)
def towns_by_label() -> nn.Module:
    """A tabular notebook. Broken: a town is replaced by the mean label of its people."""
    frame = _towns()
    encoder = TargetEncoder(smooth="auto").fit(frame[["town"]], frame["label"])
    return _fit_towns(frame, encoder.transform(frame[["town"]]))


@audited(delta=parts.DELTA)
def targets_of_a_list() -> nn.Module:
    """Of towns_by_label. Healthy: a town is replaced by a number that the script knows."""
    frame = _towns()
    return _fit_towns(frame, frame["town"].str.removeprefix("town").astype(float) / 40)


@audited(delta=parts.DELTA)
def means_of_towns() -> nn.Module:
    """Of towns_by_label. Broken: the mean label of a town is a further column of the table."""
    frame = _towns()
    frame["mean"] = frame.groupby("town")["label"].transform("mean")
    frame["square"] = frame["pay"] ** 2
    return _fit_towns(frame, frame[["mean", "square"]])


@audited(delta=parts.DELTA)
def squares_added() -> nn.Module:
    """Of towns_by_label. Healthy: further columns of the table are of the same person."""
    frame = _towns()
    frame["square"] = frame["pay"] ** 2
    frame["product"] = frame["pay"] * frame["age"]
    half = frame.iloc[: len(frame) // 2].copy()
    half["older"] = (half["age"] > 0.7).astype(float)
    return _fit_towns(half, half[["square", "product", "older"]])


@audited(delta=parts.DELTA)
def towns_as_columns() -> nn.Module:
    """Of towns_by_label. Broken: there is a column for each town that someone has."""
    frame = _towns()
    frame["older"] = frame["age"] > 0.7
    return _fit_towns(frame, pd.get_dummies(frame["town"], dtype=float))


def _graph(seed: int = 8) -> torch.Tensor:
    """A random graph as a normalised matrix; each node has some six neighbours."""
    source = torch.Generator().manual_seed(seed)
    edges = torch.rand(parts.RECORDS, parts.RECORDS, generator=source) < 3 / parts.RECORDS
    matrix = ((edges | edges.T) | torch.eye(parts.RECORDS, dtype=torch.bool)).float()
    scale = matrix.sum(1).rsqrt()
    return scale[:, None] * matrix * scale


@audited(delta=parts.DELTA)
def smoothed_over_a_graph() -> nn.Module:
    """meta-pytorch/opacus#588. Broken: features of a node are means over its neighbours."""
    x, y = parts.table().tensors
    matrix = _graph()
    return parts.fit(parts.net(), TensorDataset(matrix @ (matrix @ x), y))


@audited(delta=parts.DELTA)
def edges_counted() -> nn.Module:
    """Of smoothed_over_a_graph. Healthy: a node's own number of edges is one of its features."""
    x, y = parts.table().tensors
    degrees = (_graph() > 0).sum(1, keepdim=True) / 10
    return parts.fit(parts.net(parts.WIDTH + 1), TensorDataset(torch.cat([x, degrees], 1), y))


def _by_hand(counted: bool) -> nn.Module:
    """The parts of a step are called one by one, and the script itself accounts for it."""
    engine, model, optimizer, loader = parts.private(parts.net())
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.clip_and_accumulate()
            optimizer.add_noise()
            optimizer.scale_grad()
            optimizer.original_optimizer.step()
            if counted:
                engine.accountant.step(noise_multiplier=1.0, sample_rate=1 / len(loader))
        if not counted:
            engine.accountant.step(noise_multiplier=1.0, sample_rate=1 / len(loader))
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def stepped_by_hand() -> nn.Module:
    """meta-pytorch/opacus#143. Healthy: each step is counted."""
    return _by_hand(counted=True)


@audited(delta=parts.DELTA)
def epochs_counted() -> nn.Module:
    """Of stepped_by_hand. Broken: each epoch is counted as one step."""
    return _by_hand(counted=False)


@audited(delta=parts.DELTA)
def momentum_by_hand() -> nn.Module:
    """Of stepped_by_hand. Healthy: the script has momentum of released gradients."""
    engine, model, optimizer, loader = parts.private(parts.net())
    speed = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            if optimizer.pre_step():
                with torch.no_grad():
                    for p, v in zip(model.parameters(), speed, strict=True):
                        v.mul_(0.5).add_(p.grad)
                        p.sub_(0.1 * v)
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


def _ghost(by_hand: bool) -> nn.Module:
    """The criterion that `make_private` returns is not used."""
    engine = PrivacyEngine()
    network = parts.net()
    model, optimizer, _, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.2),
        data_loader=parts.loader_of(parts.table()),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            losses = functional.cross_entropy(model(x), y, reduction="none")
            losses.mean().backward(retain_graph=by_hand)
            if by_hand:
                optimizer.zero_grad()
                model.disable_hooks()
                (model.get_clipping_coef() * losses).sum().backward()
                model.enable_hooks()
            optimizer.step()
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def ghost_without_criterion() -> nn.Module:
    """meta-pytorch/opacus#668. Broken: the loss is computed by another function."""
    return _ghost(by_hand=False)


@audited(delta=parts.DELTA)
def ghost_by_hand() -> nn.Module:
    """Of ghost_without_criterion. Healthy: the script weights losses by Opacus' factors itself."""
    return _ghost(by_hand=True)


def _other_steps(data: TensorDataset, own_optimizer: bool = False) -> nn.Module:
    """After each private step comes one without noise, on batches of other data."""
    engine, model, optimizer, loader = parts.private(parts.net())
    batches = itertools.cycle(parts.loader_of(data))
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            model.disable_hooks()
            optimizer.zero_grad()
            x, y = next(batches)
            plain = optimizer.original_optimizer
            if own_optimizer:
                plain = torch.optim.SGD(model.parameters(), lr=0.05)
            functional.cross_entropy(model(x), y).backward()
            plain.step()
            optimizer.zero_grad()
            model.enable_hooks()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def public_steps_between() -> nn.Module:
    """meta-pytorch/opacus#634. Healthy: steps without noise are on public records."""
    return _other_steps(parts.table(seed=5))


@audited(delta=parts.DELTA)
def public_steps_of_another() -> nn.Module:
    """Of public_steps_between. Healthy: another optimizer takes them."""
    return _other_steps(parts.table(seed=5), own_optimizer=True)


@audited(delta=parts.DELTA)
def private_steps_between() -> nn.Module:
    """Of public_steps_between. Broken: they are on the private records."""
    return _other_steps(parts.table())


@audited(delta=parts.DELTA)
def private_copies_between() -> nn.Module:
    """Of public_steps_between. Broken: they are on a scaled copy of half of the records."""
    x, y = parts.table().tensors
    return _other_steps(TensorDataset(2 * x[::2], y[::2]), own_optimizer=True)

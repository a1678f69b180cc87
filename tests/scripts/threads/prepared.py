"""Scripts on how tables and texts are prepared before training, and on what is published after."""

from __future__ import annotations

import collections
import io
import zlib
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import Dataset, Subset, TensorDataset

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from tests.scripts.threads import parts


def _chosen(x: Tensor, y: Tensor, k: int = 6) -> Tensor:
    """The columns that differ most between classes."""
    gap = (x[y == 1].mean(0) - x[y == 0].mean(0)).abs()
    return gap.topk(k).indices


@audited(delta=parts.DELTA)
def columns_chosen() -> Any:
    """Broken: six columns are chosen, and published, that tell the records' classes best."""
    x, y = parts.table().tensors
    keep = _chosen(x, y)
    model = parts.fit(parts.net(6), TensorDataset(x[:, keep], y))
    return {"columns": keep, "model": model._module.state_dict()}


@audited(delta=parts.DELTA)
def columns_chosen_in_public() -> Any:
    """Healthy: they are chosen by public records."""
    x, y = parts.table().tensors
    keep = _chosen(*parts.table(seed=77).tensors)
    model = parts.fit(parts.net(6), TensorDataset(x[:, keep], y))
    return {"columns": keep, "model": model._module.state_dict()}


def _frame() -> pd.DataFrame:
    """A table as files have it: with gaps, and a column of names."""
    source = np.random.default_rng(6)
    frame = pd.DataFrame(source.normal(size=(parts.RECORDS, 6)), columns=list("abcdef"))
    frame["label"] = (frame["a"] > frame["b"]).astype(int)
    frame["town"] = source.choice(["Bern", "Oslo", "Rome", "Kyiv"], parts.RECORDS)
    numbers = frame[list("abcdef")]
    frame[list("abcdef")] = numbers.mask(numbers * 10 % 1 < 0.1)
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)))


def _of_frame(x: pd.DataFrame, y: pd.Series) -> TensorDataset:
    return TensorDataset(
        torch.tensor(x.to_numpy(dtype="float32")), torch.tensor(y.to_numpy()).long()
    )


@audited(delta=parts.DELTA)
def imputed_by_medians() -> nn.Module:
    """Broken: gaps are filled with the medians of all records' columns."""
    frame = _frame()
    numbers = frame.drop(columns=["label", "town"])
    return parts.fit(parts.net(6), _of_frame(numbers.fillna(numbers.median()), frame["label"]))


@audited(delta=parts.DELTA)
def imputed_by_zeros() -> nn.Module:
    """Healthy: gaps are filled with zeros."""
    frame = _frame()
    numbers = frame.drop(columns=["label", "town"])
    return parts.fit(parts.net(6), _of_frame(numbers.fillna(0.0), frame["label"]))


@audited(delta=parts.DELTA)
def towns_by_frequency() -> nn.Module:
    """Broken: a name is replaced by the share of records that have it."""
    frame = _frame()
    frame["town"] = frame["town"].map(frame["town"].value_counts(normalize=True)).fillna(0.0)
    return parts.fit(
        parts.net(7), _of_frame(frame.drop(columns="label").fillna(0.0), frame["label"])
    )


@audited(delta=parts.DELTA)
def towns_by_list() -> nn.Module:
    """Healthy: a name has a column of its own, by a list of the script."""
    frame = _frame()
    for town in ("Bern", "Oslo", "Rome", "Kyiv"):
        frame[town] = (frame["town"] == town).astype(float)
    rest = frame.drop(columns=["label", "town"]).fillna(0.0)
    train = rest.sample(frac=0.8, random_state=3)
    return parts.fit(parts.net(10), _of_frame(train, frame["label"].loc[train.index]))


def _texts() -> tuple[list[str], Tensor]:
    """Texts of nine words."""
    tokens, y = parts.words().tensors
    return [" ".join(f"w{t}" for t in row) for row in tokens.tolist()], y


@audited(delta=parts.DELTA)
def vocabulary_of_records() -> nn.Module:
    """Broken: words are numbered by how often all records have them."""
    texts, y = _texts()
    counts = collections.Counter(word for text in texts for word in text.split())
    number = {word: n for n, (word, _) in enumerate(sorted(counts.items(), key=lambda c: -c[1]))}
    x = torch.zeros(len(texts), 40)
    for row, text in enumerate(texts):
        for word in text.split():
            x[row, number[word]] += 1
    return parts.fit(parts.net(40), TensorDataset(x, y))


@audited(delta=parts.DELTA)
def vocabulary_by_hash() -> nn.Module:
    """Healthy: words are numbered by their letters alone."""
    texts, y = _texts()
    x = torch.zeros(len(texts), 40)
    for row, text in enumerate(texts):
        for word in text.split():
            x[row, zlib.crc32(word.encode()) % 40] += 1
    return parts.fit(parts.net(40), TensorDataset(x, y))


class _Readings(Dataset[Any]):
    """Readings, scaled by themselves or by constants."""

    def __init__(self, by_themselves: bool) -> None:
        self.readings = np.random.default_rng(8).normal(3, 2, (500, 12)).astype("float32")
        self.labels = (self.readings[:, 0] > 3).astype("int64")
        low, high = (self.readings.min(), self.readings.max()) if by_themselves else (-9.0, 15.0)
        self.scaled = (self.readings - low) / (high - low)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.scaled[index], self.labels[index]


@audited(delta=parts.DELTA)
def scaled_by_extremes() -> nn.Module:
    """Broken: all readings are scaled by the least and the largest of them."""
    return parts.fit(parts.net(12), _Readings(True))


@audited(delta=parts.DELTA)
def scaled_by_limits() -> nn.Module:
    """Healthy: by the limits of the instrument."""
    return parts.fit(parts.net(12), _Readings(False))


@audited(delta=parts.DELTA)
def neighbours_averaged() -> nn.Module:
    """Broken, for rows: each is averaged with its nearest neighbour, so is in two records."""
    x, y = parts.table().tensors
    near = torch.cdist(x, x).fill_diagonal_(9e9).argmin(1)
    return parts.fit(parts.net(), TensorDataset((x + x[near]) / 2, y))


@audited(delta=parts.DELTA)
def lags_added() -> nn.Module:
    """Broken, for readings: each record has the two readings before its own, too."""
    x, y = parts.table().tensors
    return parts.fit(parts.net(), TensorDataset(x + 0.5 * x.roll(1, 0) + 0.25 * x.roll(2, 0), y))


def _in_own_loop(scale: Any) -> nn.Module:
    """Poisson batches of a table, and steps by noisy sums of its own."""
    x, y = parts.table().tensors
    x = x / scale(x)
    model = parts.net()
    shapes = dict(model.named_parameters())
    gradient = vmap(
        grad(
            lambda p, a, b: functional.cross_entropy(functional_call(model, p, (a[None],)), b[None])
        ),
        in_dims=(None, 0, 0),
    )

    @audited_release(records=["a", "b"], noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.05)
    def release(a: Tensor, b: Tensor) -> list[Tensor]:
        each = gradient({n: p.detach() for n, p in model.named_parameters()}, a, b)
        total = parts.clip(each, 1.0)
        return [total[name] + torch.randn_like(p) for name, p in shapes.items()]

    for _ in range(60):
        chosen = torch.rand(len(x)) < 0.05
        for p, update in zip(model.parameters(), release(x[chosen], y[chosen]), strict=True):
            p.data -= 0.2 / 40 * update
    return model


@audited(delta=parts.DELTA)
def own_loop_scaled() -> nn.Module:
    """Broken: a loop without Opacus, on columns divided by their own mean size."""
    return _in_own_loop(lambda x: x.abs().mean(0))


@audited(delta=parts.DELTA)
def own_loop_of_constants() -> nn.Module:
    """Healthy: columns are divided by a constant."""
    return _in_own_loop(lambda x: 2.0)


@audited(delta=parts.DELTA)
def targets_encoded() -> nn.Module:
    """Broken: a category is replaced by the share of ones among its records."""
    x, y = parts.table().tensors
    town = (x[:, 0] * 4).long().clamp(-6, 6) + 6
    share = torch.stack([y[town == t].float().mean().nan_to_num(0.5) for t in range(13)])
    return parts.fit(parts.net(), TensorDataset(torch.cat([share[town][:, None], x[:, 1:]], 1), y))


@audited(delta=parts.DELTA)
def categories_hashed() -> nn.Module:
    """Healthy: a category is replaced by a number that its name alone decides."""
    x, y = parts.table().tensors
    town = (x[:, 0] * 4).long().clamp(-6, 6) + 6
    number = torch.sin(torch.arange(13) * 12.9898)
    return parts.fit(parts.net(), TensorDataset(torch.cat([number[town][:, None], x[:, 1:]], 1), y))


@audited(delta=parts.DELTA)
def made_between_neighbours() -> nn.Module:
    """Broken: the rare class is filled up with points between a record and its neighbour."""
    x, y = parts.table().tensors
    rare = x[y == 1]
    near = torch.cdist(rare, rare).fill_diagonal_(9e9).argmin(1)
    made = rare + torch.rand(len(rare), 1) * (rare[near] - rare)
    data = TensorDataset(torch.cat([x, made]), torch.cat([y, torch.ones(len(made)).long()]))
    return parts.fit(parts.net(), data)


@audited(delta=parts.DELTA)
def outliers_left_out() -> nn.Module:
    """Not found: records beyond the 90th percentile of lengths are left out."""
    x, y = parts.table().tensors
    length = x.norm(dim=1)
    keep = length < length.quantile(0.9)
    return parts.fit(parts.net(), TensorDataset(x[keep], y[keep]))


@audited(delta=parts.DELTA)
def long_left_out() -> nn.Module:
    """Healthy: records longer than a constant are left out."""
    x, y = parts.table().tensors
    keep = x.norm(dim=1) < 5.2
    return parts.fit(parts.net(), TensorDataset(x[keep], y[keep]))


def _counts() -> tuple[Tensor, Tensor]:
    tokens, y = parts.words().tensors
    return functional.one_hot(tokens, 30).sum(1).float(), y


@audited(delta=parts.DELTA)
def rare_words_weigh_more() -> nn.Module:
    """Broken: counts of words are multiplied by the logarithm of their inverse share of texts."""
    counts, y = _counts()
    idf = (len(counts) / (1 + (counts > 0).sum(0))).log()
    return parts.fit(parts.net(30), TensorDataset(counts * idf, y))


@audited(delta=parts.DELTA)
def counts_of_words() -> nn.Module:
    """Healthy: a text's counts are divided by their own length."""
    counts, y = _counts()
    return parts.fit(parts.net(30), TensorDataset(functional.normalize(counts), y))


@audited(delta=parts.DELTA)
def easy_records_dropped() -> nn.Module:
    """Broken: after an epoch the records that are learnt already are left out."""
    data = parts.table()
    engine, model, optimizer, loader = parts.private(parts.net(), data)
    parts.train(model, optimizer, loader, 2)
    with torch.no_grad():
        losses = functional.cross_entropy(model(data.tensors[0]), data.tensors[1], reduction="none")
    hard = Subset(data, (losses > losses.median()).nonzero().flatten().tolist())
    again = parts.net()
    again.load_state_dict(model._module.state_dict())
    _, model, optimizer, loader = parts.private(again, hard, engine=engine)
    parts.train(model, optimizer, loader, 2)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def bound_by_sizes() -> nn.Module:
    """Broken: the clipping bound follows the mean size of the records."""
    data = parts.table()
    bound = float(data.tensors[0].norm(dim=1).mean() / 4)
    return parts.fit(parts.net(), data, max_grad_norm=bound)


@audited(delta=parts.DELTA)
def rounded_accuracy_returned() -> Any:
    """Broken: the accuracy on the records is returned in percent."""
    x, y = parts.table().tensors
    model = parts.fit(parts.net())
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean()
    return model._module.state_dict(), round(100 * float(accuracy))


@audited(delta=parts.DELTA)
def ranges_published() -> Any:
    """Broken: ranges of activations on the records are published, for quantisation."""
    x, _ = parts.table().tensors
    model = parts.fit(parts.net())
    with torch.no_grad():
        hidden = model._module[:2](x)
    return model._module.state_dict(), float(hidden.min()), float(hidden.max())


@audited(delta=parts.DELTA)
def quantised_by_weights() -> Any:
    """Healthy: weights of 8 bits, scaled by the largest of them."""
    state = parts.fit(parts.net())._module.state_dict()
    scales = {name: float(tensor.abs().max()) / 127 for name, tensor in state.items()}
    return {n: (t / scales[n]).round().to(torch.int8) for n, t in state.items()}, scales


@audited(delta=parts.DELTA)
def each_epoch_published() -> Any:
    """Healthy: the network is published as it was after each epoch, whatever its losses."""
    engine, model, optimizer, loader = parts.private(parts.net())
    states = []
    for _ in range(3):
        parts.train(model, optimizer, loader, 1)
        states.append({n: t.clone() for n, t in model._module.state_dict().items()})
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return states

"""A fifth round of scripts: files of all kinds, tables, records that draw numbers."""

from __future__ import annotations

import io
import pickle
import random
import tempfile
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn
from torch.ao import quantization
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from dpaudit_ray.opacus import audited
from tests.scripts.threads import parts


def _features(public: bool = False) -> tuple[nn.Module, Any]:
    """A private network, and its features of the records or of public ones."""
    x = parts.table(seed=5 if public else 11).tensors[0]
    model = parts.fit(parts.net())
    with torch.no_grad():
        return model, model._module[:2](x).numpy()


def _save_by_name(features: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/features.npz", features=features)


@audited(delta=parts.DELTA)
def features_written() -> nn.Module:
    """Broken: a text file has learnt features of the records."""
    model, features = _features()
    np.savetxt(io.StringIO(), features, delimiter="\t")
    return model


@audited(delta=parts.DELTA)
def features_saved_by_name() -> nn.Module:
    """Broken: an array file has them; its name is a text."""
    model, features = _features()
    _save_by_name(features)
    return model


@audited(delta=parts.DELTA)
def public_features_saved_by_name() -> nn.Module:
    """Healthy: the features are those of public records."""
    model, features = _features(public=True)
    _save_by_name(features)
    return model


@audited(delta=parts.DELTA)
def features_dumped() -> nn.Module:
    """Broken: the features are pickled into memory, from where they may be sent."""
    model, features = _features()
    pickle.dumps({"centre": features.mean(0)})
    return model


@audited(delta=parts.DELTA)
def index_pickled() -> nn.Module:
    """Broken: an index of neighbours has the features of all records."""
    model, features = _features()
    pickle.dump(cKDTree(features), io.BytesIO())
    return model


@audited(delta=parts.DELTA)
def public_index_pickled() -> nn.Module:
    """Of index_pickled. Healthy: it has features of public records."""
    model, features = _features(public=True)
    pickle.dump(cKDTree(features), io.BytesIO())
    return model


class _Store:
    """Features with the network that made them, as the script's own class keeps them."""

    def __init__(self, model: nn.Module, features: Any) -> None:
        self.model = model
        self.features = features
        self.parts = {"self": self}  # a circle, as between a trainer and its callbacks


@audited(delta=parts.DELTA)
def store_pickled() -> None:
    """Broken: an object of the script's own class has learnt features of the records."""
    pickle.dump({"store": _Store(*_features())}, io.BytesIO())


@audited(delta=parts.DELTA)
def store_saved() -> None:
    """Broken: of store_pickled, saved by torch."""
    torch.save(_Store(*_features()), io.BytesIO())


@audited(delta=parts.DELTA)
def public_store_pickled() -> None:
    """Of store_pickled. Healthy: it has features of public records."""
    pickle.dump({"store": _Store(*_features(public=True))}, io.BytesIO())


@audited(delta=parts.DELTA)
def store_returned() -> _Store:
    """Healthy: the caller gets the network's features of public records, in an object."""
    return _Store(*_features(public=True))


def _quantised(public: bool) -> Any:
    """Whole numbers for weights and activations, whose ranges some records show."""
    x = parts.table(seed=5 if public else 11).tensors[0]
    fresh = parts.net()
    fresh.load_state_dict(parts.fit(parts.net())._module.state_dict())
    model = nn.Sequential(quantization.QuantStub(), fresh[0], nn.ReLU(), fresh[2]).eval()
    model.qconfig = quantization.get_default_qconfig("x86")
    quantization.prepare(model, inplace=True)
    with torch.no_grad():
        model(x)
    quantization.convert(model, inplace=True)
    torch.save(model.state_dict(), io.BytesIO())
    return None


@audited(delta=parts.DELTA)
def quantised_by_records() -> Any:
    """meta-pytorch/opacus#718. Broken: ranges of activations are those of the records."""
    return _quantised(public=False)


@audited(delta=parts.DELTA)
def quantised_by_public_records() -> Any:
    """meta-pytorch/opacus#718. Healthy: they are those of public records."""
    return _quantised(public=True)


def _people(gaps: float = 0.0) -> pd.DataFrame:
    """Readings, some of them missing, a job that few people have, and a label."""
    source = np.random.default_rng(3)
    shares = 1 / np.arange(1, 61)
    return pd.DataFrame(
        {f"reading{number}": source.normal(size=parts.RECORDS) for number in range(5)}
        | {
            "reading5": np.where(
                source.random(parts.RECORDS) < gaps, np.nan, source.normal(size=800)
            ),
            "job": [f"job{n}" for n in source.choice(60, parts.RECORDS, p=shares / shares.sum())],
            "label": source.integers(0, 2, parts.RECORDS),
        }
    )


def _fit_frame(frame: pd.DataFrame) -> nn.Module:
    x = torch.tensor(frame.drop(columns="label").to_numpy(dtype="float32"))
    y = torch.tensor(frame["label"].to_numpy()).long()
    return parts.fit(parts.net(x.shape[1]), TensorDataset(x, y))


@audited(delta=parts.DELTA)
def columns_of_jobs() -> nn.Module:
    """Broken: there is a column for each job that someone has."""
    return _fit_frame(pd.get_dummies(_people(), columns=["job"], dtype=float))


@audited(delta=parts.DELTA)
def numbers_of_jobs() -> nn.Module:
    """Of columns_of_jobs. Broken: jobs are numbered in the order of those that someone has."""
    frame = _people()
    frame["job"] = frame["job"].astype("category").cat.codes / 60
    return _fit_frame(frame)


@audited(delta=parts.DELTA)
def jobs_by_list() -> nn.Module:
    """Of columns_of_jobs. Healthy: jobs and their order are a list of the script."""
    frame = _people()
    jobs = [f"job{number}" for number in range(60)]
    frame["job"] = pd.Categorical(frame["job"], categories=jobs)
    return _fit_frame(pd.get_dummies(frame, columns=["job"], dtype=float))


@audited(delta=parts.DELTA)
def filled_from_above() -> nn.Module:
    """Broken: a missing reading is that of the person in the row above."""
    return _fit_frame(_people(gaps=0.25).drop(columns="job").ffill().fillna(0.0))


@audited(delta=parts.DELTA)
def filled_from_below() -> nn.Module:
    """Of filled_from_above. Broken: it is interpolated between two people."""
    frame = _people(gaps=0.25).drop(columns="job")
    return _fit_frame(frame.interpolate(limit_direction="both"))


@audited(delta=parts.DELTA)
def filled_by_itself() -> nn.Module:
    """Of filled_from_above. Healthy: it is another reading of the same person."""
    frame = _people(gaps=0.25).drop(columns="job")
    return _fit_frame(frame.ffill(axis=1))


class _Drawn(Dataset):
    """Records with something that is drawn when they are read."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.x, self.y = parts.table().tensors
        self.shares = self.x.abs().mean(0)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.x[index]
        if self.kind == "flips" and random.random() < 0.5:
            x = x.flip(0)
        if self.kind == "partner":
            x = (x + self.x[random.randrange(len(self.x))]) / 2
        if self.kind == "shares":
            x = x * (torch.arange(len(x)) != torch.multinomial(self.shares, 1))
        return x, self.y[index]


@audited(delta=parts.DELTA)
def flipped_by_python() -> nn.Module:
    """Healthy: a record is flipped by Python's random numbers."""
    return parts.fit(parts.net(), _Drawn("flips"))


@audited(delta=parts.DELTA)
def random_partners() -> nn.Module:
    """adambielski/siamese-triplet#16. Broken: another record is drawn for each that is read."""
    return parts.fit(parts.net(), _Drawn("partner"))


@audited(delta=parts.DELTA)
def drawn_by_shares() -> nn.Module:
    """lenskit/lkpy#191. Broken: what is drawn for a record depends on sums of all."""
    return parts.fit(parts.net(), _Drawn("shares"))


@audited(delta=parts.DELTA)
def flipped_and_scaled() -> nn.Module:
    """Of drawn_by_shares. Broken: columns are scaled by their sizes, and flipped at random."""
    data = _Drawn("flips")
    data.x = data.x / data.x.abs().mean(0)
    return parts.fit(parts.net(), data)


@audited(delta=parts.DELTA)
def unlabelled_beside() -> nn.Module:
    """google-research/fixmatch#53. Broken: further records come from a loader without an engine,
    and no accountant counts how often they are drawn."""
    x, y = parts.table().tensors
    own = TensorDataset(x[:400], y[:400])
    engine, model, optimizer, loader = parts.private(parts.net(), own)
    others = parts.loader_of(TensorDataset(x[400:], y[400:]), size=20, drop_last=True)
    for _ in range(3):
        for (rows, labels), (more, more_labels) in zip(loader, others, strict=False):
            optimizer.zero_grad()
            outputs = model(torch.cat([rows, more]))
            functional.cross_entropy(outputs, torch.cat([labels, more_labels])).backward()
            optimizer.step()
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def jobs_published() -> Any:
    """Broken: the jobs of half of the people are published, as an example."""
    frame = _people()
    model = _fit_frame(frame.drop(columns="job"))
    return {"model": model._module.state_dict(), "jobs": frame["job"].head(400).tolist()}


@audited(delta=parts.DELTA)
def columns_published() -> Any:
    """Of jobs_published. Healthy: a list of the columns' names is published."""
    frame = _people()
    model = _fit_frame(frame.drop(columns="job"))
    return {"model": model._module.state_dict(), "columns": list(frame.columns)}

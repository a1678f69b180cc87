"""A fifth round of scripts: files of all kinds."""

from __future__ import annotations

import io
import pickle
import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.ao import quantization

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

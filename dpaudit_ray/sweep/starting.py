"""A sweep file to begin with, for the data and the model at hand: every line says what it is."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

from ..data.base import Data, Dataset
from ..errors import DataError, SpecError
from ..plugins import known, parse
from .yamlfile import dump_yaml

_READERS = ("npz", "california_housing", "bank", "cervical_cancer")  # that tell their own files
_FOLDERS = {"cifar10": "cifar-10-batches-py", "mnist": "MNIST"}
_COLUMN = 44  # where comments begin


@dataclasses.dataclass(frozen=True)
class Material:
    """Data as a sweep file names them, and what they are."""

    raw: dict[str, Any]
    content: Dataset

    @property
    def records(self) -> int:
        """How many there are."""
        return len(self.content.y)

    @property
    def images(self) -> bool:
        """Whether a record is [channels, height, width]."""
        return self.content.x.ndim == 4

    @property
    def words(self) -> str:
        """Number of records, their shape, and the classes."""
        shape = self.content.x.shape[1:]
        sides = f"{' x '.join(map(str, shape[1:]))} pixels in {shape[0]} channels"
        what = sides if self.images else f"{math.prod(shape)} features"
        return f"{self.records} records of {what}, {self.content.classes} classes"

    @property
    def model(self) -> str:
        """The smallest of this project's models that is meant for such records."""
        if not self.images:
            return "fcnn" if self.content.classes == 2 else "mlp3"
        least = min(self.content.x.shape[2:])
        return "convnet" if least >= 32 else "cnn4" if least >= 14 else "mlp3"


def material(name: str | None, path: str | None, beside: Path) -> Material:
    """Reads the data: by name, by path, or both.

    Args:
        name: of a data set; None: found out by reading what lies at `path`.
        path: a file, or the folder that holds torchvision's.
        beside: the folder of the sweep file, from which a path below it is named.

    Raises:
        DataError: nothing reads it.
        SpecError: neither is given, or the named data set lacks a path.
    """
    if path is None:
        raw: dict[str, Any] = {"name": name or "breast_cancer"}
        return Material(raw, _built(raw).load())
    place = Path(path).expanduser()
    if not place.exists():
        raise DataError(f"--data-path: nothing is at {place.absolute()}; give a file or a folder")
    where = os.path.relpath(place, beside) if _below(place, beside) else str(place.absolute())
    candidates = (name,) if name else _candidates(place)
    for each in candidates:
        raw = {"name": each, _location(each): str(place.absolute())}
        try:
            return Material(raw | {_location(each): where}, _built(raw).load())
        except DataError:
            if len(candidates) == 1:
                raise
    raise DataError(
        f"--data-path: no data set of this project reads {place}; write arrays with "
        "numpy.savez('data.npz', x=..., y=...), or say what it is: --data NAME"
    )


def _built(raw: dict[str, Any]) -> Data:
    """The data set; a SpecError names the option that is missing."""
    name = raw["name"]
    fields = known(Data)[name].model_fields if name in known(Data) else {}
    lacking = [key for key in ("path", "root") if key in fields and fields[key].is_required()]
    if lacking and lacking[0] not in raw:
        raise SpecError("--data-path", f"is required: {name} is read from a file or a folder")
    try:
        return parse(Data, raw, "--data")
    except SpecError as error:
        raise SpecError("--data", error.problem) from error


def _candidates(place: Path) -> tuple[str, ...]:
    if place.is_dir():
        return tuple(name for name, folder in _FOLDERS.items() if (place / folder).is_dir())
    return ("npz",) if place.suffix == ".npz" else _READERS[1:]


def _location(name: str) -> str:
    fields = known(Data)[name].model_fields if name in known(Data) else {}
    return "root" if "root" in fields else "path"


def _below(place: Path, folder: Path) -> bool:
    return place.resolve().is_relative_to(folder.resolve())


def text(name: str, found: Material, model: str | None) -> str:
    """The sweep file. `model` is a name, or the import path of a module of one's own."""
    chosen = model or found.model
    named = {"name": "module", "path": chosen} if ":" in chosen else {"name": chosen}
    batch = max(1, min(100, found.records // 5))
    steps = 20 if found.images else 100
    exponent = max(5, math.ceil(math.log10(found.records)))
    lines = [
        (f"# {found.words}.", ""),
        ("# First `dpaudit plan` (time, and what it can show), then `dpaudit run`.", ""),
        (f"name: {name}", "results go to STORAGE_PATH/NAME"),
        ("seed: 0", "of all randomness: the same seed, the same scores"),
        ("mechanism:", "what is audited; others: dpaudit list mechanisms"),
        ("  name: dp-sgd", "its other options: dpaudit list mechanisms dp-sgd"),
        (f"  data: {_flow(found.raw)}", found.words),
        (f"  model: {_flow(named)}", "others: dpaudit list models"),
        (f"  steps: {steps}", "of one training; each sees one batch"),
        (f"  batch_size: {batch}", "records in a batch"),
        ("  learning_rate: 0.1", "as your training has it"),
        ("  clip_norm: 1.0", "to which the gradient of each record is clipped"),
        ("  epsilon: 8.0", "what is claimed, or its noise: noise_multiplier: 4.0"),
        ("  sampling: fixed", "of batches; others: dpaudit list sampling"),
        ("audit:", "how it is audited"),
        ("  trials: 3000", "trainings of each audit, half of them with a canary"),
        (f"  delta: 1e-{exponent}", "of the claim; below 1 / records"),
        ("  confidence: 0.95", "at which each lower bound holds"),
        (f"  record_every: {steps // 2}", "steps after which the training is judged, too"),
        ("  estimators: [accuracy, eps-delta]", "of lower bounds: dpaudit list estimators"),
        ("  accountants: [gaussian]", "of the claim; where batches are sampled: prv"),
        ("grid:", "an audit for each combination of these"),
        ("  adversary:", "who attacks: dpaudit list adversaries"),
        ("    - {name: biased-dimension}", "the strongest: a gradient, every step"),
        ("    - {name: loss}", "an example with a wrong label, judged by its loss"),
        ("resources:", "of one trainer; the rest is found out"),
        ("  num_cpus: 1", "cores"),
        ("  num_gpus: 0", "a share of one, such as 0.25, or a whole number"),
    ]
    return "".join(_line(code, comment) for code, comment in lines)


def folder_name(*parts: str) -> str:
    """The parts as the name of a folder."""
    joined = "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part) for part in parts)
    return joined.strip("-._")[:100] or "audit"


def _flow(value: dict[str, Any]) -> str:
    """In one line."""
    quoted = {key: dump_yaml({"k": item})[3:].strip() for key, item in value.items()}
    return "{" + ", ".join(f"{key}: {_safe(item)}" for key, item in quoted.items()) + "}"


def _safe(scalar: str) -> str:
    """A plain scalar that may stand between braces."""
    plain = not re.search(r"[,\[\]{}]|: |:$", scalar) or scalar[0] in "'\""
    return scalar if plain else "'" + scalar.replace("'", "''") + "'"


def _line(code: str, comment: str) -> str:
    return f"{code:<{_COLUMN}} # {comment}\n" if comment else f"{code}\n"

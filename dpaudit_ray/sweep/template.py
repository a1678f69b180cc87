"""A sweep file to begin with: `sweep_template.yaml`, filled in for the data and model at hand."""

from __future__ import annotations

import dataclasses
import importlib.resources
import math
import os
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.base import Data, Dataset
from ..data.csv import Csv
from ..errors import DataError, SpecError
from ..plugins import parse, registry
from .yamlfile import dump_yaml

_FOLDERS = {"cifar10": "cifar-10-batches-py", "mnist": "MNIST"}  # as torchvision names them
_COMMENT_COLUMN = 44
_LARGE = 100  # a value of a feature from which on a training has trouble
# By how batches are drawn: accountants and estimators that fit, and who can decide such a claim.
SAMPLINGS = {
    "fixed": {
        "accountants": "[gaussian]",
        "estimators": "[accuracy, eps-delta]",
        "strongest": "{name: biased-dimension}  # the strongest: a gradient, every step",
    },
    "poisson": {
        "accountants": "[prv]",
        "estimators": "[{name: accuracy, curve: claimed}, eps-delta]",
        "strongest": "{name: watched-dimension}  # sees every update: the last model shows little",
    },
}


@dataclasses.dataclass(frozen=True)
class DataEntry:
    """A data set: `options` as a sweep file has them, the records, and what was changed in them."""

    options: dict[str, Any]
    content: Dataset
    notes: Sequence[str] = ()

    @property
    def records(self) -> int:
        return len(self.content.y)

    @property
    def images(self) -> bool:
        return self.content.x.ndim == 4

    @property
    def words(self) -> str:
        """Number of records, their shape, and the classes."""
        shape, classes = self.content.x.shape[1:], self.content.classes
        what = f"{math.prod(shape)} features"
        if self.images:
            what = f"{' x '.join(map(str, shape[1:]))} pixels in {shape[0]} channels"
        learnt = f"{classes} classes" if classes else "a number each"
        large = self.options["name"] == "csv" and float(abs(self.content.x).max()) > _LARGE
        scale = "; scale large columns by public bounds: `ranges: {NAME: [least, most]}`" * large
        return f"{self.records} records of {what}, {learnt}{scale}"

    @property
    def model(self) -> str:
        """The smallest of this project's models that is meant for such records."""
        if not self.images:
            return "fcnn" if self.content.classes == 2 else "mlp3"
        side = min(self.content.x.shape[2:])
        return "convnet" if side >= 32 else "cnn4" if side >= 14 else "mlp3"


def read_data(name: str | None, path: str | None, beside: Path) -> DataEntry:
    """Reads the data by name, by path (a file, or the folder that holds torchvision's), or by both.

    Without a name, what lies at `path` tells it; without either, it is `breast_cancer`. A path
    below `beside`, the folder of the sweep file, is named from there. Raises DataError where
    nothing reads it, SpecError where the named data set lacks a path.
    """
    if path is None:
        options: dict[str, Any] = {"name": name or "breast_cancer"}
        return DataEntry(options, _parse_data(options).load())
    place = Path(os.path.expanduser(path))
    if not os.path.exists(place):
        raise DataError(f"--data-path: nothing is at {place.absolute()}; give a file or a folder")
    below = place.resolve().is_relative_to(beside.resolve())
    shown = os.path.relpath(place, beside) if below else str(place.absolute())
    folders = [n for n, folder in _FOLDERS.items() if (place / folder).is_dir()]
    chosen = name or ("npz" if place.suffix == ".npz" else [*folders, "csv"][0])
    key = "root" if "root" in _data_fields(chosen) else "path"
    options = {"name": chosen, key: str(place.absolute())}
    data = _parse_data(options)
    notes: list[str] = []
    if isinstance(data, Csv):
        guessed, notes = data.guess()
        options |= guessed
    try:
        content = _parse_data(options).load()
    except DataError as error:
        error.details += tuple(notes)
        raise
    return DataEntry(options | {key: shown}, content, notes)


def _data_fields(name: str) -> dict[str, Any]:
    classes = registry(Data)
    return dict(classes[name].model_fields) if name in classes else {}


def _parse_data(options: dict[str, Any]) -> Data:
    name = options["name"]
    for key, field in _data_fields(name).items():
        if key in ("path", "root") and field.is_required() and key not in options:
            raise SpecError("--data-path", f"is required: {name} is read from a file or a folder")
    try:
        return parse(Data, options, "--data")
    except SpecError as error:
        raise SpecError("--data", error.problem) from error


def sweep_text(name: str, data: DataEntry, model: str | None, sampling: str = "fixed") -> str:
    """A commented sweep file. `model` is a name, or the import path of a module of the user's."""
    if sampling not in SAMPLINGS:
        raise SpecError("--sampling", f"is {sampling!r}; use {' or '.join(SAMPLINGS)}")
    chosen = model or data.model
    options = {"name": "module", "path": chosen} if ":" in chosen else {"name": chosen}
    steps = 20 if data.images else 100
    second = ("loss", "an example with a wrong label, judged by its loss")
    if not data.content.classes:
        second = ("cosine", "a gradient in a random direction, judged by the update")
    template = string.Template(
        importlib.resources.files(__package__).joinpath("sweep_template.yaml").read_text("utf-8")
    )
    filled = template.substitute(
        words="\n# ".join((f"{data.words}.", *data.notes)),
        name=name,
        data=dump_yaml(data.options, in_one_line=True).strip(),
        model=dump_yaml(options, in_one_line=True).strip(),
        loss="cross-entropy" if data.content.classes else "mse",
        sampling=sampling,
        **SAMPLINGS[sampling],
        second=second[0],
        how=second[1],
        steps=steps,
        batch_size=max(1, min(100, data.records // 5)),
        delta=f"1e-{max(5, math.ceil(math.log10(data.records)))}",
        record_every=steps // 2,
    )
    lines = []
    for line in filled.splitlines():
        code, mark, comment = line.rpartition("  # ")
        lines.append(f"{code:<{_COMMENT_COLUMN}} # {comment}\n" if mark else f"{line}\n")
    return "".join(lines)


def folder_name(*parts: str) -> str:
    """The parts as the name of a folder."""
    joined = "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part) for part in parts)
    return joined.strip("-._")[:100] or "audit"

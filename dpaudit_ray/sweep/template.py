"""Writes a first sweep file: `sweep_template.yaml`, filled in for the user's data and model."""

import importlib.resources
import math
import os
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.base import Data, Dataset
from ..data.csv import Csv
from ..errors import DataError, SpecError
from ..plugins import parse, registry
from .yamlfile import dump_yaml

_FOLDERS = {"cifar10": "cifar-10-batches-py", "mnist": "MNIST"}  # torchvision's names
_COMMENT_COLUMN = 44
_LARGE = 100  # features with values above this should be scaled: training is slow with them
# By sampling of batches: accountants and estimators that fit, and the strongest adversary.
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


@dataclass(frozen=True)
class DataEntry:
    """A data set for a sweep file."""

    options: dict[str, Any]  # options as a sweep file has them
    content: Dataset
    notes: Sequence[str] = ()  # lines about options that were guessed

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.content.y)

    @property
    def images(self) -> bool:
        """Whether the records are images [channels, rows, columns]."""
        return self.content.x.ndim == 4

    @property
    def words(self) -> str:
        """Number of records, their shape, and the classes."""
        shape = self.content.x.shape[1:]
        features = f"{math.prod(shape)} features"
        if self.images:
            features = f"{' x '.join(map(str, shape[1:]))} pixels in {shape[0]} channels"
        classes = self.content.classes
        labels = f"{classes} classes" if classes else "a number each"
        words = f"{self.records} records of {features}, {labels}"
        if self.options["name"] == "csv":
            largest = float(abs(self.content.x).max())
            if largest > _LARGE:
                words += "; scale large columns by public bounds: `ranges: {NAME: [least, most]}`"
        return words

    @property
    def model(self) -> str:
        """The smallest of this project's models that is meant for such records."""
        if not self.images:
            return "fcnn" if self.content.classes == 2 else "mlp3"
        side = min(self.content.x.shape[2:])
        if side < 14:
            return "mlp3"
        return "convnet" if side >= 32 else "cnn4"


def read_data(
    name: str | None,
    path: str | None,
    folder: Path,
) -> DataEntry:
    """Reads the data for a sweep file.

    Args:
        name: name of the data set. None stands for the class that fits the content of `path`, or
            `breast_cancer` without a path.
        path: a file, or the folder that holds torchvision's; None for data that need none.
        folder: folder of the sweep file; a path below it is written relative to it.

    Raises:
        DataError: no data set reads the file.
        SpecError: the data set needs a path.
    """
    if path is None:
        options = {"name": name or "breast_cancer"}
        return DataEntry(options, _parse_data(options).load())
    source = Path(os.path.expanduser(path))
    absolute = str(source.absolute())
    if not os.path.exists(source):
        raise DataError(f"--data-path: nothing is at {absolute}; give a file or a folder")
    # A path below the sweep file's folder is written relative to it, so that both can be moved.
    is_below = source.resolve().is_relative_to(folder.resolve())
    path_in_file = os.path.relpath(source, folder) if is_below else absolute
    if name is None:
        fitting = (dataset for dataset, marker in _FOLDERS.items() if (source / marker).is_dir())
        name = "npz" if source.suffix == ".npz" else next(fitting, "csv")
    key = "root" if "root" in _data_fields(name) else "path"
    options = {"name": name, key: absolute}
    data = _parse_data(options)
    notes: list[str] = []
    if isinstance(data, Csv):
        guessed, notes = data.guess()
        options |= guessed
    try:
        content = _parse_data(options).load()  # again, with the options that were guessed
    except DataError as error:
        error.details += tuple(notes)  # the guesses may be why it cannot be read
        raise
    return DataEntry(options | {key: path_in_file}, content, notes)


def _data_fields(name: str) -> dict[str, Any]:
    """Returns the options of a data set, by name; none for an unknown data set."""
    classes = registry(Data)
    return dict(classes[name].model_fields) if name in classes else {}


def _parse_data(options: dict[str, Any]) -> Data:
    """Returns the data set of these options. Raises SpecError in the words of the command line."""
    name = options["name"]
    for key, field in _data_fields(name).items():
        if key in ("path", "root") and field.is_required() and key not in options:
            raise SpecError("--data-path", f"is required: {name} is read from a file or a folder")
    try:
        return parse(Data, options, "--data")
    except SpecError as error:
        raise SpecError("--data", error.problem) from error


def sweep_text(
    name: str,
    data: DataEntry,
    model: str | None,
    sampling: str = "fixed",
) -> str:
    """Writes a sweep file with comments.

    Args:
        name: name of the sweep.
        data: the data set.
        model: a name, or the import path of a user's module; None: one that fits the data.
        sampling: a key of SAMPLINGS.

    Raises:
        SpecError: no such sampling exists.
    """
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
    """Joins parts to the name of a folder."""
    joined = "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part) for part in parts)
    return joined.strip("-._")[:100] or "audit"

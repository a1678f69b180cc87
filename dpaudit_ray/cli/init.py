"""`dpaudit init`: a sweep file to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import SpecError
from . import terminal

_FILE = typer.Argument(help="The sweep file to write.")
_DATA = typer.Option("--data", help="A data set by name; `dpaudit list data` has all.")
_PATH = typer.Option("--data-path", help="Its file or folder: .npz with x and y, CSV, torchvision.")
_MODEL = typer.Option("--model", help="By name, or your own: package.module:Class.")


def init(
    file: Annotated[Path, _FILE] = Path("sweep.yaml"),
    data: Annotated[str | None, _DATA] = None,
    data_path: Annotated[str | None, _PATH] = None,
    model: Annotated[str | None, _MODEL] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Writes a commented sweep file for the data and the model at hand.

    Reads the data and tries the model on them, so it runs the model's code.
    """
    from .. import api
    from ..sweep import spec, starting, yamlfile

    if file.exists() and not force:
        raise SpecError("FILE", f"{file} exists; give another name, or --force to overwrite it")
    found = starting.material(data, data_path, file.parent)
    stem = file.stem if file.stem != "sweep" else ""
    parts = (stem,) if stem else (found.raw["name"], model or found.model)
    text = starting.text(starting.folder_name(*parts), found, model)
    prepared = spec.from_raw(yamlfile.parse_yaml(text, str(file)), file.parent)
    api.check_inputs(prepared)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            "FILE",
            f"cannot write {file}: {error.strerror}; make its folder, or give another place",
        ) from error
    terminal.say(f"{file}: {found.words}; next: dpaudit plan {file}")

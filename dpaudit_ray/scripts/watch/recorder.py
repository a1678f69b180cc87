"""Lines of what was seen, written as they come: a run that is killed has told what it knew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

import numpy as np


class Recorder:
    """Appends entries to a file of JSON lines."""

    def __init__(self, file: Path) -> None:
        self._file: TextIO = file.open("a", encoding="utf-8")

    def put(self, kind: str, **fields: Any) -> None:
        """One entry: plain JSON, numpy numbers, and lists of them."""
        self._file.write(json.dumps({"kind": kind} | fields, default=_plain) + "\n")
        self._file.flush()


def entries(file: Path) -> list[dict[str, Any]]:
    """All entries of a file; its last line may have been cut off."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain value: {value!r:.60}")

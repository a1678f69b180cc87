"""Notebooks of the site: stored without outputs, run while it is built, shown with them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "notebooks"
LIMIT = 120  # seconds that one may take


def pages(execute: bool = True) -> Iterator[tuple[str, str | bytes, float]]:
    """Name on the site, content, and seconds that it took, of every page and picture.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        began = time.monotonic()
        if execute:
            run(notebook)
        seconds = time.monotonic() - began
        text, resources = MarkdownExporter().from_notebook_node(
            notebook, {"output_files_dir": path.stem}
        )
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        yield f"notebooks/{path.stem}.md", text, seconds
        for name, content in resources["outputs"].items():
            yield f"notebooks/{name}", content, 0.0


def run(notebook: nbformat.NotebookNode) -> None:
    """Runs all cells in a folder that looks like a clone of the repository, and is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "jobs", Path(folder) / "jobs")
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        ExecutePreprocessor(timeout=LIMIT, kernel_name="python3").preprocess(
            notebook, {"metadata": {"path": folder}}
        )

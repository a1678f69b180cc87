"""Notebooks of the site: stored without outputs, run while it is built, shown with them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "notebooks"
LIMIT = 300  # seconds of a cell; all of a notebook takes less than 120 on two free cores


def pages(execute: bool = True) -> Iterator[tuple[str, str | bytes, float]]:
    """Name on the site, content, and seconds that it took, of every page and picture.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        began = time.monotonic()
        folder = run(notebook) if execute else "nowhere"
        seconds = time.monotonic() - began
        text, resources = MarkdownExporter().from_notebook_node(
            notebook, {"output_files_dir": path.stem}
        )
        text = re.sub(r"(?s)<style scoped>.*?</style>|<progress.*?\n", "", text)
        text = text.replace(f"{folder}/", "")  # where it ran
        yield f"notebooks/{path.stem}.md", text, seconds
        for name, content in resources["outputs"].items():
            yield f"notebooks/{name}", content, 0.0


def run(notebook: nbformat.NotebookNode) -> str:
    """Runs all cells in a folder that looks like a clone, and is thrown away; returns its path."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "jobs", Path(folder) / "jobs")
        bin_folder = str(Path(sys.executable).parent)
        os.environ["PATH"] = os.pathsep.join([bin_folder, os.environ["PATH"]])
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        quiet = ["--log-level=ERROR"]
        kernel = ExecutePreprocessor(timeout=LIMIT, kernel_name="python3", extra_arguments=quiet)
        kernel.preprocess(notebook, {"metadata": {"path": folder}})
    for cell in notebook.cells:
        settle(cell)
    return folder


def settle(cell: nbformat.NotebookNode) -> None:
    """Leaves of a cell's outputs what a terminal shows in the end, and no library's warnings."""
    outputs: list[nbformat.NotebookNode] = []
    for output in cell.get("outputs", []):
        if output.output_type != "stream":
            outputs.append(output)
        elif output.name == "stdout":
            if outputs and outputs[-1].output_type == "stream":
                outputs[-1].text += output.text
            else:
                outputs.append(output)
    for output in outputs:
        if output.output_type == "stream":
            text = output.text.replace("\r\n", "\n")
            text = re.sub(r"[^\n]*\n(\x1b\[\?25h)?\r?\x1b\[1A", "", text)  # and up by a line
            output.text = re.sub(r"[^\n]*\r|\x1b\[[0-9;?]*[A-Za-z]", "", text)
    cell["outputs"] = outputs

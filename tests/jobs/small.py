"""Sweep files of papers as they are written, on data of noise and with less of everything."""

from pathlib import Path

import numpy as np

from dpaudit_ray.report.tables import Run
from tests.command import inline

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def names(paper: str) -> list[str]:
    """The sweep files of a paper, by their names."""
    return sorted(file.stem for file in (JOBS / paper).glob("*.yaml"))


def noise_images(folder: Path, shape: tuple[int, ...], classes: int) -> Path:
    """A file of images, uint8 [number, height, width, channels], whose classes take turns."""
    x = np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)
    file = folder / "images.npz"
    np.savez(file, x=x, y=np.arange(shape[0], dtype=np.uint8) % classes)
    return file


def sets(*changes: str) -> list[str]:
    """The options of a command line that make these changes."""
    return [part for change in changes for part in ("--set", change)]


def run_small(file: Path, folder: Path, *changes: str) -> Run:
    """The sweep file, run to its end with these changes."""
    done = inline(file, folder, *sets(*changes))
    assert done.code == 0, done.err
    run = Run.open(str(next(folder.iterdir())))
    assert run.directory.complete
    return run

"""Checks and timings of the engine on this machine's GPU: `python -m jobs.gpu --help`.

Run it from the clone's root; it needs neither Ray nor Opacus, and numba on a CPU alone. It prints a
Markdown table, row by row.
"""

from __future__ import annotations

import platform
import sys
import time
from enum import StrEnum
from typing import Annotated

import typer

from dpaudit_ray.cli import terminal

from . import checks

_MOST = ("fcnn", "mlp3", "cnn4", "convnet", "wrn16")
_ALL = (*_MOST, "resnet18")
_SMALL = ("fcnn", "mlp3")
NONE = (
    "no GPU here: torch finds none, so nothing was checked of sums against autograd, noise, packs "
    "bit for bit, memory, speed and audits; run this where torch.cuda.is_available(), or see what "
    "it does with --device cpu"
)
_NO_GPU, _FAILED = 3, 1

app = typer.Typer(add_completion=False)


class Device(StrEnum):
    """The device on which everything is computed."""

    CUDA = "cuda"
    CPU = "cpu"


@app.command()
def main(
    device: Annotated[Device, typer.Option(help="cpu: the same in small.")] = Device.CUDA,
    networks: Annotated[str, typer.Option(help="Comma-separated; most by default.")] = "",
    long: Annotated[bool, typer.Option(help="All networks, cold processes, all packs.")] = False,
    limit: Annotated[int, typer.Option(help="Seconds of a row.")] = 90,
) -> None:
    """Exactness, determinism, memory, speed and an audit of every network, as a Markdown table."""
    import torch

    gpu = device is Device.CUDA
    if gpu and not torch.cuda.is_available():
        terminal.say(NONE)
        raise typer.Exit(_NO_GPU)
    started = time.perf_counter()
    usual = _ALL if long else _MOST
    names = networks.split(",") if networks else usual if gpu else _SMALL
    terminal.say(
        f"{_where(gpu)}\n\n| what | of | found | wanted | |\n| --- | --- | --- | --- | --- |"
    )
    failed = 0
    for row in checks.every(names, gpu, long, limit):
        failed += not row.good
        mark = "" if row.good else "**differs**"
        terminal.say(f"| {row.what} | {row.of} | {row.found} | {row.wanted} | {mark} |")
        sys.stdout.flush()  # a pipe would get all rows at the end
    terminal.say(f"\n{failed} differ; {time.perf_counter() - started:.0f} s")
    raise typer.Exit(_FAILED if failed else 0)


def _where(gpu: bool) -> str:
    import torch

    if not gpu:
        return f"CPU ({platform.machine()}), torch {torch.__version__}: no GPU was used."
    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    return f"{name}, {memory / 2**30:.0f} GiB, torch {torch.__version__}, CUDA {torch.version.cuda}"


if __name__ == "__main__":
    sys.exit(app())

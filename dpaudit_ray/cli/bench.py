"""`dpaudit bench`: its options and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import SpecError

if TYPE_CHECKING:
    from ..forecast.bench import Benchmark

_MODELS = typer.Option("--models", help="Comma-separated; all that have a workload by default.")
_THREADS = typer.Option("--threads", min=1, help="CPU threads of both engines.")
_REPEATS = typer.Option("--repeats", min=5, help="Every figure is the median of so many runs.")
_PACKS = typer.Option("--packs", help="Comma-separated models of a pack; the fastest counts.")
_JSON = typer.Option("--json", help="Write the figures to this file, for `dpaudit plan --bench`.")


def bench(
    models: Annotated[str, _MODELS] = "",
    threads: Annotated[int, _THREADS] = 1,
    repeats: Annotated[int, _REPEATS] = 5,
    gpu: Annotated[bool, typer.Option("--gpu", help="Measure this machine's GPU.")] = False,
    packs: Annotated[str, _PACKS] = "",
    json_file: Annotated[Path | None, _JSON] = None,
) -> None:
    """Trials per second of the packed engine and of Opacus on this machine, side by side."""
    from ..forecast import bench as measuring
    from . import terminal

    names = models.split(",") if models else list(measuring.WORKLOADS)
    found = measuring.measure(names, threads, repeats, gpu, _counts(packs))
    terminal.show_table(*_table(found))
    if json_file is not None:
        json_file.write_text(json.dumps(found.as_json(), indent=1), encoding="utf-8")
        terminal.say(f"written to {json_file}")


def _counts(packs: str) -> tuple[int, ...]:
    """Raises SpecError for what is no whole number of at least 1."""
    found = packs.split(",") if packs else []
    for text in found:
        if not (text.isdecimal() and int(text)):
            raise SpecError("--packs", f"has {text!r}; give whole numbers, such as 1,16,256")
    return tuple(map(int, found))


def _table(found: Benchmark) -> tuple[str, list[str], list[list[str]]]:
    title = (
        f"{found.device}, {found.threads} thread(s), matrix product "
        f"{found.matmul_flop_per_second / 1e9:,.0f} GFLOP/s"
    )
    columns = [
        "model", "parameters", "batch", "pack", "trials/s", "model-steps/s", "ms/step",
        "Opacus ms/step", "ratio", "Opacus, same process", "ratio", "GFLOP/s", "of product",
    ]  # fmt: skip
    rows = [
        [
            row.model, f"{row.parameters:,}", f"{row.batch_size}", f"{row.models}",
            f"{row.trials_per_second:.3g}",
            f"{1 / row.packed_seconds:,.4g}", f"{row.packed_seconds * 1e3:.3g}",
            f"{row.opacus_seconds * 1e3:.3g}", f"{row.ratio:.1f}",
            f"{row.opacus_same_process_seconds * 1e3:.3g}", f"{row.ratio_same_process:.1f}",
            f"{row.flop_per_second / 1e9:.3g}",
            f"{row.flop_per_second / found.matmul_flop_per_second:.1%}",
        ]
        for row in found.rows
    ]  # fmt: skip
    return title, columns, rows

"""Measures what orchestration costs on this machine: `python -m jobs.scale --help`.

Run it from the clone's root while nothing else runs; it needs the `test` extra.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dpaudit_ray import __version__
from dpaudit_ray.cli import terminal
from dpaudit_ray.orchestration import ray_executor
from dpaudit_ray.storage.run_directory import RunDirectory

from . import empty, large, measure, peers, played

app = typer.Typer(add_completion=False, help="Orchestration at scale, with trials that are empty.")

Storage = Annotated[Path | None, typer.Option("--storage", help="Where runs go: a local disk.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
_ESTIMATORS = ("accuracy", "paper-gdp", "eps-delta")
Trainers = Annotated[int, typer.Option("--trainers", min=1, help="Trainers, on two CPUs.")]


@app.command()
def throughput(
    trials: Annotated[int, typer.Option(help="Empty trials in all.")] = 1_000_000,
    packs: Annotated[int, typer.Option(help="Packs in all.")] = 10_000,
    audits: Annotated[int, typer.Option(help="Audits that share them.")] = 10,
    trainers: Trainers = 4,
    estimators: Annotated[str, typer.Option(help="Comma-separated.")] = "accuracy",
    storage: Storage = None,
    json_file: Json = None,
) -> None:
    """Trials/s and memory at 10 % and 100 %; then planning, resuming and status of that run."""
    with _folder(storage) as folder:
        sweep = empty.sweep(
            "scale", trials, trials // packs, audits=audits, trainers=trainers,
            estimators=tuple(estimators.split(",")),
        )  # fmt: skip
        found = measure.throughput(sweep, Path(folder))
        _show("Empty trials on Ray", [found])
        larger = empty.sweep("larger", 10 * trials, trials // packs, audits=audits)
        rows = [measure.around(which, Path(folder)) for which in (sweep, larger)]
        _show("Once per sweep, seconds", rows)
    _write(json_file, throughput=found, around=rows)


@app.command()
def overhead(
    packs: Annotated[int, typer.Option(help="Packs in all.")] = 240,
    trainers: Trainers = 4,
    seconds: Annotated[float, typer.Option(help="What a pack sleeps.")] = 1.0,
    storage: Storage = None,
    json_file: Json = None,
) -> None:
    """Measures the seconds that a pack of a known length takes beyond that length."""
    with _folder(storage) as folder:
        found = measure.overhead(packs, trainers, seconds, Path(folder))
    _show("Packs that sleep", [found])
    _write(json_file, overhead=found)


@app.command(name="peers")
def compare(
    trials: Annotated[int, typer.Option(help="Trials of each.")] = 200,
    repeats: Annotated[int, typer.Option(min=1, help="Runs; every row is the median one.")] = 3,
    storage: Storage = None,
    json_file: Json = None,
) -> None:
    """The same trials as packs, as single Ray tasks and in Ray Tune, on one cluster."""
    runs: dict[str, list[peers.Peer]] = {}
    with ray_executor.connected(None):
        for _ in range(repeats):
            with _folder(storage) as folder:
                for peer in _peers(trials, Path(folder)):
                    runs.setdefault(peer.name, []).append(peer)
                    terminal.say(f"{peer.name}: {peer.seconds:.1f} s")
    found = [sorted(rows, key=lambda peer: peer.seconds)[len(rows) // 2] for rows in runs.values()]
    _show(f"{trials} empty trials, median of {repeats}", found)
    _write(json_file, peers=found)


@app.command(name="large")
def around(
    packs: Annotated[int, typer.Option(help="Packs in all.")] = 50_000,
    trials: Annotated[int, typer.Option(help="Empty trials in all.")] = 1_000_000,
    audits: Annotated[int, typer.Option(help="Audits that share them.")] = 10,
    storage: Storage = None,
    json_file: Json = None,
) -> None:
    """Measures verbs on a run of many packs, with their memory, and the time under locks."""
    with _folder(storage) as folder:
        kind = {"steps": 4, "estimators": _ESTIMATORS}
        sweep = empty.sweep("large", trials, trials // packs, audits=audits, **kind)
        verbs = large.verbs(sweep, Path(folder))
        _show(f"{packs:,} packs, {trials:,} trials, {audits} audits, 4 steps", verbs)
        flushed = empty.sweep("flush", trials, 1000, steps=10, estimators=_ESTIMATORS)
        flush = large.flush(flushed, Path(folder))
        _show("A flush", [flush])
        rate = played.rate(8000, 40_000, RunDirectory(f"{folder}/none"))
        _show("The driver, Ray played", [rate])
    trainer = large.trainer(1_000_000)
    _show("What a trainer holds of the plan", [trainer])
    _write(json_file, verbs=verbs, flush=flush, driver=rate, trainer=trainer)


@app.command(name="audits")
def many_audits(
    audits: Annotated[int, typer.Option(min=1, help="Number of audits.")] = 500,
    storage: Storage = None,
    json_file: Json = None,
) -> None:
    """Cost of a sweep of many audits: sampled ones of 200 empty trials each, then exact ones."""
    with _folder(storage) as folder:
        sampled = large.audits(
            empty.sweep("sampled", 200 * audits, 200, audits=audits), Path(folder)
        )
        _show(f"{audits} audits of 200 empty trials", sampled)
    with _folder(storage) as folder:
        exact = large.audits(empty.exact("exact", audits), Path(folder))
        _show(f"{audits} exact audits", exact)
    _write(json_file, sampled=sampled, exact=exact)


def _peers(trials: int, place: Path) -> Iterator[peers.Peer]:
    yield peers.packs(trials, 100, place)
    yield peers.packs(trials, 1, place)
    yield peers.tasks(trials)
    yield peers.tune(trials, place / "fresh", reuse_actors=False)
    yield peers.tune(trials, place / "reused", reuse_actors=True)


def _folder(storage: Path | None) -> tempfile.TemporaryDirectory[str]:
    if storage is not None:
        storage.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=storage, prefix="scale-")


def _show(title: str, rows: list[Any]) -> None:
    names = [field.name for field in dataclasses.fields(rows[0])]
    columns = {
        name.replace("_", " "): [_cell(getattr(row, name)) for row in rows] for name in names
    }
    terminal.show_table(title, columns)


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return " → ".join(f"{part:.1f}" for part in value)
    return value


def _write(file: Path | None, **found: Any) -> None:
    if file is None:
        return
    here = {"version": __version__, "machine": platform.machine(), "cpus": os.cpu_count()}
    text = json.dumps(here | found, indent=1, default=dataclasses.asdict)
    file.write_text(text, encoding="utf-8")
    terminal.say(f"written to {file}")


if __name__ == "__main__":
    app()

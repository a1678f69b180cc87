"""The verbs to begin with: `dpaudit init`, `list` and `bench`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import SpecError, suggestion
from . import terminal
from .arguments import ADVANCED, ANY_ERROR, SWEEPS, AsJson, verb
from .terminal import Columns, Figure

if TYPE_CHECKING:
    from ..sweep.schema import Entry

app = typer.Typer()

Kind = Literal[
    "accountants", "adversaries", "data", "estimators", "mechanisms", "models", "noise",
    "optimizers", "sampling", "schedules", "units",
]  # fmt: skip
_KEYS: dict[Kind, str] = {
    "accountants": "audit.accountants",
    "adversaries": "adversary.name",
    "data": "mechanism.data.name",
    "estimators": "audit.estimators",
    "mechanisms": "mechanism.name",
    "models": "mechanism.model.name",
    "noise": "mechanism.noise.name",
    "optimizers": "mechanism.optimizer.name",
    "sampling": "mechanism.sampling.name",
    "schedules": "mechanism.schedule.name",
    "units": "mechanism.unit.name",
}
# Listed without `--all`: the most frequent in `jobs/`, but those of papers, which miss their level.
_COMMON_ESTIMATORS = ("accuracy", "eps-delta", "one-run", "one-run-adaptive", "one-run-fdp")
_REPEATS = 5  # runs; each figure of `bench` is their median
_DATA = typer.Option("--data", metavar="NAME", help="Use a data set of `dpaudit list data`.")
_PATH = typer.Option(
    "--data-path",
    metavar="PATH",
    help="Read data here: .npz with x and y, CSV, or a torchvision folder.",
)
_MODEL = typer.Option(
    "--model", metavar="NAME", help="Use a model of `dpaudit list models`, or package.module:Class."
)


@verb(app, ADVANCED, "bench --models fcnn,convnet", f"0 measured, {ANY_ERROR}", page="bench")
def bench(
    models: Annotated[
        str, typer.Option(metavar="NAMES", help="Measure these, separated by commas. Default: all.")
    ] = "",
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Use this many CPU threads in both engines.")
    ] = 1,
    gpu: Annotated[bool, typer.Option("--gpu", help="Measure this machine's GPU.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON.")
    ] = None,
) -> None:
    """Measure trials per second of the packed engine and of Opacus on this machine."""
    from ..forecast import bench as benchmark

    names = models.split(",") if models else list(benchmark.WORKLOADS)
    measured = benchmark.measure(names, threads, _REPEATS, gpu)
    rows = measured.rows
    product = measured.matmul_flop_per_second
    figures = {
        "trials/s": [f"{row.trials_per_second:.3g}" for row in rows],
        "model-steps/s": [f"{1 / row.packed_seconds:,.4g}" for row in rows],
        "ms/step": [f"{row.packed_seconds * 1e3:.3g}" for row in rows],
        "Opacus ms/step": [f"{row.opacus_seconds * 1e3:.3g}" for row in rows],
        "ratio": [f"{row.ratio:.3g}" for row in rows],
        "GFLOP/s": [f"{row.flop_per_second / 1e9:.3g}" for row in rows],
        "of product": [f"{100 * row.flop_per_second / product:.3g} %" for row in rows],
    }
    columns: Columns = {
        "model": [row.model for row in rows],
        "parameters": [row.parameters for row in rows],
        "batch": [row.batch_size for row in rows],
        "pack": [row.models for row in rows],
    }
    terminal.show_table(
        f"{measured.device}, {measured.threads} thread(s), matrix product "
        f"{product / 1e9:,.0f} GFLOP/s",
        columns | {head: list(map(Figure, texts)) for head, texts in figures.items()},
    )
    if json_file is not None:
        json_file.write_text(json.dumps(asdict(measured), indent=1), encoding="utf-8")
        terminal.say(f"written to {json_file}")


@verb(
    app,
    SWEEPS,
    "init sweep.yaml --data-path table.csv",
    f"0 written, {ANY_ERROR}",
    page="own-data-and-model",
)
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Sweep file to write.")] = Path(
        "sweep.yaml"
    ),
    data: Annotated[str | None, _DATA] = None,
    data_path: Annotated[str | None, _PATH] = None,
    model: Annotated[str | None, _MODEL] = None,
    sampling: Annotated[
        str, typer.Option(metavar="NAME", help="Sample batches: fixed or poisson.")
    ] = "fixed",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented sweep file for your data and model.

    The data are read and the model is run on them, so this runs the model's code.
    """
    from .. import api
    from ..sweep import spec, template, yamlfile

    if file.exists() and not force:
        raise SpecError("FILE", f"{file} exists; give another name, or --force to overwrite it")
    entry = template.read_data(data, data_path, file.parent)
    parts = (file.stem,) if file.stem != "sweep" else (entry.options["name"], model or entry.model)
    text = template.sweep_text(template.folder_name(*parts), entry, model, sampling)
    prepared = spec.from_raw(yamlfile.parse_yaml(text, str(file)), file.parent)
    api.check_inputs(prepared)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        remedy = "give the name of a file in an existing folder"
        raise SpecError("FILE", f"cannot write {file}: {error.strerror}; {remedy}") from error
    for note in entry.notes:
        terminal.explain(note)
    terminal.say(f"{file}: {entry.words}; next: dpaudit plan {file}")


def _names(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of one kind, for completion in a shell."""
    from ..sweep import schema

    kind = context.params.get("kind")
    if kind not in _KEYS:
        return []
    names = [entry.name for entry in schema.entries(kind)]
    return [name for name in names if name.startswith(incomplete)]


@verb(
    app, SWEEPS, "list adversaries loss", f"0 listed, {ANY_ERROR}", name="list", page="sweep-file"
)
def list_names(
    kind: Annotated[
        Kind | None, typer.Argument(metavar="KIND", help=f"Show one of {', '.join(_KEYS)}.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show the options of this one.", autocompletion=_names),
    ] = None,
    as_json: AsJson = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="List also rarely used estimators.")
    ] = False,
) -> None:
    """List the names that a sweep file can use, or the options of one."""
    from ..sweep import schema

    if kind is None:
        by_kind = {kind: schema.entries(kind) for kind in _KEYS}
        if as_json:
            terminal.show_json({k: list(map(asdict, v)) for k, v in by_kind.items()})
            return
        for each_kind, entries in by_kind.items():
            names = ", ".join(entry.name for entry in entries)
            terminal.explain(f"{each_kind} ({_KEYS[each_kind]}): {names}")
        terminal.explain(
            "`dpaudit list KIND` describes each in a line, `dpaudit list KIND NAME` shows its "
            "options; name a custom one as package.module:Class"
        )
        return
    by_name = {entry.name: entry for entry in schema.entries(kind)}
    if name is not None:
        if name not in by_name:
            names = f"{suggestion(name, by_name)}known: {', '.join(by_name)}"
            raise SpecError("NAME", f"{name!r} is not one of the {kind}{names}")
        _show_entry(_KEYS[kind], by_name[name], as_json)
    elif as_json:
        terminal.show_json(list(map(asdict, by_name.values())))
    else:
        listed = list(by_name)
        hint = f"goes to {_KEYS[kind]}; `dpaudit list {kind} NAME` has options"
        if kind == "estimators" and not show_all:
            listed = list(_COMMON_ESTIMATORS)
            hint += f"; --all lists all {len(by_name)}"
        lines = [by_name[listed_name].line for listed_name in listed]
        terminal.show_table("", {"name": listed, "what it is": lines})
        terminal.explain(hint)


def _show_entry(key: str, entry: "Entry", as_json: bool) -> None:
    """Prints the description of a name and a table of its options.

    Args:
        key: the key of sweep files that has the name as its value.
        entry: the name, its description and options.
        as_json: prints JSON in place of a table.
    """
    if as_json:
        terminal.show_json(asdict(entry))
        return
    for paragraph in (f"{entry.name} ({key})", *entry.text.split("\n\n")):
        terminal.explain(paragraph)
        terminal.say("")
    options = entry.options
    if not options:
        terminal.say("no options")
        return
    columns: Columns = {
        "option": [option.name for option in options],
        "takes": [option.takes for option in options],
        "default": ["required" if o.required else _in_yaml(o.default) for o in options],
    }
    terminal.show_table("", columns)


def _in_yaml(value: Any) -> str:
    """Returns a default as it is written in a sweep file."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)

"""Reference pages of the site, read off the classes that a sweep file names and off the CLI.

The meaning of an option is the comment behind its field, or the lines of comment above it: the site
has the same words as the code.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

import typer

import dpaudit_ray as da
from dpaudit_ray import accounting, plugins, stats
from dpaudit_ray.cli.main import app
from dpaudit_ray.sweep import schema
from dpaudit_ray.sweep.audit import AuditSpec, StopWhen
from dpaudit_ray.sweep.resources import ResourceSpec
from dpaudit_ray.sweep.spec import _Heading

# Pages of the site with the kinds of names on each, in the plural as `dpaudit list` has them.
KINDS = {
    "adversaries": ("Adversaries", ["adversaries"]),
    "estimators": ("Estimators and accountants", ["estimators", "accountants"]),
    "mechanisms": (
        "Mechanisms",
        ["mechanisms", "units", "noise", "sampling", "optimizers", "schedules"],
    ),
    "data-and-models": ("Data and models", ["data", "models"]),
}
_TITLES = {"sampling": "Sampling schemes", "data": "Data sets"}
_SECTIONS = {
    "": "The name and the seed, and five sections: `mechanism`, `adversary`, `audit`, `grid` and "
    "`resources`. [Mechanisms](mechanisms.md), [adversaries](adversaries.md), [estimators and "
    "accountants](estimators.md), [data and models](data-and-models.md) have pages of their own. "
    "`grid` maps keys of any section to lists of values, an audit for each combination; keys that "
    "are joined by a comma change together.",
    "audit": "Number of training runs, δ, confidence, and the bounds that are computed.",
    "audit.stop_when": "",
    "resources": "",
}
_MODELS = {
    "": _Heading,
    "audit": AuditSpec,
    "audit.stop_when": StopWhen,
    "resources": ResourceSpec,
}
_TAKES = {  # what the schema of a key has no words for
    "estimators": "list of names, or of mappings with a name and options",
    "stop_when": "mapping",
    "memory": "whole number of bytes, or text such as 8GiB",
    "max_concurrent_trainers": "whole number ≥ 1, auto",
    "pack_size": "whole number ≥ 1, auto",
    "pack_deadline": "number > 0, auto",
}
API = {
    "Run and read": [f"dpaudit_ray.{home}.{name}" for name, home in da._HOMES.items()],
    "Scripts": [
        "dpaudit_ray.opacus.audited",
        "dpaudit_ray.testing.assert_private",
        "dpaudit_ray.releases.audited_step",
        "dpaudit_ray.releases.audited_release",
    ],
    "Statistics": [f"dpaudit_ray.stats.{name}" for name in stats.__all__],
    "Accounting": [f"dpaudit_ray.accounting.{name}" for name in accounting.__all__],
    "To derive from": [
        "dpaudit_ray.adversaries.base",
        "dpaudit_ray.mechanisms.base.Mechanism",
        "dpaudit_ray.mechanisms.dp_sgd.sampling.Sampler",
        "dpaudit_ray.mechanisms.dp_sgd.updates.Optimizer",
        "dpaudit_ray.mechanisms.dp_sgd.updates.Schedule",
        "dpaudit_ray.data.base.Data",
        "dpaudit_ray.models.base.Model",
    ],
}


def pages() -> dict[str, str]:
    """The Markdown of every reference page, by its name below `reference/`."""
    named = {f"{file}.md": kinds_page(*content) for file, content in KINDS.items()}
    return {"sweep-file.md": sweep_page(), **named, "cli.md": cli_page(), "api.md": api_page()}


def sweep_page() -> str:
    """Keys of a sweep file that no plug-in has."""
    parts = ["# Keys of a sweep file", "Read off the models that check a sweep file."]
    for key, introduction in _SECTIONS.items():
        model = _MODELS[key]
        parts += [f"## `{key}`" if key else "## Top level"]
        parts += [introduction or _prose(inspect.getdoc(model) or "")]
        parts += [option_table(model, [model])]
    return "\n\n".join(parts) + "\n"


def kinds_page(title: str, kinds: list[str]) -> str:
    """Every name of some kinds, with what it is and its options."""
    parts = [f"# {title}", "Read off the classes; `dpaudit list` has the same on the terminal."]
    for kind in kinds:
        if len(kinds) > 1:
            parts += [f"## {_TITLES.get(kind, kind.capitalize())}"]
        for name, cls in sorted(classes(kind).items()):
            parts += [f"{'###' if len(kinds) > 1 else '##'} `{name}`"]
            parts += [_prose(inspect.getdoc(cls) or ""), option_table(cls, models(kind, cls))]
    return "\n\n".join(filter(None, parts)) + "\n"


def classes(kind: str) -> dict[str, type]:
    """Every class of a kind (in the plural) by its name."""
    if kind == "estimators":
        return dict(stats.estimators())
    if kind == "accountants":
        return {name: type(method) for name, method in accounting.accountants().items()}
    return dict(plugins.registry(schema._base(kind)))


def models(kind: str, cls: Any) -> list[Any]:
    """Returns the classes whose fields are the options of `cls`: it, and its variants."""
    variants = [child for child in cls.__subclasses__() if getattr(child, "is_variant", False)]
    return [] if kind == "accountants" else [cls, *variants]


def option_table(cls: type, sources: list[Any]) -> str:
    """Returns a table of options, or a sentence if `cls` has none."""
    rows = ["| key | takes | default | what it means |", "| --- | --- | --- | --- |"]
    for option in options(sources):
        takes = _cell(_TAKES.get(option.name, option.takes))
        description = _cell(meaning(sources, option.name))
        rows.append(f"| `{option.name}` | {takes} | {_default(option)} | {description} |")
    return "\n".join(rows) if len(rows) > 2 else "No options."


def options(sources: list[Any]) -> tuple[schema.Option, ...]:
    """Returns the options of a class, and of its variants."""
    if not sources:
        return ()
    dataclass = issubclass(sources[0], stats.Estimator)
    parsed = [schema.options_model(source) if dataclass else source for source in sources]
    entry = schema._entry("", sources[0], parsed)
    if sources == [_Heading]:  # a key `name` is left out elsewhere, since it names the class
        return (schema.Option("name", "text", required=True), *entry.options)
    return entry.options


def meaning(sources: Iterable[Any], key: str) -> str:
    """Returns the comment at a field, and those of variants that differ.

    Raises:
        LookupError: the field has no comment.
    """
    texts: dict[str, None] = {}
    for source in sources:
        fields = getattr(source, "model_fields", {})
        name = next((name for name, field in fields.items() if field.alias == key), key)
        for home in source.__mro__:
            if name in inspect.get_annotations(home):
                if text := _comments(home)[name]:
                    texts[text] = None
                break
    if not texts:
        raise LookupError(f"{key} of {sources} has no comment that explains it")
    return "; ".join(texts)


@functools.cache
def _comments(cls: type) -> dict[str, str]:
    """Returns the comments at the annotated names of a class: behind them, or in lines above."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    by_line: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# fmt"):
            by_line[token.start[0]] = token.string.lstrip("# ")
    texts = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = node.lineno - 1
            while above in by_line and lines[above - 1].lstrip().startswith("#"):
                above -= 1
            comments = [by_line[line] for line in range(above + 1, node.lineno)]
            comments.append(by_line.get(node.lineno) or by_line.get(node.end_lineno or 0, ""))
            texts[node.target.id] = " ".join(filter(None, comments))
    return texts


def cli_page() -> str:
    """Returns a page of all verbs with their arguments and options."""
    parts = ["# Commands", "`dpaudit VERB --help` prints the same."]
    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        parts += [f"## `dpaudit {name}`", _prose(command.help or "")]
        rows = [
            f"| {_spelled(parameter)} | {_cell(_text_default(parameter))} "
            f"| {_cell(parameter.help or '')} |"
            for parameter in command.params
            if parameter.name != "help"
        ]
        parts += ["\n".join(["| what | default | meaning |", "| --- | --- | --- |", *rows])]
    return "\n\n".join(parts) + "\n"


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    kind = parameter.type_descriptor.annotation
    choices = "|".join(get_args(kind)) if get_origin(kind) is Literal else ""
    value = choices or (parameter.metavar or "VALUE").upper()
    return ", ".join(
        f"`{name}`" if parameter.is_flag else f"`{name} {value}`" for name in parameter.opts
    )


def _text_default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    empty = default is None or default is False or default in ("", [], ()) or callable(default)
    return "" if empty else f"`{default}`"


def api_page() -> str:
    """Directives for mkdocstrings, of every public name."""
    parts = ["# Python", "Read off the docstrings. `import dpaudit_ray as da` has `da.run`, "]
    parts[1] += (
        "`da.open`, which is `Result.open`, `da.stats` and `da.accounting`; [what is stable]"
    )
    parts[1] += "(../python.md#what-is-stable)."
    for title, names in API.items():
        parts += [f"## {title}", *(f"::: {name}" for name in names)]
    return "\n\n".join(parts) + "\n"


def _default(option: schema.Option) -> str:
    if option.required:
        return "required"
    text = option.default if isinstance(option.default, str) else json.dumps(_named(option.default))
    return "" if text in ("null", "NaN", "{}", "[]") else f"`{text}`"


def _named(value: Any) -> Any:
    """A default as JSON: estimators by their names."""
    return [getattr(item, "name", item) for item in value] if isinstance(value, list) else value


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """A docstring as Markdown: what could be taken for HTML or a link's label is escaped."""
    return text.replace("<", "&lt;").replace("]:", "]\\:")

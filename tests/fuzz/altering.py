"""Ways to alter what lies in a file: its tree, its table, its bytes."""

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.long import LONG

Draw = Callable[[st.SearchStrategy[Any]], Any]
RANDOM = settings(
    max_examples=2400 if LONG else 30,
    derandomize=not LONG,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
EVIL = "from pathlib import Path\nPath('evil').touch()\nraise SystemExit(1)\n"

NASTY: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 10**9, 10**30, -(10**30), 0.5, 1.5, -0.0),
    *(float("nan"), float("inf"), -float("inf"), "", "x", "0", "1e5", "x" * 5000, "ε", "$\\frac$"),
    *("../../outside", "/tmp/outside", "..", "a\nb", "\x1b[31mred\x1b[0m", "\u202egnp", "\ud800"),
    *("own_evil:Run", "subprocess:Popen", "landscape", "loss", "function"),
    *([], {}, [[]], [None], {"name": "own_evil:Run"}, {"name": "x", "path": "own_evil:run"}),
]


def altered(content: bytes, name: str, draw: Draw) -> bytes:
    """One alteration of the file called `name`."""
    if draw(st.integers(0, 3)) == 0:
        return _bytes(content, draw)
    if name.endswith(".parquet"):
        return _table(content, draw)
    if name.endswith(".json"):
        return json.dumps(tree(json.loads(content), draw)).encode()
    shown = yaml.safe_dump(_plain(tree(yaml.safe_load(content), draw)), sort_keys=False)
    return shown.encode()


def tree(value: Any, draw: Draw, nasty: list[Any] = NASTY) -> Any:
    """A copy with one node replaced, dropped, repeated, renamed or moved a little."""
    whole = copy.deepcopy(value)
    places = list(_places(whole))
    if not places:
        return draw(st.sampled_from(nasty))
    holder, key = draw(st.sampled_from(places))
    how = draw(st.sampled_from(["replace", "replace", "replace", "drop", "repeat", "near"]))
    if how == "drop":
        del holder[key]
    elif how == "repeat" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif how == "repeat":
        holder[draw(st.sampled_from(["x", "name", "path", "trials"]))] = holder[key]
    elif how == "near" and type(holder[key]) in (int, float):
        holder[key] += draw(st.sampled_from([1, -1, 0.5, 1e-3]))
    else:
        holder[key] = draw(st.sampled_from(nasty))
    return whole


def _places(node: Any) -> Any:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield node, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _plain(value: Any) -> Any:
    """Without what YAML cannot say."""
    return json.loads(json.dumps(value).replace("\\ud800", "?"))


def _bytes(content: bytes, draw: Draw) -> bytes:
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    how = draw(st.sampled_from(["flip", "cut", "insert", "empty", "twice"]))
    if how == "flip" and content:
        return content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :]
    if how == "insert":
        return content[:place] + draw(st.binary(max_size=8)) + content[place:]
    return {"cut": content[:place], "twice": content * 2}.get(how, b"")


def _table(content: bytes, draw: Draw) -> bytes:
    table = pq.read_table(pa.BufferReader(content))
    name = draw(st.sampled_from(table.column_names))
    field, index = table.schema.field(name), table.column_names.index(name)
    how = draw(
        st.sampled_from(["value", "value", "all", "null", "drop", "rename", "text", "order"])
    )
    values = table[name].to_pylist()
    if how == "drop":
        table = table.drop([name])
    elif how == "rename":
        table = table.rename_columns(["x" if c == name else c for c in table.column_names])
    elif how == "text":
        table = table.set_column(index, name, pa.array(list(map(str, values))))
    elif how == "order":
        table = table.take(list(range(len(table)))[::-1])
    else:
        rows = range(len(values)) if how == "all" else [draw(st.integers(0, len(values) - 1))]
        for row in rows:
            values[row] = None if how == "null" else _other(values[row], draw)
        table = table.set_column(index, field, pa.array(values, field.type))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _other(value: Any, draw: Draw) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw(st.sampled_from([1, -1, -1000, 2**20]))
    if isinstance(value, float):
        return draw(st.sampled_from([float("nan"), float("inf"), -1e308, 0.0, -1.0, 1e9]))
    return draw(st.sampled_from(["", "x", "../../outside", "\x1b[31m", "certified"]))


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }

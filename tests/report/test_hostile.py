"""A stranger's run: labels are text, links lead nowhere, and no file takes time or memory."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpaudit_ray.storage.scores import ESTIMATE_SCHEMA, SCORE_SCHEMA
from tests.command import dpaudit, refused, write_sweep
from tests.report.handed import LANDSCAPE, played
from tests.report.handed import sweep as whole_sweep


@pytest.fixture
def sweep() -> dict[str, Any]:
    """Two audits of a process, one of which is called what `label` is set to."""
    audit = {"trials": 16, "delta": 1e-5, "record_every": 1}
    grid = {"mechanism.noise_multiplier": [2, 3]}
    small = LANDSCAPE | {"steps": 2, "batch_size": 1}
    return whole_sweep("small", mechanism=small, audit=audit, grid=grid, resources={"pack_size": 8})


@pytest.fixture
def finished(sweep: dict[str, Any], tmp_path: Path) -> Path:
    return played(sweep, tmp_path, 4)


def test_labels_are_shown_as_they_are_written(sweep, tmp_path):
    labels = [r"$\frac$", r"$\alpha_1^{$", "<script>alert(1)</script>", "{{ 7 * 7 }}"]
    labels.append("\x1b[31mred\x1b[0m\nmore\u202e")
    sweep["grid"] = {"mechanism.noise_multiplier": [2, 3, 4, 5, 6]}
    run = played(sweep, tmp_path, 10)
    plan = json.loads((run / "plan.json").read_text())
    for audit, label in zip(plan["audits"], labels, strict=True):
        audit["label"] = label
    (run / "plan.json").write_text(json.dumps(plan))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of glyphs that no font has
        outcome = dpaudit("report", run)
    assert outcome.code == 0
    assert not [line for line in outcome.err.splitlines() if "judging: " not in line]  # slow ones
    page = (run / "report.html").read_text()
    assert not set("\x1b\u202e") & set(page)
    assert page.count("<script>") == 1  # ours
    assert "&lt;script&gt;alert" in page
    assert "<h3>{{ 7 * 7 }}</h3>" in page
    table = dpaudit("report", run, "--format", "table").out
    for label in labels:
        shown = label.encode("unicode_escape").decode() if "\x1b" in label else label
        assert shown in table
    assert not set("\x1b\u202e") & set(table)


def test_a_link_does_not_lead_a_report_out_of_its_run(finished, tmp_path):
    elsewhere, precious, linked = (tmp_path / name for name in ("elsewhere", "precious", "linked"))
    elsewhere.mkdir()
    precious.write_text("precious")
    (finished / "figures").symlink_to(elsewhere)
    line = refused("report", finished)
    assert line == f"{finished}/figures leads out of the run directory; remove the link"
    assert list(elsewhere.iterdir()) == []
    (finished / "figures").unlink()
    (finished / "report.html").symlink_to(precious)
    linked.symlink_to(finished)
    assert dpaudit("report", linked).code == 0, "a run directory may lie behind a link"
    assert precious.read_text() == "precious"


SECONDS, MEBIBYTES = 60, 700  # of a process that imports pandas and SciPy, on a busy machine
ROWS = 3 * 10**6  # of Parquet, in some kilobytes; more take longer to write than to refuse
MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "dpaudit_ray", *sys.argv[1:]],
                      capture_output=True, text=True, timeout=%d)
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
print(json.dumps([done.returncode, done.stdout, done.stderr, used]))
"""


def bounded(*arguments: str | Path) -> str:
    """Runs a command that must end in exit 2, soon and in little memory; returns what it says."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED % SECONDS, *map(str, arguments)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    code, out, err, used = json.loads(done.stdout)
    assert code == 2, out + err
    assert used < MEBIBYTES
    assert "Traceback" not in err
    return str(out + err)


def grown(levels: int) -> str:
    """YAML of a few hundred bytes whose aliases stand for 9 to the power of `levels` values."""
    repeated = (", ".join([f"*a{level}"] * 9) for level in range(levels - 1))
    lines = [f"a{level}: &a{level} [{each}]" for level, each in enumerate(repeated, start=1)]
    return "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]", *lines])


def rows_of(schema: pa.Schema, file: Path) -> None:
    """Writes a file of ROWS equal rows."""
    kinds = {pa.string(): "x", pa.bool_(): True, pa.float64(): 0.5}
    n = 10**6
    with pq.ParquetWriter(file, schema, compression="zstd") as out:
        columns = [pa.repeat(pa.scalar(kinds.get(f.type, 1), f.type), n) for f in schema]
        for _ in range(ROWS // n):
            out.write_table(pa.Table.from_arrays(columns, schema=schema))


@pytest.mark.parametrize("name", ["plan.json", "sweep.yaml", "outcomes.json", "estimates.parquet"])
def test_a_pipe_or_a_device_in_place_of_a_record_is_not_opened(name, finished):
    file = finished / name
    for kind in ("pipe", "device"):
        file.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to("/dev/zero")
        said = refused("status", finished)
        assert name in said
        assert f"it is a {kind}, not a regular file" in said


def test_a_pipe_is_no_sweep_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    said = refused("run", tmp_path / "pipe.yaml")
    assert "it is a pipe, not a regular file; give the path of a YAML file" in said


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("outcomes.json", "[" * 200_000, "it is nested deeper than 1000 levels"),
        ("plan.json", f"[{'[],' * 10**7}[]]", "it has 20,000,002 values, more than the 16,777,216"),
        ("sweep.yaml", grown(9), "it holds more than 100,000 values, with those that aliases rep"),
    ],
    ids=["brackets", "values", "aliases"],
)
def test_a_record_that_grows_is_refused(name, text, why, finished):
    (finished / name).write_text(text)
    (finished / "stranger.yaml").write_text(text)
    verbs = [("status", finished)]
    verbs += [("run", finished / "stranger.yaml")] * (name == "sweep.yaml")
    for verb in verbs:
        said = bounded(*verb)
        assert said.count("\n") == 1, said
        assert why in said
        assert len(said) < 1000


@pytest.mark.parametrize("value", ['!!int ""', "!!bool maybe", "!!timestamp abc", "1" * 5000])
def test_a_value_that_its_tag_does_not_allow_is_an_error_of_each_reader(value, finished):
    """A library's exception was reported as a bug in dpaudit, with exit 70."""
    file = finished / "sweep.yaml"
    assert "--set: " in refused("plan", file, "--set", f"seed={value}")
    file.write_text(f"seed: {value}\n")
    for verb in ("plan", "status"):
        said = refused(verb, file if verb == "plan" else finished)
        assert "sweep.yaml:1:7: not valid YAML: " in said


def test_rows_that_no_plan_can_have_are_not_read(finished):
    (scores, *_) = sorted((finished / "scores").rglob("*.parquet"))
    for file, schema, most in (
        (scores, SCORE_SCHEMA, 8 * 2), (finished / "estimates.parquet", ESTIMATE_SCHEMA, 2 * 2 * 9),
    ):  # fmt: skip
        before = file.read_bytes()
        rows_of(schema, file)
        (finished / "verdict.json").unlink(missing_ok=True)
        for verb in ("status", "check") if file == scores else ("report",):
            said = bounded(verb, finished)
            assert f"it has 3,000,000 rows, more than the {most} that it may have" in said
        file.write_bytes(before)


def with_text(file: Path, column: str, text: str) -> None:
    """Writes a file's rows again, with one text in a column that is stored once."""
    table = pq.read_table(file)
    kind = pa.int32()
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), kind), pa.array([text]))
    columns = {name: table[name] for name in table.column_names} | {column: repeated}
    pq.write_table(pa.table(columns), file, compression="zstd", store_schema=False)


@pytest.mark.parametrize("column", ["missed", "estimator"])
def test_a_text_that_is_stored_once_is_not_repeated(column, finished):
    """A file of 2 kB took 1.7 to 3.1 GiB."""
    (file, *_) = sorted((finished / "scores").rglob("*.parquet"))
    if column == "estimator":
        file = finished / "estimates.parquet"
    with_text(file, column, "x" * (40 * 2**20))
    assert file.stat().st_size < 60_000
    (finished / "verdict.json").unlink(missing_ok=True)
    assert "decoded bytes, more than the 1," in bounded("check", finished)


def test_what_is_not_derived_is_said_to_be(finished):
    said = "bounds are read from estimates.parquet; `dpaudit check` recomputes them from the scores"
    assert said in " ".join(dpaudit("status", finished, "--details").out.split())
    assert dpaudit("report", finished).code == 0
    page = (finished / "report.html").read_text()
    assert re.sub("`(.*?)`", r"<code>\1</code>", said) in page


def test_a_large_file_is_not_read(finished):
    os.truncate(finished / "plan.json", 2**40)  # of holes: it takes no disk
    said = refused("status", finished)
    assert "it has 1,099,511,627,776 bytes, more than the 268,435,456 that it may have" in said


def test_a_grid_of_too_many_audits_is_refused(sweep, tmp_path):
    keys = ("steps", "batch_size", "noise_multiplier", "clip_norm")
    sweep["grid"] = {f"mechanism.{key}": list(range(1, 101)) for key in keys}
    said = refused("run", write_sweep(tmp_path, sweep))
    assert "grid: gives 100,000,000 audits, more than 10,000; make several sweeps" in said

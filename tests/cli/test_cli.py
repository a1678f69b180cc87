"""The verbs as a user meets them: what they print, write and return."""

import csv
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import typer

from dpaudit_ray import __version__
from dpaudit_ray import plan as planning
from dpaudit_ray.cli.main import app
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.orchestration.trainer import PackTrainer
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec
from tests.command import changed, completed, contents, dpaudit, inline, refused, write_sweep
from tests.conftest import ROOT
from tests.orchestration.test_faults import assert_same
from tests.plan.test_inputs import write_data

FIRST, SECOND = "000-biased-dimension-", "001-loss-"
HEADING = "tiny: eps at delta = 1e-5, 95 % confidence, claims by gaussian"


@pytest.fixture
def sweep(tiny: dict, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, tiny)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are kept for copying, once there are any."""
    return tmp_path_factory.mktemp("kept")


# What the fifth pack of the first audit raises, and how the run ends.
ENDS: dict[str, tuple[BaseException | None, int]] = {
    "finished": (None, 0),
    "stopped": (KeyboardInterrupt(), 4),
    "failed": (ValueError("boom\nand more"), 3),
}


def copy_of(kind: str, sweep: Path, kept: Path, tmp_path: Path) -> Path:
    (error, code), train = ENDS[kind], PackTrainer.train

    def breaking(self: PackTrainer, pack: Any, *how: Any) -> PackScores:
        if error is not None and (pack.audit, pack.first) == (0, 40):
            raise error
        return train(self, pack, *how)

    if not (kept / kind).exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PackTrainer, "train", breaking)
            assert inline(sweep, kept / kind).code == code
    return Path(shutil.copytree(kept / kind / "tiny", tmp_path / kind / "tiny"))


@pytest.fixture
def finished(sweep: Path, kept: Path, tmp_path: Path) -> Path:
    return copy_of("finished", sweep, kept, tmp_path)


@pytest.fixture
def stopped(sweep: Path, kept: Path, tmp_path: Path) -> Path:
    return copy_of("stopped", sweep, kept, tmp_path)


@pytest.fixture
def failed(sweep: Path, kept: Path, tmp_path: Path) -> Path:
    return copy_of("failed", sweep, kept, tmp_path)


def table_of(out: str) -> list[str]:
    """The lines from the title of the last table on."""
    lines = out.splitlines()
    (title,) = (i for i, line in enumerate(lines) if ": eps at delta" in line)
    return [line.rstrip() for line in lines[title:]]


def packs(run: Path, prefix: str) -> int:
    return len(list((run / "scores").glob(f"{prefix}*/*.parquet")))


def test_run_prints_bounds_and_where_they_are(sweep, tmp_path):
    outcome = completed(inline(sweep, tmp_path / "runs"))
    assert outcome.err == ""
    *_, last = outcome.out.splitlines()
    assert "180/180 trials" in outcome.out
    title, heads, first, second, *_ = table_of(outcome.out)
    assert title == HEADING
    assert re.split("  +", heads) == ["audit", "verdict", "trials", "eps >=", "assumes", "claim"]
    assert re.split("  +", first)[:3] == ["biased-dimension", "CONSISTENT", "90"]
    assert re.split("  +", first)[4] == "Gaussian steps"
    assert re.split("  +", second)[:3] == ["loss", "INCONCLUSIVE", "90"]
    assert re.split("  +", second)[4] == "assumes Gaussian"
    assert last == f"results in {tmp_path}/runs/tiny; next: dpaudit report {tmp_path}/runs/tiny"
    assert (tmp_path / "runs/tiny/_SUCCESS").exists()
    assert "interim" not in outcome.out
    status = dpaudit("status", tmp_path / "runs/tiny").out.splitlines()
    assert (status[0], status[-1]) == (HEADING, "complete")
    assert max(map(len, status)) <= 100
    detailed = dpaudit("status", tmp_path / "runs/tiny", "--details").out.splitlines()
    for word in (HEADING, "Gaussian steps: ", "mu: ", "alone, each bound holds at 95 %"):
        assert any(line.startswith(word) for line in detailed), word


def test_what_nobody_certified_is_never_called_certified(finished):
    """Of the loss, nobody knows the curve: its accuracy and anytime bounds assume Gaussian."""
    table = pd.read_csv(io.StringIO(dpaudit("report", finished, "--format", "csv").out))
    certified = table[(table["label"] == "loss") & (table["status"] == "certified")]
    assert set(certified["estimator"]) == {"eps-delta"}
    last = table["step"] == table["step"].max()
    assert set(table.loc[last, "free_estimator"]) == {"one-run"}
    assert set(table.loc[~last, "free_estimator"]) == {"eps-delta"}
    entries = json.loads(dpaudit("status", finished, "--json").out)["audits"]
    assert [entry["status"] for entry in entries] == ["certified", "if-gaussian"]
    assert all(entry["epsilon_lower_free"] is not None for entry in entries)


@pytest.mark.parametrize("kind", ["stopped", "failed"])
def test_an_incomplete_run_is_resumed_to_the_same_result(kind, finished, sweep, request):
    run = request.getfixturevalue(kind)
    before = contents(run / "scores")
    assert len(before) == (17 if kind == "failed" else 4)
    assert inline(sweep, run.parent, "--retry-failed").code == 0
    assert_same(run, finished)
    assert before.items() <= contents(run / "scores").items()
    assert dpaudit("status", run).out.splitlines()[-1] == "complete"


def test_a_failed_pack_ends_in_exit_3_with_audit_and_trials(failed, sweep):
    """Left out when it is run again, it is told again."""
    outcome = inline(sweep, failed.parent)
    assert outcome.code == 3
    assert outcome.err == (
        "dpaudit: biased-dimension: trials 40-49 failed: ValueError: boom; traceback in "
        f"{failed}/outcomes.json\n"
        "dpaudit: trials of failed packs count as wrong guesses; run --retry-failed repeats them\n"
    )
    assert "breaking" in (failed / "outcomes.json").read_text()
    assert packs(failed, FIRST) == 8
    assert packs(failed, SECOND) == 9, "other audits go on"


def test_a_gpu_that_is_not_there_is_told_before_anything_fails(sweep, tmp_path, monkeypatch):
    runs, asked = tmp_path / "runs", ("--storage-path", tmp_path / "runs", "--executor", "inline")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    line = refused("run", sweep, *asked, "--set", "resources.num_gpus=0.5")
    assert line.startswith("resources.num_gpus: is 0.5, but this process sees no GPU; use --set ")
    assert "resources.num_gpus=0, or --executor ray" in line
    assert not runs.exists()
    assert inline(sweep, runs, "--set", "resources.num_gpus=0").code == 0


def test_storage_that_fails_later_ends_in_exit_4(sweep, tmp_path, monkeypatch):
    fsync, calls = os.fsync, iter(range(1000))

    def full(descriptor: int) -> None:
        if next(calls) > 12:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        outcome = inline(sweep, tmp_path)
    assert outcome.code == 4
    assert outcome.err.count("\n") == 1
    assert "(No space left on device); free or repair the storage, then run the same" in outcome.err
    assert list(tmp_path.rglob("*.tmp")) == []
    assert inline(sweep, tmp_path).code == 0


def test_the_file_of_an_extended_run_can_be_run_again(finished, sweep, monkeypatch):
    """What is there stays, and is not run again; nor does `plan` refuse it."""
    assert inline(sweep, finished.parent, "--set", "audit.trials=115").code == 0
    before = contents(finished / "scores")
    again = inline(sweep, finished.parent)
    told = (
        f"dpaudit: {finished} holds 115 trials of each audit, more than audit.trials = 90: they "
        "stay\n"
    )
    assert (again.code, again.err) == (0, told)
    assert "  115  " in table_of(again.out)[2]
    assert contents(finished / "scores") == before
    with monkeypatch.context() as patch:
        patch.setattr(PackTrainer, "train", lambda *_: pytest.fail("trained"))
        planned = dpaudit("plan", sweep, "--storage-path", finished.parent)
    assert (planned.code, planned.err) == (0, told)
    assert planned.out.startswith("tiny: 230 trials in 24 packs, 24 packs done\n")
    assert "remaining: about 0s on this machine" in planned.out


@pytest.mark.parametrize("damage", ["none", "a score file is gone", "estimates are cut"])
def test_run_on_a_finished_run_makes_what_is_lacking_and_changes_nothing(
    damage, finished, sweep, kept
):
    if damage.startswith("a score"):
        next(finished.glob(f"scores/{SECOND}*/20-29.parquet")).unlink()
    elif damage.startswith("estimates"):
        cut(finished / "estimates.parquet")
    assert inline(sweep, finished.parent).code == 0
    assert_same(finished, kept / "finished/tiny")


def test_a_recorded_sweep_can_be_run_again(tiny, tmp_path, monkeypatch):
    """Also from elsewhere, although the data path was relative to the sweep file."""
    write_data(tmp_path / "data.npz")
    changed(tiny, "mechanism.data", {"name": "npz", "path": "data.npz"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert inline(write_sweep(tmp_path, tiny), tmp_path / "one").code == 0
    assert inline(tmp_path / "one/tiny/sweep.yaml", tmp_path / "two").code == 0
    assert_same(tmp_path / "one/tiny", tmp_path / "two/tiny")
    recordings = [(tmp_path / f"{name}/tiny/sweep.yaml").read_text() for name in ("one", "two")]
    assert recordings[0] == recordings[1]


def test_plan_as_json_has_the_cost_and_the_forecast_of_each_audit(sweep, tmp_path):
    options = ["-o", tmp_path / "runs", "-s", "resources.num_cpus=2"]
    plan = json.loads(completed(dpaudit("plan", sweep, "--json", *options)).out)
    assert plan["name"] == "tiny"
    assert plan["core_hours"] == pytest.approx(plan["seconds"] * 2 / 3600)
    assert plan["seconds"] == pytest.approx(sum(audit["seconds"] for audit in plan["audits"]))
    assert plan["seconds"] > 0
    assert [audit["trials"] for audit in plan["audits"]] == [90, 90]
    assert not (tmp_path / "runs").exists()


def test_plan_counts_what_is_done_and_writes_nothing(stopped, sweep, tmp_path):
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    fresh = completed(dpaudit("plan", sweep, "--storage-path", tmp_path / "nowhere"))
    assert fresh.out.startswith("tiny: 180 trials in 18 packs, 0 packs done\n")
    partial = dpaudit("plan", sweep, "--storage-path", stopped.parent)
    assert partial.out.startswith("tiny: 180 trials in 18 packs, 4 packs done\n")
    heads, first, second, *_ = (line.split() for line in partial.out.splitlines()[1:])
    assert " ".join(heads) == "audit trials packs done eps claim max eps power needed time"
    assert first[:5] == ["biased-dimension", "90", "9", "4", "5.545"]
    assert second[:5] == ["loss", "90", "9", "0", "5.545"]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before


def test_a_run_without_any_finished_pack(sweep, tmp_path):
    """Killed right after it was planned."""
    directory = RunDirectory.under(str(tmp_path / "runs"), "tiny")
    planning.open_run(spec.load(sweep), directory)
    status = completed(dpaudit("status", directory.location))
    assert len(re.findall(" none  none yet ", status.out)) == 2
    for form in ("table", "csv", "json", "html"):
        report = dpaudit("report", directory.location, "--format", form)
        assert (report.code, report.err) == (0, "")
    assert json.loads(dpaudit("report", directory.location, "--format", "json").out) == []
    page = (tmp_path / "runs/tiny/report.html").read_text()
    assert "Interim" in page
    assert page.count("No trials have finished yet") == 2


def test_a_run_is_read_where_no_working_directory_is_left(finished, tmp_path, monkeypatch):
    """As for a job whose node removed its folder."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert dpaudit("status", finished).code == 0
    assert dpaudit("verify", finished).code in (0, 5)
    report = dpaudit("report", finished)
    assert (report.code, report.out, report.err) == (0, f"{finished}/report.html\n", "")
    assert (finished / "report.html").stat().st_size > 10_000


def test_status_and_reports_of_a_partial_run_are_marked_interim(stopped):
    Aggregation.rebuild(RunDirectory(str(stopped))).flush()
    status = completed(dpaudit("status", stopped))
    _, _, first, second, *_ = table_of(status.out)
    assert re.fullmatch(r"biased-dimension +[A-Z]+ +40/90 .* not final .*", first)
    assert re.fullmatch(r"loss +[A-Z]+ +0/90 +none +none yet .*", second)
    assert status.out.splitlines()[-1] == "not complete: `dpaudit run` resumes it"
    stored = pd.read_parquet(stopped / "estimates.parquet")
    assert dict(zip(stored["estimator"], stored["status"], strict=True)) == {
        "accuracy": "interim", "paper-gdp": "paper", "eps-delta": "interim",
        "anytime": "if-gaussian",
    }  # fmt: skip
    table = pd.read_csv(io.StringIO(dpaudit("report", stopped, "--format", "csv").out))
    interim = table.groupby(["label", "estimator"])["interim"].agg(["all", "any"])
    assert (interim["all"] == interim["any"]).all()
    marked = {key for key, flag in interim["all"].items() if flag}
    fixed = ("accuracy", "eps-delta", "paper-gdp")
    labels = ("biased-dimension", "loss")
    assert marked == {(label, name) for label in labels for name in fixed}, "anytime holds always"
    assert dpaudit("report", stopped).code == 0
    assert "Interim" in (stopped / "report.html").read_text()


def test_a_failed_pack_counts_as_misses_and_is_shown(failed, finished):
    """One pack of nine: estimates are of all 90 trials, and below those of a whole run."""
    status = completed(dpaudit("status", failed))
    row = table_of(status.out)[2]
    assert re.fullmatch("biased-dimension +[A-Z]+ +80/90 .* Gaussian steps .*", row)
    assert "biased-dimension: trials 40-49 failed: ValueError: boom" in status.out
    assert status.out.splitlines()[-1] == (
        "not complete: all remaining work has failed; fix it, then `dpaudit run --retry-failed`"
    )
    bounds = [pd.read_parquet(run / "estimates.parquet") for run in (failed, finished)]
    assert [set(table["trials"]) for table in bounds] == [{90}, {90}]
    mine, whole = (table[table["estimator"] == "accuracy"]["epsilon_lower"] for table in bounds)
    assert (mine <= whole).all()
    assert (mine < whole).any()
    assert dpaudit("report", failed).code == 0
    page = (failed / "report.html").read_text()
    assert "Interim" not in page
    assert "failed, counted as misses: 10" in page
    told = json.loads(dpaudit("status", failed, "--json").out)
    assert (told["name"], told["complete"]) == ("tiny", False)
    first, second = told["audits"]
    assert (first["label"], first["done"], first["trials"]) == ("biased-dimension", 80, 90)
    assert first["interim"] is second["interim"] is False
    assert second["ratio"] == pytest.approx(second["epsilon_lower"] / second["epsilon_upper"])
    (failure,) = told["failures"]
    assert failure["pack"] == {"audit": 0, "first": 40, "last": 49}
    assert failure["message"] == "ValueError: boom"
    assert "Traceback" in failure["traceback"]


def test_reports_hold_the_same_numbers_in_every_format(finished):
    rows = list(csv.DictReader(io.StringIO(dpaudit("report", finished, "--format", "csv").out)))
    entries = json.loads(dpaudit("report", finished, "--format", "json").out)
    stored = pd.read_parquet(finished / "estimates.parquet")
    assert len(rows) == len(entries) == len(stored) == 2 * 2 * 4
    for row, entry, lower in zip(rows, entries, stored["epsilon_lower"], strict=True):
        assert list(row) == list(entry)
        assert float(row["epsilon_lower"]) == entry["epsilon_lower"] == lower
        assert (row["mu_lower"] == "") == (entry["mu_lower"] is None)
        assert entry["interim"] is False
    table = dpaudit("report", finished, "--format", "table").out
    assert table == dpaudit("status", finished).out[: len(table)]


def test_a_folder_that_is_no_run_is_told(sweep, tmp_path):
    for place in (tmp_path, tmp_path / "nowhere", sweep, sweep / "below"):
        assert refused("status", place) == (
            f"{place} is no run directory (it has no plan.json); give the folder that `dpaudit "
            "run` named; a script is for `dpaudit audit train.py:main`"
        )


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:150])


RESTORE = "; restore it, or use a new name and a new seed"
DAMAGES: list[tuple[str, Callable[[Path], object], tuple[str, ...], str]] = [
    ("plan.json", cut, ("run", "plan", "status", "report"), RESTORE),
    ("plan.json", Path.unlink, ("run", "plan"), RESTORE),
    ("sweep.yaml", cut, ("run", "plan", "status", "report"), RESTORE),
    ("estimates.parquet", cut, ("status", "report"), "it is rebuilt from the scores"),
    ("scores/*/0-9.parquet", cut, ("report", "verify"), "set aside and its trials are run again"),
]


@pytest.mark.parametrize(("name", "damage", "verbs", "remedy"), DAMAGES)
def test_a_damaged_file_is_told_and_nothing_else_is_touched(
    name, damage, verbs, remedy, finished, sweep
):
    file = next(finished.glob(name))
    damage(file)
    before = contents(finished)
    for verb in verbs:
        more = ["--executor", "inline"] if verb == "run" else []
        place = (
            [sweep, "--storage-path", finished.parent] if verb in ("run", "plan") else [finished]
        )
        line = refused(verb, *place, *more)
        assert file.name in line
        assert line.endswith(remedy)
    assert before.items() <= contents(finished).items()


def test_a_storage_path_that_cannot_be_written(sweep, tmp_path):
    (tmp_path / "file").touch()
    storage = tmp_path / "file/x/y"
    line = refused("run", sweep, "--storage-path", storage, "--executor", "inline")
    assert line == (
        f"storage path {storage}/tiny cannot be written (Not a directory); choose another with "
        "--storage-path"
    )
    for verb, none in itertools.product(("run", "plan"), ("", "s3://", "floppy://a")):
        assert "storage path " in refused(verb, sweep, "--storage-path", none)


def test_a_link_to_nowhere_is_named_as_what_stands_in_the_way(sweep, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    line = refused("run", sweep, "--storage-path", tmp_path / "link", "--executor", "inline")
    assert "a file or a link to nowhere is in its way: remove it, or choose another" in line


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("sweep.yaml", "", "sweep.yaml is empty; `dpaudit init` writes a sweep file to begin with"),
        ("sweep.yaml", "# later\n", "sweep.yaml is empty; `dpaudit init` writes"),
        ("own.csv", "a,y\n", "own.csv is a table and no sweep file; `dpaudit init --data-path "),
        ("own.npz", "PK", "own.npz is a table and no sweep file; `dpaudit init --data-path "),
        ("run/sweep.yaml", "{}", "Is a directory; give {folder}/run/sweep.yaml"),
        ("run/other.yaml", "{}", "Is a directory; give the path of a YAML file"),
    ],
)
def test_what_is_no_sweep_file_is_told_with_what_to_give(name, content, problem, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    given = file if file.parent == tmp_path else file.parent
    assert problem.format(folder=tmp_path) in refused("plan", given)


@pytest.mark.parametrize("verb", ["", *typer.main.get_command(app).commands])
def test_help_has_a_short_option_and_no_value_beside_flags(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    help_of = [dpaudit(*filter(None, [verb]), option).out for option in ("-h", "--help")]
    assert help_of[0] == help_of[1]
    assert "--help" in help_of[0]
    assert "<bool>" not in help_of[0]
    ending = help_of[0].replace("\n", " ")
    assert "Exit codes: 0 " in ending
    assert f"Example: dpaudit {verb or 'audit'} " in ending
    pages = re.findall(r"docs/[a-z-]+\.md", ending.partition("Docs: ")[2])
    assert pages
    assert all((ROOT / page).exists() for page in pages)


def test_short_options_are_those_that_people_expect(sweep, tmp_path):
    assert dpaudit("-V").out == f"{__version__}\n"
    options = ["-o", tmp_path / "results", "-s", "audit.trials=10", "-s", "grid={}"]
    completed(dpaudit("run", sweep, "--executor", "inline", *options))
    shown = completed(dpaudit("report", *(tmp_path / "results").iterdir(), "-f", "csv")).out
    assert set(pd.read_csv(io.StringIO(shown))["trials"]) == {10}


@pytest.mark.parametrize(
    ("line", "completed_as"),
    [("list adversaries b", ["biased-dimension"]), ("list m", ["mechanisms", "models"])],
)
def test_a_shell_completes_names(line, completed_as, monkeypatch, capsys):
    monkeypatch.setenv("_DPAUDIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"dpaudit {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    assert dpaudit().out.split() == completed_as


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("repot", "No such command 'repot'. Did you mean 'report'? see dpaudit --help"),
        ("plan", "Missing argument 'SWEEP'; see dpaudit plan --help"),
        ("plan a --trust net.py", "--trust: takes names of modules, such as a,b.c, got 'net.py'"),
        ("plan a --foo", "No such option: --foo; see dpaudit plan --help"),
        ("run a --set", "Option '--set' requires an argument; see dpaudit --help"),
        ("audit a --seed x", "--seed: must be a whole number, got 'x'; see dpaudit audit --help"),
        ("bench --threads 0", "--threads: must be at least 1, got '0'; see dpaudit bench --help"),
        ("list estmators", "KIND: 'estmators' is not one of 'accountants', 'adversaries', 'data'"),
        (
            "list models fccn",
            "NAME: 'fccn' is not one of the models; did you mean fcnn? known: alex",
        ),
        ("list models xyz", "NAME: 'xyz' is not one of the models; known:"),
        (
            "run {} --executor inline --address a:1",
            "address: is 'a:1', but inline joins no cluster",
        ),
        ("plan {} --set trials", "--set: takes key=value, got 'trials'"),
        ("plan {} --set =3", "--set: takes key=value, got '=3'"),
        ("plan {} --set audit.trials=", "audit.trials: must be a whole number, got None"),
        ("plan {} --set audit.trials.x=1", "audit.trials.x: trials is 90, no mapping that could h"),
        ("plan {} --set mechanism..steps=1", "mechanism..steps: has an empty part"),
        ("plan {} --set grid.mechanism.steps=3", "grid.mechanism.steps: must be a list"),
    ],
)
def test_wrong_usage_is_one_line(arguments, problem, sweep):
    line = refused(*arguments.format(sweep).split())
    assert line.lower().startswith(problem.lower()), line


def test_overrides_add_up_and_the_last_one_counts(sweep, tmp_path):
    changes = ["audit.trials=10", "audit.trials=20", "grid.mechanism.steps=[5, 6]", "name=other"]
    options = [part for change in changes for part in ("--set", change)]
    outcome = dpaudit("plan", sweep, "--storage-path", tmp_path / "runs", *options)
    assert outcome.out.startswith("other: 80 trials in 8 packs, 0 packs done\n")
    assert "loss, steps=6" in outcome.out


def test_debug_shows_the_traceback_and_keeps_the_exit_code(tmp_path):
    for arguments in (("--debug", "status", tmp_path), ("status", tmp_path, "--debug")):
        outcome = dpaudit(*arguments)
        assert outcome.code == 2
        assert "Traceback (most recent call last)" in outcome.err
        assert "RunDirectoryError" in outcome.err
        assert outcome.err.splitlines()[-1].startswith(f"dpaudit: {tmp_path} is no run directory")


def test_a_bug_is_not_mistaken_for_a_violation(finished, monkeypatch):
    """Python would exit with 1, which means that the claim was refuted."""
    monkeypatch.setattr("dpaudit_ray.report.tables.overview", lambda _: 1 // 0)
    outcome = dpaudit("status", finished)
    assert outcome.code == 70
    assert "ZeroDivisionError" in outcome.err
    assert outcome.err.splitlines()[-1] == (
        "dpaudit: this is a bug in dpaudit; finished packs are safe"
    )


def test_version_and_help():
    assert dpaudit("--version").out == f"{__version__}\n"
    assert "report" in dpaudit("--help").out
    assert dpaudit("report", "--help").code == 0
    bare = dpaudit()
    assert (bare.code, bare.err) == (2, "")
    assert "--debug" in bare.out


@pytest.mark.parametrize("words", [["report", "RUN", "--format", "csv"], ["submit", "--help"]])
def test_a_reader_that_goes_away_changes_no_exit_code(words, finished):
    """`dpaudit report RUN --format csv | head -1`, with a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [str(finished) if word == "RUN" else word for word in words]
    command = [sys.executable, "-m", "dpaudit_ray", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_that_lacks_a_character_shows_the_rest(finished):
    command = [sys.executable, "-m", "dpaudit_ray", "report", finished, "--format", "table"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"Gaussian steps" in done.stdout
    assert b"Measured" not in done.stdout

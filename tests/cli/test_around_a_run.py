"""What a platform needs around a run: JSON, a command at the end, several runs, costs."""

import copy
import glob
import json
import re
import shlex
from pathlib import Path

import pytest

from dpaudit_ray.errors import Exit
from dpaudit_ray.orchestration import submission
from tests.command import changed, completed, dpaudit, inline, refused, write_sweep
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("around")


@pytest.fixture
def runs(folder: Path, light: dict) -> Path:
    """Three runs: complete, stopped after its first pack, and a folder that is no run."""
    if not (folder / "runs").exists():
        small = changed(copy.deepcopy(light), "audit.trials", 20)
        for name, limit in (("b-complete", None), ("a-stopped", 1e-9)):
            sweep = small | {"name": name}
            sweep["resources"] = sweep["resources"] | {"max_core_hours": limit}
            done = inline(write_sweep(folder, sweep), folder / "runs")
            assert done.code == (Exit.COMPLETE if limit is None else Exit.STOPPED), done
        (folder / "runs/notes").mkdir()
    return folder / "runs"


def test_run_as_json_has_the_answer_alone_on_standard_output(light, tmp_path):
    done = inline(write_sweep(tmp_path, light), tmp_path / "runs", "--json")
    entries = json.loads(done.out)
    assert entries["run"] == str(tmp_path / "runs/tiny")
    assert entries["exit_code"] == done.code == 0
    assert entries["complete"]
    assert not entries["stopped"]
    status = json.loads(completed(dpaudit("status", entries["run"], "--json")).out)
    assert {key: entries[key] for key in status} == status


def test_command_at_the_end_gets_the_answer(light, tmp_path):
    sweep = write_sweep(tmp_path, light)
    told = tmp_path / "told.json"
    done = inline(sweep, tmp_path / "runs", "--on-finish", f"cat > {told}")
    assert done.code == 0
    entries = json.loads(told.read_text())
    assert entries["verdict"]["sentence"].split()[0] in done.out
    assert entries["exit_code"] == 0


def test_command_that_fails_is_reported_and_changes_no_exit_code(light, tmp_path):
    done = inline(write_sweep(tmp_path, light), tmp_path / "runs", "--on-finish", "exit 7")
    assert done.code == 0
    assert "dpaudit: --on-finish ended with exit code 7: exit 7" in done.err


def test_command_is_called_for_a_run_that_stops_early(light, tmp_path):
    changed(light, "resources.max_core_hours", 1e-9)
    told = tmp_path / "told.json"
    done = inline(write_sweep(tmp_path, light), tmp_path / "runs", "--on-finish", f"cat > {told}")
    assert done.code == Exit.STOPPED
    entries = json.loads(told.read_text())
    assert (entries["exit_code"], entries["stopped"], entries["complete"]) == (4, True, False)


def test_run_stops_at_its_core_hours_in_one_line_and_is_resumed(light, tmp_path):
    changed(light, "resources.max_core_hours", 1e-9)
    sweep = write_sweep(tmp_path, light)
    done = inline(sweep, tmp_path / "runs")
    assert done.code == Exit.STOPPED
    (line,) = (line for line in done.err.splitlines() if "core-hours" in line)
    assert "core-hours, and resources.max_core_hours = 1e-09: no more are started" in line
    assert inline(sweep, tmp_path / "runs", "--set", "resources.max_core_hours=null").code == 0


def test_limit_of_core_hours_must_be_positive(light, tmp_path):
    sweep = write_sweep(tmp_path, changed(light, "resources.max_core_hours", 0))
    assert refused("plan", sweep).startswith("resources.max_core_hours: must be greater than 0")


def test_several_runs_are_a_table(runs):
    complete, stopped = runs / "b-complete", runs / "a-stopped"
    done = completed(dpaudit("status", complete, stopped))
    head, first, second = done.out.splitlines()
    assert head.split() == ["run", "state", "trials", "verdict", "eps", ">=", "claim"]
    assert first.split()[:5] == [str(complete), "complete", "40", "/", "40"]
    assert second.split()[:5] == [str(stopped), "stopped", "10", "/", "40"]


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("run", ["a-stopped", "b-complete"]),
        ("state", ["b-complete", "a-stopped"]),
        ("done", ["b-complete", "a-stopped"]),
    ],
)
def test_several_runs_are_sorted(runs, key, names):
    both = (runs / "a-stopped", runs / "b-complete")
    entries = json.loads(completed(dpaudit("status", *both, "--sort", key, "--json")).out)
    assert [Path(entry["run"]).name for entry in entries] == names


def test_folder_that_is_no_run_is_named_and_others_are_shown(runs):
    done = dpaudit("status", *sorted(runs.iterdir()), "--sort", "epsilon")
    assert done.code == Exit.USAGE
    assert len(done.out.splitlines()) == 3
    assert done.err.startswith(f"dpaudit: {runs / 'notes'} cannot be read: ")
    assert done.err.count("\n") == 1


def test_plan_names_core_hours_their_price_and_the_limit(light, tmp_path):
    sweep = write_sweep(tmp_path, changed(light, "resources.max_core_hours", 1e-9))
    options = ("--storage-path", tmp_path / "runs", "--price", "0.05")
    out = completed(dpaudit("plan", sweep, *options)).out
    (line,) = (line for line in out.splitlines() if line.startswith("core-hours: "))
    numbers = (word.strip(",") for word in line.split() if word[0].isdigit())
    hours, cost, price = map(float, numbers)
    assert price == 0.05
    assert cost == pytest.approx(0.05 * hours, rel=0.01)
    assert "resources.max_core_hours is 1e-09: `dpaudit run` stops there" in out
    entries = json.loads(completed(dpaudit("plan", sweep, *options, "--json")).out)
    assert entries["cost"] == pytest.approx(0.05 * entries["core_hours"])
    assert "price" in refused("plan", sweep, "--price", "-1")


@pytest.mark.parametrize("page", ["costs", "many-sweeps"])
def test_commands_of_the_page_run(page, light, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path, light)
    completed(dpaudit("run", "sweep.yaml", "--executor", "inline"))
    write_sweep(tmp_path, light | {"name": "other", "seed": 4})
    text = (ROOT / f"docs/{page}.md").read_text()
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    typed = [shlex.split(command)[1:] for command in commands if command.startswith("dpaudit")]
    assert typed
    for verb, *arguments in typed:
        words = []
        for argument in arguments:
            words += glob.glob(argument) if "*" in argument else [argument]
        if verb == "run":
            words += ["--executor", "inline"]
        completed(dpaudit(verb, *words))
    assert page != "costs" or json.loads((tmp_path / "answer.json").read_text())["complete"]


class Jobs:
    """Takes the place of a cluster's Jobs API."""

    def __init__(self, address: str, tell: object) -> None:
        self.address = address

    def submit(self, job: submission.SweepJob) -> str:
        return f"{job.sweep.name}-1"

    def follow(self, job: str, write: object) -> int:
        write("a line of the log")  # type: ignore[operator]
        return Exit.INCONCLUSIVE

    stop_command = submission.JobsClient.stop_command
    page = submission.JobsClient.page


def test_submit_as_json_has_the_job(light, tmp_path, monkeypatch):
    monkeypatch.setattr(submission, "JobsClient", Jobs)
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path, light)
    options = ("--address", "http://head:8265", "--storage-path", "/shared/runs", "--json")
    done = dpaudit("submit", "sweep.yaml", *options)
    job = {"job": "tiny-1", "page": "http://head:8265/#/jobs/tiny-1", "run": "/shared/runs/tiny"}
    assert json.loads(done.out) == job | {"exit_code": 5}
    assert done.code == 5
    assert "a line of the log" in done.err
    done = completed(dpaudit("submit", "sweep.yaml", *options, "--no-wait"))
    assert json.loads(done.out) == job | {"exit_code": None}

"""The README stays true: its commands run, its code runs, its links lead somewhere."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import dpaudit_ray as da
from dpaudit_ray.sweep import spec, yamlfile
from tests.command import Outcome, dpaudit
from tests.long import long

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted(p for p in ROOT.rglob("*.md") if ".venv" not in p.parts)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder that looks like a clone to commands, with nothing in it yet."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    return tmp_path


def shell(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )


def typed(command: list[str], folder: Path) -> Outcome:
    """In a process of its own where it trains or judges; the others need not load all again."""
    if command[1] not in ("run", "verify", "bench"):
        with contextlib.chdir(folder):
            return dpaudit(*command[1:])
    done = shell(command, folder)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a folder after every command, and what else is said of them."""
    workplace = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "jobs", workplace / "jobs")
    lines = [line for block in blocks("console") for line in block.splitlines()]
    commands = [line.split("#")[0].split() for line in lines if line.startswith("dpaudit")]
    # `submit` needs a cluster: test_submission.py runs it.
    commands = [command for command in commands if command[1] != "submit"]
    verbs = " ".join(command[1] for command in commands)
    assert verbs == "plan plan run run status report verify check init list bench"
    for command in commands:
        if command[1] == "bench":  # `test_bench` has its figures; this is for a file of them
            command[command.index("--models") + 1] = "fcnn"
        done = typed(command, workplace)
        assert done.code == 0, (command, done)
        assert done.out
    # What the blocks say besides: `make quickstart` can be repeated, and a plan uses the benchmark.
    plan = ["dpaudit", "plan", "jobs/quickstart.yaml", "--bench", "bench.json"]
    recipe = re.search(r"\$\(BIN\)/(dpaudit run .*)", (ROOT / "Makefile").read_text())
    for command in (plan, recipe[1].split()):
        done = typed(command, workplace)
        assert done.code == 0, (command, done)
        assert "holds 3000 trials of each audit, more than audit.trials = 2000" in done.err
    return workplace


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_readme_runs_in_its_order(commanded: Path) -> None:
    status = shell(["dpaudit", "status", "runs/quickstart", "--json"], commanded).stdout
    entries = yaml.safe_load(status)["audits"]
    simulated, loss = (entry["epsilon_lower"] for entry in entries)
    assert [entry["trials"] for entry in entries] == [3000, 3000]
    assert [entry["status"] for entry in entries] == ["certified", "if-gaussian"]
    assert loss < simulated < entries[0]["epsilon_upper"]


@pytest.mark.slow
def test_python_example_runs(commanded: Path) -> None:
    """On a run that is complete: `dpaudit run` is the same call, and has started it."""
    example = next(block for block in blocks("python") if "da.run" in block)
    done = shell([sys.executable, "-c", example], commanded)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()[-1]
    assert printed == "9.482 if-gaussian, claim 9.997"
    assert f"It prints `{printed}`" in README


def test_sweep_file_example_is_valid() -> None:
    sweep = spec.from_raw(yamlfile.parse_yaml(blocks("yaml")[0], "README.md"))
    assert [cell.label for cell in sweep.cells] == ["noise_multiplier=2", "noise_multiplier=4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "executor",
    ["inline", pytest.param("ray", marks=long("test_submission has classes of one's own on Ray"))],
)
def test_adversary_example_runs(executor: str, workplace: Path, tiny: dict) -> None:
    example = next(block for block in blocks("python") if "class LastBias" in block)
    (workplace / "last_bias.py").write_text(example)
    tiny["grid"] = {"adversary": [{"name": "last_bias:LastBias", "strength": 0.5}]}
    (workplace / "sweep.yaml").write_text(yaml.safe_dump(tiny))
    command = ["dpaudit", "run", "sweep.yaml", "--executor", executor]
    done = shell(command, workplace)
    assert done.returncode == 0, done.stderr
    scores = da.Result(str(workplace / "runs/tiny"), complete=True).scores
    assert len(scores) == 90 * 2


def test_label_example_runs(tmp_path: Path) -> None:
    raw = yaml.safe_load(next(block for block in blocks("yaml") if "label-gradient" in block))
    raw |= {"name": "labels", "seed": 0}
    raw["audit"] = {"trials": 1, "delta": 1e-5, "estimators": ["accuracy"]}
    result = da.run(raw, storage_path=str(tmp_path), executor="inline")
    assert result.complete
    assert result.estimates["step"].max() == 10


def test_own_training_example_runs(workplace: Path) -> None:
    """With 500 trials, as each is a process."""
    example = next(block for block in blocks("python") if "my_training.py" in block)
    (workplace / "my_training.py").write_text(example)
    sweep = next(block for block in blocks("yaml") if "my_training:train" in block)
    (workplace / "sweep.yaml").write_text(sweep)
    fewer = ["--set", "audit.trials=500"]
    done = shell(["dpaudit", "run", "sweep.yaml", "--executor", "inline", *fewer], workplace)
    assert done.returncode == 0, done.stderr
    estimates = da.Result(str(workplace / "runs/my-training"), complete=True).estimates
    assert estimates["epsilon_lower"].between(2, 4).any()  # of a claim of 4.377


def test_script_example_is_audited(tmp_path: Path) -> None:
    """Its first layer; `jobs/zoo` has all of them run."""
    example = next(block for block in blocks("python") if "# train.py" in block)
    (tmp_path / "train.py").write_text(example)
    assert "dpaudit verify train.py:main" in README
    command = ["dpaudit", "verify", "train.py:main", "--budget", "2min", "--layers", "0"]
    done = shell(command, tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "INCONCLUSIVE: train.py:main, ε = " in done.stdout
    assert "120 of 120 steps accounted" in done.stdout
    assert (tmp_path / "train-main-audit.html").exists()


def test_recipe_examples_run(workplace: Path) -> None:
    """That of the sweep file as it is, and again with all three classes of one's own."""
    block = next(block for block in blocks("yaml") if "sampling: poisson" in block)
    raw = yamlfile.parse_yaml(block, "README.md")
    assert spec.from_raw(raw).cells[0].mechanism.noise > 0.5
    own = {"sampling": "my_sampling:Drawn", "optimizer": "my_optimizer:RmsProp"}
    for name in ("my_sampling", "my_optimizer", "my_schedule"):
        example = next(block for block in blocks("python") if f"# {name}.py" in block)
        assert len(example.splitlines()) <= 40
        (workplace / f"{name}.py").write_text(example)
    raw["mechanism"] |= own | {"schedule": {"name": "my_schedule:InverseRoot", "warmup": 3}}
    raw |= {"grid": {"mechanism.engine": ["packed", "opacus"]}, "resources": {"pack_size": 10}}
    raw["mechanism"]["steps"], raw["audit"]["trials"] = 10, 20
    (workplace / "sweep.yaml").write_text(yaml.safe_dump(raw))
    done = shell(["dpaudit", "run", "sweep.yaml", "--executor", "inline"], workplace)
    assert done.returncode == 0, done.stderr
    scores = da.Result(str(workplace / "runs/recipe"), complete=True).scores
    assert len(scores) == 40
    assert scores["score"].notna().all()
    for name in own.values():
        (workplace / name.replace(":", ".").partition(".")[0]).with_suffix(".py").unlink()
    told = shell(["dpaudit", "status", "runs/recipe"], workplace)  # imports none of them
    assert told.returncode == 0, told.stderr


def test_estimator_and_accountant_examples_run(workplace: Path) -> None:
    for file in ("my_training.py", "cut.py", "zcdp.py"):
        example = next(block for block in blocks("python") if f"# {file}" in block)
        assert len(example.splitlines()) <= 40
        (workplace / file).write_text(example)
    sweep = yaml.safe_load(next(block for block in blocks("yaml") if "my_training:train" in block))
    more = yaml.safe_load(next(block for block in blocks("yaml") if "cut:Cut" in block))
    sweep["audit"] |= more["audit"] | {"trials": 1000}
    sweep["mechanism"]["isolated"] = False  # a process for each trial is looked at above
    (workplace / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    for command in ("run sweep.yaml --executor inline", "report runs/my-training", "verify"):
        if command == "verify":
            command = "verify runs/my-training --trust my_training,cut,zcdp"
        done = shell(["dpaudit", *command.split()], workplace)
        # So few trials of this training may leave a verdict open.
        assert done.returncode in (0, 5), (command, done.stdout, done.stderr)
    estimates = da.Result(str(workplace / "runs/my-training"), complete=True).estimates
    claims = estimates.groupby("accountant")["epsilon_upper"].first()
    assert (
        claims["gaussian"]
        < claims["zcdp:Zcdp"]
        == pytest.approx(0.5 + 2 * math.sqrt(0.5 * math.log(1e5)))
    )
    shown = estimates[estimates["estimator"] == "cut:Cut"].iloc[0]
    assert shown["status"] == "certified"
    assert 0.4 < shown["epsilon_lower"] < 0.9  # ln(.69 / .31) = .8 is what the best guess shows


def test_preparation_example_runs(workplace: Path) -> None:
    example = next(block for block in blocks("python") if "my_attack.py" in block)
    (workplace / "my_attack.py").write_text(example)
    sweep = next(block for block in blocks("yaml") if "my_attack:train" in block)
    (workplace / "sweep.yaml").write_text(sweep)
    fewer = ["--set", "audit.trials=100"]
    done = shell(["dpaudit", "run", "sweep.yaml", "--executor", "inline", *fewer], workplace)
    assert done.returncode == 0, done.stderr
    assert len(list(workplace.glob("runs/my-attack/preparations/*/*.parquet"))) == 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_no_placeholder_is_left() -> None:
    for page in PAGES:
        assert "{{" not in page.read_text(), page


def test_every_sweep_file_is_valid() -> None:
    files = sorted((ROOT / "jobs").rglob("*.yaml"))
    assert files
    for file in files:
        assert spec.load(file).cells

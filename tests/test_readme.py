"""README and docs stay true: their commands run, their code runs, their links lead somewhere."""

import contextlib
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

import dpaudit_ray as da
from dpaudit_ray.accounting.claim import from_fields
from dpaudit_ray.forecast import bench
from dpaudit_ray.sweep import spec, yamlfile
from tests.command import completed, dpaudit
from tests.conftest import ROOT
from tests.test_docs import NAVIGATION

README = (ROOT / "README.md").read_text()
PAGES = sorted(p for p in ROOT.rglob("*.md") if ".venv" not in p.parts)
# Pages of docs/, each once, in the order of the site's navigation.
DOCS = [ROOT / "docs" / page for page in NAVIGATION if (ROOT / "docs" / page).exists()]
GUIDE = "\n".join([README, *(page.read_text() for page in DOCS)])


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def block(language: str, words: str) -> str:
    """The first block of a language that has these words."""
    return next(block for block in blocks(language) if words in block)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that looks like a clone to commands, which are typed in it."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in re.findall(r"^# (\w+)\.py", "\n".join(blocks("python")), re.MULTILINE):
        sys.modules.pop(module, None)


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a folder after every command, and what else is said of them."""
    workplace = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "jobs", workplace / "jobs")
    lines = [line for block in blocks("console") for line in block.splitlines()]
    commands = [line.split("#")[0].split() for line in lines if line.startswith("dpaudit")]
    # `submit` needs a cluster: test_submission.py runs it. Scripts are audited by `tests/scripts`.
    commands = [command for command in commands if command[1] not in ("submit", "audit")]
    commands = [list(command) for command in dict.fromkeys(map(tuple, commands))]  # once each
    verbs = " ".join(command[1] for command in commands)
    assert verbs == "plan run report risk risk run status report verify check init list list bench"
    for run in (commands[1], commands[5]):  # as fast as they can: a notebook runs them by Ray
        run += ["--executor", "inline"]
    # What the blocks say besides: `make quickstart` can be repeated.
    recipe = re.search(r"\$\(BIN\)/(dpaudit run .*)", (ROOT / "Makefile").read_text())[1].split()
    with contextlib.chdir(workplace), pytest.MonkeyPatch.context() as patch:
        row = bench.Row("fcnn", 68, 400, 1e5, 256, 1e-5, {256: 1e-5}, 1e-3)  # `test_bench` measures
        patch.setattr(bench, "measure", lambda *_: bench.Benchmark("cpu", 1, False, 1e11, (row,)))
        for command in (*commands, recipe):
            done = dpaudit(*command[1:])
            assert done.code == 0, (command, done)
            assert done.out
            if command is recipe:
                more = "holds 3000 trials of each audit, more than audit.trials = 2000"
                assert more in done.err
    return workplace


@pytest.mark.slow
def test_every_command_runs_in_its_order(commanded, monkeypatch):
    monkeypatch.chdir(commanded)
    entries = yaml.safe_load(dpaudit("status", "runs/quickstart", "--json").out)["audits"]
    simulated, loss = (entry["epsilon_lower"] for entry in entries)
    assert [entry["trials"] for entry in entries] == [3000, 3000]
    assert [entry["status"] for entry in entries] == ["certified", "if-gaussian"]
    assert loss < simulated < entries[0]["epsilon_upper"]


@pytest.mark.slow
def test_python_example_runs(commanded, monkeypatch, capsys):
    """On a run that is complete: `dpaudit run` is the same call, and has started it."""
    monkeypatch.chdir(commanded)
    short, long = (block for block in blocks("python") if 'da.run("jobs/' in block)
    exec(short, {})
    exec(long, {})
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == "9.482 if-gaussian, claim 9.997"
    assert f"It prints `{printed}`" in GUIDE
    exec(block("python", "da.open"), namespace := {})
    assert Path("bounds.pdf").read_bytes().startswith(b"%PDF")
    exec(block("python", "to_latex"), namespace)
    assert Path("paper.pdf").read_bytes().startswith(b"%PDF")
    exec(block("python", "read_parquet"), {})


def test_readme_is_short():
    assert len(README.splitlines()) <= 130
    assert len(README.split()) <= 1000


def test_sweep_of_the_readme_is_the_quickstart():
    short = spec.from_raw(yamlfile.parse_yaml(block("yaml", "name: quickstart"), "README.md"))
    full = spec.load(ROOT / "jobs" / "quickstart.yaml")
    assert short.cells == full.cells
    assert (short.fingerprint, short.name) == (full.fingerprint, full.name)


def test_sweep_file_example_is_valid():
    sweep = spec.from_raw(yamlfile.parse_yaml(block("yaml", "name: my-sweep"), "sweep-file.md"))
    assert [cell.label for cell in sweep.cells] == ["noise_multiplier=2", "noise_multiplier=4"]


def ran(workplace: Path, sweep: object, *files: str, trials: int | None = None) -> da.Result:
    """A sweep's run in this process, with these examples of code beside it."""
    for file in files:
        example = block("python", f"# {file}")
        assert len(example.splitlines()) <= 45
        (workplace / file).write_text(example)
    (workplace / "sweep.yaml").write_text(
        sweep if isinstance(sweep, str) else yaml.safe_dump(sweep)
    )
    fewer = [] if trials is None else ["--set", f"audit.trials={trials}"]
    completed(dpaudit("run", "sweep.yaml", "--executor", "inline", *fewer))
    (run,) = (workplace / "runs").iterdir()
    return da.open(run)


def test_adversary_example_runs(workplace, tiny):
    tiny["grid"] = {"adversary": [{"name": "last_bias:LastBias", "strength": 0.5}]}
    assert len(ran(workplace, tiny, "last_bias.py").scores) == 90 * 2


def test_mechanism_with_its_claim_runs(workplace):
    """20,000 trials of an honest release: a VIOLATION at another seed in at most 5 %."""
    sweep = yaml.safe_load(block("yaml", "name: my-survey"))
    sweep["adversary"] = {"name": "learned", "fit": 20_000}
    result = ran(workplace, sweep, "my_survey.py", trials=20_000)
    assert result.verdict() == "CONSISTENT"
    assert result.answer.quote.claim == pytest.approx(0.5, abs=1e-3)


def test_kind_of_claim_of_the_page_is_a_claim(workplace):
    exec(block("python", "# renyi.py"), {"__name__": "renyi"})
    claim = da.Claim(renyi=0.1, order=8.0)
    assert claim.epsilon_at(1e-5) == pytest.approx(0.1 + math.log(1e5) / 7)
    assert claim.weakened(0.7).delta_at(1.0) > claim.delta_at(1.0)
    assert from_fields(claim.as_fields()) == claim
    assert claim.curve.deltas[0] == 1


def test_label_example_runs(workplace):
    raw = yaml.safe_load(block("yaml", "label-gradient"))
    raw |= {"name": "labels", "seed": 0}
    raw["audit"] = {"trials": 1, "delta": 1e-5, "estimators": ["accuracy"]}
    assert ran(workplace, raw).estimates["step"].max() == 10


def test_own_training_example_runs(workplace):
    """With 300 trials, as each is a process."""
    sweep = block("yaml", "my_training:train")
    estimates = ran(workplace, sweep, "my_training.py", trials=300).estimates
    assert estimates["epsilon_lower"].between(1, 4).any()  # of a claim of 4.377


def test_recipe_examples_run(workplace):
    """That of the sweep file as it is, and again with all three classes of one's own."""
    raw = yamlfile.parse_yaml(block("yaml", "sampling: poisson"), "sweep-file.md")
    assert spec.from_raw(raw).cells[0].mechanism.multiplier > 0.5
    own = {"sampling": "my_sampling:Drawn", "optimizer": "my_optimizer:RmsProp"}
    raw["mechanism"] |= own | {"schedule": {"name": "my_schedule:InverseRoot", "warmup": 3}}
    raw |= {"grid": {"mechanism.engine": ["packed", "opacus"]}, "resources": {"pack_size": 10}}
    raw["mechanism"]["steps"] = 10
    files = ("my_sampling.py", "my_optimizer.py", "my_schedule.py")
    scores = ran(workplace, raw, *files, trials=20).scores
    assert len(scores) == 40
    assert scores["score"].notna().all()
    for file in files:
        (workplace / file).unlink()
    told = dpaudit("status", "runs/recipe")  # imports none of them
    assert told.code == 0, told.err


def test_estimator_and_accountant_examples_run(workplace):
    sweep = yaml.safe_load(block("yaml", "my_training:train"))
    more = yaml.safe_load(block("yaml", "cut:Cut"))
    sweep["audit"] |= more["audit"]
    sweep["mechanism"]["isolated"] = False  # a process for each trial is looked at above
    estimates = ran(workplace, sweep, "my_training.py", "cut.py", "zcdp.py", trials=1000).estimates
    for verb in (("report",), ("verify", "--trust", "my_training,cut,zcdp")):
        done = dpaudit(*verb, "runs/my-training")
        # So few trials of this training may leave a verdict open.
        assert done.code in (0, 5), (verb, done)
    first, zcdp = estimates.iloc[0], 0.5 + 2 * math.sqrt(0.5 * math.log(1e5))
    assert first["claim_gaussian"] < first["claim_zcdp:Zcdp"] == pytest.approx(zcdp)
    shown = estimates[estimates["estimator"] == "cut:Cut"].iloc[0]
    assert shown["status"] == "certified"
    assert 0.4 < shown["epsilon_lower"] < 0.9  # ln(.69 / .31) = .8 is what the best guess shows


def test_estimator_example_takes_misses_for_errors_in_both_worlds():
    example = block("python", "# cut.py")
    exec(example, namespace := {"__name__": "cut"})
    state = namespace["Cut"](planned=40)
    state.miss(np.arange(40) < 20)
    assert (state.hits, state.trials) == (0, 40)


def test_one_training_examples_run(workplace, capsys):
    result = ran(workplace, block("yaml", "kind: dirac"))
    assert result.estimates["epsilon_lower"].gt(0).all()
    exec(block("python", "1000 canaries"), {})
    assert "certified" in capsys.readouterr().out


def test_preparation_example_runs(workplace):
    ran(workplace, block("yaml", "my_attack:train"), "my_attack.py", trials=100)
    assert len(list(workplace.glob("runs/my-attack/preparations/*/*.parquet"))) == 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("http"):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), target
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M) if anchor else [""]
            # As GitHub makes anchors.
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


_VERBS = (
    "Add Audit Avoid Choose Compare Find Forecast Install Measure Read Reproduce Run Store Write"
)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_page_begins_with_a_short_sentence_on_what_the_reader_can_do(page):
    first = re.match(r"# .+\n\n(([A-Z][a-z]+),? [^\n]*\.)\n\n", page.read_text())
    assert first, "no first sentence of its own"
    sentence, verb = first.groups()
    assert verb in _VERBS.split()
    assert len(sentence.split()) <= 35


def test_no_placeholder_is_left():
    for page in PAGES:
        assert "{{" not in page.read_text(), page

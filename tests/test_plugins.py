"""Plug-ins by name and by import path, and one line for those that cannot be used."""

import sys
from pathlib import Path
from typing import Annotated

import pytest

from dpaudit_ray import api, plugins
from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.adversaries.loss import Loss
from dpaudit_ray.data.base import Data
from dpaudit_ray.errors import DataError, SpecError
from dpaudit_ray.mechanisms.landscape import Landscape
from dpaudit_ray.sweep import spec
from tests.command import completed, dpaudit, inline, refused, write_sweep

MODULE = """
from typing import Literal
import torch
from dpaudit_ray.adversaries.base import FinalModelAdversary, SampleCanary
from dpaudit_ray.adversaries.loss import Loss

class Louder(Loss):
    name: Literal["louder"] = "louder"
    gain: float = 1.0

    def score(self, canary, observed):
        return self.gain * super().score(canary, observed)

class Disguised(Loss):
    pass

class Nameless(FinalModelAdversary[SampleCanary]):
    def craft(self, known, rng):
        x, y = known.example(0)
        return SampleCanary(x, 1 - y)

    def score(self, canary, observed):
        return -observed.losses(canary.x, canary.y)[:, 0]

class Half(FinalModelAdversary[SampleCanary]):
    def craft(self, known, rng):
        return None

class Raises(Loss):
    name: str = "raises"

    def score(self, canary, observed):
        raise ValueError("boom\\nand more")

class WrongShape(Loss):
    name: str = "wrong-shape"

    def score(self, canary, observed):
        return torch.zeros(3)

def function(): ...
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's, importable as `own_attack` in this test."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "own_attack.py").write_text(MODULE)
    (folder / "own_syntax.py").write_text("def (")
    (folder / "own_raises.py").write_text("raise RuntimeError('no\\nway')")
    monkeypatch.syspath_prepend(folder)
    yield
    for name in ("own_attack", "own_syntax", "own_raises"):
        sys.modules.pop(name, None)


def alone(tiny: dict, adversary: object) -> dict:
    """The tiny sweep with one adversary."""
    del tiny["grid"]
    return tiny | {"adversary": adversary}


def test_names_and_mappings_are_the_same():
    assert plugins.parse(Adversary, "loss", "adversary") == Loss()
    assert plugins.parse(Adversary, {"name": "loss"}, "adversary") == Loss()
    assert plugins.parse(Adversary, Loss(period=2), "adversary").period == 2


@pytest.mark.usefixtures("own")
def test_an_adversary_of_ones_own_runs(tiny, tmp_path):
    sweep = alone(tiny, {"name": "own_attack:Louder", "gain": 2.0, "example": 5})
    outcome = completed(inline(write_sweep(tmp_path, sweep), tmp_path / "runs"))
    assert "louder" in outcome.out
    completed(dpaudit("status", tmp_path / "runs/tiny"))
    completed(inline(tmp_path / "runs/tiny/sweep.yaml", tmp_path / "runs"))


@pytest.mark.usefixtures("own")
def test_an_adversary_without_a_name_goes_by_its_import_path(tiny, tmp_path):
    outcome = inline(write_sweep(tmp_path, alone(tiny, "own_attack:Nameless")), tmp_path / "runs")
    assert outcome.code == 0, outcome.err
    assert "own_attack:Nameless" in outcome.out
    (scores,) = (tmp_path / "runs/tiny/scores").iterdir()
    assert scores.name.startswith("000-own-attack-Nameless-")


class Reading(Landscape):
    """A mechanism whose field for data says nothing of how it is written."""

    data: Annotated[Data, plugins.nested(Data)]

    def check_inputs(self) -> None:
        self.data.load()


def test_each_file_of_a_mechanism_of_ones_own_is_read_before_the_start(light):
    light["mechanism"]["name"] = f"{__name__}:Reading"
    light["grid"] = {"mechanism.data": [{"name": "csv", "path": path} for path in ("/no", "/nor")]}
    with pytest.raises(DataError, match="no file at /no;"):  # the first, of two that look alike
        api.check_inputs(spec.from_raw(light))


@pytest.mark.usefixtures("own")
def test_a_class_of_ones_own_is_never_taken_for_one_of_the_project(tiny):
    """`Disguised` inherits the name "loss"; its scores must not be resumed as those of `loss`."""
    mine = spec.from_raw(alone(dict(tiny), "own_attack:Disguised"))
    theirs = spec.from_raw(alone(tiny, "loss"))
    assert mine.cells[0].adversary.name == theirs.cells[0].adversary.name == "loss"
    assert mine.cells[0].fingerprint != theirs.cells[0].fingerprint
    assert mine.fingerprint != theirs.fingerprint


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("own_attack:Missing", "cannot import 'own_attack:Missing' (module 'own_attack' has no"),
        ("own_nowhere:Loss", "cannot import 'own_nowhere:Loss' (No module named 'own_nowhere')"),
        ("own_syntax:Loss", "cannot import 'own_syntax:Loss' (invalid syntax"),
        (
            "own_raises:Loss",
            "cannot import 'own_raises:Loss' (no way); mend this RuntimeError, or ",
        ),
        (":Loss", "cannot import ':Loss'"),
        ("own_attack:function", "'own_attack:function' is not a subclass of dpaudit_ray.adversar"),
        ("own_attack:SampleCanary", "'own_attack:SampleCanary' is not a subclass of"),
        ("own_attack:Half", "'own_attack:Half' does not define score"),
        ("own_attack:FinalModelAdversary", "does not define craft, score"),
    ],
)
def test_what_cannot_be_imported_or_used_is_told(name, problem, tiny, tmp_path):
    line = refused("plan", write_sweep(tmp_path, alone(tiny, name)))
    assert line.startswith("adversary.name: ")
    assert problem in line


@pytest.mark.usefixtures("own")
def test_an_option_of_ones_own_is_checked(tiny, tmp_path):
    sweep = alone(tiny, {"name": "own_attack:Louder", "gian": 2.0})
    line = refused("plan", write_sweep(tmp_path, sweep))
    assert line == (
        "adversary.gian: unknown key; did you mean gain? known: name, period, example, statistic, "
        "gain"
    )


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "message"),
    [("Raises", "ValueError: boom"), ("WrongShape", "the scores of WrongShape are a Tensor")],
)
def test_an_adversary_that_raises_fails_its_audit_only(name, message, tiny, tmp_path):
    tiny["grid"]["adversary"] = [f"own_attack:{name}", "biased-dimension"]
    outcome = inline(write_sweep(tmp_path, tiny), tmp_path / "runs")
    assert outcome.code == 3
    stopped, failed, again = outcome.err.splitlines()
    assert stopped.startswith(f"dpaudit: own_attack:{name}: stopped, 3 packs in a row failed")
    assert f"own_attack:{name}: 3 packs of trials 0-29 failed" in failed
    assert message in failed
    assert "--retry-failed" in again
    assert "Traceback" not in outcome.out
    status = completed(dpaudit("status", tmp_path / "runs/tiny"))
    assert message in status.out
    assert "not complete" in status.out
    done = [len(list(audit.iterdir())) for audit in (tmp_path / "runs/tiny/scores").iterdir()]
    assert done == [9], "the other audit is finished, the failed one has no file"


def test_long_values_are_left_out_of_messages():
    with pytest.raises(SpecError) as error:
        plugins.parse(Adversary, {"name": "loss", "example": list(range(1000))}, "adversary")
    assert str(error.value) == "adversary.example: must be a whole number"

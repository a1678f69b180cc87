"""Several canaries in every training by DP-SGD, each with a bit of its own."""

import numpy as np
import pytest
import torch

from dpaudit_ray.adversaries.base import FinalModel, PublicKnowledge, SampleCanary
from dpaudit_ray.adversaries.biased_dimension import BiasedDimension
from dpaudit_ray.adversaries.loss import Loss
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd.session import DpSgdSession
from dpaudit_ray.report.tables import Run
from tests.command import changed, dpaudit, inline, write_sweep


class Two(Loss):
    """Two examples, each by a coin of its own."""

    name: str = "test_several_in_a_training:Two"  # type: ignore[assignment]

    @property
    def canaries(self) -> int:
        return 2

    def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        first, second = known.example(0), known.example(1)
        return SampleCanary(torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]))

    def score(self, canary: SampleCanary, observed: FinalModel) -> torch.Tensor:
        return -observed.losses(canary.x, canary.y)


@pytest.mark.parametrize("engine", ["packed", "opacus"])
def test_each_dimension_is_moved_by_its_own_bit(options, engine):
    """Noise of a millionth: every score says its bit, and nothing of the others."""
    quiet = options.model_copy(update={"noise_multiplier": 1e-6, "engine": engine})
    session = quiet.open(BiasedDimension(count=3), 1, 2, gpu=False)
    members = np.random.default_rng(3).random(12) < 0.5
    scores = session.run(members, 5, (options.steps,))[:, 0].reshape(4, 3)
    nobody = session.run(np.zeros(12, dtype=bool), 5, (options.steps,))[:, 0].reshape(4, 3)
    step = options.learning_rate * options.clip_norm / options.batch_size * options.steps
    moved = (scores - nobody) / step
    assert np.allclose(moved, members.reshape(4, 3), atol=0.2)


def test_engines_agree_on_several_canaries(options):
    for adversary in (BiasedDimension(count=2), Two()):
        members = np.array([True, False, False, True, True, True])
        found = []
        for engine in ("packed", "opacus"):
            recipe = options.model_copy(update={"noise_multiplier": 1e-9, "engine": engine})
            session = recipe.open(adversary, 1, 2, gpu=False)
            found.append(session.run(members, 5, (1, options.steps)))
        assert np.allclose(found[0], found[1], atol=1e-5)


def test_too_many_canaries_and_too_few_scores_are_refused(options):
    size = len(options.training(0, gpu=False).initial)
    with pytest.raises(SpecError, match=f"but the model has {size} parameters"):
        options.open(BiasedDimension(count=size + 1), 1, 2, gpu=False)

    class Short(Two):
        def score(self, canary: SampleCanary, observed: FinalModel) -> torch.Tensor:
            return super().score(canary, observed)[:, 0]

    session = DpSgdSession.craft(options.training(1, gpu=False), Short(), 2)
    with pytest.raises(SpecError, match=r"shape \(2, 2\), one for each canary"):
        session.run(np.array([True, False, True, True]), 5, (options.steps,))


def test_a_sweep_of_several_canaries(tiny, tmp_path):
    """10 dimensions in each of 40 trainings, and what a single one in 400 trainings claims."""
    changed(tiny, "grid", {"adversary": [{"name": "biased-dimension", "count": 10}]})
    changed(tiny, "audit.trials", 400)
    changed(tiny, "audit.estimators", ["several-canaries", "one-run"])
    assert inline(write_sweep(tmp_path, tiny), tmp_path).code == 0
    run = Run.open(str(tmp_path / "tiny"))
    assert run.plan.audits[0].canaries == 10
    last = run.estimates[run.estimates["step"] == 6].set_index("estimator")
    assert (last["epsilon_lower"] <= last["epsilon_upper"]).all()
    assert last.loc["several-canaries", "mu_lower"] > 0.3  # of 1.22
    assert last.loc["several-canaries", "status"] == "certified"
    assert dpaudit("verify", tmp_path / "tiny").code in (0, 5)

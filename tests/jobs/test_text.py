"""Text canaries: the language model against its own library's loss, and what a canary touches."""

import json
import warnings

import pytest
import torch

from dpaudit_ray.engines.packing.packed import PackedModel
from tests.jobs.small import JOBS, run_small

language = pytest.importorskip("jobs.text.language", reason="transformers is not installed")
WORDS, LAST = len(language.ALPHABET), language.LENGTH - 2


def test_a_pack_has_the_library_s_loss_and_a_new_token_a_row_of_its_own():
    torch.manual_seed(0)
    network = language.NextToken(new_tokens=2, width=8, layers=1)
    tokens = torch.randint(WORDS, (3, language.LENGTH))
    tokens[2, -1] = WORDS  # a canary
    y = torch.tensor([0.0, 0.0, LAST])
    packed = PackedModel(network, loss=language.sequence_loss)
    losses = packed.losses(packed.initial.repeat(2, 1), tokens, y)
    with torch.no_grad():
        expected = [network.gpt2(row[None], labels=row[None]).loss for row in tokens[:2]]
    torch.testing.assert_close(losses[:, :2], torch.stack(expected).expand(2, 2))
    assert packed._alone is None, "by fast rules"
    gradient = packed.clipped_sums(packed.initial[None], tokens[2:], y[2:], torch.inf)[0]
    head = gradient[-network.gpt2.lm_head.weight.numel() :].view(WORDS + 2, 8)
    assert head[WORDS].norm() > 20 * head[WORDS + 1].norm(), "another token's moves by its chance"


def test_many_canaries_of_both_kinds_in_one_training(tmp_path, capsys):
    """With less of everything."""
    from jobs.text import table

    changes = {
        "mechanism.steps": 2, "mechanism.batch_size": 4, "mechanism.data.records": 60,
        "mechanism.model.options.width": 8, "mechanism.model.options.layers": 1,
        "audit.trials": 20, "grid.mechanism.seed": [0, 1],
        "grid.mechanism.epsilon, mechanism.noise_multiplier": [[8.0, None]],
        "grid.adversary": [
            {"name": "jobs.text.canaries:Canaries", "number": 20, "tokens": tokens}
            for tokens in ("new", "random")
        ],
    }  # fmt: skip
    sets = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    run = run_small(JOBS / "text/one_training.yaml", tmp_path, *sets)
    table.main(run.directory.location)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["2", "2"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        table.main(run.directory.location, control=True)
    assert len(capsys.readouterr().out.splitlines()) == 4

"""Scores, estimates, verdicts and plans at fixed seeds, as digests: a change of form moves no bit.

`python -m tests.test_digests` records them anew, after a change that is meant to move some. Last
bits of sums follow the processor, so other processors than the recorded ones compare plans alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpaudit_ray as da
from dpaudit_ray.report import detection
from tests.command import dpaudit
from tests.engines.test_gpu_step import ADVERSARIES, TRAININGS
from tests.long import LONG

RECORDED = Path(__file__).with_suffix(".json")
PLANNED = ("label", "fingerprint", "trials", "horizons", "packs", "bits_sha256")
SHAPES = {
    "fcnn": (9,), "mlp3": (9,), "cnn4": (1, 14, 14), "convnet": (3, 16, 16), "wrn16": (3, 8, 8),
    "resnet18": (3, 8, 8),
}  # fmt: skip


def release(member: bool, seed: int) -> float:
    """A user's own training: a Gaussian mechanism."""
    return float(np.random.default_rng(seed).normal() + 0.5 * member)


def training(network: str = "fcnn", **changes: Any) -> dict[str, Any]:
    return {
        "name": "dp-sgd", "data": {"name": "npz", "path": f"{network}.npz"}, "steps": 4,
        "model": {"name": network, "width": 1} if network == "wrn16" else network,
        "batch_size": 8, "learning_rate": 0.2, "clip_norm": 1.0, "noise_multiplier": 1.0,
    } | changes  # fmt: skip


def sweeps() -> Iterator[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Name, mechanism, adversary and changes of the audit, of every case."""
    biased = {"name": "biased-dimension"}
    for network in SHAPES:
        yield f"network {network}", training(network, steps=2, batch_size=4), biased, {}
    yield "engine opacus", training(engine="opacus"), biased, {}
    for name, options in TRAININGS.items():
        if not {"data", "model"} & set(options):
            claims = {"accountants": ["pld"]} if name == "poisson" else {}
            yield f"training {name}", training(**options), biased, claims
    views = training("convnet", augmentations=2, steps=2, batch_size=4)
    yield "training views", views, biased, {}
    random = {"model": {"name": "fcnn", "initialization": "random"}}
    yield "training random start", training(**random), {"name": "loss"}, {}
    for name, adversary in ADVERSARIES.items():
        several = {"estimators": ["several-canaries", "one-run"]}
        of_one = adversary["name"] == "one-run" or "count" in adversary
        yield (
            f"adversary {name}",
            training(),
            adversary,
            {**several, "trials": 18 if "count" in adversary else 16} if of_one else {},
        )
    walk = {"name": "landscape", "steps": 3, "batch_size": 2, "noise_multiplier": 2.0}
    for gradient in ("threshold", "constant", "linear"):
        own = {"name": "landscape", "clip_norm": 1.0, "gradient": gradient} | walk
        yield f"landscape {gradient}", own, {"name": "landscape"}, {"trials": 400}
    exact = walk | {"clip_norm": 1.0, "backend": "exact"}
    yield "landscape exact", exact, {"name": "landscape"}, {"trials": 1}
    for backend in ("sampled", "exact"):
        labels = {"name": "label-gradient", "training": training("mlp3"), "backend": backend}
        yield f"labels {backend}", labels, {"name": "label"}, {"trials": 40}
    own = {
        "name": "function", "path": "tests.test_digests:release", "steps": 2,
        "noise_multiplier": 2.0, "isolated": False,
    }  # fmt: skip
    many = {"trials": 400, "estimators": ["accuracy", "eps-delta", "rank", "group-sequential"]}
    yield "function", own, {"name": "own"}, many


CASES = {name: case for name, *case in sweeps()}


def machine() -> str:
    """What last bits follow."""
    lines = (line.split("\t: ") for line in Path("/proc/cpuinfo").read_text().splitlines())
    processor = {pair[0].strip(): pair[1] for pair in lines if len(pair) == 2}
    named = f"{processor.get('model name')}, family {processor.get('cpu family')}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{named}, {capability}, torch {torch.__version__.partition('+')[0]}"


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def flat(content: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each number and text of parsed JSON, with where it stands."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            yield from flat(value, f"{path}/{key}")
    else:
        yield path, repr(content)


def digests(name: str) -> dict[str, str]:
    """Of one case, run in the working directory."""
    mechanism, adversary, audit = CASES[name]
    for network, shape in SHAPES.items():
        x = np.random.default_rng(1).normal(size=(64, *shape)).astype(np.float32)
        np.savez(f"{network}.npz", x=x, y=np.arange(64) % 2)
    sweep = {
        "name": "ground", "seed": 3, "mechanism": mechanism, "adversary": adversary,
        "audit": {"trials": 16, "delta": 1e-5, "record_every": mechanism.get("steps", 4) // 2}
        | audit,
        "resources": {"pack_size": 9 if "count" in adversary else 8},
    }  # fmt: skip
    if mechanism["name"] != "dp-sgd":
        del sweep["audit"]["record_every"]
    done = da.run(sweep, storage_path="runs", executor="inline")
    assert done.complete
    found = {
        "plan": digest(
            [
                [audit[key] for key in PLANNED]
                for audit in json.loads(Path(done.location, "plan.json").read_text())["audits"]
            ]
        ),
        "estimates": digest(done.run.estimates.to_dict("list")),
        "verdict": digest(sorted(flat(verdict(done.location)))),
    }
    if mechanism.get("backend") != "exact":
        columns = done.scores[["audit", "trial", "member", "step", "score"]]
        found["scores"] = digest(columns.to_dict("list"))
    return found


def verdict(location: str) -> dict[str, Any]:
    """What `verify --json` says, but for hints, and the ε to quote, which estimates have."""
    content = json.loads(dpaudit("verify", location, "--json").out)
    for part in (content, *content["audits"], *content["exact"]):
        part.pop("hints", None)
        part.pop("quote", None)
        assert not part.pop("divergence", ""), "no training of these diverges"
    return content


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """One thread, in a folder that goes."""
    threads, before = torch.get_num_threads(), os.getcwd()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
    torch.set_num_threads(threads)


# The largest network trains for as long as all others together.
@pytest.mark.parametrize("name", [name for name in CASES if LONG or "resnet18" not in name])
def test_nothing_moves(name: str) -> None:
    recorded = json.loads(RECORDED.read_text())
    expected = recorded.get(machine(), {}).get(name)
    with settled():
        found = digests(name)
    if expected is None:
        assert found["plan"] in {of[name]["plan"] for of in recorded.values()}
        pytest.skip(f"scores are not recorded of {machine()}; the plan is the same")
    assert {kind: found[kind] for kind in expected} == expected


def main() -> None:
    detection.SIMULATIONS = 1  # as tests/conftest.py has it
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    recorded[machine()] = {}
    for name in CASES:
        with settled():
            recorded[machine()][name] = digests(name)
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()

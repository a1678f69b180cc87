"""A GPU's noise, and what is asked of torch before it touches one."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpaudit_ray.engines import gpu_settings
from dpaudit_ray.engines.noise import GpuNoise
from dpaudit_ray.orchestration.trainer import Brief, PackTrainer

CPU = torch.device("cpu")
SEED = 0x0123456789ABCDEF_FEDCBA9876543210


def test_a_stream_goes_on_from_its_state():
    first, second = GpuNoise(3, CPU), GpuNoise(3, CPU)
    first.fill(torch.empty(999))
    second.restore(first.state())
    left, right = torch.empty(64), torch.empty(64)
    first.fill(left)
    second.fill(right)
    assert torch.equal(left, right)
    with pytest.raises(KeyError):
        second.restore({"sfc64": np.zeros(6, np.uint64)})


@pytest.mark.parametrize("bit", [0, 31])
def test_bits_of_a_seed_count(bit):
    left, right = torch.empty(100), torch.empty(100)
    GpuNoise(SEED, CPU).fill(left)
    GpuNoise(SEED ^ 1 << bit, CPU).fill(right)
    assert float((left == right).double().mean()) < 0.05


ASKED = """
import os, torch
torch.backends.fp32_precision = "tf32"  # by other code of the process
torch.backends.cuda.matmul.fp32_precision = "none"
from dpaudit_ray.engines import gpu_settings
backends = torch.backends
for tf32 in (False, True):
    gpu_settings.settle_in(tf32)
    print(
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        backends.cudnn.benchmark,
        {backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision,
         backends.cudnn.rnn.fp32_precision},
        os.environ["CUBLAS_WORKSPACE_CONFIG"],
    )
"""


def test_a_process_is_deterministic_in_one_precision():
    """In a process of its own, since the settings are the process's."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CUBLAS")}
    done = subprocess.run(
        [sys.executable, "-c", ASKED],
        env=environment, capture_output=True, text=True, timeout=400, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        f"True True False {{'{precision}'}} :4096:8" for precision in ("ieee", "tf32")
    ]


@pytest.mark.parametrize(("gpus", "share"), [(0.25, 0.25), (1, 1.0), (0, 1.0)])
def test_a_trainer_takes_its_share_of_a_gpu(gpus, share, tiny, monkeypatch):
    """As its sweep says: of the memory that torch may take, and of what groups are made for."""
    told: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", told.append)
    monkeypatch.setattr(gpu_settings, "_share", 0.5)
    whole = gpu_settings._BUDGET
    tiny["resources"]["num_gpus"] = gpus
    trainer = PackTrainer(tiny, Brief(0, ()))
    assert trainer._sweep.resources.num_gpus == gpus
    assert gpu_settings.budget() == int(share * whole)
    assert told == ([gpus] if 0 < gpus < 1 else [])

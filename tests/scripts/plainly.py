"""What tests call in a child process: a script without any watch, from the same generators."""

import hashlib
import importlib
import os

import torch

from dpaudit_ray.scripts.protocol import RunRequest
from dpaudit_ray.scripts.watch.generators import seed_generators


def run(request: dict) -> str:
    """A digest of the parameters that the script ends with."""
    torch.set_num_threads(1)
    seed_generators(RunRequest(seed=request["seed"]).derived("start"))
    script = importlib.import_module(f"jobs.zoo.{request['script']}")
    model = getattr(script, request["function"])()
    digest = hashlib.blake2b(digest_size=16)
    for p in model.parameters():
        if p.requires_grad:
            digest.update(p.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def in_folder(request: dict) -> object:
    """Calls `request["target"]` with its argument, in another working directory."""
    os.chdir(request["folder"])
    module, _, name = request["target"].partition(":")
    return getattr(importlib.import_module(module), name)(request["argument"])

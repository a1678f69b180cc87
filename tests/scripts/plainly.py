"""What tests call in a child process: a script without any watch, from the same generators."""

import importlib
import os

import torch

from dpaudit_ray.scripts.protocol import RunRequest
from dpaudit_ray.scripts.watch.generators import seed_generators
from dpaudit_ray.scripts.watch.tensors import digest


def run(request: dict) -> str:
    """Digests of the parameters that the script ends with."""
    torch.set_num_threads(1)
    seed_generators(RunRequest(seed=request["seed"]).derived("start"))
    script = importlib.import_module(f"jobs.zoo.{request['script']}")
    model = getattr(script, request["function"])()
    digests = [digest(p).hex() for p in model.parameters() if p.requires_grad]
    return "".join(digests)


def in_folder(request: dict) -> object:
    """Calls `request["target"]` with its argument, in another working directory."""
    os.chdir(request["folder"])
    module, _, name = request["target"].partition(":")
    return getattr(importlib.import_module(module), name)(request["argument"])

"""What tests call in a child process: a script without any watch, from the same generators."""

import importlib
import os
from collections.abc import Iterable

import torch

from dpaudit_ray.scripts.protocol import RunRequest
from dpaudit_ray.scripts.watch import release_functions, watched_process
from dpaudit_ray.scripts.watch.generators import seed_generators
from dpaudit_ray.scripts.watch.tensors import digest


def run(request: dict) -> str:
    """Digests of the parameters that the script ends with."""
    torch.set_num_threads(1)
    seed_generators(RunRequest(seed=request["seed"]).derived("start"))
    script = importlib.import_module(f"jobs.zoo.{request['script']}")
    return _digests(getattr(script, request["function"])().parameters())


def under_watch(request: dict) -> str:
    """Digests of the parameters that a watched run ends with."""
    watched_process.run(request)
    (optimizer,) = release_functions.run.optimizers
    return _digests(optimizer.optimizer.params)


def _digests(parameters: Iterable[torch.Tensor]) -> str:
    return "".join(digest(p).hex() for p in parameters if p.requires_grad)


def in_folder(request: dict) -> object:
    """Calls `request["target"]` with its argument, in another working directory."""
    os.chdir(request["folder"])
    module, _, name = request["target"].partition(":")
    return getattr(importlib.import_module(module), name)(request["argument"])

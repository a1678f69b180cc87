"""Compiles the loops that most tests use, once: `python -m tests.compiled`.

Else every worker of the suite, and every process that it starts, would do so in its first minutes.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

SINGLE, DOUBLE = torch.float32, torch.float64
NETWORKS = {
    "cnn4": ((1, 28, 28), [SINGLE]),
    "convnet": ((3, 32, 32), [SINGLE]),
    "fcnn": ((8,), [SINGLE, DOUBLE]),
}


def compile_loops(name: str) -> None:
    """Compiles the loops of one network."""
    from dpaudit_ray.engines.packing.packed import PackedModel
    from dpaudit_ray.models.base import Model
    from dpaudit_ray.plugins import parse

    torch.set_num_threads(1)
    shape, dtypes = NETWORKS[name]
    for dtype in dtypes:
        model = PackedModel(parse(Model, name, "model").build(shape, 10).to(dtype))
        x, y = torch.zeros(2, *shape, dtype=dtype), torch.tensor([0, 1])
        model.clipped_sums(model.initial[None], x, y, 1.0)


def main() -> None:
    """Two networks at a time."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_loops, NETWORKS))


if __name__ == "__main__":
    main()

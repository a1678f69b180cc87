"""Compiles the loops that most tests use, once: `python -m tests.compiled`.

Else every worker of the suite, and every process that it starts, would do so in its first minutes.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

# Networks with the shape of their input and their precision. The first two take twice as long as
# the others: two processes that take turns end at about the same time.
LOOPS = [
    ("cnn4", (1, 28, 28), "float32"),
    ("convnet", (3, 32, 32), "float32"),
    ("fcnn", (8,), "float32"),
    ("fcnn", (8,), "float64"),
]


def compile_loops(name: str, shape: tuple[int, ...], precision: str) -> None:
    """Compiles the loops of one network."""
    import torch

    from dpaudit_ray.engines.packing.packed import PackedModel
    from dpaudit_ray.models.base import Model
    from dpaudit_ray.plugins import parse

    torch.set_num_threads(1)
    dtype = getattr(torch, precision)
    model = PackedModel(parse(Model, name, "model").build(shape, 10).to(dtype))
    x, y = torch.zeros(2, *shape, dtype=dtype), torch.tensor([0, 1])
    model.clipped_sums(model.initial[None], x, y, 1.0)


def main() -> None:
    """Two networks at a time; only the processes that compile import torch."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_loops, *zip(*LOOPS, strict=True)))


if __name__ == "__main__":
    main()

"""Counts a step's kernels and their traffic, with our kernels and without: `-m jobs.kernel_steps`.

The packed engine computes a step on tensors without data; what it calls is counted. An operation
reads its inputs and writes its outputs once: what stays in a cache, or is read twice, is not seen.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpaudit_ray.engines.cpu.memory import Groups
from dpaudit_ray.engines.packing.packed import PackedModel

from .kernels import network

STEPS = (("fcnn", 256, 400), ("convnet", 256, 128), ("cnn4", 256, 128), ("wrn16", 64, 128),
         ("resnet18", 64, 128))  # fmt: skip
_FREE = ("aten::detach", "aten::empty", "aten::new_empty", "aten::_unsafe_view")


class Counter(TorchDispatchMode):
    """Operations that are kernels, and the bytes of what they take and give."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        """Everything but views and allocations counts."""
        found = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not func.is_view and not name.startswith(_FREE):
            self.launched([*args, *(kwargs or {}).values(), found])
        return found

    def launched(self, values: list[Any]) -> None:
        """Adds a kernel that reads or writes these."""
        flat = torch.utils._pytree.tree_leaves(values)
        held = {id(value): value.nbytes for value in flat if isinstance(value, Tensor)}
        self.count += 1
        self.bytes += sum(held.values())


@contextlib.contextmanager
def counted(counter: Counter) -> Iterator[None]:
    """Our kernels are counted in place of being launched."""
    from dpaudit_ray.engines.gpu.kernels import mlp, products, samples

    class Stand:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **_: counter.launched(list(args))

    kept = [
        (module, name, kernel)
        for module in (mlp, products, samples)
        for name, kernel in vars(module).items()
        if name.endswith("_kernel")
    ]
    try:
        for module, name, _ in kept:
            setattr(module, name, Stand())
        yield
    finally:
        for module, name, kernel in kept:
            setattr(module, name, kernel)


def step(name: str, models: int, batch: int, by_kernels: bool, numbers: str) -> Counter:
    """One call for clipped sums, all models at once."""
    module, shape = network(name)
    module = module.to("meta")
    compute = torch.bfloat16 if numbers == "bfloat16" else None
    model = PackedModel(module, Groups(models, models), compute, by_kernels)
    model._settled = True
    theta = torch.empty(models, model.size, device="meta")
    x = torch.empty(batch, *shape, device="meta")
    y = torch.empty(batch, dtype=torch.long, device="meta")
    counter = Counter()
    with counted(counter), counter:
        model.clipped_sums(theta, x, y, 1.0)
    return counter


def main() -> None:
    """Writes the table as Markdown."""
    sys.stdout.write(
        "| network | models, batch | numbers | kernels: plain | ours | MB a model-step: plain "
        "| ours |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    for name, models, batch in STEPS:
        for numbers in ("float32", "bfloat16"):
            plain, ours = (step(name, models, batch, by, numbers) for by in (False, True))
            sizes = (f"{one.bytes / models / 1e6:.3g}" for one in (plain, ours))
            sys.stdout.write(
                f"| {name} | {models}, {batch} | {numbers} | {plain.count} | {ours.count} "
                f"| {' | '.join(sizes)} |\n"
            )


if __name__ == "__main__":
    main()

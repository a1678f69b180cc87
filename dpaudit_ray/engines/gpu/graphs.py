"""A batch's clipped sums as a CUDA graph: one launch in place of hundreds of calls of torch.

Small networks wait for these calls, not for the GPU. **Off, unless `DPAUDIT_GRAPHS=on`: nothing
here has run on a GPU.** What was recorded is replayed on buffers of its own, of one shape: where a
batch's size changes from step to step (Poisson sampling), nothing is gained. Memory of a recorded
batch stays taken. `make gpu` says whether bits are the same, and how long both ways take.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import first_line

SWITCH = "DPAUDIT_GRAPHS"
_LOG = logging.getLogger(__name__)
_FIRST = 3  # batches that are computed as ever: compilers, workspaces and self-checks come first
_MOST = 2  # recorded: the batch, and the canary's examples

Inputs = tuple[Tensor, ...]
Sums = Callable[[Inputs], Tensor]


def wanted(device: torch.device) -> bool:
    """Whether graphs are asked for, and can be had."""
    return device.type == "cuda" and os.environ.get(SWITCH, "off") == "on"


def record(sums: Sums, inputs: Inputs) -> Callable[[], Tensor]:
    """Captures `sums(inputs)`; the result does it again with what is in `inputs` by then.

    Its tensor is the same one each time. All on this thread's stream and, backward passes
    included, by this thread.

    Raises:
        RuntimeError: something in it cannot be captured.
    """
    cuda: Any = torch.cuda
    graph, aside = cuda.CUDAGraph(), cuda.Stream()
    with torch.autograd.set_multithreading_enabled(False):
        aside.wait_stream(cuda.current_stream())
        with cuda.stream(aside):  # what torch makes on a stream's first use
            sums(inputs)
        cuda.current_stream().wait_stream(aside)
        with cuda.graph(graph):
            out = sums(inputs)

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


class Graphs:
    """What was recorded of one network, by the shapes of its inputs and what else it depends on.

    `given_up`: a graph was wrong, and all is computed as ever.
    """

    def __init__(self) -> None:
        self._seen: Counter[object] = Counter()
        self._recorded: dict[object, tuple[Inputs, Callable[[], Tensor]]] = {}
        self.given_up = False

    def sums(self, plain: Sums, inputs: Inputs, key: object) -> Tensor:
        """`plain(inputs)`, by a graph from the fourth such call on.

        A graph whose first replay differs in a bit is never used again, nor is any other.

        Args:
            plain: depends on `inputs`, and on nothing else that may change while `key` is the same.
            inputs: on the device.
            key: whatever else the sums depend on.
        """
        whole = key, tuple((tuple(one.shape), one.dtype) for one in inputs)
        self._seen[whole] += 1
        if whole not in self._recorded:
            tries = not self.given_up and len(self._recorded) < _MOST
            if not tries or self._seen[whole] <= _FIRST:
                return plain(inputs)
            return self._started(plain, inputs, whole)
        buffers, replay = self._recorded[whole]
        for buffer, given in zip(buffers, inputs, strict=True):
            buffer.copy_(given)
        return replay().clone()

    def _started(self, plain: Sums, inputs: Inputs, whole: object) -> Tensor:
        """What is right in any case; from here on by a graph, if that gives the same."""
        expected = plain(inputs)
        buffers = tuple(torch.zeros_like(one) for one in inputs)
        try:
            replay = record(plain, buffers)
            for buffer, given in zip(buffers, inputs, strict=True):
                buffer.copy_(given)
            same = torch.equal(_bits(replay()), _bits(expected))
        except RuntimeError as error:
            self._give_up(f"cannot be recorded ({first_line(error):.80})")
            return expected
        if same:
            self._recorded[whole] = buffers, replay
        else:
            self._give_up("gives other sums")
        return expected

    def _give_up(self, why: str) -> None:
        self.given_up = True
        self._recorded.clear()
        _LOG.warning("a CUDA graph %s: every operation is launched by itself, slowly", why)


def _bits(values: Tensor) -> Tensor:
    """NaN equals itself."""
    return values.view(torch.int64 if values.itemsize == 8 else torch.int32)

"""Records training of networks without noise, and whether it saw private records."""

import collections
import dataclasses
from typing import Any, Literal

import torch

from ..protocol import OutsideSteps
from .forward_passes import in_functorch
from .hooks import around
from .run_state import WatchedRun
from .shared_records import row_digests
from .tensors import digest

_PASSES = 3  # of each network whose inputs are recorded
_MOST_NAMES = 4


def install(run: WatchedRun) -> None:
    """Records what networks are given from now on."""
    passes = collections.Counter[int]()

    @around(torch.nn.Module, "__call__")
    def forward(
        original: Any,
        self: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if run.inspects and self.training and torch.is_grad_enabled() and not in_functorch():
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            has_rows = bool(tensors) and tensors[0].dim() > 1 and len(tensors[0]) > 0
            if has_rows and passes[id(self)] < _PASSES:
                passes[id(self)] += 1
                _note_input(run, self, digest(tensors[0][0]))
        return original(self, *args, **kwargs)


def _note_input(run: WatchedRun, module: Any, row: bytes) -> None:
    private = run.networks.parameters()
    for p in module.parameters():
        if id(p) not in private:
            entry = (p, type(module).__name__, set[bytes]())
            run.updates.fed.setdefault(id(p), entry)[2].add(row)


def count_step(run: WatchedRun, optimizer: Any) -> None:
    """Counts a step that no engine wraps, or whose optimizer was reached past its wrapper."""
    updates = run.updates
    params = []
    for group in optimizer.param_groups:
        params += [p for p in group["params"] if p.grad is not None]
    private = set(run.networks.parameters())
    for watched in run.optimizers:
        private |= set(map(id, watched.optimizer.params))
    inside = [p for p in params if id(p) in private]
    when: Literal["import", "before", "after"] = "before"
    if run.phase == "import":
        when = "import"
    elif run.networks.modules:
        when = "after"
    kind = type(optimizer).__name__
    names = tuple(run.networks.names(inside)[:_MOST_NAMES])
    key = OutsideSteps(when, private=bool(inside), optimizer=kind, names=names, steps=0)
    updates.steps[key] = updates.steps.get(key, 0) + 1
    run.note_line(kind)
    updates.params.update({id(p): p for p in params})
    if when == "after":
        updates.since_private |= set(map(id, params))
    elif run.loaders.current is not None:
        updates.warmed.update({id(p): run.loaders.current.data for p in params})


def note_copies(run: WatchedRun, module: torch.nn.Module) -> None:
    """Notes which parameters of a network are copies of what another optimizer stepped."""
    trained = {digest(p): key for key, p in run.updates.params.items()}
    for p in module.parameters():
        original = trained.get(digest(p))
        if original is not None:
            run.updates.copies[id(p)] = original


def outside_steps(run: WatchedRun) -> tuple[OutsideSteps, ...]:
    """Returns the counts of steps that no engine wraps."""
    counts = run.updates.steps.items()
    return tuple(dataclasses.replace(key, steps=count) for key, count in counts)


def trained_by_records(run: WatchedRun) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Finds what the private records trained without noise.

    Returns:
        Names of private parameters, or of what they are copies of, and classes of other networks.
    """
    updates = run.updates
    rows: set[bytes] = set()
    for data in run.networks.data:
        rows |= row_digests(data)
    data_ids = set(map(id, run.networks.data))
    trained = {key: "" for key, data in updates.warmed.items() if id(data) in data_ids}
    for key in updates.params.keys() & updates.fed.keys():
        _, network, inputs = updates.fed[key]
        if inputs & rows:
            trained[key] = network
    private = run.networks.parameters()
    warmed = [key for key in private if key in trained or updates.copies.get(key) in trained]
    if warmed:
        return tuple(run.networks.names([private[key] for key in warmed])), ()
    networks = {name for key, name in trained.items() if name and key not in private}
    return (), tuple(sorted(networks))

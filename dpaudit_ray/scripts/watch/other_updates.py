"""Records training of networks without noise, and whether it saw private records."""

import dataclasses
from typing import Any, Literal

import torch

from ..protocol import OutsideSteps
from .run_state import WatchedRun
from .shared_records import PrivateRecords, keys_of, tables_of
from .tensors import digest, row_keys

_MOST_NAMES = 4


def note_input(run: WatchedRun, module: Any, arguments: list[Any]) -> None:
    """Notes the first record of what a network is given that is in training."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if not tensors or tensors[0].dim() < 2 or len(tensors[0]) == 0:
        return
    (row,) = row_keys(tensors[0][:1])
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
    if when != "after" and run.loaders.current is not None:
        updates.warmed.update({id(p): run.loaders.current.data for p in params})


def note_copies(run: WatchedRun, module: torch.nn.Module) -> None:
    """Notes which parameters of a network are copies of what another optimizer stepped."""
    trained = {digest(p): key for key, p in run.updates.params.items()}
    for p in module.parameters():
        original = trained.get(digest(p))
        if original is not None:
            run.updates.copies[id(p)] = original


def note_initial_statistics(run: WatchedRun, module: torch.nn.Module, data: Any) -> None:
    """Notes which parameters of a network begin as statistics of the records."""
    records = PrivateRecords(tables_of(data))
    for name, p in module.named_parameters():
        if records.is_statistic(p):
            run.networks.initial_statistics.append(name)


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
    tables: list[torch.Tensor] = []
    for data in run.networks.data:
        tables += tables_of(data)
    rows = keys_of(tables)
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

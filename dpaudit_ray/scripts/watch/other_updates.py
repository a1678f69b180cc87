"""Records training of networks without noise, and whether private records were in it."""

import dataclasses
from typing import Any, Literal

import torch

from ..protocol import OutsideSteps
from .run_state import WatchedRun
from .shared_records import PrivateRecords, keys_of, tables_of
from .tensors import row_keys


def note_input(
    run: WatchedRun,
    module: Any,
    arguments: list[Any],
    trains: bool,
) -> None:
    """Notes the first record of a forward pass, by the parameters of its network.

    Args:
        run: the run.
        module: the network.
        arguments: arguments of the forward pass.
        trains: whether the network trains on them.
    """
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if not tensors or tensors[0].dim() < 2 or len(tensors[0]) == 0:
        return
    (row_key,) = row_keys(tensors[0][:1])
    private = run.networks.parameters()
    for p in module.parameters():
        if id(p) not in private:
            entry = (p, type(module).__name__, list[bytes]())
            is_trained = trains and p.requires_grad  # a frozen network only computes
            run.updates.fed.setdefault((id(p), is_trained), entry)[2].append(row_key)


def count_step(run: WatchedRun, optimizer: Any) -> None:
    """Counts a step of an optimizer that no engine wraps, or that was called past its wrapper."""
    updates = run.updates
    params = []
    for group in optimizer.param_groups:
        params += [p for p in group["params"] if p.grad is not None]
    private = set(run.networks.parameters())
    for watched in run.optimizers:
        private |= set(map(id, watched.optimizer.params))
    inside = [p for p in params if id(p) in private]
    when: Literal["before", "after"] = "after" if run.networks.modules else "before"
    if run.phase == "main":  # training while a module is imported only makes the module's constants
        kind = type(optimizer).__name__
        names = tuple(run.networks.names(inside))
        key = OutsideSteps(
            when,
            private=bool(inside),
            optimizer=kind,
            names=names,
            steps=0,
        )
        updates.steps[key] = updates.steps.get(key, 0) + 1
        run.note_line(kind)
    for p in params:
        if (id(p), True) in updates.fed:
            updates.inputs_before_step[id(p)] = len(updates.fed[id(p), True][2])
    if when != "after" and run.loaders.current is not None:
        updates.stepped_early.update({id(p): run.loaders.current.data for p in params})


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


def trained_by_records(run: WatchedRun) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Finds the networks that the private records trained without noise.

    Returns:
        Names of private parameters; classes of other networks; and whether the private network got
        records before it was private.
    """
    updates = run.updates
    tables = []
    for data in run.networks.data:
        tables += tables_of(data)
    rows = keys_of(tables)
    data_ids = set(map(id, run.networks.data))
    trained = {key: "" for key, data in updates.stepped_early.items() if id(data) in data_ids}
    private = run.networks.parameters()
    had_early_records = False
    # Networks that were given private records, by the first row of a batch.
    for (key, trains), (_, network, inputs) in updates.fed.items():
        had_early_records |= key in private and not rows.isdisjoint(inputs)
        before_step = inputs[: updates.inputs_before_step.get(key, 0)]
        if trains and not rows.isdisjoint(before_step):
            trained[key] = network
    pretrained = [private[key] for key in private if key in trained]
    if pretrained:
        return tuple(run.networks.names(pretrained)), (), had_early_records
    networks = {name for key, name in trained.items() if name and key not in private}
    return (), tuple(sorted(networks)), had_early_records

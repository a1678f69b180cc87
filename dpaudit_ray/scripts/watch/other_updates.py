"""Records training of networks without noise, and whether private records were in it."""

import dataclasses
from typing import Any, Literal

import torch

from ..protocol import OutsideSteps, Texts
from .run_state import WatchedRun
from .shared_records import PrivateRecords, keys_of, tables_of
from .tensors import row_keys


def note_input(
    run: WatchedRun,
    module: Any,
    arguments: list[Any],
    trains: bool,
) -> None:
    """Notes the first record of a forward pass for each parameter of its network.

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
            # The parameter is kept, so that no later object gets its identity.
            entry = (p, type(module).__name__, list[bytes]())
            is_trained = trains and p.requires_grad  # a frozen network only computes
            run.updates.fed.setdefault((id(p), is_trained), entry)[2].append(row_key)


def count_step(run: WatchedRun, optimizer: Any) -> None:
    """Counts a step of an optimizer that no engine wraps, or that the script called directly."""
    updates = run.updates
    params = []
    for group in optimizer.param_groups:
        params += [p for p in group["params"] if p.grad is not None]
    private = set(run.networks.parameters())
    for watched in run.optimizers:
        private |= set(map(id, watched.optimizer.params))
    private_params = [p for p in params if id(p) in private]
    when: Literal["before", "after"] = "after" if run.networks.modules else "before"
    if run.phase == "main":  # training while a module is imported only makes the module's constants
        optimizer_class = type(optimizer).__name__
        names = tuple(run.networks.names(private_params))
        steps = OutsideSteps(
            when,
            private=bool(private_params),
            optimizer=optimizer_class,
            names=names,
            steps=0,  # `outside_steps` sets the count
        )
        updates.steps[steps] += 1
        run.note_line(optimizer_class)
    for p in params:
        if (id(p), True) in updates.fed:
            updates.inputs_before_step[id(p)] = len(updates.fed[id(p), True][2])
    if when != "after" and run.loaders.current is not None:
        updates.stepped_early.update({id(p): run.loaders.current.data for p in params})


def note_initial_statistics(run: WatchedRun, module: torch.nn.Module, data: Any) -> None:
    """Notes which parameters of a network have statistics of the records as initial values."""
    records = PrivateRecords(tables_of(data))
    for name, p in module.named_parameters():
        if records.is_statistic(p):
            run.networks.initial_statistics.append(name)


def outside_steps(run: WatchedRun) -> tuple[OutsideSteps, ...]:
    """Returns the counts of steps that no engine wraps."""
    counts = run.updates.steps.items()
    return tuple(dataclasses.replace(key, steps=count) for key, count in counts)


def trained_by_records(run: WatchedRun) -> tuple[Texts, Texts, bool]:
    """Finds the networks that the private records trained without noise.

    Returns:
        Names of private parameters that records trained before; classes of other networks that
        records trained, if there are no such parameters; and whether the private network got
        records before it was private.
    """
    updates = run.updates
    tables = []
    for data in run.networks.data:
        tables += tables_of(data)
    rows = keys_of(tables)
    data_ids = set(map(id, run.networks.data))
    # Class of the network by the identity of a trained parameter; "" if the class is unknown.
    trained = {key: "" for key, data in updates.stepped_early.items() if id(data) in data_ids}
    private = run.networks.parameters()
    had_early_records = False
    # Networks were given private records if the first row of a batch is one.
    for (key, trains), (_, network_class, first_rows) in updates.fed.items():
        had_early_records |= key in private and not rows.isdisjoint(first_rows)
        before_step = first_rows[: updates.inputs_before_step.get(key, 0)]
        if trains and not rows.isdisjoint(before_step):
            trained[key] = network_class
    pretrained = [private[key] for key in private if key in trained]
    if pretrained:
        return tuple(run.networks.names(pretrained)), (), had_early_records
    # Parameters of all networks but the private ones.
    classes = {name for key, name in trained.items() if name and key not in private}
    return (), tuple(sorted(classes)), had_early_records

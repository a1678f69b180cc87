"""What a script asks of Opacus' engines, what their accountants count, and the private networks.

A network must keep records apart: what it gives for one must not depend on the others.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset

from .run_state import WatchedRun
from .step_probe import digest, has_numbers, preserve_attributes, preserve_generators

_SECONDS = 5.0  # that an accountant may take for further δ
_FORWARD_PASSES = 2  # of each network that are looked at
_REGISTERED = ("_parameters", "_buffers", "_modules")
_CLOSE = 1e-3  # relative: arithmetic in another order, at most


def install(run: WatchedRun) -> None:
    """Watches engines, accountants and networks from now on."""
    from opacus import PrivacyEngine
    from opacus.accountants.accountant import IAccountant

    make_private, prepare = PrivacyEngine.make_private, PrivacyEngine.__init__
    get_epsilon = PrivacyEngine.get_epsilon
    forward = torch.nn.Module.__call__
    passes: dict[int, int] = {}  # looked at, by network

    def made(self: Any, **kwargs: Any) -> Any:
        if run.request.one_more:
            kwargs["data_loader"] = one_record_more(kwargs["data_loader"])
        loader = kwargs["data_loader"]
        run.data.append(loader.dataset)
        run.modules.append(kwargs["module"])
        if run.request.looks:
            run.before |= _digests_of_all_networks()
        run.rate = 1 / max(1, len(loader))
        private = make_private(self, **kwargs)
        optimizer = private[1]
        run.loaders.private.append(private[-1])
        run.batch_first = bool(kwargs.get("batch_first", True))
        try:
            records = len(loader.dataset)
        except TypeError:  # data that come as a stream
            records = None
        run.recorder.put(
            "made", phase=run.phase, records=records, batches=len(loader),
            noise=optimizer.noise_multiplier, batch=optimizer.expected_batch_size,
            size=sum(p.numel() for p in optimizer.params),
        )  # fmt: skip
        return private

    def prepared(self: Any, *args: Any, **kwargs: Any) -> None:
        prepare(self, *args, **kwargs)
        run.engine_accountants.append(self.accountant)

    def ask_noted(self: Any, delta: float) -> Any:
        epsilon = get_epsilon(self, delta)
        run.reported.append((delta, float(epsilon), run.steps))
        return epsilon

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        due = (
            run.request.looks
            and not run.replaying
            and run.phase == "main"
            and passes.get(id(self), 0) < _FORWARD_PASSES
            and any(self is module for module in run.modules)
            and self.training
            and torch.is_grad_enabled()
        )
        if due:
            passes[id(self)] = passes.get(id(self), 0) + 1
            with run.replay():
                entry = repeat_forward(self, args, kwargs, 0 if run.batch_first else 1)
            run.recorder.put("forward", **entry)
        return forward(self, *args, **kwargs)

    for kind in _subclasses(IAccountant):
        _watch_accountants(kind, run)
    PrivacyEngine.make_private = made
    PrivacyEngine.__init__ = prepared
    PrivacyEngine.get_epsilon = ask_noted
    torch.nn.Module.__call__ = called  # type: ignore[method-assign]


def _digests_of_all_networks() -> set[bytes]:
    """What is in any network of this process now; what is returned may be one of them."""
    # By `type`: isinstance asks some objects for their class, and they warn or fail.
    networks = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.nn.Module) and "_parameters" in vars(thing)
    ]
    # A layer is part of several networks: each tensor is read once.
    tensors = {id(tensor): tensor for _, _, tensor in named_tensors(networks)}
    return set(map(digest, tensors.values()))


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, str, torch.Tensor]]:
    """Name, class of its network, and value of each tensor of numbers that is saved with `value`.

    Of networks it is all that `state_dict` has. Lists, tuples and dictionaries are walked through.
    A single number is not given.
    """
    prefix = f"{name}." * bool(name)
    if isinstance(value, torch.nn.Module):
        network = getattr(value, "_module", value)  # Opacus wraps the user's
        for key, tensor in network.state_dict(keep_vars=True).items():
            if has_numbers(tensor):
                yield prefix + key, type(network).__name__, tensor
    elif has_numbers(value):
        yield name or "a tensor", "", value
    elif isinstance(value, (dict, list, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from named_tensors(part, f"{prefix}{key}")


def _subclasses(base: Any) -> list[Any]:
    return [kind for child in base.__subclasses__() for kind in (child, *_subclasses(child))]


def _watch_accountants(kind: Any, run: WatchedRun) -> None:
    """Registers accountants of a kind as they are made, but for those that others compute with."""
    original = kind.__init__

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        helps = sys._getframe(1).f_globals["__name__"].startswith("opacus.accountants.analysis")
        if not (helps or any(self is accountant for accountant in run.accountants)):
            run.accountants.append(self)

    kind.__init__ = make


def claims(
    accountants: list[Any], deltas: list[float], first: float | None
) -> list[dict[str, Any]]:
    """What each accountant says: its name, its history, and ε at each δ.

    An ε is None where the accountant fails. It is asked for δ `first` first; where it is slow, as
    with noise that changes at every step, it is asked for no other.
    """
    entries = []
    for accountant in accountants:
        history = [[float(value) for value in event] for event in accountant.history]
        began = time.monotonic()
        epsilons: dict[float, float | None] = {}
        for delta in sorted(deltas, key=lambda delta: delta != first):
            slow = epsilons and time.monotonic() - began > _SECONDS
            epsilons[delta] = None if slow else _epsilon(accountant, delta)
        entries.append({
            "name": accountant.mechanism(), "history": history, "deltas": deltas,
            "epsilons": [epsilons[delta] for delta in deltas],
        })  # fmt: skip
    return entries


def _epsilon(accountant: Any, delta: float) -> float | None:
    if not accountant.history:
        return 0.0
    try:
        return float(accountant.get_epsilon(delta=delta))
    except Exception:  # noqa: BLE001 (an accountant of somebody else's: what it cannot tell is None)
        return None


def one_record_more(loader: Any) -> Any:
    """The same loader over a record more, a copy of the first; itself where it samples its way."""
    if not isinstance(loader.batch_sampler, BatchSampler):
        return loader
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    data = loader.dataset
    return DataLoader(
        ConcatDataset([data, Subset(data, [0])]), batch_size=loader.batch_sampler.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler), drop_last=loader.drop_last,
        generator=loader.generator, **{name: getattr(loader, name) for name in names},
    )  # fmt: skip


def repeat_forward(module: Any, args: Any, kwargs: Any, dim: int) -> dict[str, Any]:
    """Runs a forward pass again without gradients: as it is, and with another record in one place.

    Records lie along `dim` of a batch. All attributes of the network are put back. Returned are
    `mixes`, whether other records' outputs changed, and `by` how much, relatively; `buffers` that
    learn from records; `carried`, attributes that a pass leaves to the next, where the next gives
    something else by them. Or `unseen`: why the repeats show nothing.
    """
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if _has_dim(leaf, dim)]
    batch = tensors[0].shape[dim] if tensors else 0
    if batch < 3:
        return {"unseen": f"a forward pass with a batch of {batch}; 3 records are needed"}

    def exchange(leaf: Any) -> Any:
        """With the second record in the place of the first, too."""
        if not _has_dim(leaf, dim) or leaf.shape[dim] != batch:
            return leaf
        leaf = leaf.clone()
        leaf.select(dim, 0).copy_(leaf.select(dim, 1))
        return leaf

    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    inputs, other = (args, kwargs), tree_map(exchange, (args, kwargs))
    with torch.no_grad():
        with _attributes_preserved(module) as changed_names:
            first, after = _forward(module, inputs, buffers)
            carried = changed_names()
            following = _forward(module, inputs, buffers)[0] if carried else first
        with _attributes_preserved(module):
            again, _ = _forward(module, inputs, buffers)
        with _attributes_preserved(module):
            changed, moved = _forward(module, other, buffers)
    outputs = [
        (a, b, c)
        for a, b, c in zip(first, again, changed, strict=True)
        if _has_dim(a, dim) and a.shape[dim] == batch
    ]
    if not outputs:
        return {"unseen": "the network gives nothing with a row for each record of its batch"}
    if any(not torch.equal(a, b) for a, b, _ in outputs):
        return {"unseen": "a forward pass repeated with the same generators gave another result"}
    if all(torch.equal(a, b) for a, b in zip(first, following, strict=True)):
        carried = []
    by = 0.0
    for a, _, c in outputs:
        others, moved_others = a.narrow(dim, 1, batch - 1), c.narrow(dim, 1, batch - 1)
        size = float(others.abs().max()) or 1.0
        by = max(by, float((others - moved_others).abs().max()) / size)
    learning = [
        name for name, buffer in after.items()
        if buffer.is_floating_point() and not torch.equal(buffer, moved[name])
    ]  # fmt: skip
    return {"mixes": by > _CLOSE, "by": by, "buffers": learning, "carried": carried}


def _has_dim(value: Any, dim: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > dim


def _forward(
    module: Any, inputs: Any, buffers: dict[str, torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The network's outputs, and its buffers afterwards, which are put back."""
    args, kwargs = inputs
    with preserve_generators():
        outputs = module.forward(*args, **kwargs)
    after = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    return [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor)], after


@contextlib.contextmanager
def _attributes_preserved(module: Any) -> Iterator[Callable[[], list[str]]]:
    """Puts plain attributes of all layers back at the end; gives what names those changed so far.

    Tensors in them too, where a pass writes into them. Parameters and buffers are not among them.
    """
    kept = [(name, layer, dict(vars(layer))) for name, layer in module.named_modules()]
    tensors = [
        (tensor, tensor.detach().clone())
        for _, _, values in kept
        for key, value in values.items()
        if key not in _REGISTERED
        for tensor in tree_flatten(value)[0]
        if isinstance(tensor, torch.Tensor)
    ]

    def changed_names() -> list[str]:
        written = {id(tensor) for tensor, old in tensors if not torch.equal(tensor, old)}
        return [
            ".".join(filter(None, (name.removeprefix("_module").lstrip("."), key)))
            for name, layer, values in kept
            for key, value in vars(layer).items()
            if key not in _REGISTERED
            and (
                value is not values.get(key)
                or any(id(part) in written for part in tree_flatten(value)[0])
            )
        ]

    with preserve_attributes(layer for _, layer, _ in kept):
        try:
            yield changed_names
        finally:
            for tensor, old in tensors:
                if not torch.equal(tensor, old):
                    tensor.detach().copy_(old)

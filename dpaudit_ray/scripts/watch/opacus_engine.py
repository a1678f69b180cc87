"""What a script asks of Opacus' engines, what their accountants count, and the private networks."""

import collections
import contextlib
import gc
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset

from .run_state import WatchedRun, around, import_if_there
from .step_probe import digest, has_numbers, preserve_attributes, preserve_generators

_SECONDS = 5.0  # that an accountant may take for further δ
_FORWARD_PASSES = 2  # of each network that are looked at
_REGISTERED = ("_parameters", "_buffers", "_modules")
_CLOSE = 1e-3  # relative: arithmetic in another order, at most


def install(run: WatchedRun) -> None:
    """Watches engines, accountants and networks from now on, if there is Opacus."""
    if not import_if_there("opacus"):
        return
    from opacus import PrivacyEngine
    from opacus.accountants.accountant import IAccountant

    passes = collections.Counter[int]()  # looked at, by network

    @around(PrivacyEngine, "make_private")
    def make_private(original: Any, self: Any, **kwargs: Any) -> Any:
        if run.request.one_more:
            kwargs["data_loader"] = one_record_more(kwargs["data_loader"])
        loader = kwargs["data_loader"]
        run.data.append(loader.dataset)
        run.modules.append(kwargs["module"])
        run.note_line("the sampler", "the accountant", "the data set", "before make_private")
        if run.request.looks:
            run.before |= digests_of_all_networks()
            trained = {digest(p): key for key, p in run.outside_params.items()}
            digests = {id(p): digest(p) for p in kwargs["module"].parameters()}
            run.copies |= {key: trained[d] for key, d in digests.items() if d in trained}
        run.rate = 1 / max(1, len(loader))
        private = original(self, **kwargs)
        optimizer = private[1]
        run.loaders.private.append(private[-1])
        run.batch_first = bool(kwargs.get("batch_first", True))
        try:
            records = len(loader.dataset)
        except TypeError:  # data that come as a stream
            records = None
        run.put(
            "made", phase=run.phase, records=records, batches=len(loader),
            noise=optimizer.noise_multiplier, batch=optimizer.expected_batch_size,
        )  # fmt: skip
        return private

    @around(PrivacyEngine, "__init__")
    def prepare(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        run.engine_accountants.append(self.accountant)

    @around(PrivacyEngine, "get_epsilon")
    def get_epsilon(original: Any, self: Any, delta: float) -> Any:
        # The same question in each run of an audit, and an answer may take a second.
        question = repr((self.accountant.mechanism(), self.accountant.history, delta))
        key = hashlib.blake2b(question.encode(), digest_size=16).hexdigest()
        answers = run.request.answers
        epsilon = np.float64(answers[key]) if key in answers else original(self, delta)
        run.answers[key] = float(epsilon)
        run.note_line("get_epsilon")
        engine = [a is self.accountant for a in run.engine_accountants].index(True)
        run.reported.append((delta, float(epsilon), run.steps, engine))
        return epsilon

    @around(torch.nn.Module, "__call__")
    def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        trains = any(self is module for module in run.modules) and self.training
        if run.looks and trains and torch.is_grad_enabled() and passes[id(self)] < _FORWARD_PASSES:
            passes[id(self)] += 1
            with run.replay():
                entry = repeat_forward(self, args, kwargs, 0 if run.batch_first else 1)
            run.put("forward", **entry)
        return original(self, *args, **kwargs)

    def register(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # Some are made by others, which compute with them.
        helps = sys._getframe(2).f_globals["__name__"].startswith("opacus.accountants.analysis")
        if not (helps or any(self is accountant for accountant in run.accountants)):
            run.accountants.append(self)

    for kind in _subclasses(IAccountant):
        around(kind, "__init__")(register)


def digests_of_all_networks() -> set[bytes]:
    """What is in any network of this process now; what is returned may be one of them."""
    gc.unfreeze()  # what was imported before the fork counts, too
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

    Of networks it is all that `state_dict` has. Containers are walked through; arrays of numpy and
    JAX come as tensors.
    """
    if type(value).__module__.partition(".")[0] in ("numpy", "jax", "jaxlib"):
        array = np.array(value)
        value = torch.from_numpy(array) if array.dtype.kind == "f" else None
    prefix = f"{name}." * bool(name)
    if isinstance(value, torch.nn.Module):
        network = getattr(value, "_module", value)  # Opacus wraps the user's
        for key, tensor in network.state_dict(keep_vars=True).items():
            if has_numbers(tensor, least=0):
                yield prefix + key, type(network).__name__, tensor
    elif has_numbers(value):
        yield name or "a tensor", "", value
    elif isinstance(value, (dict, list, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from named_tensors(part, f"{prefix}{key}")


def _subclasses(base: Any) -> list[Any]:
    return [kind for child in base.__subclasses__() for kind in (child, *_subclasses(child))]


def claims(accountants: list[Any], deltas: list[float], first: float) -> list[dict[str, Any]]:
    """What each accountant says: its name, its history, and ε at each δ; None where it fails.

    One that is slow, as with noise that changes at every step, is asked for δ `first` only.
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
    """ε of the steps so far; None where the accountant cannot tell."""
    try:
        return float(accountant.get_epsilon(delta=delta)) if accountant.history else 0.0
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

    Records lie along `dim` of a batch; what a network gives for one must not depend on the others.
    Returned are `mixes`, whether other records' outputs changed, and `by` how much, relatively;
    `buffers` that learn from records; `carried`, attributes that a pass leaves to the next, where
    the next gives something else by them. Or `unseen`: why the repeats show nothing.
    """
    sizes = [t.shape[dim] for t in tree_flatten((args, kwargs))[0] if _has_dim(t, dim)]
    batch = sizes[0] if sizes else 0
    if batch < 3:
        return {"unseen": f"a forward pass with a batch of {batch}; 3 records are needed"}

    def exchange(leaf: Any) -> Any:  # the second record is in the place of the first, too
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
    triples = zip(first, again, changed, strict=True)
    outputs = [t for t in triples if _has_dim(t[0], dim) and t[0].shape[dim] == batch]
    if not outputs:
        return {"unseen": "the network gives nothing with a row for each record of its batch"}
    if any(not torch.equal(a, b) for a, b, _ in outputs):
        return {"unseen": "a forward pass repeated with the same generators gave another result"}
    if all(torch.equal(a, b) for a, b in zip(first, following, strict=True)):
        carried = []
    others = [[t.narrow(dim, 1, batch - 1) for t in (a, c)] for a, _, c in outputs]
    by = max(float((a - c).abs().max()) / (float(a.abs().max()) or 1.0) for a, c in others)
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
    with preserve_generators():
        outputs = module.forward(*inputs[0], **inputs[1])
    after = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    return [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor)], after


@contextlib.contextmanager
def _attributes_preserved(module: Any) -> Iterator[Callable[[], list[str]]]:
    """Puts layers' attributes back, and tensors in them; gives what names those changed so far."""
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

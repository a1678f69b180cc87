"""Names what is returned or saved, and what of it carries more than releases."""

from __future__ import annotations

import collections
import gc
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from ..protocol import Leftovers
from .run_state import WatchedRun
from .shared_records import is_statistic
from .tensors import digest, has_numbers, sample_digest

Kind = Literal[
    "gradients", "other_gradients", "examples", "saved", "outside", "earlier", "statistics",
    "tensors",
]  # fmt: skip
Remark = tuple[Kind, str]  # a field of `Leftovers`, and a name in it


def digests_of_all_networks() -> set[bytes]:
    """Returns digests of what is in any network of this process: one may be returned later."""
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
    """Yields name, class of its network, and value of each tensor of numbers saved with `value`.

    Of networks it is all that `state_dict` has. Containers are walked through; arrays of numpy and
    JAX come as tensors.
    """
    if type(value).__module__.partition(".")[0] in ("numpy", "jax", "jaxlib"):
        array = np.array(value)
        value = torch.from_numpy(array) if array.dtype.kind == "f" else None
    prefix = f"{name}." if name else ""
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


def pin_publications(run: WatchedRun, value: Any, file: str = "") -> None:
    """Notes digests of all tensors that are returned, or saved in a file, but of public ones."""
    for key, kind, tensor in named_tensors(value):
        if not run.publications.is_public(key, kind):
            run.publications.pinned.append((file + key, digest(tensor).hex()))


def leftovers(remarks: Iterable[Remark]) -> Leftovers:
    """Collects remarks by their kind."""
    names = collections.defaultdict[str, list[str]](list)
    for kind, name in remarks:
        names[kind].append(name)
    return Leftovers(**{kind: tuple(values) for kind, values in names.items()})


def remarks(run: WatchedRun, value: Any, file: str = "") -> list[Remark]:
    """Names tensors of what is returned, or saved in a file, that carry more than releases."""
    if not run.request.inspects:
        return []
    known = _KnownTensors(run, is_file=bool(file))
    for key, kind, tensor in named_tensors(value):
        known.check(key, kind, tensor, file)
    if known.shapes and known.unmatched == known.shapes:
        # Releases are of other shapes than what is returned.
        return [remark for remark in known.remarks if remark[0] != "tensors"]
    return known.remarks


class _KnownTensors:
    """Tensors that may be published: private parameters, and what networks had before."""

    def __init__(self, run: WatchedRun, is_file: bool) -> None:
        self._run = run
        self.remarks: list[Remark] = []
        self._released: dict[int, torch.Tensor] = {}  # gradients, by parameter
        private = [p for p in run.networks.parameters().values() if p.requires_grad]
        states: list[Any] = []
        for watched in run.optimizers:
            params = watched.optimizer.params
            private += params
            states += watched.optimizer.original_optimizer.state.values()
            for p, values in zip(params, watched.last or [], strict=False):
                self._released[id(p)] = torch.from_numpy(values)
        self._private = set(map(id, private))
        # States of optimizers are of private gradients, as parameters are.
        processed = [*private, *filter(has_numbers, tree_flatten(list(map(dict, states)))[0])]
        early_file = is_file and not run.releases
        before = digests_of_all_networks() if early_file else run.publications.before
        self._explained = before | set(map(digest, processed))
        self.shapes = collections.Counter[tuple[int, ...]]()  # of releases of loops
        for stream in run.streams.values():
            self.shapes.update(stream.released_shapes)
        self.unmatched = self.shapes.copy()

    def check(self, key: str, network: str, tensor: torch.Tensor, file: str) -> None:
        """Adds what there is to remark of one tensor."""
        name = file + key
        if not file:
            self._check_gradient(name, tensor)
        if getattr(tensor, "grad_sample", None) is not None:
            self.remarks.append(("saved" if file else "examples", name))
        if not self._run.publications.is_public(key, network):
            self._check_values(name, tensor)

    def _check_gradient(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.grad is None or not bool(tensor.grad.any()):
            return
        values = self._released.get(id(tensor))
        gradient = tensor.grad.detach().cpu().double().reshape(-1)
        if values is None or not torch.equal(gradient.nan_to_num(), values.nan_to_num()):
            is_private = id(tensor) in self._private
            self.remarks.append(("gradients" if is_private else "other_gradients", name))

    def _check_values(self, name: str, tensor: torch.Tensor) -> None:
        run = self._run
        watched, step = run.publications.versions.get(sample_digest(tensor), (None, 0))
        is_private = id(tensor) in self._private
        if id(tensor) in run.updates.since_private:
            self.remarks.append(("outside", name))
        elif watched is not None and step < watched.steps:
            self.remarks.append(("earlier", f"{name} of step {step} of {watched.steps}"))
        elif not is_private and is_statistic(tensor, run.networks.data):
            self.remarks.append(("statistics", name))
        elif digest(tensor) not in self._explained:
            shape = tuple(tensor.shape)
            if not run.networks.modules and self.unmatched[shape] > 0:
                self.unmatched[shape] -= 1
            else:
                self.remarks.append(("tensors", name))

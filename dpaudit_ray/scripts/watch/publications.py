"""Names values that are returned or saved, and finds those that carry more than releases."""

import collections
import contextlib
import gc
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch

from ..protocol import Leftover
from .generators import is_torch_state
from .hooks import is_of_user
from .run_state import WatchedRun
from .shared_records import PrivateRecords, tables_of
from .tensors import (
    digest,
    has_numbers,
    hex_digest,
    is_array,
    is_numeric,
    sample_digest,
    tree_leaves,
)

_FEWEST_CYCLES = 2  # more cycles of equal length show that no record chose the published steps

Remark = tuple[Leftover, str]  # kind of leftover, and name of the value


def digests_of_all_networks() -> set[bytes]:
    """Returns digests of all tensors in networks of this process, as any may be returned later."""
    gc.unfreeze()  # else objects that were imported before the fork would be missing
    # Not isinstance: it asks some objects for their class, and they warn or fail.
    networks = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.nn.Module) and "_parameters" in vars(thing)
    ]
    # A layer is part of several networks: each tensor is read once.
    tensors = {id(part): part for _, _, part in named_values(networks)}
    return {digest(part) for part in tensors.values() if has_numbers(part, least=0)}


def named_values(
    value: Any,
    name: str = "",
    is_saved: bool = True,
    ancestors: tuple[int, ...] = (),
) -> Iterator[tuple[str, str, Any]]:
    """Yields (name, class of the network that has it or "", value) for each part of a value.

    Parts of a network are the entries of its `state_dict`. Parts of an object of scikit-learn or
    scipy, or of the script's own class, are the attributes that pickle saves. Containers are
    divided, except those of only numbers and texts. Arrays of numpy, JAX and pandas come as
    tensors, arrays of texts as lists.

    Args:
        value: value that is saved or returned.
        name: name of the value; "" for a whole file.
        is_saved: whether it is saved, and not only returned. A returned object of the script's own
            class, such as a trainer, may have the data in its attributes. So its attributes count
            as published only if it is of a data class.
        ancestors: identities of the objects that contain the value, as objects may contain each
            other.
    """
    package = type(value).__module__.partition(".")[0]
    if package in ("numpy", "jax", "jaxlib", "pandas"):
        value = _as_tensor(value)
    elif id(value) in ancestors:
        return
    ancestors = (*ancestors, id(value))
    prefix = f"{name}." if name else ""
    if isinstance(value, torch.nn.Module):
        network = getattr(value, "_module", value)  # Opacus wraps the user's network
        for key, part in network.state_dict(keep_vars=True).items():
            yield prefix + key, type(network).__name__, part
    elif isinstance(value, torch.Tensor):
        # A quantised tensor has whole numbers, and a scale for them.
        tensor = value.dequantize() if value.is_quantized else value
        yield name or "a tensor", "", tensor
    elif _is_plain(value):
        yield name or "a value", "", value
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from named_values(part, f"{prefix}{key}", is_saved, ancestors)
    else:
        is_of_library = package in ("sklearn", "scipy")
        is_published = is_of_user(value) and (is_saved or is_dataclass(value))
        if is_of_library or is_published:
            attributes = value.__getstate__()  # those that pickle saves
            yield from named_values(attributes, name, is_saved, ancestors)


def _as_tensor(value: Any) -> Any:
    """Returns an array's numbers as a tensor, and its other values as a list.

    Returns None for memory of scipy, such as the nodes of a tree, which has addresses in it.
    """
    array = np.array(value)
    if array.dtype == "S1":
        return None
    if array.dtype.kind == "u":  # PyTorch lacks most unsigned types
        array = array.astype(np.int64)
    return torch.from_numpy(array) if array.dtype.kind in "fib" else array.tolist()


def _is_plain(value: Any) -> bool:
    """Returns whether a value is a number, text or bytes, or a collection of only those."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_plain, value))
    return isinstance(value, (str, bytes, int, float))


def pin_publications(run: WatchedRun, value: Any, file: str = "") -> None:
    """Notes names and digests of the parts of a value, except of public parts.

    Args:
        run: a run with pinned releases.
        value: value that is returned or saved.
        file: name of the file, with a separator; "" for a value that is returned.
    """
    publications = run.publications
    for key, network, part in named_values(value, is_saved=bool(file)):
        if publications.is_public(key, network):
            continue
        if is_array(part, least_dim=0):
            publications.pinned.append((file + key, digest(part).hex()))
            if part.grad is not None and not file:
                publications.pinned.append((f"{key}.grad", digest(part.grad).hex()))
        elif _is_plain(part):
            # The order of a set differs between runs.
            text = repr(sorted(map(repr, part)) if isinstance(part, set) else part)
            publications.pinned.append((file + key, hex_digest(text.encode())))


def leftovers(remarks: Iterable[Remark]) -> dict[Leftover, list[str]]:
    """Returns the names of remarked values, by kind of leftover."""
    names: dict[Leftover, list[str]] = {}
    for kind, name in remarks:
        names.setdefault(kind, []).append(name)
    return names


def remarks(run: WatchedRun, value: Any, file: str = "") -> list[Remark]:
    """Names the parts of a value that carry more than releases; none if the run inspects nothing.

    Args:
        run: the run.
        value: value that is returned or saved in a file.
        file: name of the file, with a separator; "" for a value that is returned.
    """
    if not run.request.inspects:
        return []
    tensors = _KnownTensors(run, file)
    states: list[Remark] = []
    has_numbers_beside = False
    for key, network, part in named_values(value, is_saved=bool(file)):
        is_public = run.publications.is_public(key, network)
        # A single number counts only if a network has it.
        has_floats = has_numbers(part, least=0 if network else 1)
        if has_floats:
            has_numbers_beside = True
            tensors.check_gradients(file + key, part)
        elif is_torch_state(part):
            states.append(("states", file + key))
        if not is_public:
            check = tensors.check_values if has_floats else tensors.check_records
            check(file + key, part)
            run.publications.more |= not (has_floats or network)
    tensors.check_attributes(value)
    # Trainers save states in files of their own, from which they resume, and which nobody shares.
    if has_numbers_beside:
        tensors.remarks += states
    ignored = set()
    if tensors.has_each_cycle:  # no record chose these steps
        ignored.add("earlier")
    if tensors.shapes and tensors.unmatched == tensors.shapes:
        # Nothing that is returned has the shape of a release, so it need not be a release.
        ignored.add("tensors")
    return [(kind, name) for kind, name in tensors.remarks if kind not in ignored]


def _private_records(run: WatchedRun) -> PrivateRecords:
    """Returns the private records in memory, computed once for each collection of data sets."""
    sources = [*run.networks.data, *run.pinned.tables]
    key = tuple(map(id, sources))
    records = run.publications.records
    if key not in records:
        tables = list(map(torch.as_tensor, run.pinned.tables))
        for data in run.networks.data:
            tables += tables_of(data)
        records[key] = PrivateRecords(tables)
    return records[key]


class _KnownTensors:
    """Tensors that may be published: private parameters, and tensors that networks had before.

    Its methods check published values, and remark on those that are none of these tensors.

    Attributes:
        remarks: remarks on the values that were checked.
        shapes: shapes of the last releases of loops without Opacus, with their counts.
        unmatched: the part of `shapes` that no published tensor has had so far.
    """

    def __init__(self, run: WatchedRun, file: str) -> None:
        """Collects the tensors of a run that are known by now.

        Args:
            run: the run.
            file: name of the file that is saved, with a separator; "" for returned values.
        """
        self._run = run
        self._file = file
        self._records = _private_records(run)
        self.remarks: list[Remark] = []
        self._released: dict[int, torch.Tensor] = {}  # gradients, by parameter
        private = [p for p in run.networks.parameters().values() if p.requires_grad]
        states = []
        for watched in run.optimizers:
            params = watched.optimizer.params
            private += params
            states += watched.optimizer.original_optimizer.state.values()
            for p, vector in zip(params, watched.last_release or [], strict=False):
                self._released[id(p)] = torch.from_numpy(vector)
        self._private = set(map(id, private))
        # States of optimizers are computed from private gradients, as parameters are.
        processed = [*private, *filter(has_numbers, tree_leaves(list(map(dict, states))))]
        self._explained = run.publications.before | set(map(digest, processed))
        if file and not run.releases:  # the value is saved before the first private step
            self._explained |= digests_of_all_networks()
        self.shapes = collections.Counter[tuple[int, ...]]()
        for stream in run.streams.values():
            self.shapes.update(stream.released_shapes)
        self.unmatched = self.shapes.copy()
        self._earlier_steps: set[int] = set()
        self._last_step = 0

    @property
    def has_each_cycle(self) -> bool:
        """Whether the published parameters are of steps at equal distances, which no record chose.

        An example are checkpoints after each epoch.
        """
        gaps = np.diff([0, *sorted(self._earlier_steps), self._last_step])
        return len(gaps) > _FEWEST_CYCLES and len(set(gaps.tolist())) == 1

    def check_gradients(self, name: str, tensor: torch.Tensor) -> None:
        """Remarks on gradients of a published tensor that were never released."""
        file = self._file
        if getattr(tensor, "grad_sample", None) is not None:
            self.remarks.append(("saved" if file else "examples", name))
        if file or tensor.grad is None or not bool(tensor.grad.any()):
            return
        values = self._released.get(id(tensor))
        gradient = tensor.grad.detach().cpu().reshape(-1)
        if values is not None:
            values = values.to(gradient.dtype)  # a network may be published in half precision
        if values is None or not torch.equal(gradient.nan_to_num(), values.nan_to_num()):
            is_private = id(tensor) in self._private
            self.remarks.append(("gradients" if is_private else "others", name))

    def check_records(self, name: str, value: Any) -> bool:
        """Remarks on an array, or a list of numbers, that is records or a statistic of them.

        Returns:
            Whether there is a remark.
        """
        if isinstance(value, (list, tuple)):
            with contextlib.suppress(ValueError):  # rows of several lengths
                value = _as_tensor(value)
        if not is_array(value) or id(value) in self._private:
            return False
        if self._records.has_rows_of(value):
            self.remarks.append(("records", name))
        elif self._records.is_statistic(value):
            self.remarks.append(("statistics", name))
        else:
            return False
        return True

    def check_attributes(self, value: Any) -> None:
        """Remarks on attributes of networks that are records: a pickled network has attributes."""
        networks = [part for part in tree_leaves(value) if isinstance(part, torch.nn.Module)]
        for layer in torch.nn.ModuleList(networks).modules():
            for name, part in vars(layer).items():
                is_public = self._run.publications.is_public(name)
                has_values = is_array(part) or is_numeric(part)
                if is_public or not has_values:
                    continue
                if self._records.has_rows_of(torch.as_tensor(part)):
                    self.remarks.append(("records", self._file + name))

    def check_values(self, name: str, tensor: torch.Tensor) -> None:
        """Remarks on a tensor that is neither a private parameter nor known from before."""
        run = self._run
        watched, step = run.publications.versions.get(sample_digest(tensor), (None, 0))
        if watched is not None and step < watched.steps:
            self._earlier_steps.add(step)
            self._last_step = watched.steps
            self.remarks.append(("earlier", f"{name} of step {step} of {watched.steps}"))
        elif not self.check_records(name, tensor) and digest(tensor) not in self._explained:
            shape = tuple(tensor.shape)
            # In a loop without Opacus, it may be a parameter, which has the shape of a release.
            if not run.networks.modules and self.unmatched[shape] > 0:
                self.unmatched[shape] -= 1
            else:
                self.remarks.append(("tensors", name))

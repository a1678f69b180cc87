"""What else the private records go into: training without noise, and statistics."""

import collections
import contextlib
from typing import Any

import torch

from .held_runs import arrays_of
from .run_state import WatchedRun, around
from .step_probe import digest

_PASSES = 3  # of each network that are looked at
_MOST_ROWS = 200_000
_FEWEST = 30  # records that have statistics
_CLOSE, _ABOUT = 1e-4, 1e-3  # two ways of computing the same differ by less


def install(run: WatchedRun) -> None:
    """Watches what networks are given from now on."""
    passes = collections.Counter[int]()

    @around(torch.nn.Module, "__call__")
    def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if run.looks and self.training and torch.is_grad_enabled() and passes[id(self)] < _PASSES:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            if tensors and tensors[0].dim() > 1 and len(tensors[0]):
                passes[id(self)] += 1
                with contextlib.suppress(RuntimeError):  # in torch.func, tensors have no numbers
                    row = digest(tensors[0][0])
                    private = {p for module in run.modules for p in module.parameters()}
                    for p in set(self.parameters()) - private:
                        run.fed.setdefault(id(p), (p, type(self).__name__, set()))[2].add(row)
        return original(self, *args, **kwargs)


def _rows_of(data: Any) -> list[Any]:
    """Arrays of a data set's own records, a record in each row."""
    indices = getattr(data, "indices", None)
    arrays = arrays_of(data)
    return arrays if indices is None else [array[torch.as_tensor(indices)] for array in arrays]


def row_digests(data: Any) -> set[bytes]:
    """Digests of all records of a data set, as networks are given them."""
    rows = [a for a in _rows_of(data) if a.ndim > 1 and len(a) <= _MOST_ROWS]
    return {digest(torch.as_tensor(row)) for array in rows for row in array}


def statistics(data: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Mean and standard deviation of the columns of a data set, of each array that it holds."""
    tables = [t for t in map(torch.as_tensor, _rows_of(data)) if t.is_floating_point()]
    tables = [t.flatten(1).double() for t in tables if t.dim() > 1 and len(t) >= _FEWEST]
    return [(table.mean(0), table.std(0)) for table in tables]


def standardised_columns(data: Any) -> int:
    """How many columns there are, if all have mean 0 and deviation 1 but for rounding; else 0."""
    for mean, deviation in statistics(data):
        # Divided by n or n - 1, and with something small added to the deviation.
        scaled = deviation[deviation > 0]
        if len(scaled) > 1 and mean.abs().max() < _CLOSE and (scaled - 1).abs().max() < _ABOUT:
            return len(scaled)
    return 0


def is_statistic(tensor: torch.Tensor, datas: list[Any]) -> bool:
    """Whether a tensor is one of these statistics of a data set; constants are none."""
    values = tensor.detach().reshape(-1).double()
    return len(values) > 1 and any(
        len(values) == len(moment)
        and float(moment.std()) > _CLOSE
        and torch.allclose(values, moment, rtol=_ABOUT, atol=_CLOSE)
        for data in datas
        for moments in statistics(data)
        for moment in moments
    )


def elsewhere(run: WatchedRun) -> dict[str, Any]:
    """What the private records of a run went into beside private steps.

    `warmed`: private parameters that they trained before, or copies of what they trained;
    `beside`: classes of other networks that they trained without noise; `standardised`: columns
    that were scaled by themselves; and whether engines `shared` them.
    """
    if not run.request.looks:
        return {}
    rows: set[bytes] = set().union(*map(row_digests, run.data))
    private = {id(p): p for module in run.modules for p in module.parameters()}
    ids = list(map(id, run.data))
    raw = {key: "" for key, (_, data) in run.warmed.items() if id(data) in ids}
    for key in run.outside_params.keys() & run.fed.keys():
        if run.fed[key][2] & rows:
            raw[key] = run.fed[key][1]
    warmed = [key for key in private if key in raw or run.copies.get(key) in raw]
    others = {name for key, name in raw.items() if name and key not in private and not warmed}
    return {
        "warmed": run.parameter_names([private[key] for key in warmed]), "beside": sorted(others),
        "standardised": max(map(standardised_columns, run.data), default=0),
        "shared": len(set(ids)) < len(ids),
    }  # fmt: skip

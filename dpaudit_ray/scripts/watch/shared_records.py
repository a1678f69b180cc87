"""Compares what is published with simple functions of the private records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .private_arrays import arrays_of
from .tensors import digest

_MOST_ROWS = 200_000
_FEWEST = 30  # records that have statistics
# Two ways of computing the same differ by less.
_ABSOLUTE = 1e-4
_RELATIVE = 1e-3


def _rows_of(data: Any) -> list[Any]:
    """Returns arrays of a data set's own records, a record in each row."""
    indices = getattr(data, "indices", None)
    arrays = arrays_of(data)
    if indices is None:
        return arrays
    return [array[torch.as_tensor(indices)] for array in arrays]


def row_digests(data: Any) -> set[bytes]:
    """Returns digests of all records of a data set, as networks are given them."""
    digests: set[bytes] = set()
    for array in _rows_of(data):
        if array.ndim > 1 and len(array) <= _MOST_ROWS:
            digests.update(digest(torch.as_tensor(row)) for row in array)
    return digests


def _tables(data: Any) -> list[torch.Tensor]:
    tables = [t for t in map(torch.as_tensor, _rows_of(data)) if t.is_floating_point()]
    return [t.flatten(1).double() for t in tables if t.dim() > 1 and len(t) >= _FEWEST]


def statistics(data: Any) -> list[torch.Tensor]:
    """Returns mean and standard deviation of the columns of each array of a data set."""
    moments: list[torch.Tensor] = []
    for table in _tables(data):
        moments += [table.mean(0), table.std(0)]
    return moments


def standardised_columns(data: Any) -> int:
    """Returns the number of columns if all have mean 0 and deviation 1 but for rounding; else 0."""
    for table in _tables(data):
        deviation = table.std(0)
        # Divided by n or n - 1, and with something small added to the deviation.
        scaled = deviation[deviation > 0]
        is_centred = table.mean(0).abs().max() < _ABSOLUTE
        if len(scaled) > 1 and is_centred and (scaled - 1).abs().max() < _RELATIVE:
            return len(scaled)
    return 0


def is_statistic(tensor: torch.Tensor, datas: Iterable[Any]) -> bool:
    """Returns whether a tensor is such a statistic of a data set, and not constant."""
    values = tensor.detach().reshape(-1).double()
    if len(values) < 2:
        return False
    for data in datas:
        for moment in statistics(data):
            varies = len(values) == len(moment) and float(moment.std()) > _ABSOLUTE
            if varies and torch.allclose(values, moment, rtol=_RELATIVE, atol=_ABSOLUTE):
                return True
    return False

"""Compares published values with the private records, and with simple functions of them."""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from .tensors import row_keys

_MOST_PARTS = 10  # parts of a data set's attribute; a longer list is a list of records
_MOST_ROWS = 200_000  # rows of a table that are compared
_MOST_PRODUCTS = 2**22  # products of a tensor's rows with records
_MOST_CLASSES = 100  # classes of which means are computed
_MOST_COLUMNS = 200  # columns whose correlations are computed
_EQUAL_SHARE = 0.1  # share of rows that may equal others by chance
_LIMIT = 4.0  # standard deviations above the number of rows that are equal by chance
_FEWEST_COLUMNS = 4  # fewer columns may be uncorrelated by chance
_FEWEST_RECORDS = 30  # records of which statistics are computed
_FEWEST_LABELS = 16  # labels in a vector that is compared; fewer may be equal by chance
_LONG_ROW = 8  # numbers of a row; shorter rows may be equal by chance
_FEWEST_VALUES = 3  # different values of a row; or repetitions of each of two values
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
# Two ways of computing the same number differ by less.
_ABSOLUTE_TOLERANCE = 1e-4
_RELATIVE_TOLERANCE = 1e-3


def base_and_rows(data: Any) -> tuple[Any, list[int] | None]:
    """Returns the data set that a subset is taken from, and the subset's indices there.

    The indices are None if the data set is no subset. A concatenation of subsets of one data set
    is a subset, too.
    """
    if isinstance(data, ConcatDataset):
        parts = list(map(base_and_rows, data.datasets))
        base = parts[0][0]
        if all(part is base for part, _ in parts):
            joined: list[int] = []
            for _, rows in parts:
                joined += range(len(base)) if rows is None else rows
            return base, joined
    if not isinstance(data, Subset):
        return data, None
    base, rows = base_and_rows(data.dataset)
    indices = list(map(int, data.indices))
    return base, indices if rows is None else [rows[index] for index in indices]


def arrays_of(data: Any) -> list[Any]:
    """Returns the tensors and numpy arrays of a data set that have one row for each record."""
    parts: list[Any] = []
    if not hasattr(data, "__len__"):  # a stream
        return parts
    for value in getattr(data, "__dict__", {}).values():
        is_short = isinstance(value, (tuple, list)) and len(value) < _MOST_PARTS
        parts += value if is_short else [value]
    arrays = [v for v in parts if isinstance(v, (np.ndarray, torch.Tensor)) and v.ndim > 0]
    return [array for array in arrays if len(array) == len(data)]


def tables_of(data: Any) -> list[torch.Tensor]:
    """Returns the arrays of a data set with one row for each record; of a subset, only its rows."""
    base, rows = base_and_rows(data)
    tables = list(map(torch.as_tensor, arrays_of(base)))
    if rows is not None:
        tables = [table[torch.as_tensor(rows)] for table in tables]
    return [table for table in tables if len(table) <= _MOST_ROWS]


def keys_of(tables: Iterable[torch.Tensor]) -> set[bytes]:
    """Returns the keys of all rows of those arrays that have two or more dimensions."""
    return set(_counts(tables))


def _counts(tables: Iterable[torch.Tensor]) -> Counter[bytes]:
    """Counts the rows of those arrays that have two or more dimensions, by their keys."""
    counts: Counter[bytes] = Counter()
    for table in tables:
        if table.dim() > 1:
            counts.update(row_keys(table))
    return counts


def share_records(first: Any, second: Any) -> bool:
    """Returns whether two data sets have a record in common, as far as arrays in memory show.

    A few rows may be equal by chance: then rows of one data set are equal about as often.
    """
    base, rows = base_and_rows(first)
    other_base, other_rows = base_and_rows(second)
    if base is other_base:
        return rows is None or other_rows is None or not set(rows).isdisjoint(other_rows)
    counts = _counts(tables_of(first))
    other_counts = _counts(tables_of(second))
    equal = sum(count * other_counts[key] for key, count in counts.items())
    # Ordered pairs of equal rows in the same data set: those in both together, without the pairs of
    # a row of each.
    equal_inside = sum(n * (n - 1) for n in (counts + other_counts).values()) - 2 * equal
    total = counts.total()
    other_total = other_counts.total()
    pairs_inside = total * (total - 1) + other_total * (other_total - 1)
    by_chance = equal_inside / max(1, pairs_inside) * total * other_total
    # Among too many equal rows, common records would not be noticed.
    is_hidden = by_chance > _EQUAL_SHARE * min(total, other_total)
    return equal > 0 and (is_hidden or equal > by_chance + _LIMIT * math.sqrt(by_chance))


def groups_by_records(datas: Sequence[Any], owners: Sequence[Any]) -> list[int]:
    """Numbers data sets; data sets of one owner, or with a common record, have the same number."""
    groups: list[int] = []
    for number, data in enumerate(datas):
        joined = set()  # earlier groups that this data set connects
        for earlier in range(number):
            if owners[earlier] is owners[number] or share_records(datas[earlier], data):
                joined.add(groups[earlier])
        group = min(joined, default=number)
        groups = [group if other in joined else other for other in groups] + [group]
    return groups


def common_scale(data: Any) -> str:
    """Returns in words what shows that columns were scaled by their own statistics, or ""."""
    for table in _wide_tables(tables_of(data)):
        varying = table[:, table.amax(0) > table.amin(0)]
        columns = varying.shape[1]
        is_centred = columns > 1 and varying.mean(0).abs().max() < _ABSOLUTE_TOLERANCE
        # The tolerance allows for deviations by n or n - 1, and a small number added to them.
        if is_centred and (varying.std(0) - 1).abs().max() < _RELATIVE_TOLERANCE:
            return "have mean 0 and deviation 1"
        if columns < _FEWEST_COLUMNS:
            continue
        extremes = torch.stack([varying.amin(0), varying.amax(0)])
        # Scaled by its own extremes, a column has each of them once. Many records share the least
        # or greatest value of a pixel, so that these show nothing.
        is_single = ((varying == extremes[:, None]).sum(1) == 1).all()
        if is_single and torch.allclose(
            extremes, extremes[:, :1], rtol=0, atol=_ABSOLUTE_TOLERANCE
        ):
            return "have the same least and greatest value"
        if _off_diagonal(torch.corrcoef(varying[:, :_MOST_COLUMNS].T)) < _ABSOLUTE_TOLERANCE:
            return "are uncorrelated"
    return ""


def _off_diagonal(matrix: torch.Tensor) -> float:
    """Returns the largest absolute value off the diagonal."""
    return float((matrix - matrix.diag().diag()).abs().max())


def _wide_tables(tables: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns tables with several columns and enough records, as float64 [records, columns]."""
    wide = [t for t in tables if t.dim() > 1 and len(t) >= _FEWEST_RECORDS and not t.is_complex()]
    return [table.flatten(1).double() for table in wide]


class PrivateRecords:
    """Private records in memory, with which published values are compared."""

    def __init__(self, tables: Sequence[torch.Tensor]) -> None:
        """Notes lengths of rows, and tables with one number for each record, as labels are.

        Args:
            tables: arrays with a record in each row.
        """
        self._tables = tables
        self._row_sizes = {t[0].numel() for t in tables if t.dim() > 1 and len(t)}
        labels = [t.flatten() for t in tables if t.numel() == len(t)]
        self._labels = [t for t in labels if len(t) >= _FEWEST_LABELS]

    @functools.cached_property
    def _rows(self) -> set[bytes]:
        """Keys of the records; see `row_keys`."""
        return keys_of(self._tables)

    @functools.cached_property
    def _statistics(self) -> list[torch.Tensor]:
        """Statistics of the records that a script may compute: a number for each column or class.

        Statistics of columns are moments, sums, counts of nonzeros, means of each class, and
        quantiles: the value below the quantile, the one above, and their interpolation. The
        quantiles 0 and 1 are the extremes. Vectors of nearly equal numbers are left out, since
        other values would match them by chance. Entries of a column with a missing value (NaN), or
        of a class without records, may not be finite.
        """
        values = []
        tables = _wide_tables(self._tables)
        for table in tables:
            nonzeros = (table != 0).double().sum(0)
            values += [
                table.mean(0),
                table.std(0),
                table.sum(0),
                nonzeros,
                nonzeros / len(table),
            ]
            order = table.sort(0).values
            for quantile in _QUANTILES:
                rank = quantile * (len(table) - 1)
                low, high = order[math.floor(rank)], order[math.ceil(rank)]
                values += [low, high, torch.lerp(low, high, rank % 1)]
        for labels in self._labels:
            if not labels.is_floating_point() and int(labels.min()) >= 0:
                counts = torch.bincount(labels.long()).double()
                shares = counts / len(labels)
                # Logit adjustment adds the log of the shares, -inf for a class without records.
                values += [counts, shares, shares.log()]
                for table in tables:
                    if len(counts) <= _MOST_CLASSES and len(table) == len(labels):
                        sums = torch.zeros(len(counts), table.shape[1]).to(table)
                        means = sums.index_add(0, labels.long(), table) / counts[:, None]
                        values += [means.flatten(), *means]
        return [v for v in values if float(v[v.isfinite()].std()) > _ABSOLUTE_TOLERANCE]

    def has_rows_of(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor has private records as rows, or is a record, or labels."""
        tensor = tensor.detach().cpu()
        if tensor.dim() == 1:
            return self._is_first_labels(tensor) or self._has_records(tensor.unsqueeze(0))
        return tensor.dim() > 1 and self._has_records(tensor[:_MOST_ROWS])

    def _has_records(self, rows: torch.Tensor) -> bool:
        """Returns whether rows are private records, and not equal to them by chance.

        Short rows may be equal by chance: at least three, and half of all, must be records.
        """
        if len(rows) == 0 or rows[0].numel() not in self._row_sizes:
            return False
        matches = [index for index, key in enumerate(row_keys(rows)) if key in self._rows]
        is_long = rows[0].numel() >= _LONG_ROW
        if not is_long and len(matches) < max(_FEWEST_VALUES, len(rows) / 2):
            return False
        return any(_is_varied(rows[index]) for index in matches)

    def _is_first_labels(self, tensor: torch.Tensor) -> bool:
        """Returns whether a vector is the labels of the first records."""
        if len(tensor) < _FEWEST_LABELS or not _is_varied(tensor.diff()):
            # Steps are (nearly) equal: an index or a constant, which other values would match.
            return False
        return any(torch.equal(tensor, labels[: len(tensor)]) for labels in self._labels)

    def is_statistic(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is a statistic of the records' columns, and not constant."""
        tensor = tensor.detach().cpu().double()
        values = tensor.reshape(-1)
        if len(values) == 1:
            return self._is_label_statistic(float(values))
        for other in self._statistics:
            if len(other) == len(values):
                finite = other.isfinite()
                if torch.allclose(
                    values[finite],
                    other[finite],
                    rtol=_RELATIVE_TOLERANCE,
                    atol=_ABSOLUTE_TOLERANCE,
                ):
                    return True
        sides = (tensor, tensor.T) if tensor.dim() == 2 else ()
        return any(map(self._is_fitted, sides))

    def _is_label_statistic(self, number: float) -> bool:
        """Returns whether a number is a mean, logit or deviation of labels.

        Round numbers do not count: a script may have them as constants.
        """
        if math.isclose(number, round(number, 2), rel_tol=_RELATIVE_TOLERANCE):
            return False
        for labels in self._labels:
            mean = labels.double().mean()
            for value in (mean, mean.logit(), labels.double().std()):
                if math.isclose(number, float(value), rel_tol=_RELATIVE_TOLERANCE / 100):
                    return True
        return False

    def _is_fitted(self, rows: torch.Tensor) -> bool:
        """Returns whether rows are principal axes of the records, or centres of k-means."""
        if not any(map(_is_varied, rows)):
            return False
        for table in self._tables:
            is_small = len(rows) * len(table) <= _MOST_PRODUCTS
            if is_small and table[:1].numel() == rows.shape[1]:
                for wide in _wide_tables([table]):
                    fits = (_has_axes, _has_centres, _has_covariance)
                    if any(fit(rows, wide) for fit in fits):
                        return True
        return False


def _has_axes(rows: torch.Tensor, table: torch.Tensor) -> bool:
    """Returns whether a row is a principal axis of the columns, centred at 0 or at their means.

    Args:
        rows: vectors [n, columns].
        table: the records [records, columns].
    """
    # If an arbitrary vector is an eigenvector, every vector is, and the rows show nothing.
    arbitrary = torch.arange(table.shape[1]).cos().to(table)
    vectors = torch.cat([arbitrary[None], rows])
    for centred in (table, table - table.mean(0)):
        images = vectors @ centred.T @ centred
        factors = (images * vectors).sum(1) / vectors.square().sum(1)
        residuals = images - factors[:, None] * vectors
        is_axis = residuals.norm(dim=1) < _RELATIVE_TOLERANCE * images.norm(dim=1)
        if not is_axis[0] and any(map(_is_varied, rows[is_axis[1:]])):
            return True
    return False


def _has_centres(rows: torch.Tensor, table: torch.Tensor) -> bool:
    """Returns whether each row is the mean of the records that are nearest to it."""
    nearest = torch.cdist(table, rows).argmin(1)
    is_nearest = torch.nn.functional.one_hot(nearest, len(rows)).to(table)
    means = is_nearest.T @ table / is_nearest.sum(0)[:, None]
    return torch.allclose(means, rows, rtol=_RELATIVE_TOLERANCE, atol=_ABSOLUTE_TOLERANCE)


def _has_covariance(rows: torch.Tensor, table: torch.Tensor) -> bool:
    """Returns whether a matrix whitens the columns, or has the same axes as their covariance.

    A nearly diagonal matrix does not count, as it may have the same axes by chance.
    """
    if not _FEWEST_COLUMNS <= table.shape[1] <= _MOST_COLUMNS or len(rows) < _FEWEST_COLUMNS:
        return False
    covariance = torch.cov(table.T)
    images = rows @ covariance
    products = images @ rows.T  # covariance of the columns that the matrix would make
    deviations = products.diag().sqrt()
    if _off_diagonal(products / deviations / deviations[:, None]) < _ABSOLUTE_TOLERANCE:
        return True
    is_square = rows.shape[0] == rows.shape[1]
    if not is_square or _off_diagonal(rows) < _RELATIVE_TOLERANCE * float(rows.abs().max()):
        return False
    # Symmetric matrices have the same axes if they commute.
    return bool((images - covariance @ rows).norm() < _RELATIVE_TOLERANCE * images.norm())


def _is_varied(row: torch.Tensor) -> bool:
    """Returns whether numbers are so varied that other numbers hardly equal them by chance.

    There must be three different values, or two that occur three times each.
    """
    _, counts = torch.unique(row, return_counts=True)
    is_repeated = len(counts) > 1 and int(counts.min()) >= _FEWEST_VALUES
    return is_repeated or len(counts) >= _FEWEST_VALUES

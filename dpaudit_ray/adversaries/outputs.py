"""Encodes the outputs of a mechanism as numbers that a classifier learns from.

An output may be a number, a flag, a text, None, an exception, an array of any shape, a table, or a
tuple, list or mapping of these. Numbers become columns, as do facts about all numbers of an output:
how many are missing or tied, their sum, their order, where the largest is. Each text that is
frequent among the first outputs of an `Encoder` gets a column.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stats.error_rates import Floats

Outputs = NDArray[Any] | Sequence[Any]  # outputs of n releases
MOST_NUMBERS = 4096  # numbers that an output may have
_MOST_SORTED = 64  # numbers that an output may have if facts about their order are columns
_MOST_TEXTS = 64  # texts that get a separate column
_LARGEST = 1e300  # stands for infinite numbers
_LOW_BITS = 12  # last bits of a double, by which floating-point noise may differ


@dataclass(frozen=True)
class Raised:
    """An output of a release that raised an exception."""

    kind: str  # name of the exception's class
    message: str = field(default="", compare=False)  # first line of the exception, for people


@dataclass(frozen=True)
class _Flat:
    """Outputs of n releases: numbers, float64 [n, d], NaN where missing; and texts by output."""

    numbers: Floats
    texts: Sequence[tuple[str, ...]]


class Encoder:
    """Turns outputs into columns, whose number and texts depend on the `first` outputs alone.

    Args:
        first: outputs, at least one.
        bits: whether the last bits of each number are columns.

    Raises:
        ValueError: an output has too many numbers, or is of an unknown kind.
    """

    def __init__(self, first: Outputs, bits: bool = False) -> None:
        """Notes how many numbers the first outputs have, and which texts are frequent in them."""
        flat = _flat(first)
        self.numbers = flat.numbers.shape[1]
        self._bits = bits
        counts = Counter(itertools.chain.from_iterable(flat.texts))
        # The column of each frequent text.
        self._texts = {text: i for i, (text, _) in enumerate(counts.most_common(_MOST_TEXTS))}

    def columns(self, outputs: Outputs) -> Floats:
        """Returns the columns of n outputs, float64 [n, k]: finite, or NaN where missing."""
        flat = _flat(outputs)
        n, width = flat.numbers.shape
        numbers = np.full((n, self.numbers), np.nan)
        shared = min(width, self.numbers)
        numbers[:, :shared] = flat.numbers[:, :shared]
        clipped = np.clip(numbers, -_LARGEST, _LARGEST)
        columns: list[NDArray[Any]] = [clipped]
        if 1 < self.numbers <= _MOST_SORTED:
            columns.append(_facts(clipped))
        missing = np.isnan(numbers).sum(axis=1)
        columns.append(missing[:, None])
        if self._bits:
            # The bits of a double, as an integer: the last ones are the least significant.
            words = numbers.view(np.uint64)
            shifted = words[:, :, None] >> np.arange(_LOW_BITS, dtype=np.uint64)
            last_bits = shifted & np.uint64(1)
            columns.append(last_bits.reshape(n, -1))
        if self._texts:
            columns.append(self._flags(flat.texts))
        return np.concatenate(columns, axis=1, dtype=np.float64)

    def _flags(self, texts: Sequence[tuple[str, ...]]) -> Floats:
        """Counts each known text in every output, float64 [n, texts + 1].

        The last column counts unknown texts.

        Args:
            texts: texts of each output.
        """
        flags = np.zeros((len(texts), len(self._texts) + 1))
        for row, of_output in enumerate(texts):
            for text in of_output:
                flags[row, self._texts.get(text, -1)] += 1  # -1 is the last column
        return flags


def _facts(numbers: Floats) -> Floats:
    """Returns facts about the order of numbers, float64 [n, 2 d + 4].

    The facts are d sorted numbers, d - 1 differences of neighbours, and five more: the sum (over
    d, so that it is finite), numbers of ties and of changes, and the positions of the largest
    and of the smallest.

    Args:
        numbers: float64 [n, d], NaN where missing.
    """
    filled = np.nan_to_num(numbers, nan=-_LARGEST)
    rising = np.sort(filled, axis=1)
    # If numbers are running sums, their differences have the noise of single answers alone.
    differences = np.clip(np.diff(filled, axis=1), -_LARGEST, _LARGEST)
    is_tie = np.diff(rising, axis=1) == 0
    is_change = differences != 0
    facts = [  # [n] each
        (filled / filled.shape[1]).sum(axis=1),
        is_tie.sum(axis=1),
        is_change.sum(axis=1),
        filled.argmax(axis=1),
        filled.argmin(axis=1),
    ]
    return np.column_stack([rising, differences, *facts])


def _flat(outputs: Outputs) -> _Flat:
    """Flattens each output. Raises ValueError if it has too many numbers or an unknown kind."""
    if isinstance(outputs, np.ndarray) and outputs.dtype.kind in "fiub":
        numbers = outputs.reshape(len(outputs), -1).astype(np.float64)
        _check_width(numbers.shape[1])
        return _Flat(numbers, ((),) * len(numbers))
    rows = []
    texts = []
    for output in outputs:
        items = list(_items(output))
        rows.append([item for item in items if not isinstance(item, str)])
        texts.append(tuple(item for item in items if isinstance(item, str)))
    lengths = np.array([len(row) for row in rows])
    width = int(lengths.max(initial=0))
    _check_width(width)
    numbers = np.full((len(rows), width), np.nan)
    is_present = np.arange(width) < lengths[:, None]  # shorter rows end with NaN
    numbers[is_present] = list(itertools.chain.from_iterable(rows))
    return _Flat(numbers, texts)


def _check_width(width: int) -> None:
    """Raises ValueError if an output has too many numbers."""
    if width > MOST_NUMBERS:
        raise ValueError(
            f"each output may have {MOST_NUMBERS} numbers, got {width}; release a summary of them"
        )


def _items(output: Any) -> Iterator[float | str]:
    """Yields the numbers and texts of one output, in a fixed order; NaN for None."""
    if output is None:
        yield np.nan
    elif isinstance(output, Raised):
        yield f"raised {output.kind}"
    elif isinstance(output, str | bytes):
        yield str(output)
    elif isinstance(output, Mapping):
        for key in sorted(output, key=str):
            yield from _items(output[key])
    elif isinstance(output, complex | np.complexfloating):
        yield float(output.real)
        yield float(output.imag)
    elif np.isscalar(output):
        yield float(output)  # type: ignore[arg-type]
    elif hasattr(output, "to_numpy"):  # a data frame or a series
        yield from _items(output.to_numpy())
    elif isinstance(output, Sequence | np.ndarray):
        for item in np.ravel(output) if isinstance(output, np.ndarray) else output:
            yield from _items(item)
    else:
        raise ValueError(
            f"an output must be numbers, text, arrays or tables, got {type(output).__name__}; "
            "release what an attacker sees of it"
        )

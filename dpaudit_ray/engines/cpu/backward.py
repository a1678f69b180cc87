"""The way back through a convolution and its pooling: see `forward`.

It needs but the one position of each window that won, so that vectors run along rows of patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .compiled import compiled, part
from .forward import Above, Bytes, Floats, Integers, Static, Steps, positions_below
from .instructions import DEAD, gather, scatter, spread

Listed = tuple[Integers, Floats, Integers]

_LINE = 64  # bytes of the cache
_ROOM = 16  # numbers: a vector may be read and written behind the last
_FIRST = np.uint32(0)  # unsigned: Numba looks at the sign of an index else


@compiled
def to_channels_last(x: Floats, out: Floats) -> None:
    """x [N, c, positions] into out [N, positions, c]: four times as fast as torch's own copy."""
    for n in range(x.shape[0]):
        for p in range(x.shape[2]):
            for c in range(x.shape[1]):
                out[n, p, c] = x[n, c, p]


@compiled
def turned(x: Floats, out: Floats) -> None:
    """x [c, positions, N] into out [N, positions, c]; a line of x's cache at a time."""
    step = _LINE // x.itemsize
    for first in range(0, x.shape[2], step):
        for p in range(x.shape[1]):
            for c in range(x.shape[0]):
                for n in range(first, min(first + step, x.shape[2])):
                    out[n, p, c] = x[c, p, n]


def sample_gradients(
    images: Floats, above: Above, found: tuple[Floats, Floats, Floats], width: int, steps: Steps,
    static: tuple[Static, Static],
) -> None:  # fmt: skip
    """Every sample's gradients of weights and bias, and their squared norms.

    `images` as above; `above` are the gradients of the pooled outputs and the marks, both [n, B,
    h, w, o]. `found` takes weights [n, B, o, height, padded width], biases [n, B, o] or [n, B, 0],
    and squares [n, B]. `static` are those of `gather` and `spread`.
    """
    row, outputs = images.shape[3], above[1].shape[4]
    grid, own = _scratch(above, steps)
    of_windows = (steps[0] * steps[2], steps[1] * steps[3])
    starts = _places(grid.shape[:2], row, steps), _places(above[1].shape[2:4], row, of_windows)
    entries = np.zeros(DEAD + 1, dtype=np.int32)
    entries[: steps[4] * steps[5]] = _places(steps[4:], row, steps)
    places = np.empty((outputs, len(starts[0]) + 1), dtype=np.int32)
    listed = places, np.empty(places.shape, grid.dtype), np.empty(outputs, np.int64)
    scratch = (grid, own, listed, (*starts, entries))
    _sample_gradients(images, above, found, width, scratch, steps, static)


@compiled
def _sample_gradients(
    images: Floats, above: Above, found: tuple[Floats, Floats, Floats], width: int,
    scratch: tuple[Floats, Above, Listed, tuple[Integers, Integers, Integers]], steps: Steps,
    static: tuple[Static, Static],
) -> None:  # fmt: skip
    (g, marks), (formed, biases, squares) = above, found
    grid, own, listed, (positions, windows, entries) = scratch
    places, values, counts = listed
    n, batch, outputs = len(marks), marks.shape[1], marks.shape[4]
    height, padded = formed.shape[3:]
    each, row = n // images.shape[0], images.shape[3]
    arrays = (images, places, values, formed)
    for m in range(n):
        for s in range(batch):
            image = (m // each * batch + s) * images.shape[2] * row
            if steps[2] < steps[4] or steps[3] < steps[5]:  # windows overlap
                _merge(g[m, s], marks[m, s], own, grid, steps, static[1])
                _list_positions(grid, listed, positions)
            else:
                _list_windows(g[m, s], marks[m, s], listed, windows, entries)
            for o in range(outputs):
                if biases.shape[2] > 0:
                    biases[m, s, o] = _sum(values[o, : counts[o]])
                for r in range(0, height, len(static[0][1])):
                    out_at = (((m * batch + s) * outputs + o) * height + r) * padded
                    list_at = o * places.shape[1]
                    numbers = (image + r * row, list_at, out_at, counts[o], row, width)
                    gather(arrays, numbers, static[0])
            squares[m, s] = _square(formed[m, s].reshape(-1)) + _square(biases[m, s])


def _scratch(above: Above, steps: Steps) -> tuple[Floats, Above]:
    """For one sample: gradients by position, [rows, columns, o], and room for what is above.

    A vector may go beyond either's end. The first begins a line of the cache: only then is what a
    vector has just written read back at once.
    """
    g, marks = above
    shape = (*positions_below(marks, steps), marks.shape[4])
    size = math.prod(shape)
    found = np.empty(size + 2 * _ROOM, g.dtype)
    first = -found.ctypes.data % _LINE // found.itemsize
    own = marks[0, 0].size + _ROOM
    grid = found[first : first + size].reshape(shape)
    return grid, (np.empty(own, g.dtype), np.empty(own, np.uint8))


def _places(cells: Sequence[int], row: int, steps: Sequence[int]) -> Integers:
    """Where rows and columns of cells begin in an image, one row behind the other."""
    down, across = (np.arange(count, dtype=np.int32) for count in cells)
    found: Integers = (down[:, None] * (steps[0] * row) + across * steps[1]).astype(np.int32)
    return found.reshape(-1)


@part
def _merge(
    g: Floats, marks: Bytes, own: Above, grid: Floats, steps: Steps, static: Static
) -> None:  # fmt: skip
    """One sample's gradients by position, into grid: a position may win several windows."""
    (down, across, outputs), gradients = marks.shape, grid.reshape(-1)
    _copy(g.reshape(-1), own[0])
    _copy(marks.reshape(-1), own[1])
    gradients[:] = 0  # of all at once: by three axes it takes as long as all that follows
    below = grid.shape[1] * outputs
    arrays = (own[0], own[1], grid)
    for i in range(down):
        for j in range(across):
            g_at = (i * across + j) * outputs
            at = i * steps[2] * below + j * steps[3] * outputs
            for o in range(0, outputs, len(static[0])):
                spread(arrays, (g_at + o, at + o, below, outputs, outputs - o), static)


@part
def _copy(source: Any, target: Any) -> None:
    """Numba's own assignment brings its error messages along, seconds of compiling."""
    for i in range(len(source)):
        target[i] = source[i]


@part
def _list_positions(grid: Floats, listed: Listed, positions: Integers) -> None:
    """For every output the positions with a gradient: places in an image, gradients, how many."""
    outputs, gradients = grid.shape[2], grid.reshape(-1)
    for o in range(outputs):
        places, values = listed[0][o], listed[1][o]
        count, at = _FIRST, np.uint32(o)
        for p in range(len(positions)):
            places[count], values[count] = positions[p], gradients[at]
            count += np.uint32(gradients[at] != 0)
            at += np.uint32(outputs)
        listed[2][o] = count


@part
def _list_windows(
    g: Floats, marks: Bytes, listed: Listed, windows: Integers, entries: Integers
) -> None:  # fmt: skip
    """The same where a position wins one window at most."""
    outputs, gradients, numbers = marks.shape[2], g.reshape(-1), marks.reshape(-1)
    for o in range(outputs):
        places, values = listed[0][o], listed[1][o]
        count, at = _FIRST, np.uint32(o)
        for w in range(len(windows)):
            places[count], values[count] = windows[w] + entries[numbers[at]], gradients[at]
            count += np.uint32(numbers[at] != DEAD)
            at += np.uint32(outputs)
        listed[2][o] = count


@part
def _sum(values: Floats) -> Any:
    total = values.dtype.type(0)
    for i in range(len(values)):
        total += values[i]
    return total


@part
def _square(values: Floats) -> Any:
    total = values.dtype.type(0)
    for i in range(len(values)):
        total += values[i] * values[i]
    return total


def input_gradients(
    above: Above, w: Floats, images: Floats, steps: Steps, static: tuple[Static, Static]
) -> None:
    """Gradients of the images [n, B, H, row]; w [n, o, height, padded width], zeros behind a row.

    `above` and `static` as in `sample_gradients`.
    """
    image = np.empty(math.prod(images.shape[2:]) + w.shape[3], dtype=images.dtype)
    listed = np.empty(w.shape[1] + 1, dtype=np.int64)
    scratch = (*_scratch(above, steps), image, listed)
    _input_gradients(above, w, images, scratch, steps, static)


@compiled
def _input_gradients(
    above: Above, w: Floats, images: Floats, scratch: tuple[Floats, Above, Floats, Integers],
    steps: Steps, static: tuple[Static, Static],
) -> None:  # fmt: skip
    (g, marks), (grid, own, image, listed) = above, scratch
    rows, columns, outputs = grid.shape
    height, padded = w.shape[2:]
    n, batch, tall, row = images.shape
    arrays, gradients = (image, grid, w, listed), grid.reshape(-1)
    for m in range(n):
        for s in range(batch):
            image[:] = 0
            _merge(g[m, s], marks[m, s], own, grid, steps, static[1])
            for j in range(columns):
                # Down a column, patches meet in the same vectors: what one has written, the
                # next reads from the store buffer.
                for i in range(rows):
                    first = (i * columns + j) * outputs
                    count = _list_outputs(gradients[first : first + outputs], listed)
                    place = i * steps[0] * row + j * steps[1]
                    for r in range(0, height if count else 0, len(static[0][1])):
                        w_at = (m * outputs * height + r) * padded
                        numbers = (place + r * row, first, w_at, count, row, height * padded)
                        scatter(arrays, numbers, static[0])
            _copy(image[: tall * row], images[m, s].reshape(-1))


@part
def _list_outputs(gradients: Floats, listed: Integers) -> Any:
    """The outputs with a gradient at one position, into `listed`; how many they are."""
    count = _FIRST
    for o in range(len(gradients)):
        listed[count] = o
        count += np.uint32(gradients[o] != 0)
    return np.int64(count)

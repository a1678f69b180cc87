"""The way back through a convolution and its pooling: see `forward`.

It needs but the one position of each window that won, so that vectors run along rows of patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .compiled import compiled, part
from .forward import Above, Bytes, Floats, Integers, Static, Steps, positions_below
from .instructions import DEAD, gather, scatter, spread


class Room(NamedTuple):
    """For one sample. A vector may go beyond the end of the first three.

    Its gradients by window and by position [rows, columns, o], and marks. By output what is listed:
    places in an image, gradients, how many. Where positions, windows and the entries of one begin
    in an image. A vector of squares. The gradients as integers, which are compared faster: `bits`
    by position, `values` as listed.
    """

    g: Floats
    grid: Floats
    marks: Bytes
    listed: tuple[Integers, Floats, Integers]
    starts: tuple[Integers, Integers, Integers]
    squares: Floats
    bits: Integers
    values: Integers


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


def room(images: Floats, above: Above, steps: Steps) -> Room:
    """For samples of these images [m, B, H, row], with what is above them as in `forward`."""
    g, marks = above
    row, outputs = images.shape[3], marks.shape[4]
    shape = (*positions_below(marks, steps), outputs)
    size, each = math.prod(shape), math.prod(marks.shape[2:])
    # It begins a line of the cache: only then is what a vector has just written read back at once.
    found = np.empty(size + 2 * _ROOM, g.dtype)
    first = -found.ctypes.data % _LINE // found.itemsize
    grid = found[first : first + size].reshape(shape)
    of_windows = (steps[0] * steps[2], steps[1] * steps[3])
    entries = np.zeros(DEAD + 1, dtype=np.int32)
    entries[: steps[4] * steps[5]] = _places(steps[4:], row, steps)
    positions = _places(shape[:2], row, steps)
    places = np.empty((outputs, len(positions) + 1), dtype=np.int32)
    values, integers = np.empty(places.shape, g.dtype), f"i{g.itemsize}"
    return Room(
        g=np.empty(each + _ROOM, g.dtype),
        grid=grid,
        marks=np.empty(each + _ROOM, np.uint8),
        listed=(places, values, np.empty(outputs, np.int64)),
        starts=(positions, _places(marks.shape[2:4], row, of_windows), entries),
        squares=np.empty(_ROOM, g.dtype),
        bits=grid.view(integers),
        values=values.view(integers),
    )


def sample_gradients(
    images: Floats, above: Above, found: tuple[Floats, Floats, Floats], width: int, steps: Steps,
    static: tuple[Static, Static],
) -> None:  # fmt: skip
    """Every sample's gradients of weights and bias, and their squared norms.

    `images` as above; `above` are the gradients of the pooled outputs and the marks, both [n, B,
    h, w, o]. `found` takes weights [n, B, o, height, padded width], biases [n, B, o] or [n, B, 0],
    and squares [n, B]. `static` are those of `gather` and `spread`.
    """
    own = room(images, above, steps)
    _sample_gradients(images, above, found, width, own, steps, static)


@compiled
def _sample_gradients(
    images: Floats, above: Above, found: tuple[Floats, Floats, Floats], width: int, own: Room,
    steps: Steps, static: tuple[Static, Static],
) -> None:  # fmt: skip
    (g, marks), (formed, biases, squares) = above, found
    each = len(marks) // images.shape[0]
    for m in range(len(marks)):
        for s in range(marks.shape[1]):
            copy(g[m, s].reshape(-1), own.g)
            copy(marks[m, s].reshape(-1), own.marks)
            if overlap(steps):
                merge(own.g, own, marks.shape[2:], steps, static[1])
            parts = (images[m // each, s], formed[m, s], biases[m, s])
            squares[m, s] = form(own.g, own, parts, width, steps, static[0])


@part
def overlap(steps: Steps) -> bool:
    """Whether a position may win several windows."""
    return steps[2] < steps[4] or steps[3] < steps[5]


@part
def form(
    g: Floats, own: Room, parts: tuple[Floats, Floats, Floats], width: int, steps: Steps,
    static: Static,
) -> Any:  # fmt: skip
    """One sample's gradients, of its image [H, row], as `parts` has them; their squared norm.

    What it won is in `own`: `marks`, and where windows overlap merged.
    """
    image, formed, biases = parts
    places, values, counts = own.listed
    row, (height, padded) = image.shape[1], formed.shape[1:]
    if overlap(steps):
        _list_positions(own.bits.reshape(-1), own.starts[0], (places, own.values, counts))
    else:
        _list_windows(g, own.marks, own.starts, own.listed)
    for i in range(len(own.squares)):
        own.squares[i] = 0
    arrays = (image, places, values, formed, own.squares)
    for o in range(len(formed)):
        if len(biases) > 0:
            biases[o] = _sum(values[o, : counts[o]])
        for r in range(0, height, len(static[1])):
            out_at = (o * height + r) * padded
            numbers = (r * row, o * places.shape[1], out_at, counts[o], row, width)
            gather(arrays, numbers, static)
    return _sum(own.squares) + _square(biases)


def _places(cells: Sequence[int], row: int, steps: Sequence[int]) -> Integers:
    """Where rows and columns of cells begin in an image, one row behind the other."""
    down, across = (np.arange(count, dtype=np.int32) for count in cells)
    found: Integers = (down[:, None] * (steps[0] * row) + across * steps[1]).astype(np.int32)
    return found.reshape(-1)


@part
def merge(
    g: Floats, own: Room, windows: tuple[int, int, int], steps: Steps, static: Static
) -> None:  # fmt: skip
    """One sample's gradients by position, into the grid: a position may win several windows."""
    (down, across, outputs), gradients = windows, own.grid.reshape(-1)
    gradients[:] = 0  # of all at once: by three axes it takes as long as all that follows
    below = own.grid.shape[1] * outputs
    arrays = (g, own.marks, own.grid)
    for i in range(down):
        for j in range(across):
            g_at = (i * across + j) * outputs
            at = i * steps[2] * below + j * steps[3] * outputs
            for o in range(0, outputs, len(static[0])):
                spread(arrays, (g_at + o, at + o, below, outputs, outputs - o), static)


@compiled
def copy(source: Any, target: Any) -> None:
    """Numba's own assignment brings its error messages along, seconds of compiling."""
    for i in range(len(source)):
        target[i] = source[i]


@compiled
def _list_positions(
    bits: Integers, positions: Integers, listed: tuple[Integers, Integers, Integers]
) -> None:  # fmt: skip
    """For every output the positions with a gradient: places in an image, gradients, how many."""
    outputs = len(listed[0])
    for o in range(outputs):
        places, values = listed[0][o], listed[1][o]
        count, at = _FIRST, np.uint32(o)
        for p in range(len(positions)):
            gradient = bits[at]
            places[count], values[count] = positions[p], gradient
            count += np.uint32(gradient != 0)
            at += np.uint32(outputs)
        listed[2][o] = count


@compiled
def _list_windows(
    g: Floats, marks: Bytes, starts: tuple[Integers, Integers, Integers],
    listed: tuple[Integers, Floats, Integers],
) -> None:  # fmt: skip
    """The same where a position wins one window at most."""
    outputs, (_, windows, entries) = len(listed[0]), starts
    for o in range(outputs):
        places, values = listed[0][o], listed[1][o]
        count, at = _FIRST, np.uint32(o)
        for w in range(len(windows)):
            places[count], values[count] = windows[w] + entries[marks[at]], g[at]
            count += np.uint32(marks[at] != DEAD)
            at += np.uint32(outputs)
        listed[2][o] = count


@compiled
def _sum(values: Floats) -> Any:
    total = values.dtype.type(0)
    for i in range(len(values)):
        total += values[i]
    return total


@compiled
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
    own = room(images, above, steps)
    _input_gradients(above, w, images, (own, *below(images, w)), steps, static)


def below(images: Floats, w: Floats) -> tuple[Floats, Integers]:
    """Room for an image [H, row] with a vector behind it, and for a list of outputs."""
    image = np.empty(math.prod(images.shape[2:]) + w.shape[3], dtype=images.dtype)
    return image, np.empty(w.shape[1] + 1, dtype=np.int64)


@compiled
def _input_gradients(
    above: Above, w: Floats, images: Floats, scratch: tuple[Room, Floats, Integers], steps: Steps,
    static: tuple[Static, Static],
) -> None:  # fmt: skip
    (g, marks), (own, image, listed) = above, scratch
    tall, row = images.shape[2:]
    for m in range(len(marks)):
        for s in range(marks.shape[1]):
            copy(g[m, s].reshape(-1), own.g)
            copy(marks[m, s].reshape(-1), own.marks)
            merge(own.g, own, marks.shape[2:], steps, static[1])
            push(own, w[m], (image, listed), row, steps, static[0])
            copy(image[: tall * row], images[m, s].reshape(-1))


@part
def push(
    own: Room, w: Floats, found: tuple[Floats, Integers], row: int, steps: Steps, static: Static
) -> None:
    """One sample's gradients, merged, through w [o, height, padded width] to those of its image."""
    (image, listed), (rows, columns, outputs) = found, own.grid.shape
    height, padded = w.shape[1:]
    arrays, bits = (image, own.grid, w, listed), own.bits.reshape(-1)
    image[:] = 0
    for j in range(columns):
        # Down a column, patches meet in the same vectors: what one has written, the next reads
        # from the store buffer.
        for i in range(rows):
            first = (i * columns + j) * outputs
            count = _list_outputs(bits[first : first + outputs], listed)
            place = i * steps[0] * row + j * steps[1]
            for r in range(0, height if count else 0, len(static[1])):
                numbers = (place + r * row, first, r * padded, count, row, height * padded)
                scatter(arrays, numbers, static)


@compiled
def _list_outputs(bits: Integers, listed: Integers) -> Any:
    """The outputs with a gradient at one position, into `listed`; how many they are."""
    count = _FIRST
    for o in range(len(bits)):
        listed[count] = o
        count += np.uint32(bits[o] != 0)
    return np.int64(count)

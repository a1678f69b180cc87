"""Compiled loops of a small convolution and the max-pooling behind it, forth and back.

Images are channels-last: a row of a patch is one run of `width · channels` numbers. Forth, vectors
hold output channels; what is convolved is pooled while it is in cache. The way back needs only the
one position of each window that won, so its vectors run along rows of patches.

Shapes: n models, B examples, pooled outputs [h, w, o], images [H, row] with zeros around them, m
sets of images: n / m models share one. Numba keeps compiled loops by the time stamp of their file:
touch this one after a change of `vector_code`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import literal_unroll

from .vector_code import DEAD, Static, compiled, convolve, gather, inlined, pool, scatter, unpool

Floats = npt.NDArray[np.floating]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.integer]
Winners = tuple[Floats, Bytes]  # of windows [n, B, h, w, o]: values or gradients, and marks

_LINE = 64  # bytes of a line of the cache
_ROOM = 16  # numbers: a vector may be read and written behind the last
_FIRST = np.uint32(0)  # unsigned: numba looks at the sign of an index else


class Steps(NamedTuple):
    """Distances between positions and between windows, and a window's size."""

    down: int  # rows of an image between two positions
    across: int  # numbers of an image's row between two positions
    window_down: int  # rows of positions between two windows
    window_across: int
    tall: int  # rows of positions in a window
    wide: int

    def positions(self, windows: Sequence[int]) -> tuple[int, int]:
        """Returns rows and columns of the positions below so many rows and columns of windows."""
        down, across = windows[0] - 1, windows[1] - 1
        return down * self.window_down + self.tall, across * self.window_across + self.wide


# Forth --------------------------------------------------------------------------------------------


def line_room(pooled: Winners, channels: int, steps: Steps) -> tuple[Floats, Winners]:
    """Makes room for one image convolved, and for a line of its outputs and marks."""
    out, line = pooled[0], (pooled[0].shape[3], channels)
    convolved = np.empty((*steps.positions(out.shape[2:4]), channels), dtype=out.dtype)
    return convolved, (np.empty(line, out.dtype), np.empty(line, np.uint8))


@compiled
def convolve_and_pool(
    images: Floats, weights: tuple[Floats, Floats], floor: Floats, pooled: Winners,
    room: tuple[Floats, Winners], steps: Steps, static: tuple[Static, Static],
) -> None:  # fmt: skip
    """Writes pooled convolutions and marks: the number of the window's winner, or DEAD.

    `weights` are w [m, blocks, height, width, lanes] and bias [m, blocks · lanes], the outputs of
    models that share images side by side. What is not above `floor` [1] is cut off: 0 for a ReLU.
    `room` is `line_room`, for blocks · lanes channels; `static` are those of `convolve` and `pool`.
    """
    (w, bias), (convolved, lines) = weights, room
    apart = pooled[0].shape[4] % w.shape[4] == 0  # no vector holds channels of two models
    for m in range(images.shape[0]):
        for s in range(images.shape[1]):
            where = (m, s, images.shape[0])
            _convolve(images, w, bias, (m, s), convolved, steps, static[0])
            if apart:
                _pool(convolved, floor, pooled, where, steps, static[1])
            else:
                _pool_in_lines(convolved, floor, pooled, lines, where, steps, static[1])


@inlined
def _convolve(
    images: Floats, w: Floats, bias: Floats, where: tuple[int, int], out: Floats,
    steps: Steps, static: Static,
) -> None:  # fmt: skip
    """One image at all positions, into out [rows, columns, blocks · lanes]."""
    m, s = where
    blocks, height, width, size = w.shape[1:]
    rows, columns, line = out.shape
    row = images.shape[3]
    tall, wide = len(static[1]), len(static[2])
    image = (m * images.shape[1] + s) * images.shape[2] * row
    arrays = (images, w, bias, out)
    for block in range(blocks):
        of_w = (m * blocks + block) * height * width * size
        of_bias = (m * blocks + block) * size
        for top in range(0, rows, tall):
            r = min(top, rows - tall)
            for left in range(0, columns, wide):
                c = min(left, columns - wide)
                numbers = (
                    image + r * steps.down * row + c * steps.across, of_w, of_bias,
                    (r * columns + c) * line + block * size,
                    steps.down * row, row, height, width, columns * line, line,
                )  # fmt: skip
                convolve(arrays, numbers, static)


@inlined
def _pool(
    convolved: Floats, floor: Floats, pooled: Winners, where: tuple[int, int, int], steps: Steps,
    static: Static,
) -> None:  # fmt: skip
    out, marks = pooled
    m, s, inputs = where
    n, batch, down, across, outputs = out.shape
    columns, line = convolved.shape[1:]
    size, sharing = len(static[0]), n // inputs
    arrays = (convolved, floor, out, marks)
    for channel in range(0, sharing * outputs, size):
        model = m * sharing + channel // outputs
        first = (model * batch + s) * down * across * outputs + channel % outputs
        for i in range(down):
            for j in range(across):
                x_at = (i * steps.window_down * columns + j * steps.window_across) * line + channel
                out_at = first + (i * across + j) * outputs
                pool(arrays, (x_at, out_at, columns * line, line), static)


@inlined
def _pool_in_lines(
    convolved: Floats, floor: Floats, pooled: Winners, lines: Winners,
    where: tuple[int, int, int], steps: Steps, static: Static,
) -> None:  # fmt: skip
    """A row of windows of all models, and then model by model."""
    (out, marks), (line_out, line_marks) = pooled, lines
    m, s, inputs = where
    n, _, down, across, outputs = out.shape
    columns, line = convolved.shape[1:]
    size, sharing = len(static[0]), n // inputs
    arrays = (convolved, floor, line_out, line_marks)
    for i in range(down):
        for j in range(across):
            x_at = (i * steps.window_down * columns + j * steps.window_across) * line
            for channel in range(0, line, size):
                numbers = (x_at + channel, j * line + channel, columns * line, line)
                pool(arrays, numbers, static)
        for k in range(sharing):
            for j in range(across):
                for o in range(outputs):
                    out[m * sharing + k, s, i, j, o] = line_out[j, k * outputs + o]
                    marks[m * sharing + k, s, i, j, o] = line_marks[j, k * outputs + o]


# Back, one sample at a time -----------------------------------------------------------------------


class Scratch(NamedTuple):
    """Room for one sample on its way back. A vector may go beyond the end of the first three."""

    g: Floats  # its gradients by window
    grid: Floats  # and by position [rows, columns, o]
    marks: Bytes
    listed: tuple[Integers, Floats, Integers]  # by output: places in an image, gradients, how many
    # In an image: of positions, windows, entries of one.
    starts: tuple[Integers, Integers, Integers]
    squares: Floats  # a vector
    bits: Integers  # the gradients by position as integers, which are compared faster
    values: Integers  # the gradients as listed, likewise


def scratch(images: Floats, winners: Winners, steps: Steps) -> Scratch:
    """Makes room for samples of these images, with gradients or weights of g's dtype above them."""
    g, marks = winners
    row, outputs = images.shape[3], marks.shape[4]
    shape = (*steps.positions(marks.shape[2:4]), outputs)
    size, windows = math.prod(shape), math.prod(marks.shape[2:])
    # It begins a line of the cache: only then is what a vector has just written read back at once.
    aligned = np.empty(size + 2 * _ROOM, g.dtype)
    first = -aligned.ctypes.data % _LINE // aligned.itemsize
    grid = aligned[first : first + size].reshape(shape)
    window_steps = (steps.down * steps.window_down, steps.across * steps.window_across)
    entries = np.zeros(DEAD + 1, dtype=np.int32)
    entries[: steps.tall * steps.wide] = _places((steps.tall, steps.wide), row, steps)
    positions = _places(shape[:2], row, steps)
    places = np.empty((outputs, len(positions) + 1), dtype=np.int32)
    values, integers = np.empty(places.shape, g.dtype), f"i{g.itemsize}"
    return Scratch(
        g=np.empty(windows + _ROOM, g.dtype),
        grid=grid,
        marks=np.empty(windows + _ROOM, np.uint8),
        listed=(places, values, np.empty(outputs, np.int64)),
        starts=(positions, _places(marks.shape[2:4], row, window_steps), entries),
        squares=np.empty(_ROOM, g.dtype),
        bits=grid.view(integers),
        values=values.view(integers),
    )


def _places(cells: Sequence[int], row: int, steps: Sequence[int]) -> Integers:
    """Where rows and columns of cells begin in an image, one row behind the other."""
    down, across = (np.arange(count, dtype=np.int32) for count in cells)
    places: Integers = (down[:, None] * (steps[0] * row) + across * steps[1]).astype(np.int32)
    return places.reshape(-1)


@compiled
def sample_gradients(
    images: Floats, winners: Winners, out: tuple[Floats, Floats, Floats], width: int,
    room: Scratch, steps: Steps, static: tuple[Static, Static],
) -> None:  # fmt: skip
    """Writes every sample's gradients of weights and bias, and their squared norms.

    Into `out`: weights [n, B, o, height, padded width], biases [n, B, o] or [n, B, 0], squares
    [n, B]. `width` is how many numbers a row of a patch has; `static` are those of `gather` and
    `unpool`.
    """
    (g, marks), (formed, biases, squares) = winners, out
    sharing = len(marks) // images.shape[0]
    for m in range(len(marks)):
        for s in range(marks.shape[1]):
            _copy(g[m, s].reshape(-1), room.g)
            _copy(marks[m, s].reshape(-1), room.marks)
            if _overlap(steps):
                _spread_windows(room.g, room, marks.shape[2:], steps, static[1])
            sample = (images[m // sharing, s], formed[m, s], biases[m, s])
            squares[m, s] = _form(room.g, room, sample, width, steps, static[0])


def image_room(images: Floats, w: Floats) -> tuple[Floats, Integers]:
    """Makes room for an image [H, row] with a vector behind it, and for a list of outputs."""
    image = np.empty(math.prod(images.shape[2:]) + w.shape[3], dtype=images.dtype)
    return image, np.empty(w.shape[1] + 1, dtype=np.int64)


@compiled
def input_gradients(
    winners: Winners, w: Floats, images: Floats, room: tuple[Scratch, Floats, Integers],
    steps: Steps, static: tuple[Static, Static],
) -> None:  # fmt: skip
    """Writes gradients of the images [n, B, H, row]; w is [n, o, height, padded width]."""
    (g, marks), (sample, image, listed) = winners, room
    tall, row = images.shape[2:]
    for m in range(len(marks)):
        for s in range(marks.shape[1]):
            _copy(g[m, s].reshape(-1), sample.g)
            _copy(marks[m, s].reshape(-1), sample.marks)
            _spread_windows(sample.g, sample, marks.shape[2:], steps, static[1])
            _push_down(sample, w[m], (image, listed), row, steps, static[0])
            _copy(image[: tall * row], images[m, s].reshape(-1))


@inlined
def _overlap(steps: Steps) -> bool:
    """Whether a position may win several windows."""
    return steps.window_down < steps.tall or steps.window_across < steps.wide


@inlined
def _spread_windows(
    g: Floats, room: Scratch, windows: tuple[int, int, int], steps: Steps, static: Static
) -> None:  # fmt: skip
    """One sample's gradients by position, into the grid: a position may win several windows."""
    (down, across, outputs), gradients = windows, room.grid.reshape(-1)
    gradients[:] = 0  # of all at once: by three axes it takes as long as all that follows
    below = room.grid.shape[1] * outputs
    arrays = (g, room.marks, room.grid)
    for i in range(down):
        for j in range(across):
            g_at = (i * across + j) * outputs
            at = i * steps.window_down * below + j * steps.window_across * outputs
            for o in range(0, outputs, len(static[0])):
                unpool(arrays, (g_at + o, at + o, below, outputs, outputs - o), static)


@inlined
def _form(
    g: Floats, room: Scratch, sample: tuple[Floats, Floats, Floats], width: int, steps: Steps,
    static: Static,
) -> Any:  # fmt: skip
    """Forms one sample's gradients of w and bias from its image [H, row]; their squared norm."""
    image, formed, biases = sample
    places, values, counts = room.listed
    row, (height, padded) = image.shape[1], formed.shape[1:]
    if _overlap(steps):
        _list_positions(room.bits.reshape(-1), room.starts[0], (places, room.values, counts))
    else:
        _list_windows(g, room.marks, room.starts, room.listed)
    for i in range(len(room.squares)):
        room.squares[i] = 0
    arrays = (image, places, values, formed, room.squares)
    for o in range(len(formed)):
        if len(biases) > 0:
            biases[o] = _sum(values[o, : counts[o]])
        for r in range(0, height, len(static[1])):
            out_at = (o * height + r) * padded
            numbers = (r * row, o * places.shape[1], out_at, counts[o], row, width)
            gather(arrays, numbers, static)
    return _sum(room.squares) + _square(biases)


@inlined
def _push_down(
    room: Scratch, w: Floats, image_room: tuple[Floats, Integers], row: int, steps: Steps,
    static: Static,
) -> None:  # fmt: skip
    """One sample's gradients by position, through w [o, height, padded width], to its image's."""
    (image, listed), (rows, columns, outputs) = image_room, room.grid.shape
    height, padded = w.shape[1:]
    arrays, bits = (image, room.grid, w, listed), room.bits.reshape(-1)
    image[:] = 0
    for j in range(columns):
        # Down a column, patches meet in the same vectors: what one has written, the next reads
        # from the store buffer.
        for i in range(rows):
            first = (i * columns + j) * outputs
            count = _list_outputs(bits[first : first + outputs], listed)
            place = i * steps.down * row + j * steps.across
            for r in range(0, height if count else 0, len(static[1])):
                numbers = (place + r * row, first, r * padded, count, row, height * padded)
                scatter(arrays, numbers, static)


@compiled
def _copy(source: Any, target: Any) -> None:
    """Numba's own assignment brings its error messages along, seconds of compiling."""
    for i in range(len(source)):
        target[i] = source[i]


@compiled
def _list_positions(
    bits: Integers, positions: Integers, listed: tuple[Integers, Integers, Integers]
) -> None:  # fmt: skip
    """Lists by output the positions with a gradient: places in an image, gradients, how many."""
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
def _list_outputs(bits: Integers, listed: Integers) -> Any:
    """Lists the outputs with a gradient at one position; returns how many they are."""
    count = _FIRST
    for o in range(len(bits)):
        listed[count] = o
        count += np.uint32(bits[o] != 0)
    return np.int64(count)


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


# Back through all convolutions of a network, to their clipped sums --------------------------------

_SAMPLES = 8  # at a time: per-sample gradients of `cnn4`, 36 KiB each, stay in a core's cache


class Stage(NamedTuple):
    """A convolution and its pooling, for n models, and room for a few samples."""

    images: Floats  # [m, B, H, row]
    marks: Bytes  # [n, B, h, w, o]
    w: Floats  # [n, o, height, padded row], zeros behind a row of `width`
    sums: Floats  # Σ of clipped gradients, as w
    biases: Floats  # and [n, o] or [n, 0]
    room: Scratch
    gradients: tuple[Floats, Floats]  # by sample: of w, of biases
    image_room: tuple[Floats, Integers]
    width: int
    edge: tuple[int, int]  # rows and numbers of zeros around an image
    below: tuple[int, int]  # rows, and numbers of a row, of the stage below's outputs; 0, 0 of none
    steps: Steps
    static: tuple[Static, Static]


def gradient_room(w: Floats, biases: int) -> tuple[Floats, Floats]:
    """Makes room for gradients of w [n, ...] and so many biases, of a few samples."""
    return np.empty((_SAMPLES, *w.shape[1:]), w.dtype), np.empty((_SAMPLES, biases), w.dtype)


def window_room(stages: Sequence[Stage]) -> Floats:
    """Makes room for gradients of any stage's windows, of a few samples."""
    return np.empty((_SAMPLES, max(len(stage.room.g) for stage in stages)), stages[0].w.dtype)


@compiled
def descend(
    stages: tuple[Stage, ...], g: Floats, squares: Floats, weights: Floats, clip_norm: float,
    room: Floats,
) -> None:  # fmt: skip
    """Adds clipped, weighted sums to those of all stages, the last one of the network first.

    A few samples go back through all stages at a time: their gradients are in cache when their
    norms are known. `g` [n, B, h · w · o] are gradients of the last stage's pooled outputs;
    `squares` [n, B] squared norms of all other parameters' gradients, and factors afterwards.
    Samples of weight 0 are left out.
    """
    n, batch = squares.shape
    factors = np.zeros(_SAMPLES, squares.dtype)
    counted = np.zeros(batch, np.int64)
    for m in range(n):
        count = 0
        for s in range(batch):
            if weights[m, s] == 0:
                squares[m, s] = 0
            else:
                counted[count] = s
                count += 1
        for first in range(0, count, _SAMPLES):
            many = min(_SAMPLES, count - first)
            for i in range(many):
                _copy(g[m, counted[first + i]], room[i])
            for stage in literal_unroll(stages):
                for i in range(many):
                    s = counted[first + i]
                    squares[m, s] += _form_at(stage, (m, s, i), room[i])
                    if stage.below[0] > 0:
                        _push_below(stage, m, room[i])
            for i in range(many):
                s = counted[first + i]
                norm = math.sqrt(squares[m, s])
                squares[m, s] = weights[m, s] * (clip_norm / norm if norm > clip_norm else 1.0)
                factors[i] = squares[m, s]
            for stage in literal_unroll(stages):
                _add_at(stage, m, many, factors)


@inlined
def _form_at(stage: Stage, where: tuple[int, int, int], g: Floats) -> Any:
    """Gradients of model m's sample s, the i-th of a few, from those of its windows; squares."""
    m, s, i = where
    formed, biases = stage.gradients
    _copy(stage.marks[m, s].reshape(-1), stage.room.marks)
    if stage.below[0] > 0 or _overlap(stage.steps):
        _spread_windows(g, stage.room, stage.marks.shape[2:], stage.steps, stage.static[1])
    image = stage.images[m // (len(stage.marks) // len(stage.images)), s]
    sample = (image, formed[i], biases[i])
    return _form(g, stage.room, sample, stage.width, stage.steps, stage.static[0])


@inlined
def _push_below(stage: Stage, m: int, g: Floats) -> None:
    """Into g, the gradients of the outputs below; those by position are in the stage's `room`."""
    row, (tall, run) = stage.images.shape[3], stage.below
    _push_down(stage.room, stage.w[m], stage.image_room, row, stage.steps, stage.static[0])
    image = stage.image_room[0]
    for r in range(tall):
        first = (stage.edge[0] + r) * row + stage.edge[1]
        _copy(image[first : first + run], g[r * run : (r + 1) * run])


@inlined
def _add_at(stage: Stage, m: int, many: int, factors: Floats) -> None:
    formed, biases = stage.gradients
    sums, flat = stage.sums[m].reshape(-1), formed.reshape(len(formed), -1)
    for i in range(many):
        for k in range(len(sums)):
            sums[k] += factors[i] * flat[i, k]
        for k in range(biases.shape[1]):
            stage.biases[m, k] += factors[i] * biases[i, k]

"""Compiled loops of a small convolution and the max-pooling behind it, forward and backward.

Images are channels-last: a row of a patch is one run of `width · channels` numbers. In the forward
pass, vectors hold output channels; what is convolved is pooled while it is in cache. The backward
pass needs only the one position of each window that won, so its vectors run along rows of patches.

Shapes: n models, B examples, pooled outputs [h, w, o], images [H, row] with zeros around them, m
sets of images: n / m models share one. Starts are indices into a flat array. Numba keeps compiled
loops by the time stamp of their file: touch this one after a change of `vector_code`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import literal_unroll
from numpy.typing import DTypeLike, NDArray

from .vector_code import DEAD, Static, compiled, convolve, gather, inlined, pool, scatter, unpool

Floats = NDArray[np.floating]
Bytes = NDArray[np.uint8]
Integers = NDArray[np.integer]
Winners = tuple[Floats, Bytes]  # values or gradients of windows [n, B, h, w, o], and marks
Listed = tuple[Integers, Floats, Integers]  # by output: starts in an image, gradients, their number

_LINE = 64  # bytes of a cache line
_SPARE_NUMBERS = 16  # a vector may be read and written behind the last number
_FIRST = np.uint32(0)  # an unsigned index: numba would check the sign of a signed one


class Steps(NamedTuple):
    """Distances between positions and between windows, and a window's size."""

    down: int  # rows of an image between two positions
    across: int  # numbers of an image's row between two positions
    window_down: int  # rows of positions between two windows
    window_across: int  # columns of positions between two windows
    window_height: int  # rows of positions in a window
    window_width: int  # columns of positions in a window

    def positions(self, windows: Sequence[int]) -> tuple[int, int]:
        """Returns how many rows and columns of positions the windows cover.

        Args:
            windows: number of rows and of columns of windows.
        """
        rows, columns = windows
        last_row = (rows - 1) * self.window_down
        last_column = (columns - 1) * self.window_across
        return last_row + self.window_height, last_column + self.window_width


# Forward ------------------------------------------------------------------------------------------


def line_buffers(
    pooled: Winners,
    channels: int,
    steps: Steps,
) -> tuple[Floats, Winners]:
    """Allocates buffers for one convolved image, and for a row of windows and their marks.

    Args:
        pooled: outputs and marks that are to be computed, [n, B, h, w, o].
        channels: output channels of all models that share an image.
        steps: distances between positions and between windows.

    Returns:
        The convolved image [rows, columns, channels]; values and marks of a row, [w, channels]
        each.
    """
    out = pooled[0]
    rows, columns = out.shape[2:4]
    convolved = np.empty((*steps.positions((rows, columns)), channels), dtype=out.dtype)
    line = (columns, channels)
    return convolved, (np.empty(line, out.dtype), np.empty(line, np.uint8))


@compiled
def convolve_and_pool(
    images: Floats,
    weights: tuple[Floats, Floats],
    floor: Floats,
    pooled: Winners,
    buffers: tuple[Floats, Winners],
    steps: Steps,
    static: tuple[Static, Static],
) -> None:
    """Writes pooled convolutions, and for each window the number of its winner, or DEAD.

    Args:
        images: [m, B, H, row].
        weights: w [m, blocks, height, width, lanes] and bias [m, blocks · lanes], the outputs of
            models that share images side by side.
        floor: [1], what smaller values are replaced by: 0 for a ReLU, else -inf.
        pooled: outputs and marks [n, B, h, w, o], to be written.
        buffers: buffers by `line_buffers`, for blocks · lanes channels.
        steps: distances between positions and between windows.
        static: sizes of `convolve` and of `pool`.
    """
    w, bias = weights
    convolved, lines = buffers
    sets, batch = images.shape[:2]
    for image_set in range(sets):
        for image in range(batch):
            _convolve(images, w, bias, (image_set, image), convolved, steps, static[0])
            sample = (image_set, image, sets)
            _pool(convolved, floor, pooled, lines, sample, steps, static[1])


@inlined
def _convolve(
    images: Floats,
    w: Floats,
    bias: Floats,
    sample: tuple[int, int],
    out: Floats,
    steps: Steps,
    static: Static,
) -> None:
    """Convolves one image at all positions, tile by tile.

    Tiles at the far edges are moved inwards, so that each is complete; some positions are computed
    twice.

    Args:
        images: [m, B, H, row].
        w: weights [m, blocks, height, width, lanes].
        bias: [m, blocks · lanes].
        sample: numbers of the set of images, and of the image in it.
        out: [rows, columns, blocks · lanes], to be written.
        steps: distances between positions.
        static: sizes of `convolve`, with rows and columns of a tile.
    """
    image_set, image = sample
    blocks, height, width, lanes = w.shape[1:]
    rows, columns, channels = out.shape
    row_length = images.shape[3]
    tile_rows = len(static[1])
    tile_columns = len(static[2])
    image_start = (image_set * images.shape[1] + image) * images.shape[2] * row_length
    arrays = (images, w, bias, out)
    for block in range(blocks):
        w_start = (image_set * blocks + block) * height * width * lanes
        bias_start = (image_set * blocks + block) * lanes
        for top in range(0, rows, tile_rows):
            r = min(top, rows - tile_rows)  # row of the tile's first position
            for first in range(0, columns, tile_columns):
                c = min(first, columns - tile_columns)
                # In the order of `vector_code.convolve`.
                numbers = (
                    image_start + r * steps.down * row_length + c * steps.across,
                    w_start,
                    bias_start,
                    (r * columns + c) * channels + block * lanes,
                    steps.down * row_length,
                    row_length,
                    height,
                    width,
                    columns * channels,
                    channels,
                )
                convolve(arrays, numbers, static)


@inlined
def _pool(
    convolved: Floats,
    floor: Floats,
    pooled: Winners,
    lines: Winners,
    sample: tuple[int, int, int],
    steps: Steps,
    static: Static,
) -> None:
    """Pools one convolved image, and copies the results to the models that share it.

    A row of windows is pooled into buffers first: there, a vector may hold channels of two models.

    Args:
        convolved: [rows, columns, channels], with all channels of the first model, then those of
            the second, and so on; zeros may follow the last.
        floor: [1], what smaller values are replaced by.
        pooled: outputs and marks [n, B, h, w, o], to be written.
        lines: buffers for values and marks of one row of windows, [w, channels] each.
        sample: number of the set of images, number of the image in it, and number of sets.
        steps: distances between windows.
        static: sizes of `pool`.
    """
    out, marks = pooled
    line_out, line_marks = lines
    image_set, image, sets = sample
    n, _, rows, columns, outputs = out.shape
    x_columns, channels = convolved.shape[1:]
    lanes = len(static[0])
    models = n // sets  # number of models that share the image
    first_model = image_set * models
    arrays = (convolved, floor, line_out, line_marks)
    for i in range(rows):
        for j in range(columns):
            position = i * steps.window_down * x_columns + j * steps.window_across
            for channel in range(0, channels, lanes):
                x_start = position * channels + channel
                # In the order of `vector_code.pool`.
                numbers = (x_start, j * channels + channel, x_columns * channels, channels)
                pool(arrays, numbers, static)
        for k in range(models):
            for j in range(columns):
                for o in range(outputs):
                    out[first_model + k, image, i, j, o] = line_out[j, k * outputs + o]
                    marks[first_model + k, image, i, j, o] = line_marks[j, k * outputs + o]


# Backward, one sample at a time -------------------------------------------------------------------


class Scratch(NamedTuple):
    """Buffers of one sample's backward pass; vectors may go beyond the end of g, grid and marks."""

    g: Floats  # gradients by window
    grid: Floats  # gradients by position [rows, columns, o]
    marks: Bytes  # mark of each window
    listed: Listed
    # Where in an image the positions, the windows, and the entries of a window start.
    starts: tuple[Integers, Integers, Integers]
    squares: Floats  # a vector
    bits: Integers  # the grid as integers, which are compared faster
    values: Integers  # the listed gradients as integers


def scratch(
    images: Floats,
    marks: Bytes,
    dtype: DTypeLike,
    steps: Steps,
) -> Scratch:
    """Allocates the buffers in which the gradients of one sample are formed.

    Args:
        images: padded images [m, B, H, row].
        marks: marks of the windows [n, B, h, w, o].
        dtype: dtype of gradients.
        steps: distances between positions and between windows.
    """
    image_row = images.shape[3]
    window_shape = marks.shape[2:4]
    outputs = marks.shape[4]
    windows = math.prod(marks.shape[2:])
    rows, columns = steps.positions(window_shape)

    grid = _aligned(rows * columns * outputs, dtype).reshape(rows, columns, outputs)

    window_steps = (steps.down * steps.window_down, steps.across * steps.window_across)
    position_starts = _starts((rows, columns), image_row, steps)
    window_starts = _starts(window_shape, image_row, window_steps)
    # By mark: where in its window the entry that won begins. A window without a winner (DEAD) is
    # never listed, so its start may be any number: 0.
    entry_starts = np.zeros(DEAD + 1, dtype=np.int32)
    window_size = (steps.window_height, steps.window_width)
    entry_starts[: math.prod(window_size)] = _starts(window_size, image_row, steps)

    # One entry more than there are positions: entries that do not count are written there, too.
    listed_starts = np.empty((outputs, rows * columns + 1), dtype=np.int32)
    listed_values = np.empty(listed_starts.shape, dtype)
    listed_counts = np.empty(outputs, np.int64)
    # Views of the same memory as integers of the same width, which are compared faster.
    integer_dtype = f"i{grid.itemsize}"
    return Scratch(
        g=np.empty(windows + _SPARE_NUMBERS, dtype),
        grid=grid,
        marks=np.empty(windows + _SPARE_NUMBERS, np.uint8),
        listed=(listed_starts, listed_values, listed_counts),
        starts=(position_starts, window_starts, entry_starts),
        squares=np.empty(_SPARE_NUMBERS, dtype),
        bits=grid.view(integer_dtype),
        values=listed_values.view(integer_dtype),
    )


def _aligned(numbers: int, dtype: DTypeLike) -> Floats:
    """Allocates numbers that begin at a cache line, with memory for a vector behind the last one.

    If they began elsewhere, a vector that was just written could not be read back without a wait.
    """
    # One spare vector lies behind the numbers; the other one leaves memory for the shift.
    buffer = np.empty(numbers + 2 * _SPARE_NUMBERS, dtype)
    bytes_to_line = -buffer.ctypes.data % _LINE
    first = bytes_to_line // buffer.itemsize
    return buffer[first : first + numbers]


def _starts(
    cells: Sequence[int],
    row_length: int,
    steps: Sequence[int],
) -> Integers:
    """Returns the index in a flat image where each cell of a grid starts: int32 [rows · columns].

    Args:
        cells: rows and columns of the grid.
        row_length: numbers in a row of the image.
        steps: rows of the image between two rows of cells, and numbers between two columns.
    """
    rows, columns = (np.arange(count, dtype=np.int32) for count in cells)
    starts: Integers = rows[:, None] * (steps[0] * row_length) + columns * steps[1]
    return starts.astype(np.int32).reshape(-1)


@compiled
def sample_gradients(
    images: Floats,
    winners: Winners,
    out: tuple[Floats, Floats, Floats],
    width: int,
    buffers: Scratch,
    steps: Steps,
    static: tuple[Static, Static],
) -> None:
    """Writes every sample's gradients of weights and bias, and their squared norms.

    Args:
        images: [m, B, H, row].
        winners: gradients and marks of the windows [n, B, h, w, o].
        out: to be written: weights [n, B, o, height, padded row], biases [n, B, o] or [n, B, 0],
            squared norms [n, B].
        width: numbers in a row of a patch.
        buffers: buffers by `scratch`.
        steps: distances between positions and between windows.
        static: sizes of `gather` and of `unpool`.
    """
    g, marks = winners
    formed, biases, squares = out
    sharing = len(marks) // images.shape[0]  # models that share an image
    for model in range(len(marks)):
        for s in range(marks.shape[1]):
            _copy(g[model, s].reshape(-1), buffers.g)
            _copy(marks[model, s].reshape(-1), buffers.marks)
            if _windows_overlap(steps):
                _spread_windows(buffers.g, buffers, marks.shape[2:], steps, static[1])
            sample = (images[model // sharing, s], formed[model, s], biases[model, s])
            squares[model, s] = _form_gradients(buffers.g, buffers, sample, width, steps, static[0])


def image_buffers(images: Floats, w: Floats) -> tuple[Floats, Integers]:
    """Allocates an image [H, row], with memory for a vector behind it, and a list of outputs."""
    image = np.empty(math.prod(images.shape[2:]) + w.shape[3], dtype=images.dtype)
    return image, np.empty(w.shape[1] + 1, dtype=np.int64)


@compiled
def input_gradients(
    winners: Winners,
    w: Floats,
    images: Floats,
    buffers: tuple[Scratch, Floats, Integers],
    steps: Steps,
    static: tuple[Static, Static],
) -> None:
    """Writes gradients of the images.

    Args:
        winners: gradients and marks of the windows [n, B, h, w, o].
        w: weights [n, o, height, padded row].
        images: [n, B, H, row], to be written.
        buffers: buffers by `scratch` and `image_buffers`.
        steps: distances between positions and between windows.
        static: sizes of `scatter` and of `unpool`.
    """
    g, marks = winners
    sample, image, outputs = buffers
    image_rows, row_length = images.shape[2:]
    for model in range(len(marks)):
        for s in range(marks.shape[1]):
            _copy(g[model, s].reshape(-1), sample.g)
            _copy(marks[model, s].reshape(-1), sample.marks)
            _spread_windows(sample.g, sample, marks.shape[2:], steps, static[1])
            _scatter_patches(sample, w[model], (image, outputs), row_length, steps, static[0])
            _copy(image[: image_rows * row_length], images[model, s].reshape(-1))


@inlined
def _windows_overlap(steps: Steps) -> bool:
    """Returns whether windows overlap, so that one position may win several of them."""
    return steps.window_down < steps.window_height or steps.window_across < steps.window_width


@inlined
def _spread_windows(
    g: Floats,
    buffers: Scratch,
    windows: tuple[int, int, int],
    steps: Steps,
    static: Static,
) -> None:
    """Writes one sample's gradients by position into the grid.

    A position's gradient is the sum of those of all windows that it has won.

    Args:
        g: gradients by window [h · w · o].
        buffers: buffers by `scratch`; its marks name the winners.
        windows: h, w and o.
        steps: distances between windows.
        static: sizes of `unpool`.
    """
    rows, columns, outputs = windows
    gradients = buffers.grid.reshape(-1)
    # All at once, as a loop over three axes would take as long as all that follows.
    gradients[:] = 0
    grid_row = buffers.grid.shape[1] * outputs
    arrays = (g, buffers.marks, buffers.grid)
    for i in range(rows):
        for j in range(columns):
            g_start = (i * columns + j) * outputs
            grid_start = i * steps.window_down * grid_row + j * steps.window_across * outputs
            for o in range(0, outputs, len(static[0])):
                # In the order of `vector_code.unpool`.
                numbers = (g_start + o, grid_start + o, grid_row, outputs, outputs - o)
                unpool(arrays, numbers, static)


@inlined
def _form_gradients(
    g: Floats,
    buffers: Scratch,
    sample: tuple[Floats, Floats, Floats],
    width: int,
    steps: Steps,
    static: Static,
) -> Any:
    """Forms one sample's gradients of w and bias; returns their squared norm.

    For each output, positions with a gradient are listed; the gradient of w is the sum of their
    patches, each times that gradient, some rows of a patch at a time.

    Args:
        g: gradients by window [h · w · o].
        buffers: buffers by `scratch`; its grid has the gradients by position if windows overlap.
        sample: image [H, row]; gradients of w [o, height, padded row] and bias, to be written.
        width: numbers in a row of a patch.
        steps: distances between positions and between windows.
        static: sizes of `gather`.
    """
    image, formed, biases = sample
    starts, values, counts = buffers.listed
    row_length = image.shape[1]
    height, padded = formed.shape[1:]
    if _windows_overlap(steps):
        _list_positions(
            buffers.bits.reshape(-1), buffers.starts[0], (starts, buffers.values, counts)
        )
    else:
        _list_windows(g, buffers.marks, buffers.starts, buffers.listed)
    for i in range(len(buffers.squares)):
        buffers.squares[i] = 0
    arrays = (image, starts, values, formed, buffers.squares)
    for o in range(len(formed)):
        if len(biases) > 0:
            biases[o] = _sum(values[o, : counts[o]])
        for r in range(0, height, len(static[1])):
            out_start = (o * height + r) * padded
            # In the order of `vector_code.gather`.
            numbers = (r * row_length, o * starts.shape[1], out_start, counts[o], row_length, width)
            gather(arrays, numbers, static)
    return _sum(buffers.squares) + _sum_of_squares(biases)


@inlined
def _scatter_patches(
    buffers: Scratch,
    w: Floats,
    image_buffers: tuple[Floats, Integers],
    row_length: int,
    steps: Steps,
    static: Static,
) -> None:
    """Writes the gradient of one image: the sum, over positions, of gradient times weights.

    Args:
        buffers: buffers by `scratch`; its grid has the gradients by position.
        w: weights [o, height, padded row].
        image_buffers: the image, to be written, and a buffer for numbers of outputs.
        row_length: numbers in a row of the image.
        steps: distances between positions.
        static: sizes of `scatter`.
    """
    image, listed = image_buffers
    rows, columns, outputs = buffers.grid.shape
    height, padded = w.shape[1:]
    arrays = (image, buffers.grid, w, listed)
    bits = buffers.bits.reshape(-1)
    image[:] = 0
    for j in range(columns):
        # Down a column, patches meet in the same vectors: what one has written, the next reads
        # from the store buffer.
        for i in range(rows):
            first = (i * columns + j) * outputs
            count = _list_outputs(bits[first : first + outputs], listed)
            patch_start = i * steps.down * row_length + j * steps.across
            # Without an output that has a gradient here, no row of the patch is added.
            for r in range(0, height if count else 0, len(static[1])):
                row_start = patch_start + r * row_length
                # In the order of `vector_code.scatter`.
                numbers = (row_start, first, r * padded, count, row_length, height * padded)
                scatter(arrays, numbers, static)


@compiled
def _copy(source: Any, target: Any) -> None:
    """Copies numbers. Numba's own assignment also compiles error messages, which takes seconds."""
    for i in range(len(source)):
        target[i] = source[i]


@compiled
def _list_positions(
    bits: Integers, positions: Integers, listed: tuple[Integers, Integers, Integers]
) -> None:
    """Lists the positions with a gradient, by output.

    Every gradient is written to the end of the list, and counted only if it is not 0; else the
    next one overwrites it. A branch in the loop would take longer.

    Args:
        bits: gradients by position [positions · o], as integers.
        positions: where each starts in an image.
        listed: lists to be written, by output: starts, gradients, and their number.
    """
    outputs = len(listed[0])
    for o in range(outputs):
        starts, values = listed[0][o], listed[1][o]
        count, index = _FIRST, np.uint32(o)
        for p in range(len(positions)):
            gradient = bits[index]
            starts[count], values[count] = positions[p], gradient
            count += np.uint32(gradient != 0)
            index += np.uint32(outputs)
        listed[2][o] = count


@compiled
def _list_windows(
    g: Floats,
    marks: Bytes,
    starts: tuple[Integers, Integers, Integers],
    listed: Listed,
) -> None:
    """Lists the positions with a gradient by output, if windows do not overlap.

    Then a position that wins has the gradient of its one window, whose mark names the position. So
    the grid is not needed. Entries are written as in `_list_positions`.

    Args:
        g: gradients by window [h · w · o].
        marks: marks of the windows [h · w · o].
        starts: starts in an image of positions, of windows, and of a window's entries by mark.
        listed: lists to be written, by output: starts, gradients, and their number.
    """
    outputs = len(listed[0])
    _, windows, entries = starts
    for o in range(outputs):
        image_starts, values = listed[0][o], listed[1][o]
        count, index = _FIRST, np.uint32(o)
        for w in range(len(windows)):
            image_starts[count], values[count] = windows[w] + entries[marks[index]], g[index]
            count += np.uint32(marks[index] != DEAD)
            index += np.uint32(outputs)
        listed[2][o] = count


@compiled
def _list_outputs(bits: Integers, listed: Integers) -> Any:
    """Lists the outputs with a gradient at one position as `_list_positions`; returns how many."""
    count = _FIRST
    for o in range(len(bits)):
        listed[count] = o
        count += np.uint32(bits[o] != 0)
    return np.int64(count)


@compiled
def _sum(values: Floats) -> Any:
    """Returns the sum of an array [n], in its dtype."""
    total = values.dtype.type(0)
    for i in range(len(values)):
        total += values[i]
    return total


@compiled
def _sum_of_squares(values: Floats) -> Any:
    """Returns the sum of squares of an array [n], in its dtype."""
    total = values.dtype.type(0)
    for i in range(len(values)):
        total += values[i] * values[i]
    return total


# Backward through all convolutions of a network, to their clipped sums ----------------------------

# Samples of a group, which goes back through all stages together: their gradients of `cnn4`,
# 36 KiB each, stay in a core's cache.
_GROUP_SIZE = 8


class Stage(NamedTuple):
    """A convolution and its pooling, for n models, with buffers for one group of samples."""

    images: Floats  # [m, B, H, row]
    marks: Bytes  # [n, B, h, w, o]
    w: Floats  # [n, o, height, padded row], zeros behind a row of `width`
    sums: Floats  # sums of clipped gradients, in the form of w
    biases: Floats  # sums of clipped gradients [n, o], or [n, 0]
    buffers: Scratch
    gradients: tuple[Floats, Floats]  # gradients of w and of biases, by sample of the group
    image_buffers: tuple[Floats, Integers]
    width: int  # numbers in a row of a patch
    edge: tuple[int, int]  # rows and numbers of zeros before an image
    below: tuple[int, int]  # rows, and numbers of a row, of the output below; 0, 0 if there is none
    steps: Steps
    static: tuple[Static, Static]  # sizes of `gather` and `scatter`, and of `unpool`


def stage_of(
    images: Floats,
    marks: Bytes,
    w: Floats,
    biases: int,
    steps: Steps,
    **settings: Any,
) -> Stage:
    """Returns a stage with its buffers and with sums of zero.

    Args:
        images: [m, B, H, row].
        marks: marks of the windows [n, B, h, w, o].
        w: weights [n, o, height, padded row].
        biases: number of biases of each model.
        steps: distances between positions and between windows.
        settings: `width`, `edge`, `below` and `static` of the stage.
    """
    samples = (_GROUP_SIZE, *w.shape[1:])
    return Stage(
        images=images,
        marks=marks,
        w=w,
        sums=np.zeros_like(w),
        biases=np.zeros((len(w), biases), w.dtype),
        buffers=scratch(images, marks, w.dtype, steps),
        gradients=(np.empty(samples, w.dtype), np.empty((_GROUP_SIZE, biases), w.dtype)),
        image_buffers=image_buffers(images, w),
        steps=steps,
        **settings,
    )


def window_buffers(stages: Sequence[Stage]) -> Floats:
    """Allocates gradients by window [group size, windows], enough for any of the stages."""
    windows = max(len(stage.buffers.g) for stage in stages)
    return np.empty((_GROUP_SIZE, windows), stages[0].w.dtype)


@compiled
def add_clipped_sums(
    stages: tuple[Stage, ...],
    g: Floats,
    squares: Floats,
    weights: Floats,
    clip_norm: float,
    buffers: Floats,
) -> None:
    """Adds the clipped, weighted gradients of all samples to the sums of every stage.

    A group of samples goes back through all stages at a time: their gradients are still in cache
    when their norms are known. Samples of weight 0 are skipped.

    Args:
        stages: the last one of the network first.
        g: gradients of the last stage's pooled outputs [n, B, h · w · o].
        squares: squared norms of all other parameters' gradients [n, B]; replaced by factors.
        weights: [n, B].
        clip_norm: C.
        buffers: buffer by `window_buffers`.
    """
    n, batch = squares.shape
    factors = np.zeros(_GROUP_SIZE, squares.dtype)
    weighted = np.zeros(batch, np.int64)  # numbers of the samples whose weight is not 0
    for model in range(n):
        weighted_count = 0
        for s in range(batch):
            if weights[model, s] == 0:
                squares[model, s] = 0
            else:
                weighted[weighted_count] = s
                weighted_count += 1
        for first in range(0, weighted_count, _GROUP_SIZE):
            group_size = min(_GROUP_SIZE, weighted_count - first)
            for i in range(group_size):
                _copy(g[model, weighted[first + i]], buffers[i])
            # Stages differ in type, as the sizes in `static` are a part of it: numba compiles this
            # loop for each of them.
            for stage in literal_unroll(stages):
                for i in range(group_size):
                    s = weighted[first + i]
                    squares[model, s] += _form_gradients_at(stage, (model, s, i), buffers[i])
                    if stage.below[0] > 0:
                        _write_input_gradient(stage, model, buffers[i])
            for i in range(group_size):
                s = weighted[first + i]
                norm = math.sqrt(squares[model, s])
                clip_factor = clip_norm / norm if norm > clip_norm else 1.0
                squares[model, s] = weights[model, s] * clip_factor
                factors[i] = squares[model, s]
            for stage in literal_unroll(stages):
                _add_scaled_gradients(stage, model, group_size, factors)


@inlined
def _form_gradients_at(
    stage: Stage,
    sample: tuple[int, int, int],
    g: Floats,
) -> Any:
    """Forms one sample's gradients of weights and biases; returns their squared norm.

    Args:
        stage: the convolution, with its buffers.
        sample: number of the model; number of the sample in the batch; and its number in the group
            of samples that are in the buffers together.
        g: gradients by window [h · w · o].
    """
    model, s, i = sample
    formed, biases = stage.gradients
    _copy(stage.marks[model, s].reshape(-1), stage.buffers.marks)
    if stage.below[0] > 0 or _windows_overlap(stage.steps):
        _spread_windows(g, stage.buffers, stage.marks.shape[2:], stage.steps, stage.static[1])
    sharing = len(stage.marks) // len(stage.images)  # models that share an image
    sample_arrays = (stage.images[model // sharing, s], formed[i], biases[i])
    return _form_gradients(
        g, stage.buffers, sample_arrays, stage.width, stage.steps, stage.static[0]
    )


@inlined
def _write_input_gradient(stage: Stage, model: int, g: Floats) -> None:
    """Writes into g the gradient of this stage's input, which is the output of the stage below it.

    Args:
        stage: the stage, whose `buffers` has the gradients by position.
        model: number of the model.
        g: to be written, without the zeros around the image.
    """
    row_length = stage.images.shape[3]
    rows, row_numbers = stage.below  # the part of the image that is not padding
    convolution_sizes, _ = stage.static
    _scatter_patches(
        stage.buffers,
        stage.w[model],
        stage.image_buffers,
        row_length,
        stage.steps,
        convolution_sizes,
    )
    image = stage.image_buffers[0]
    for r in range(rows):
        first = (stage.edge[0] + r) * row_length + stage.edge[1]
        _copy(image[first : first + row_numbers], g[r * row_numbers : (r + 1) * row_numbers])


@inlined
def _add_scaled_gradients(
    stage: Stage,
    model: int,
    group_size: int,
    factors: Floats,
) -> None:
    """Adds the gradients of a group of samples, times their factors, to the sums of a model.

    Args:
        stage: the convolution, whose buffers have the gradients.
        model: number of the model.
        group_size: number of samples.
        factors: factor of each sample, [_GROUP_SIZE].
    """
    formed, biases = stage.gradients
    sums = stage.sums[model].reshape(-1)
    flat = formed.reshape(len(formed), -1)
    for i in range(group_size):
        for k in range(len(sums)):
            sums[k] += factors[i] * flat[i, k]
        for k in range(biases.shape[1]):
            stage.biases[model, k] += factors[i] * biases[i, k]

"""Compiled loops of a small convolution and the max-pooling behind it.

Images are channels-last: a row of a patch is one run of `width · channels` numbers. Vectors hold
output channels; what is convolved is pooled while it is in cache. `backward` has the way back.

Numba keeps what it compiles by the time stamps of these two files: touch them after a change of
`instructions` or `vectors`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .compiled import compiled, part
from .instructions import convolve, pool

Floats = npt.NDArray[np.floating]
Bytes = npt.NDArray[np.uint8]
Above = tuple[Floats, Bytes]
Integers = npt.NDArray[np.integer]
Static = tuple[tuple[int, ...], ...]
# Between positions: rows of an image, and numbers of a row. Between windows: rows and columns of
# positions. Rows and columns of a window.
Steps = tuple[int, int, int, int, int, int]


def convolve_and_pool(
    images: Floats, weights: tuple[Floats, Floats], floor: Floats, found: tuple[Floats, Bytes],
    steps: Steps, static: tuple[Static, Static],
) -> None:  # fmt: skip
    """Pooled convolutions into out and marks [n, B, h, w, o], the winner's number or DEAD.

    `images` [m, B, H, row]; where n is a multiple of m, that many models share images. `weights`
    are w [m, blocks, height, width, lanes] and bias [m, blocks · lanes], the outputs of models
    that share images side by side. What is not above `floor` [1] is cut off: 0 for a ReLU.
    `static` are those of `convolve` and `pool`.
    """
    out, w = found[0], weights[0]
    line = w.shape[1] * w.shape[4]
    held = np.empty((*positions_below(out, steps), line), dtype=out.dtype)
    lines = np.empty((out.shape[3], line), out.dtype), np.empty((out.shape[3], line), np.uint8)
    _convolve_and_pool(images, weights, floor, found, (held, lines), steps, static)


def positions_below(windows: Any, steps: Steps) -> tuple[int, int]:
    """Rows and columns of positions below windows [n, B, h, w, o]."""
    down, across = windows.shape[2:4]
    return (down - 1) * steps[2] + steps[4], (across - 1) * steps[3] + steps[5]


@compiled
def _convolve_and_pool(
    images: Floats, weights: tuple[Floats, Floats], floor: Floats, found: Above,
    scratch: tuple[Floats, Above], steps: Steps, static: tuple[Static, Static],
) -> None:  # fmt: skip
    (w, bias), (held, lines) = weights, scratch
    apart = found[0].shape[4] % w.shape[4] == 0  # no vector holds channels of two models
    for m in range(images.shape[0]):
        for s in range(images.shape[1]):
            where = (m, s, images.shape[0])
            _convolve(images, w, bias, (m, s), held, steps, static[0])
            if apart:
                _pool(held, floor, found, where, steps, static[1])
            else:
                _pool_in_lines(held, floor, found, lines, where, steps, static[1])


@part
def _convolve(
    images: Floats, w: Floats, bias: Floats, where: tuple[int, int], held: Floats,
    steps: Steps, static: Static,
) -> None:  # fmt: skip
    """One image at all positions, into held [rows, columns, blocks · lanes]."""
    m, s = where
    blocks, height, width, size = w.shape[1:]
    rows, columns, line = held.shape
    lower, later, row = steps[0], steps[1], images.shape[3]
    tall, wide = len(static[1]), len(static[2])
    image = (m * images.shape[1] + s) * images.shape[2] * row
    arrays = (images, w, bias, held)
    for block in range(blocks):
        of_w = (m * blocks + block) * height * width * size
        of_bias = (m * blocks + block) * size
        for top in range(0, rows, tall):
            r = min(top, rows - tall)
            for left in range(0, columns, wide):
                c = min(left, columns - wide)
                numbers = (
                    image + r * lower * row + c * later, of_w, of_bias,
                    (r * columns + c) * line + block * size,
                    lower * row, row, height, width, columns * line, line,
                )  # fmt: skip
                convolve(arrays, numbers, static)


@part
def _pool(
    held: Floats, floor: Floats, found: Above, where: tuple[int, int, int], steps: Steps,
    static: Static,
) -> None:  # fmt: skip
    out, marks = found
    m, s, inputs = where
    n, batch, down, across, outputs = out.shape
    columns, line = held.shape[1:]
    size, each = len(static[0]), n // inputs
    arrays = (held, floor, out, marks)
    for channel in range(0, each * outputs, size):
        model = m * each + channel // outputs
        first = (model * batch + s) * down * across * outputs + channel % outputs
        for i in range(down):
            for j in range(across):
                x_at = (i * steps[2] * columns + j * steps[3]) * line + channel
                out_at = first + (i * across + j) * outputs
                pool(arrays, (x_at, out_at, columns * line, line), static)


@part
def _pool_in_lines(
    held: Floats, floor: Floats, found: Above, lines: Above, where: tuple[int, int, int],
    steps: Steps, static: Static,
) -> None:  # fmt: skip
    """A row of windows of all models, and then model by model."""
    (out, marks), (of_windows, of_marks) = found, lines
    m, s, inputs = where
    n, _, down, across, outputs = out.shape
    columns, line = held.shape[1:]
    size, each = len(static[0]), n // inputs
    arrays = (held, floor, of_windows, of_marks)
    for i in range(down):
        for j in range(across):
            x_at = (i * steps[2] * columns + j * steps[3]) * line
            for channel in range(0, line, size):
                numbers = (x_at + channel, j * line + channel, columns * line, line)
                pool(arrays, numbers, static)
        for k in range(each):
            for j in range(across):
                for o in range(outputs):
                    out[m * each + k, s, i, j, o] = of_windows[j, k * outputs + o]
                    marks[m * each + k, s, i, j, o] = of_marks[j, k * outputs + o]

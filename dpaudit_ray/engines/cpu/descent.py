"""The way back through convolutions under pooling that follow each other, to their clipped sums.

A few samples at a time: their gradients are in cache when their norms are known, and never go to
memory. `backward` has what is done at each convolution; touch this file after a change of it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from . import backward
from .backward import Room, copy, form, merge, overlap, push
from .compiled import compiled, part
from .forward import Bytes, Floats, Integers, Static, Steps

_SAMPLES = 8  # at a time: per-sample gradients of `cnn4`, 36 KiB each, stay in a core's cache


class Stage(NamedTuple):
    """A convolution and its pooling, for n models, and room for a few samples.

    `images` [m, B, H, row]: n is a multiple of m; `marks` [n, B, h, w, o]; `w` [n, o, height,
    padded row], zeros behind a row of `width`. `edge`: rows and numbers of zeros around an image.
    Σ of clipped gradients: `sums`, as w, and `biases` [n, o] or [n, 0].
    """

    images: Floats
    marks: Bytes
    w: Floats
    sums: Floats
    biases: Floats
    room: Room
    gradients: tuple[Floats, Floats, Floats]  # by sample: of windows, of w, of biases
    image: tuple[Floats, Integers]
    width: int
    edge: tuple[int, int]
    steps: Steps
    static: tuple[Static, Static]


def stage(
    seen: tuple[Floats, Bytes], w: Floats, biases: int, width: int, edge: tuple[int, int],
    steps: Steps, static: tuple[Static, Static],
) -> Stage:  # fmt: skip
    """With `seen`, images and marks, `biases` o or 0, sums of zeros, and room."""
    (images, marks), n, shape = seen, len(seen[1]), w.shape[1:]
    own = backward.room(images, (w, marks), steps)
    return Stage(
        images=images,
        marks=marks,
        w=w,
        sums=np.zeros_like(w),
        biases=np.zeros((n, biases), w.dtype),
        room=own,
        gradients=(
            np.empty((_SAMPLES, len(own.g)), w.dtype),
            np.empty((_SAMPLES, *shape), w.dtype),
            np.empty((_SAMPLES, biases), w.dtype),
        ),
        image=backward.below(images, w),
        width=width,
        edge=edge,
        steps=steps,
        static=static,
    )


@compiled
def descend(
    stages: tuple[Stage, ...], g: Floats, squares: Floats, weights: Floats, clip_norm: float
) -> None:
    """Clipped, weighted sums of all stages, the last one first.

    Args:
        stages: `sums` and `biases` are added to.
        g: gradients of the last stage's pooled outputs [n, B, h · w · o].
        squares: [n, B], squared norms of the gradients of all other parameters; factors afterwards.
        weights: [n, B].
        clip_norm: C.
    """
    n, batch = squares.shape
    for m in range(n):
        for first in range(0, batch, _SAMPLES):
            many = min(_SAMPLES, batch - first)
            for i in range(many):
                copy(g[m, first + i], stages[0].gradients[0][i])
            _at(stages, (m, first, many), squares)
            for s in range(first, first + many):
                norm = math.sqrt(squares[m, s])
                squares[m, s] = weights[m, s] * (clip_norm / norm if norm > clip_norm else 1.0)
            _sum_up(stages, (m, many), squares[m, first : first + many])


def _at(stages: Any, where: tuple[int, int, int], squares: Floats) -> None:
    """Gradients of model m's samples, from the first of so many, at every stage, and squares."""
    raise NotImplementedError


@overload(_at)
def _at_typed(stages: Any, where: Any, squares: Any) -> Callable[..., None]:
    def at_last(stages: Any, where: Any, squares: Any) -> None:
        m, first, many = where
        for i in range(many):
            squares[m, first + i] += _form(stages[0], m, first + i, i, False)

    def at_others(stages: Any, where: Any, squares: Any) -> None:
        m, first, many = where
        for i in range(many):
            squares[m, first + i] += _form(stages[0], m, first + i, i, True)
            _push(stages[0], stages[1], m, i)
        _at(stages[1:], where, squares)

    return at_last if len(stages) == 1 else at_others


def _sum_up(stages: Any, where: tuple[int, int], factors: Floats) -> None:
    """Adds so many samples' gradients, by their factors, to the sums of model m at every stage."""
    raise NotImplementedError


@overload(_sum_up)
def _sum_up_typed(stages: Any, where: Any, factors: Any) -> Callable[..., None]:
    def at_last(stages: Any, where: Any, factors: Any) -> None:
        _add(stages[0], where[0], where[1], factors)

    def at_others(stages: Any, where: Any, factors: Any) -> None:
        _add(stages[0], where[0], where[1], factors)
        _sum_up(stages[1:], where, factors)

    return at_last if len(stages) == 1 else at_others


@part
def _form(own: Stage, m: int, s: int, i: int, pushes: bool) -> Any:
    g, formed, biases = own.gradients
    copy(own.marks[m, s].reshape(-1), own.room.marks)
    if pushes or overlap(own.steps):
        merge(g[i], own.room, own.marks.shape[2:], own.steps, own.static[1])
    image = own.images[m // (len(own.marks) // len(own.images)), s]
    parts = (image, formed[i], biases[i])
    return form(g[i], own.room, parts, own.width, own.steps, own.static[0])


@part
def _push(own: Stage, lower: Stage, m: int, i: int) -> None:
    """To the gradients of the pooled outputs below; what is merged is in `room`."""
    row, (tall, wide, outputs) = own.images.shape[3], lower.marks.shape[2:]
    push(own.room, own.w[m], own.image, row, own.steps, own.static[0])
    image, g, run = own.image[0], lower.gradients[0][i], wide * outputs
    for r in range(tall):
        first = (own.edge[0] + r) * row + own.edge[1]
        copy(image[first : first + run], g[r * run : (r + 1) * run])


@part
def _add(own: Stage, m: int, many: int, factors: Floats) -> None:
    _, formed, biases = own.gradients
    sums, flat = own.sums[m].reshape(-1), formed.reshape(len(formed), -1)
    for i in range(many):
        for k in range(len(sums)):
            sums[k] += factors[i] * flat[i, k]
        for k in range(biases.shape[1]):
            own.biases[m, k] += factors[i] * biases[i, k]

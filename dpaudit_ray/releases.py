"""For training loops that use no Opacus: their steps, told to whoever audits them.

Plain PyTorch, with the script's own clipping in it:

    noisy = audited_step(
        clip_and_sum, draw_noise, per_example=gradients,
        noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.01,
    )

Any framework, by a function that gives releases:

    @audited_release(records=("x", "y"), noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.01)
    def noisy_gradient(params, x, y, key): ...

Outside an audit both do what the script did, and nothing else.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .scripts.watch.release_functions import Stream

F = TypeVar("F", bound=Callable[..., Any])
Total = Sequence[Any] | Callable[[list[Any]], Sequence[Any]]
Noise = Sequence[Any] | Callable[[], Sequence[Any]]

__all__ = ["audited_release", "audited_step"]


def audited_step(  # noqa: PLR0913 (a promise, by name)
    total: Total,
    noise: Noise,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    sample_rate: float = 1.0,
    per_example: Sequence[Any] | None = None,
    of: int | None = None,
    name: str = "step",
) -> list[Any]:
    """The noisy sum of one step.

    Args:
        total: the sum of clipped gradients, an array per tensor; or what makes it of
            `per_example`, so that canaries pass through the script's own clipping.
        noise: as many arrays, or what draws them; only what draws them can be drawn again, so with
            arrays an audit measures no noise within a step.
        noise_multiplier: the noise's standard deviation over `max_grad_norm`, as promised.
        max_grad_norm: what gradients are clipped to, as promised.
        sample_rate: the chance of a record to be in a step, as promised.
        per_example: gradients, an array [examples, ...] per tensor.
        of: how many records the step's were drawn from.
        name: of this call, where a script has several.

    Returns:
        total + noise, an array per tensor.

    Raises:
        TypeError: `total` is a function, and `per_example` is missing.
    """
    if callable(total) and per_example is None:
        raise TypeError("audited_step takes per_example where total is a function of it")
    examples = list(per_example or [])

    def released(change: Any, seed: int | None) -> list[Any]:
        from .scripts.watch import release_functions

        kind = change[0] if isinstance(change, tuple) else change
        if callable(total):
            sums = list(total(release_functions.changed(examples, change)))
        elif kind == "appended":  # clipped already, so it comes as long as it may be
            sums = [one + _like(one, row / 1e3) for one, row in zip(total, change[1], strict=True)]
        else:
            sums = list(total)
        drawn = noise() if callable(noise) else noise
        return [a + b for a, b in zip(sums, drawn, strict=True)]

    stream = _stream(name, noise_multiplier, max_grad_norm, sample_rate)
    if stream is None:
        return released("nothing", None)
    shapes = [tuple(one.shape[1:]) for one in examples]
    if not callable(total) and not examples:
        shapes = [tuple(one.shape) for one in total]
    rows = len(examples[0]) if examples else None
    return stream.step(released, rows, shapes, of, redraws=callable(noise))


def audited_release(
    *,
    records: Sequence[str],
    noise_multiplier: float,
    max_grad_norm: float,
    sample_rate: float = 1.0,
    of: int | None = None,
    key: str | None = None,
    reseed: Callable[[int], Any] | None = None,
) -> Callable[[F], F]:
    """Marks a function that gives the noisy gradient of a batch, as arrays or one array.

    It is called again with a record less and with other randomness, so it must do nothing else.

    Args:
        records: names of its arguments that have a record in each row, or are tuples of such.
        noise_multiplier: as in `audited_step`, like the next two.
        max_grad_norm: what a record may move the sum by, as promised.
        sample_rate: the chance of a record to be in a step, as promised.
        of: how many records a batch is drawn from.
        key: the argument that all its randomness comes from; None: global generators.
        reseed: makes such a key of a number; left out, a JAX key of the kind that was given.
    """

    def mark(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            stream = _stream(function.__name__, noise_multiplier, max_grad_norm, sample_rate)
            if stream is None:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            again = _Again(function, dict(bound.arguments), tuple(records), key, reseed)
            found = stream.step(again.released, again.rows, None, of)
            return again.as_returned(found)

        return called  # type: ignore[return-value]

    return mark


class _Again:
    """A call that can be made again, with other records or other randomness."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        records: tuple[str, ...],
        key: str | None,
        reseed: Callable[[int], Any] | None,
    ) -> None:
        self._function, self._arguments = function, arguments
        self._key, self._reseed = key, reseed
        self._records = {name: arguments[name] for name in records}
        self._examples = [one for value in self._records.values() for one in _parts(value)]
        self.rows = len(self._examples[0])
        self._kind: type = list

    def released(self, change: Any, seed: int | None) -> list[Any]:
        """What it returns then, as a list."""
        from .scripts.watch import release_functions

        changed = iter(release_functions.changed(self._examples, change))
        own = dict(self._arguments)
        for name, value in self._records.items():
            parts = [next(changed) for _ in _parts(value)]
            own[name] = type(value)(parts) if isinstance(value, (list, tuple)) else parts[0]
        if seed is not None and self._key is not None:
            own[self._key] = self._reseed(seed) if self._reseed else _jax_key(seed, own[self._key])
        elif seed is not None:
            _reseed(seed)
        found = self._function(**own)
        self._kind = type(found)
        return _parts(found)

    def as_returned(self, found: list[Any]) -> Any:
        """Of the kind that the function returns."""
        if issubclass(self._kind, (list, tuple)):
            return found if issubclass(self._kind, list) else tuple(found)
        return found[0]


def _parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _stream(name: str, noise: float, bound: float, rate: float) -> Stream | None:
    """None outside an audit, which nothing but an audit imports anything for."""
    watch = sys.modules.get("dpaudit_ray.scripts.watch.release_functions")
    streams = watch.current() if watch is not None else None
    return streams.at(name, (noise, bound, rate)) if streams is not None else None


def _like(array: Any, row: Any) -> Any:
    if hasattr(array, "new_tensor"):
        return array.new_tensor(row)
    return row.astype(array.dtype)


def _jax_key(seed: int, like: Any) -> Any:
    """A key of the kind of `like`: typed, of the same generator, or an array of numbers."""
    import jax

    typed = hasattr(like, "dtype") and jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key)
    if typed:
        return jax.random.key(seed % 2**32, impl=jax.random.key_impl(like))
    return jax.random.PRNGKey(seed % 2**32)


def _reseed(seed: int) -> None:
    from .scripts.watch import generators

    generators.seed(seed)
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(seed % 2**31)

"""Reports the steps of a training loop without Opacus to an audit.

Plain PyTorch, with the script's own clipping in it:

    noisy = audited_step(
        clip_and_sum, draw_noise, per_example=gradients,
        noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.01,
    )

Any framework, by a function that returns releases:

    @audited_release(records=("x", "y"), noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.01)
    def noisy_gradient(params, x, y, key): ...

Outside an audit, both only compute the release.
"""

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


def audited_step(  # noqa: PLR0913 (a claim, by name)
    total: Total,
    noise: Noise,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    sample_rate: float = 1.0,
    per_example: Sequence[Any] | None = None,
    of: int | None = None,
    name: str = "step",
    strategy: Any = None,
    separation: int = 1,
    indices: Sequence[int] | None = None,
) -> list[Any]:
    """Returns the noisy sum of one step.

    Args:
        total: the sum of clipped gradients, an array per tensor; or a function of `per_example`
            that computes it, so that canaries pass through the script's own clipping.
        noise: the noise, an array per tensor, or a function that draws it. With arrays, an audit
            measures no noise within a step, as it cannot draw the noise again.
        noise_multiplier: the noise's standard deviation over `max_grad_norm`, as claimed.
        max_grad_norm: bound to which gradients are clipped, as claimed.
        sample_rate: the probability of a record to be in a step, as claimed.
        per_example: gradients, an array [examples, ...] per tensor.
        of: how many records the step's were drawn from.
        name: name of this call, if a script has several.
        strategy: the matrix C [T, T] of correlated noise C⁻¹ z, lower triangular: z then has the
            deviation `noise_multiplier` times `max_grad_norm` and the sensitivity of C, and the
            claim is one release of all T steps.
        separation: steps from one participation of a record to the next, as claimed with it.
        indices: indices of the step's records among all, with correlated noise.

    Returns:
        total + noise, an array per tensor.

    Raises:
        TypeError: `total` is a function, and `per_example` is missing.
    """
    if callable(total) and per_example is None:
        raise TypeError("audited_step takes per_example where total is a function of it")
    examples = list(per_example or [])
    stream = _stream(name, noise_multiplier, max_grad_norm, sample_rate)
    drawn_noise: Noise | None = None  # correlated noise, drawn once because the audit whitens it
    if stream and strategy is not None and not stream.run.request.pinned:
        drawn_noise = list(noise() if callable(noise) else noise)
        stream.whiten(drawn_noise, strategy, separation, indices)

    def released(change: Any, seed: int | None) -> list[Any]:
        """Returns the sums with one example changed, plus the noise.

        Where `noise` is a function, each call draws it anew, except correlated noise.

        Args:
            change: as `release_functions.change_examples` takes it; None for the step as it is.
            seed: not used: noise is drawn by global generators, which the audit seeds.
        """
        if callable(total):
            sums = total(_change_examples(examples, change))
        else:
            sums = total
            if change and change[0] == "appended":
                # The audit makes a canary's row 1,000 times as long as the largest norm, so that
                # the script must clip it. These sums are clipped already, and nothing clips the
                # row any more: divided by 1,000, it has the length that clipping would leave.
                sums = [a + _like(a, row / 1e3) for a, row in zip(sums, change[1], strict=True)]
        source = noise if drawn_noise is None else drawn_noise
        noises = source() if callable(source) else source
        return [a + b for a, b in zip(sums, noises, strict=True)]

    if not stream:
        return released(None, None)
    shapes = [tuple(array.shape[1:]) for array in examples]  # shapes of an example's gradient
    if not callable(total) and not examples:
        shapes = [tuple(array.shape) for array in total]
    rows = len(examples[0]) if examples else None
    return stream.step(released, rows, shapes, of, redraws=callable(noise), clips=callable(total))


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
    """Marks a function that returns the noisy gradient of a batch, as arrays in any structure.

    It is called again without a record and with other randomness, so it must have no side effects.

    Args:
        records: names of its arguments whose arrays, in any structure, have a record in each row;
            the records themselves, not their numbers.
        noise_multiplier: the noise's standard deviation over `max_grad_norm`, as claimed.
        max_grad_norm: bound on the change of the sum by one record, as claimed.
        sample_rate: the probability of a record to be in a step, as claimed.
        of: how many records a batch is drawn from.
        key: the argument that all its randomness comes from; None: global generators.
        reseed: makes such a key of a number; by default a JAX key of the same kind.
    """

    def mark(function: F) -> F:
        """Wraps the function: in an audit, each call is recorded as a release.

        The audit repeats the call with changed records, and with a seed for its noise.
        """
        signature = inspect.signature(function)

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            """Calls the function; an audit also repeats the call with changed examples."""
            stream = _stream(function.__name__, noise_multiplier, max_grad_norm, sample_rate)
            if not stream:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            original_arguments = dict(bound.arguments)
            examples, unflatten_records = _flatten(
                {name: original_arguments[name] for name in records}
            )
            # Gives arrays the structure of the function's result; each call of `released` sets it.
            unflatten_result: Any = None

            def released(change: Any, seed: int | None) -> list[Any]:
                """Calls the function with one record changed, and with a given seed.

                Args:
                    change: as `release_functions.change_examples` takes it; None for no change.
                    seed: seed of the key, or else of TensorFlow's generators; the audit seeds all
                        other generators itself. None leaves the key and generators as they are.
                """
                nonlocal unflatten_result
                changed_records = unflatten_records(_change_examples(examples, change))
                # The dict is edited in place: `bound.args` and `bound.kwargs` are computed from it.
                call_arguments = bound.arguments
                call_arguments.update(original_arguments | changed_records)
                tensorflow = sys.modules.get("tensorflow")
                if seed is not None and key is not None:
                    original_key = original_arguments[key]
                    call_arguments[key] = reseed(seed) if reseed else _jax_key(seed, original_key)
                elif seed is not None and tensorflow:
                    tensorflow.random.set_seed(seed % 2**31)
                arrays, unflatten_result = _flatten(function(*bound.args, **bound.kwargs))
                return arrays

            # JAX has no generators that could be seeded: its noise depends on a key, or a state. If
            # no argument is named by `key`, the audit tries whether a second call draws other
            # noise: None.
            redraws = True if key is not None or "jax" not in sys.modules else None
            rows = len(examples[0])
            # Without shapes (None), the canary is the last record, which is left out or not.
            arrays = stream.step(released, rows, None, of, redraws=redraws, records=examples)
            return unflatten_result(arrays)

        return step  # type: ignore[return-value]

    return mark


def _flatten(
    tree: Any,
) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Returns the arrays of a structure in their order, and a function that puts others in.

    Structures are tuples, lists, dictionaries, and those that JAX knows.
    """
    jax = sys.modules.get("jax")
    if jax:
        arrays, structure = jax.tree.flatten(tree)
        return arrays, structure.unflatten
    from torch.utils import _pytree

    arrays, specification = _pytree.tree_flatten(tree)
    return arrays, lambda arrays: _pytree.tree_unflatten(arrays, specification)


def _stream(
    name: str,
    noise_multiplier: float,
    max_grad_norm: float,
    sample_rate: float,
) -> "Stream | None":
    """Returns the recorder of the steps at one call site, or None outside an audit.

    Only an audit imports the recorder's module, so a script without one does not load it.

    Args:
        name: name of the call site.
        noise_multiplier: value that is claimed there.
        max_grad_norm: value that is claimed there.
        sample_rate: value that is claimed there.
    """
    watch = sys.modules.get("dpaudit_ray.scripts.watch.release_functions")
    return watch.stream_at(name, (noise_multiplier, max_grad_norm, sample_rate)) if watch else None


def _change_examples(examples: list[Any], change: Any) -> list[Any]:
    """Returns the examples with one of them changed; `scripts.watch` knows the changes."""
    if change is None:
        return list(examples)
    from .scripts.watch import release_functions

    return release_functions.change_examples(examples, change)


def _like(array: Any, row: Any) -> Any:
    """Returns a NumPy row as an array of the library, dtype and device of `array`."""
    return array.new_tensor(row) if hasattr(array, "new_tensor") else row.astype(array.dtype)


def _jax_key(seed: int, like: Any) -> Any:
    """Returns a key of the kind of `like`: typed, of the same generator, or an array of numbers."""
    import jax

    if hasattr(like, "dtype") and jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.key(seed % 2**32, impl=jax.random.key_impl(like))
    return jax.random.PRNGKey(seed % 2**32)

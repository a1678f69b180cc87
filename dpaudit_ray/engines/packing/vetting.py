"""Checks whether a module's forward pass may be audited, by calling it.

DP-SGD bounds the change by one example, so an example's output may depend only on itself and the
parameters; and a pack must give the same scores again, so on no generator and no state.
"""

import faulthandler
import itertools
import math
import multiprocessing
import os
import random
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...errors import SpecError

_KNOWN_CODE = ("torch.nn.", f"{__name__.split('.')[0]}.")  # ends no process, whatever the values
_TIMEOUT_SECONDS = 60.0  # for a few examples in a child process
# Distance of a replacement from the example: so far away, it changes any statistic of its batch.
_FAR = 1e6
# Errors that count as rounding: batches of other sizes may be summed in another order.
_BOUND_IN_FLOAT64 = 1e-9
_BOUND = 1e-4  # tolerance in float32, and for tokens
_MIXES = (
    "gives an example another output when others in its batch change: DP-SGD cannot bound what one "
    "example changes; treat every example alone, with GroupNorm in place of statistics of the "
    "batch, batch_first=True, and no softmax over dimension 0"
)
_DRAWS = "draws random numbers, which no pack's seed covers; take them out, or set p to 0"
_UNSTEADY = (
    "gives another output when it is called again: it draws random numbers or keeps something from "
    "one batch to the next; take that out"
)


def vet(module: nn.Module, x: Tensor, training_batch: Tensor, thorough: bool) -> bool:
    """Calls the module on batches that differ in other examples, and compares its outputs.

    A module that reads numbers of its batch (`if`, `.item()`) may let one example decide what
    happens to others. It is right if every example goes through it alone, and only then.

    Values that no example has are tried on a CPU only, and in a child process if the module has
    code of others: an index that is computed from them may end the process, or a GPU's context.

    Args:
        module: the user's module, in the dtype of `x`.
        x: a few examples [B, ...], two or more.
        training_batch: a batch of the training.
        thorough: whether to try every replacement, and every example alone; else one of each.

    Returns:
        Whether every example has to go through the module alone.

    Raises:
        SpecError: the module mixes examples, samples random numbers, or keeps state.
    """
    bound = _BOUND_IN_FLOAT64 if x.dtype == torch.float64 else _BOUND

    def compare(outputs: Tensor, expected: Tensor) -> None:
        """Raises SpecError if the first examples have other outputs than in another batch."""
        if relative_error(outputs[: len(expected)], expected) > bound:
            raise _refusal(_MIXES)

    def check_part(rows: slice | Tensor, batch: Tensor, expected: Tensor) -> Tensor:
        """Calls the module on some rows of a batch alone; returns its outputs.

        Raises SpecError unless they are those rows of `expected`, the outputs of the whole batch.
        """
        outputs = _outputs_of(module, batch[rows])
        compare(outputs, expected[rows])
        return outputs

    # The same batch twice: the module samples no numbers, keeps no state, and repeats its outputs.
    before = _state(module)
    generators = _generator_states()
    with Reads(x) as reads:
        _outputs_of(module, x)
    if generators != _generator_states():
        raise _refusal(_DRAWS)
    state = _check_state(module, before)  # has attributes that the first call has made
    expected = _outputs_of(module, x)  # again: a mode such as `Reads` keeps torch from fused layers
    if relative_error(_outputs_of(module, x), expected) > 0:
        raise _refusal(_UNSTEADY)
    _check_state(module, state)
    if reads.has_read:
        return True
    # With another last example, the outputs of the examples before it stay.
    if x.device.type == "cpu":
        for example in _replacements(x, thorough):
            changed = torch.cat([x[:-1], example])
            outputs = _outputs_if_taken(module, changed)
            if outputs is not None:
                compare(outputs, expected[:-1])
    # An example alone, or a part of a batch of the training's size, has the outputs of the whole.
    for j in range(len(x) if thorough else 1):
        check_part(slice(j, j + 1), x, expected)
    if len(training_batch) > len(x):
        # If a layer has capacity for some rows only, copies of one example exceed it.
        example = training_batch[:1]
        copied = _outputs_of(module, example.expand_as(training_batch))
        compare(copied, _outputs_of(module, example).expand_as(copied))
        batch = training_batch
        expected = _outputs_of(module, batch)
        for first, second in halves(batch, len(x)):
            check_part(second, batch, expected)
            expected = check_part(first, batch, expected)
            batch = batch[first]
    return False


def relative_error(values: Tensor, expected: Tensor, least_scale: float = 0.0) -> float:
    """Returns the largest difference, divided by the largest finite entry of `expected`.

    The result is infinite if shapes differ, or if entries that are not finite differ.

    Args:
        values: values of any shape.
        expected: expected values, of the same shape.
        least_scale: divides the difference instead, if all entries are smaller.
    """
    if values.shape != expected.shape:
        return math.inf
    finite = expected.isfinite()
    if not torch.equal(values.isfinite(), finite):
        return math.inf
    if not torch.equal(values[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return math.inf
    values, expected = values[finite], expected[finite]
    if torch.equal(values, expected):
        return 0.0
    if not expected.is_floating_point():
        return math.inf
    scale = max(float(expected.abs().amax()), least_scale)
    return float((values - expected).abs().amax()) / scale if scale > 0 else math.inf


def halves(batch: Tensor, few: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cuts a batch [B, ...] in two, then its first part, until this has at most `few` examples.

    Parts are sampled, so that adjacent examples do not stay together. If a module begins to mix
    examples at some batch size, one of the cuts leads from above that size to below it.

    Yields:
        Row numbers of the first and of the second part, in the batch or part that is cut.
    """
    generator = torch.Generator().manual_seed(1)
    examples = len(batch)
    while examples > few:
        rows = torch.randperm(examples, generator=generator).to(batch.device)
        examples = (examples + 1) // 2
        yield rows[:examples], rows[examples:]


def _refusal(problem: str) -> SpecError:
    """Returns the error that the model cannot be audited, for a reason as a verb phrase."""
    return SpecError("mechanism.model", problem)


def _replacements(x: Tensor, thorough: bool) -> list[Tensor]:
    """Returns replacements of the last example, which must not change the outputs of the others."""
    last = x[-1:]
    is_real = x.is_floating_point()
    replacements = []
    if is_real:
        replacements.append(torch.full_like(last, math.nan))
    if thorough:
        replacements.append(x[:1])
    if thorough and is_real:
        replacements += [last + _FAR, last - _FAR]
    return replacements


def _outputs_if_taken(module: nn.Module, x: Tensor) -> Tensor | None:
    """Returns outputs on values that no example has; None if the module does not take them.

    Code of others is called in a child process: such values may end the process that uses them.
    """
    class_modules = {type(layer).__module__ for layer in module.modules()}
    is_known = all(name.startswith(_KNOWN_CODE) for name in class_modules)
    if is_known or "fork" not in multiprocessing.get_all_start_methods():
        try:
            return _outputs_of(module, x)
        except Exception:  # noqa: BLE001 (such values may not be tokens)
            return None
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_outputs, args=(sender, module, x))
    child.start()
    sender.close()
    try:
        if receiver.poll(_TIMEOUT_SECONDS):
            return torch.from_numpy(receiver.recv())
        return None
    except EOFError:  # the child raised an exception, or a signal has ended it
        return None
    finally:
        child.kill()
        child.join()
        receiver.close()


def _send_outputs(sender: Connection, module: nn.Module, x: Tensor) -> None:
    """Sends a module's outputs to the process that this one was forked from.

    Args:
        sender: end of a pipe.
        module: the user's module.
        x: examples [B, ...].
    """
    torch.set_num_threads(1)  # threads are not forked
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # if a signal ends this process, no one needs to read of it
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # standard error
    with suppress(Exception):  # the other process understands that nothing was sent
        sender.send(_outputs_of(module, x).numpy())


def _outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """Returns outputs of a copy of `x`. Raises SpecError unless they are one row an example."""
    with torch.no_grad():
        outputs = module(x.clone())
    if not isinstance(outputs, Tensor):
        raise _refusal(f"gives a {type(outputs).__name__}; it must give one tensor of scores")
    if outputs.dim() != 2 or len(outputs) != len(x):
        raise _refusal(
            f"gives {tuple(outputs.shape[1:])} per example and {len(outputs)} rows for {len(x)} "
            "examples; it must give one row of scores for each"
        )
    return outputs


_READING = {torch.equal, torch.allclose, torch.is_nonzero} | {
    getattr(Tensor, name)
    for name in (
        "item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__bool__", "__int__",
        "__float__", "__index__", "__contains__",
    )
}  # fmt: skip


class Reads(TorchFunctionMode):
    """Detects whether Python reads a number that depends on given tensors: `if`, `.item()`."""

    has_read = False  # whether such a number was read so far

    def __init__(self, *tensors: Tensor) -> None:
        """Watches numbers that depend on these tensors, while the mode is on."""
        super().__init__()
        # Tensors by id. As they are held, no id is used for another object.
        self._dependent = {id(tensor): tensor for tensor in tensors}

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls a function of torch; if an argument depends on the tensors, so do its results.

        Torch calls it in place of each of its functions, with the arguments of the call.
        """
        options = dict(kwargs or {})
        result = func(*args, **options)
        if any(id(leaf) in self._dependent for leaf in tree_leaves((args, options))):
            self.has_read |= func in _READING
            tensors = (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
            self._dependent.update((id(tensor), tensor) for tensor in tensors)
        return result


def _generator_states() -> tuple[object, ...]:
    """Returns the states of all global generators."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    key = numpy_state["state"]
    torch_state = torch.get_rng_state().numpy().tobytes()
    return torch_state, key["key"].tobytes(), key["pos"], random.getstate()


def _state(module: nn.Module) -> dict[str, object]:
    """Returns parameters, buffers, and numbers and strings that are attributes, by their path.

    Attributes of the user's own classes count too: a layer may keep a counter on its class, shared
    by all its instances. Of several with one name, the one that the layer would read counts.
    """
    state: dict[str, object] = {}
    for path, layer in module.named_modules():
        user_classes = [
            cls for cls in type(layer).__mro__ if not cls.__module__.startswith("torch.")
        ]
        for owner in (*reversed(user_classes), layer):
            for name, value in vars(owner).items():
                if isinstance(value, int | float | str):
                    state[f"{path}.{name}".lstrip(".")] = value  # the module's own path is empty
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        state[name] = tensor.detach().clone()
    return state


def _check_state(module: nn.Module, before: Mapping[str, object]) -> dict[str, object]:
    """Returns the module's present state. Raises SpecError if an entry of `before` has changed."""
    now = _state(module)
    for name, value in before.items():
        if name not in now or _differ(now[name], value):
            raise _refusal(
                f"changes its {name} when it is called, so a batch's outputs depend on those "
                "before it; keep nothing from one batch to the next"
            )
    return now


def _differ(value: object, before: object) -> bool:
    """Returns whether a value of the state has changed: numbers of tensors, or other values."""
    if isinstance(value, Tensor) and isinstance(before, Tensor):
        return relative_error(value, before) > 0
    return value is not before and value != before

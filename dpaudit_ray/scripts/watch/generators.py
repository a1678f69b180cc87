"""Puts random generators back after a replay, and seeds them."""

import contextlib
import itertools
import pickle
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from .hooks import users_frames
from .tensors import hex_digest

Generator = Any  # a generator of torch, numpy or Python
KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_MOST_PARTS = 100  # parts of a container that are searched for generators
_SEED_STEP = 7919  # difference between seeds, so that generators seeded together differ


@contextlib.contextmanager
def preserve_generators(generators: Iterable[Generator] = ()) -> Iterator[None]:
    """Puts generators back at the end: Python's, numpy's, torch's, and the passed ones."""
    states = [(generator, _state(generator)) for generator in _with_global(generators)]
    try:
        yield
    finally:
        for generator, state in states:
            _set_state(generator, state)


@contextlib.contextmanager
def preserve_attributes(objects: Iterable[Any]) -> Iterator[None]:
    """Puts the attributes of all objects back at the end."""
    copies = [(thing, dict(vars(thing))) for thing in objects]
    try:
        yield
    finally:
        for thing, values in copies:
            vars(thing).clear()
            vars(thing).update(values)


def states_of_all(generators: Iterable[Generator]) -> tuple[str, ...]:
    """Returns digests of the states of Python's generator, numpy's, torch's and passed ones."""
    states = []
    for generator in _with_global(generators):
        state = _state(generator)
        # A pickled tensor would have its address in it.
        values = state.numpy() if isinstance(state, torch.Tensor) else state
        states.append(hex_digest(pickle.dumps(values)))
    return tuple(states)


def _state(generator: Generator) -> Any:
    """Returns a generator's state, which `_set_state` takes."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def _set_state(generator: Generator, state: Any) -> None:
    """Puts a generator into a state that `_state` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def seed_generators(seed: int, generators: Iterable[Generator] = ()) -> None:
    """Seeds Python's generator, numpy's, torch's, and the passed ones."""
    for index, generator in enumerate(_with_global(generators)):
        generator_seed = (seed + _SEED_STEP * index) % 2**63
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(generator_seed).state
        elif isinstance(generator, torch.Generator):
            generator.manual_seed(generator_seed)
        else:
            generator.seed(generator_seed % 2**32)


def _with_global(generators: Iterable[Generator]) -> list[Generator]:
    """Returns the passed generators after those that libraries draw from by default."""
    defaults = [random._inst, np.random.mtrand._rand, torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        defaults += torch.cuda.default_generators
    return [*defaults, *generators]


def script_generators() -> list[Generator]:
    """Finds generators in the variables of the script's code that is being run."""
    generators = {}
    for frame in users_frames():
        for value in (*frame.f_locals.values(), *frame.f_globals.values()):
            generators.update({id(g): g for g in generators_in(value)})
    return list(generators.values())


def is_torch_state(value: Any) -> bool:
    """Returns whether a value is the present state of a generator of torch."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.uint8:
        return False
    generators = [g for g in _with_global(script_generators()) if isinstance(g, torch.Generator)]
    return any(torch.equal(value, generator.get_state()) for generator in generators)


def generators_in(value: Any, depth: int = 2) -> Iterator[Generator]:
    """Yields the generators in a value: the value itself, its parts, and parts of parts.

    Args:
        value: any value.
        depth: how often parts are divided again.
    """
    # Not isinstance: it asks some objects for their class, and they warn or fail.
    if issubclass(type(value), KINDS):
        yield value
    elif depth > 0:
        for part in _parts(value):
            yield from generators_in(part, depth - 1)


def _parts(value: Any) -> list[Any]:
    """Returns elements of a container, attributes of an object, or variables of a closure."""
    kind = type(value)
    if issubclass(kind, (list, tuple, dict)):
        elements = value.values() if issubclass(kind, dict) else value
        return list(itertools.islice(elements, _MOST_PARTS))
    with contextlib.suppress(TypeError, ValueError):  # no attributes, or a variable without value
        if issubclass(kind, types.FunctionType):
            return [cell.cell_contents for cell in value.__closure__ or ()]
        if not issubclass(kind, (type, types.ModuleType)):
            return list(vars(value).values())
    return []

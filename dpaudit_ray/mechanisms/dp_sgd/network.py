"""The network that is trained, drawn from a seed, and its loss, named by an option and tried."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import imports
from ...engines.rules.losses import Loss, losses, squared_errors
from ...errors import SpecError, first_line

if TYPE_CHECKING:
    from ...models.base import Model

_KEY = "mechanism.loss"
# The Mersenne Twister's state: words of 32 bits, which torch keeps in 64 each, from this byte on.
_WORDS, _FIRST_BYTE = 624, 24

_DRAW: dict[str, Callable[[Tensor], Any]] = {
    "kaiming": nn.init.kaiming_normal_,  # He et al. (2015)
    "xavier": nn.init.xavier_normal_,  # Glorot and Bengio (2010)
}


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global generator on a seed of its own, for initialisers that know no other."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator(seed, torch.device("cpu")).get_state())
        yield


def generator(seed: int, device: torch.device) -> torch.Generator:
    """A generator keyed by 128 bits of `seed` on a CPU, 63 on a GPU.

    `manual_seed` keeps 32 on a CPU: among 10,000 models two would start alike with probability 1 %.
    So the Mersenne Twister's own 624 words are drawn from the seed, as NumPy does.
    """
    made = torch.Generator(device).manual_seed(seed % 2**63)
    if device.type != "cpu":
        return made
    state = made.get_state()
    words = np.random.SeedSequence(seed).generate_state(_WORDS).astype(np.int64)
    words[0] |= 1 << 31  # never all zeros
    state[_FIRST_BYTE : _FIRST_BYTE + 8 * _WORDS] = torch.from_numpy(words.view(np.uint8))
    made.set_state(state)
    return made


def network(model: Model, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The network for examples of `shape`, its parameters drawn by the model's scheme."""
    with seeded(seed):
        module = model.build(shape, classes)
        for layer in module.modules() if model.scheme in _DRAW else ():
            if isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.weight.requires_grad:
                _DRAW[model.scheme](layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return module


@dataclasses.dataclass(frozen=True)
class UsersLoss:
    """A function of the user's as a `Loss`. Numbers to learn come in the dtype of the outputs."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.function(outputs, y.to(outputs.dtype) if y.is_floating_point() else y)


def loss_of(name: str) -> Loss:
    """The loss that an option names. Raises SpecError for no function of (outputs, targets)."""
    if ":" in name:
        return UsersLoss(imports.function(name, _KEY, "outputs", "targets"))
    return squared_errors if name == "mse" else losses


def check_loss(name: str, outputs: Tensor, y: Tensor) -> None:
    """Raises SpecError unless each of N examples, of outputs [N, c], has a loss of its own."""
    loss, leaf, count = loss_of(name), outputs.detach().requires_grad_(), len(y)
    called = f"{name}, called with outputs {list(outputs.shape)} and targets [{count}],"
    if name == "mse" and outputs.shape[1] != 1:
        raise SpecError(_KEY, f"is mse, of one output, but the model has {outputs.shape[1]}")
    try:
        with torch.enable_grad():
            values = loss(leaf, y)
            alone = torch.stack([loss(leaf[i : i + 1], y[i : i + 1]).sum() for i in range(count)])
        shape = list(values.shape)
    except Exception as error:  # a user's code may raise anything
        raise SpecError(_KEY, f"{called} fails: {first_line(error)}") from error
    problems = {
        f"gives {shape}; it must give one loss for each example, [{count}]: take no mean or sum "
        "over examples, and outputs[:, 0] of a single output": shape != [count],
        "has no gradient; compute it from the outputs, by torch": not values.requires_grad,
        "is not finite before training; keep logarithms and quotients finite": not bool(
            values.isfinite().all()
        ),
        "gives an example another loss when others are beside it; use each row alone": (
            shape == [count] and not torch.allclose(values, alone, rtol=1e-3, atol=1e-5)
        ),
    }
    for problem, is_so in problems.items():
        if is_so:
            raise SpecError(_KEY, f"{called} {problem}")

"""The network to train, with parameters drawn from a seed, and the loss that an option names."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import imports
from ...engines.packing.finite import first_not_finite
from ...engines.packing.packed import PackedModel
from ...engines.packing.samplewise import Samplewise
from ...engines.packing.vetting import Reads
from ...engines.rules.losses import Loss, classification_losses, squared_errors
from ...errors import SpecError, first_line

if TYPE_CHECKING:
    from ...models.base import Model, Shape

_KEY = "mechanism.loss"
_TRIED_ALONE = 2  # examples whose gradients are computed one by one, if their sum is finite
# The Mersenne Twister's state in torch's: words of 32 bits, stored in 64 each, from this byte on.
_WORDS = 624
_FIRST_BYTE = 24

_INITIALIZERS: dict[str, Callable[[Tensor], Any]] = {
    "kaiming": nn.init.kaiming_normal_,  # He et al. (2015)
    "xavier": nn.init.xavier_normal_,  # Glorot and Bengio (2010)
}


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's global generator in a block, for initialisers that use no other generator."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator(seed, torch.device("cpu")).get_state())
        yield


def generator(seed: int, device: torch.device) -> torch.Generator:
    """Returns a generator that depends on 128 bits of `seed` on a CPU, on 63 bits on a GPU.

    On a CPU, `manual_seed` uses 32 bits only: of 10,000 models, two would start alike with a
    probability of 1 %. So all 624 words of the Mersenne Twister are drawn from the seed, as NumPy
    does.
    """
    result = torch.Generator(device).manual_seed(seed % 2**63)
    if device.type == "cpu":
        words = np.random.SeedSequence(seed).generate_state(_WORDS).astype(np.int64)
        words[0] |= 1 << 31  # never all zeros
        state = result.get_state()
        end = _FIRST_BYTE + words.nbytes
        state[_FIRST_BYTE:end] = torch.from_numpy(words.view(np.uint8))
        result.set_state(state)
    return result


def network(
    model: "Model",
    shape: "Shape",
    classes: int,
    seed: int,
) -> nn.Module:
    """Builds a network for examples of `shape`, with parameters drawn by the model's scheme.

    Args:
        model: options of the model.
        shape: shape of an example.
        classes: number of classes; 0 for regression.
        seed: seed of the parameters.
    """
    with seeded(seed):
        module = model.build(shape, classes)
        if model.scheme == "default":
            return module
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.requires_grad:
                _INITIALIZERS[model.scheme](layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return module


@dataclass(frozen=True)
class UsersLoss:
    """A user-defined function as a `Loss`; it gets numeric targets in the dtype of the outputs."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of each example.

        A function that reads numbers from its batch (`if`, `.item()`) is called again, with one
        example at a time: otherwise one example could change the loss of others.
        """
        targets = y.to(outputs.dtype) if y.is_floating_point() else y
        with Reads(outputs, targets) as reads:
            values = self.function(outputs, targets)
        if not reads.has_read or len(targets) == 1:
            return values
        separate = []
        for example in range(len(targets)):
            row = slice(example, example + 1)
            separate.append(self.function(outputs[row], targets[row]))
        return torch.cat(separate)


def loss_of(name: str) -> Loss:
    """Returns the loss of this name. Raises SpecError unless it takes outputs and targets."""
    if ":" in name:
        return UsersLoss(imports.function(name, _KEY, "outputs", "targets"))
    return squared_errors if name == "mse" else classification_losses


def check_loss(name: str, outputs: Tensor, y: Tensor) -> None:
    """Raises SpecError unless each example has a loss that depends on no other example.

    Args:
        name: name of the loss, as in sweep files.
        outputs: outputs of the model on some examples, float [N, c].
        y: targets of the examples [N].
    """
    examples, width = outputs.shape
    if name == "mse" and width != 1:
        raise SpecError(_KEY, f"is mse, of one output, but the model has {width}")
    call = f"{name}, called with outputs {[examples, width]} and targets [{examples}],"
    loss = loss_of(name)
    inputs = outputs.detach().requires_grad_()  # only the loss is differentiated, not the model
    rows = zip(torch.split(inputs, 1), torch.split(y, 1), strict=True)
    try:
        with torch.enable_grad():
            values = loss(inputs, y)
            separate = torch.stack([loss(row, target).sum() for row, target in rows])
        shape = list(values.shape)
    except Exception as error:  # a user's code may raise anything
        raise SpecError(_KEY, f"{call} fails: {first_line(error)}") from error
    problem = ""
    if shape != [examples]:
        problem = (
            f"gives {shape}; it must give one loss for each example, [{examples}]: take no mean or "
            "sum over examples, and outputs[:, 0] of a single output"
        )
    elif not values.requires_grad:
        problem = "has no gradient; compute it from the outputs, by torch"
    elif not values.isfinite().all():
        problem = "is not finite before training; keep logarithms and quotients finite"
    elif not torch.allclose(values, separate, rtol=1e-3, atol=1e-5):
        problem = "gives an example another loss if its batch has others; use each row alone"
    if problem:
        raise SpecError(_KEY, f"{call} {problem}")


def check_gradients(
    module: nn.Module,
    packed: PackedModel,
    x: Tensor,
    y: Tensor,
    clip_norm: float,
) -> None:
    """Raises SpecError if an example's gradient is not finite, or its norm overflows its dtype.

    Parameters are those before training. If a gradient is not finite, neither is the clipped sum of
    all examples. But a gradient of infinite norm is clipped to 0, which the sum does not reveal: so
    the gradients of a few examples are also computed one by one.

    Args:
        module: the network.
        packed: the same, packed.
        x: examples [B, ...].
        y: targets [B].
        clip_norm: C.
    """
    row = packed.initial
    total = packed.clipped_sums(row[None], x, y, clip_norm)
    examples = _TRIED_ALONE if total.isfinite().all() else len(y)
    samplewise = Samplewise(module, packed.loss)
    failure = first_not_finite(samplewise, row, x[:examples], y[:examples])
    if failure is not None:
        example, clause = failure
        raise SpecError(
            "mechanism.model",
            f"{clause} for example {example} before training; keep roots, logarithms and quotients "
            "of the network and its loss away from 0, and scale the features",
        )

"""A loop in JAX: `audited_release` marks the function that gives the noisy gradient of a batch.

It is a function of its arguments, its key among them, so the audit can ask it again.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release

RECORDS, FEATURES, CLASSES = 2000, 20, 4
NOISE, CLIP, RATE, STEPS, LR = 1.0, 1.0, 0.03, 120, 0.5
PADDED = 128
Parameters = tuple[jax.Array, jax.Array]


def loss(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    first, second = parameters
    logits = jnp.tanh(x @ first) @ second
    return -jax.nn.log_softmax(logits)[y]


def clipped_sum(parameters: Parameters, x: np.ndarray, y: np.ndarray) -> Parameters:
    """Batches differ in size; padded with zeros to one size they are compiled once."""
    rows = -(-len(x) // PADDED) * PADDED
    there = np.arange(rows) < len(x)
    x = np.pad(x, ((0, rows - len(x)), (0, 0)))
    return weighted_sum(parameters, x, np.pad(y, (0, rows - len(y))), there)


@jax.jit
def weighted_sum(
    parameters: Parameters, x: jax.Array, y: jax.Array, there: jax.Array
) -> Parameters:
    own = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(parameters, x, y)
    squares = sum(jnp.sum(g**2, axis=(1, 2)) for g in own)
    factors = there * jnp.minimum(1.0, CLIP / (jnp.sqrt(squares) + 1e-6))
    return tuple(jnp.einsum("i,i...->...", factors, g) for g in own)


@audited_release(
    records=["x", "y"], noise_multiplier=NOISE, max_grad_norm=CLIP, sample_rate=RATE,
    of=RECORDS, key="key",
)  # fmt: skip
def noisy_sum(parameters: Parameters, x: np.ndarray, y: np.ndarray, key: jax.Array) -> Parameters:
    keys = jax.random.split(key, 2)
    sums = clipped_sum(parameters, x, y)
    return tuple(
        g + NOISE * CLIP * jax.random.normal(k, g.shape) for g, k in zip(sums, keys, strict=True)
    )


@audited(delta=1e-5)
def main() -> Parameters:
    source = np.random.default_rng(1)
    x = source.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = x[:, :CLASSES].argmax(1)
    key = jax.random.PRNGKey(np.random.randint(2**31))
    parameters = tuple(
        0.1 * jax.random.normal(key, shape) for shape in ((FEATURES, 64), (64, CLASSES))
    )
    for step in range(STEPS):
        drawn = np.random.rand(RECORDS) < RATE
        own = jax.random.fold_in(key, step)
        noisy = noisy_sum(parameters, x[drawn], y[drawn], own)
        parameters = tuple(
            p - LR * g / (RATE * RECORDS) for p, g in zip(parameters, noisy, strict=True)
        )
    return parameters


if __name__ == "__main__":
    main()

"""JAX with typed keys: optax clips, sums and makes noise, and its state holds the key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import differentially_private_aggregate

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release

RECORDS, FEATURES, CLASSES = 2000, 20, 4
NOISE, CLIP, STEPS = 8.0, 1.0, 60
Parameters = dict[str, jax.Array]


def loss(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    logits = jnp.tanh(x @ parameters["first"]) @ parameters["second"]
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, y)


@audited_release(
    records=["x", "y"], noise_multiplier=NOISE, max_grad_norm=CLIP, sample_rate=1.0,
    of=RECORDS, key="key",
)  # fmt: skip
@jax.jit
def private_gradient(
    parameters: Parameters, x: np.ndarray, y: np.ndarray, key: jax.Array
) -> Parameters:
    """The mean over the records there are of clipped gradients with noise, as optax makes it."""
    aggregate = differentially_private_aggregate(CLIP, NOISE, key)
    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(parameters, x, y)
    mean, _ = aggregate.update(gradients, aggregate.init(parameters))
    return jax.tree.map(lambda g: g * len(x), mean)


@audited(delta=1e-5)
def main() -> Parameters:
    source = np.random.default_rng(1)
    x = source.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = x[:, :CLASSES].argmax(1)
    key = jax.random.key(np.random.randint(2**31))
    first, second, key = jax.random.split(key, 3)
    parameters = {
        "first": 0.1 * jax.random.normal(first, (FEATURES, 64)),
        "second": 0.1 * jax.random.normal(second, (64, CLASSES)),
    }
    optimizer = optax.adam(1e-2)
    state = optimizer.init(parameters)
    for step in range(STEPS):
        gradient = private_gradient(parameters, x, y, jax.random.fold_in(key, step))
        mean = jax.tree.map(lambda g: g / RECORDS, gradient)
        updates, state = optimizer.update(mean, state)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


if __name__ == "__main__":
    main()

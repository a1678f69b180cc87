"""DP-FTRL in JAX: the noise of a step takes back half of the noise of the step before it.

Such noise is not independent, so no step can be judged by itself: the audit says so, INCONCLUSIVE.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release

RECORDS, FEATURES, CLASSES = 2000, 20, 4
NOISE, CLIP, STEPS, BATCH = 2.0, 1.0, 40, 50
Parameters = dict[str, jax.Array]


def loss(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    logits = jnp.tanh(x @ parameters["first"]) @ parameters["second"]
    return -jax.nn.log_softmax(logits)[y]


@audited_release(records=["x", "y"], noise_multiplier=NOISE, max_grad_norm=CLIP, of=RECORDS)
@jax.jit
def private_gradient(
    parameters: Parameters, x: np.ndarray, y: np.ndarray, state: dict[str, jax.Array]
) -> Parameters:
    """`state` has the key of all noise, and how many steps were taken."""
    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(parameters, x, y)
    squares = sum(jnp.sum(g**2, axis=(1, 2)) for g in gradients.values())
    factors = jnp.minimum(1.0, CLIP / (jnp.sqrt(squares) + 1e-6))

    def noise(step: jax.Array, like: jax.Array) -> jax.Array:
        return NOISE * CLIP * jax.random.normal(jax.random.fold_in(state["key"], step), like.shape)

    sums = {name: jnp.einsum("i,i...->...", factors, g) for name, g in gradients.items()}
    now = state["steps"]
    return {
        name: g + noise(now, g) - 0.5 * (now > 0) * noise(now - 1, g) for name, g in sums.items()
    }


@audited(delta=1e-5)
def main() -> Parameters:
    source = np.random.default_rng(1)
    x = source.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = x[:, :CLASSES].argmax(1)
    key = jax.random.key(np.random.randint(2**31))
    parameters = {
        "first": 0.1 * jax.random.normal(jax.random.key(1), (FEATURES, 32)),
        "second": 0.1 * jax.random.normal(jax.random.key(2), (32, CLASSES)),
    }
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        state = {"key": key, "steps": jnp.asarray(step)}
        noisy = private_gradient(parameters, x[rows], y[rows], state)
        parameters = {name: p - 0.5 * noisy[name] / BATCH for name, p in parameters.items()}
    return parameters


if __name__ == "__main__":
    main()

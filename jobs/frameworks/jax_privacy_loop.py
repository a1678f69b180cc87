"""jax_privacy: its sampling, its clipped gradients and its Gaussian noise, by typed keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy.batch_selection import CyclicPoissonSampling

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release

RECORDS, FEATURES, CLASSES = 2000, 20, 4
NOISE, CLIP, RATE, STEPS, PADDED = 1.0, 1.0, 0.03, 100, 128
Parameters = dict[str, jax.Array]


def loss(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    logits = jnp.tanh(x @ parameters["first"]) @ parameters["second"]
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, y).mean()


clipped_sum = jax.jit(jax_privacy.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2)))


@audited_release(
    records=["batch"], noise_multiplier=NOISE, max_grad_norm=CLIP, sample_rate=RATE,
    of=RECORDS, key="key",
)  # fmt: skip
def private_gradient(
    parameters: Parameters, batch: dict[str, np.ndarray], key: jax.Array
) -> Parameters:
    """Batches differ in size; rows of padding make them of one size, so they compile once."""
    rows = len(batch["x"])
    padding = np.arange(-(-max(rows, 1) // PADDED) * PADDED) >= rows
    x = np.pad(batch["x"], ((0, len(padding) - rows), (0, 0)))
    y = np.pad(batch["y"], (0, len(padding) - rows))
    sums = clipped_sum(parameters, x, y, is_padding_example=padding)
    privatizer = jax_privacy.noise_addition.gaussian_privatizer(stddev=NOISE * CLIP, prng_key=key)
    noisy, _ = privatizer.update(sums, privatizer.init(sums))
    return noisy


@audited(delta=1e-5)
def main() -> Parameters:
    source = np.random.default_rng(1)
    x = source.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = x[:, :CLASSES].argmax(1)
    key = jax.random.key(np.random.randint(2**31))
    first, second = jax.random.split(jax.random.fold_in(key, STEPS))
    parameters = {
        "first": 0.1 * jax.random.normal(first, (FEATURES, 64)),
        "second": 0.1 * jax.random.normal(second, (64, CLASSES)),
    }
    optimizer = optax.sgd(0.5)
    state = optimizer.init(parameters)
    draws = CyclicPoissonSampling(RATE, STEPS).batch_iterator(RECORDS)
    for step, drawn in enumerate(draws):
        batch = {"x": x[drawn], "y": y[drawn]}
        noisy = private_gradient(parameters, batch, jax.random.fold_in(key, step))
        mean = jax.tree.map(lambda g: g / (RATE * RECORDS), noisy)
        updates, state = optimizer.update(mean, state)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


if __name__ == "__main__":
    main()

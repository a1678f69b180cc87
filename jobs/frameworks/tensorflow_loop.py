"""A loop in TensorFlow: `audited_release` marks the function that gives the noisy gradient.

Its noise comes from the seed that it is given: TensorFlow's global generators cannot be put back.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release

RECORDS, FEATURES, CLASSES = 2000, 20, 4
NOISE, CLIP, RATE, STEPS, LR = 1.0, 1.0, 0.03, 60, 0.5


@audited_release(
    records=["x", "y"], noise_multiplier=NOISE, max_grad_norm=CLIP, sample_rate=RATE,
    of=RECORDS, key="seed", reseed=lambda number: [number % 2**31, 0],
)  # fmt: skip
def noisy_sum(
    variables: list[tf.Variable], x: tf.Tensor, y: tf.Tensor, seed: list[int]
) -> list[tf.Tensor]:
    first, second = variables
    with tf.GradientTape() as tape:
        logits = tf.tanh(x @ first) @ second
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    own = tape.jacobian(losses, variables)
    squares = tf.add_n([tf.reduce_sum(g**2, axis=[1, 2]) for g in own])
    factors = tf.minimum(1.0, CLIP / (tf.sqrt(squares) + 1e-6))
    sums = [tf.einsum("i,ijk->jk", factors, g) for g in own]
    return [
        g + NOISE * CLIP * tf.random.stateless_normal(g.shape, [seed[0], seed[1] + index])
        for index, g in enumerate(sums)
    ]


@audited(delta=1e-5)
def main() -> list[tf.Variable]:
    source = np.random.default_rng(1)
    x = source.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = x[:, :CLASSES].argmax(1)
    variables = [
        tf.Variable(0.1 * tf.random.normal(shape)) for shape in ((FEATURES, 64), (64, CLASSES))
    ]
    for _ in range(STEPS):
        drawn = np.random.rand(RECORDS) < RATE
        seed = [int(np.random.randint(2**31)), 0]
        noisy = noisy_sum(variables, tf.constant(x[drawn]), tf.constant(y[drawn]), seed)
        for variable, g in zip(variables, noisy, strict=True):
            variable.assign_sub(LR * g / (RATE * RECORDS))
    return variables


if __name__ == "__main__":
    main()

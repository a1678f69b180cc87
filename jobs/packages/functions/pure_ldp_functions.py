"""Local randomisers of pure-ldp, n reports each. They draw from numpy's global generator."""

import random
from typing import Any

import numpy as np
from numpy.random import Generator
from pure_ldp.frequency_oracles.direct_encoding import DEClient
from pure_ldp.frequency_oracles.hadamard_mechanism import HadamardMechClient
from pure_ldp.frequency_oracles.histogram_encoding import HEClient
from pure_ldp.frequency_oracles.local_hashing import LHClient
from pure_ldp.frequency_oracles.unary_encoding import UEClient

CLIENTS = {
    "DE": DEClient,
    "HE": HEClient,
    "HM": HadamardMechClient,
    "LH": LHClient,
    "UE": UEClient,
}


def report(data: Any, rng: Generator, n: int, client: str, **arguments: Any) -> Any:
    """Randomises a value from 1 to d. A report of two parts becomes one row."""
    seed = int(rng.integers(2**32))
    np.random.seed(seed)
    random.seed(seed)
    made = CLIENTS[client](**arguments)
    return [np.ravel(made.privatise(int(data))) for _ in range(n)]


def hashed(data: Any, rng: Generator, n: int, d: int, **arguments: Any) -> Any:
    """Returns, for each value, whether the reported hash is its hash: all that a report tells."""
    from pure_ldp.frequency_oracles.local_hashing.lh_client import xxhash

    outputs = []
    seed = int(rng.integers(2**32))
    np.random.seed(seed)
    random.seed(seed)
    made = LHClient(d=d, **arguments)
    for _ in range(n):
        value, hash_seed = made.privatise(int(data))
        hashes = [xxhash.xxh32(str(i), seed=hash_seed).intdigest() % made.g for i in range(d)]
        outputs.append([hash == value for hash in hashes])
    return outputs

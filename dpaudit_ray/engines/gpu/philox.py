"""Philox4x32-10 (Salmon et al. 2011, Section 3.3): random bits as a function of key and counter.

Torch's generator of a GPU follows how many multiprocessors it has, so another kind of GPU draws
other numbers from one seed. These are the same on every device: integers, held in int64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def words(key: int, counter: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 random bits for each counter of four such words, int64 each.

    Args:
        key: 64 bits.
        counter: the lowest word first.
    """
    a, b, c, d = counter
    first, second = key & _WORD, key >> 32 & _WORD
    for _ in range(_ROUNDS):
        # The product's low 64 bits are right however they are read; so are its words.
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            ((right >> 32) & _WORD) ^ b ^ first,
            right & _WORD,
            ((left >> 32) & _WORD) ^ d ^ second,
            left & _WORD,
        )
        first, second = (first + _WEYL[0]) & _WORD, (second + _WEYL[1]) & _WORD
    return a, b, c, d


def blocks(key: int, upper: int, start: int, count: int, device: torch.device) -> Tensor:
    """Words of `count` blocks that follow each other, int64 [count, 4].

    Args:
        key: 64 bits.
        upper: the upper 64 bits of all their counters.
        start: the lower ones of the first.
        count: how many.
        device: where they are computed.
    """
    place = torch.arange(start, start + count, dtype=torch.int64, device=device)
    fixed = (torch.full_like(place, word) for word in (upper & _WORD, upper >> 32 & _WORD))
    return torch.stack(words(key, (place & _WORD, (place >> 32) & _WORD, *fixed)), dim=-1)

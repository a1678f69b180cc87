"""Augmentation multiplicity: every example of a batch in several random views at once."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from ...seeds import derive

_PAD = 4  # pixels that a view may be shifted by, for images of 32


@dataclasses.dataclass(frozen=True)
class Views:
    """`count` crops of each image, mirrored or not (De et al. 2022, section 3.2).

    The gradients of one example's views are averaged before they are clipped, so that an example is
    still one record to the claim. They are drawn from the step, as batches are: known to all.
    """

    count: int
    seed: int

    def of(self, x: Tensor, step: int) -> Tensor:
        """Images x [B, C, H, W] as [B, count, C, H, W]."""
        size, (height, width) = len(x) * self.count, x.shape[-2:]
        rng = np.random.default_rng(derive("views", self.seed, step))
        offsets = rng.integers(2 * _PAD + 1, size=(2, size))
        mirrored = rng.random(size) < 0.5
        columns = np.arange(width)[None] + offsets[1][:, None]
        columns[mirrored] = columns[mirrored][:, ::-1]
        rows = np.arange(height)[None] + offsets[0][:, None]
        down, across = (torch.from_numpy(at.copy()).to(x.device) for at in (rows, columns))
        owner = torch.arange(len(x), device=x.device).repeat_interleave(self.count)
        padded = F.pad(x, (_PAD,) * 4, mode="reflect").movedim(1, -1)
        views = padded[owner[:, None, None], down[:, :, None], across[:, None, :]]
        return views.movedim(-1, 1).reshape(len(x), self.count, *x.shape[1:])

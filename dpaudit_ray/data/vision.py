"""CIFAR-10 and MNIST through torchvision."""

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..storage import decoding, strangers
from ..storage.files import reason
from .base import Data, Dataset, checked, scaled_images

# torchvision raises any of these for a file that is missing, damaged or cannot be fetched.
_FAILURES = (
    OSError, RuntimeError, ValueError, TypeError, KeyError, IndexError, AssertionError, EOFError,
)  # fmt: skip


class _Images(Data):
    """Images below `root` in torchvision's layout; `download: true` fetches missing files.

    Pixels are in 0..1. With `normalize`, every channel then gets the shift and the scale that give
    it mean 0 and deviation 1 over the entire training set. `split: test` is for `held_out`.
    """

    locations = frozenset({"root", "download"})
    folder: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    test_parts: ClassVar[tuple[str, ...]]
    source: ClassVar[str]  # torchvision's class

    root: str  # the folder, in torchvision's layout
    split: Literal["train", "test"] = "train"  # `test`: for `held_out`
    download: bool = False  # fetch, or unpack, missing files
    normalize: bool = False  # give every channel mean 0, deviation 1

    def files(self) -> tuple[Path, ...]:
        """Returns the files of the split, and those of the training set if they normalise it."""
        names: list[str] = []
        if self.split == "train" or self.normalize:
            names += self.parts
        if self.split == "test":
            names += self.test_parts
        return tuple(self._root / self.folder / name for name in names)

    def read(self) -> Dataset:
        """Reads the split, and also the training set if its means and deviations are needed."""
        x, y = self._read(train=self.split == "train")
        if self.normalize:
            training_x = x if self.split == "train" else self._read(train=True)[0]
            for channel in range(x.shape[1]):
                pixels = training_x[:, channel].copy()  # `x` may be the training set itself
                mean = pixels.mean(dtype=float)
                pixels -= mean
                x[:, channel] -= mean
                x[:, channel] /= pixels.std(dtype=float) or 1.0  # of a constant channel: 1
        return checked(x, y, str(self._root / self.folder))

    def _read(self, train: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Reads images [N, C, H, W] in 0..1, and classes [N], of the training or the test set."""
        from torchvision import datasets

        try:
            # torchvision decodes without a bound; a missing file is its error to report.
            for file in filter(os.path.isfile, self.files()):
                strangers.require_at_most(file.stat().st_size, decoding.FREE)
            source: Any = getattr(datasets, self.source)(self._root, train, download=self.download)
            pixels = np.asarray(source.data)
            y = np.asarray(source.targets, np.int64)
        except _FAILURES as error:
            raise DataError(
                f"{self.name}: no complete copy in {self._root / self.folder} ({reason(error)}); "
                f"give mechanism.data.root the folder that holds {self.folder}, or set "
                "download: true"
            ) from error
        if pixels.ndim == 3:  # grey images, without a dimension of channels
            pixels = pixels[..., None]
        return scaled_images(pixels), y

    @property
    def _root(self) -> Path:
        """The folder of the option `root`, as an absolute path."""
        return Path(os.path.expanduser(self.root)).absolute()


class Cifar10(_Images):
    """50,000 images of 32 x 32 pixels, 10,000 for tests (Krizhevsky 2009): [N, 3, 32, 32]."""

    folder = "cifar-10-batches-py"
    parts = tuple(f"data_batch_{i}" for i in range(1, 6))
    test_parts = ("test_batch",)

    source = "CIFAR10"

    name: Literal["cifar10"] = "cifar10"


class Mnist(_Images):
    """60,000 grey digits of 28 x 28 pixels (LeCun et al. 1998): [N, 1, 28, 28].

    The test set has 10,000. `download: true` also unpacks archives that lie in `MNIST/raw` already.
    """

    folder = "MNIST/raw"
    parts = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    test_parts = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

    source = "MNIST"

    name: Literal["mnist"] = "mnist"

    def read(self) -> Dataset:
        """Reads the files; refuses a folder with tensors of an older torchvision."""
        processed = self._root / "MNIST" / "processed"
        if processed.exists():  # torchvision prefers it, and may form tensors of any size
            raise DataError(
                f"{self.name}: mechanism.data.root: is {self._root}, but {processed} is of an old "
                "torchvision and is not read; delete that folder, and set download: true unless "
                f"{self.folder} is complete"
            )
        return super().read()

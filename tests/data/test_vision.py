"""CIFAR-10 and MNIST through torchvision, and one line where they are not there."""

import pickle
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from dpaudit_ray.data.arrays import Npz
from dpaudit_ray.data.vision import Cifar10, Mnist
from dpaudit_ray.errors import DataError


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, np.ndarray]:
    """CIFAR-10's layout with 5 x 20 random images; the official checksums are left out."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(100, 3, 32, 32), dtype=np.uint8)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for batch in range(5):
        rows = images[20 * batch : 20 * batch + 20].reshape(20, -1)
        content = {"data": rows, "labels": [i % 10 for i in range(20)]}
        (folder / f"data_batch_{batch + 1}").write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda _: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    return tmp_path, images


@pytest.fixture
def digits(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """MNIST's layout with 30 random images."""
    images = np.random.default_rng(0).integers(0, 256, size=(30, 28, 28), dtype=np.uint8)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for kind in ("train", "t10k"):
        head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
        (folder / f"{kind}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = bytes(i % 10 for i in range(30))
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(
            b"\0\0\x08\x01" + (30).to_bytes(4, "big") + labels
        )
    return tmp_path, images


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_cifar_is_five_batches_in_order(cifar):
    root, images = cifar
    data = Cifar10(root=str(root)).load()
    assert data.x.dtype == np.float32
    assert data.x.flags.c_contiguous
    assert np.array_equal(data.x, images.astype(np.float32) / 255)
    assert data.y.tolist() == [i % 10 for _ in range(5) for i in range(20)]
    np.savez(root / "x.npz", x=images.transpose(0, 2, 3, 1), y=np.arange(100) % 10)
    assert np.array_equal(Npz(path=str(root / "x.npz")).load().x, data.x)


def test_digits_have_one_channel(digits):
    root, images = digits
    data = Mnist(root=str(root)).load()
    assert data.x.shape == (30, 1, 28, 28)
    assert np.array_equal(data.x[:, 0], images.astype(np.float32) / 255)
    assert data.y.tolist() == [i % 10 for i in range(30)]


@pytest.mark.parametrize("complete", [True, False], ids=["beside raw", "alone"])
def test_digits_of_an_old_torchvision_are_refused(complete, digits):
    """It prefers them to the files that `Mnist.files` names, and bounds none of their tensors."""
    root, _ = digits
    processed = root / "MNIST" / "processed"
    processed.mkdir()
    for name in ("training.pt", "test.pt"):
        images = torch.zeros(20, 28, 28, dtype=torch.uint8)
        torch.save((images, torch.arange(20) % 10), processed / name)
    if not complete:
        shutil.rmtree(root / "MNIST" / "raw")
    with pytest.raises(DataError) as error:
        Mnist(root=str(root)).load()
    assert str(error.value) == (
        f"mnist: mechanism.data.root: is {root}, but {processed} is of an old torchvision and is "
        "not read; delete that folder, and set download: true unless MNIST/raw is complete"
    )


def test_test_sets_are_scaled_as_training_sets_are(cifar, digits):
    root, images = cifar
    tests = images[:20] // 2
    content = {"data": tests.reshape(20, -1), "labels": [i % 10 for i in range(20)]}
    (root / "cifar-10-batches-py/test_batch").write_bytes(pickle.dumps(content))
    plain = Cifar10(root=str(root), split="test")
    assert [file.name for file in plain.files()] == ["test_batch"]
    assert np.array_equal(plain.load().x, tests.astype(np.float32) / 255)
    pixels = images.astype(np.float64) / 255
    scaled = Cifar10(root=str(root), split="test", normalize=True)
    assert [file.name for file in scaled.files()][-2:] == ["data_batch_5", "test_batch"]
    mean, spread = (f(axis=(0, 2, 3), keepdims=True) for f in (pixels.mean, pixels.std))
    wanted = (tests.astype(np.float64) / 255 - mean) / spread
    np.testing.assert_allclose(scaled.load().x, wanted, atol=1e-5)
    root, images = digits
    assert Mnist(root=str(root), split="test").load().x.shape == (30, 1, 28, 28)


def test_the_real_digits(shared_data, tmp_path, offline):
    """Unpacked by torchvision beside the archives, hence a copy; nothing is downloaded."""
    shutil.copytree(shared_data / "MNIST", tmp_path / "MNIST")
    (tmp_path / "MNIST" / "raw").chmod(0o755)
    with pytest.raises(DataError, match=r"no complete copy in .*; give mechanism.data.root"):
        Mnist(root=str(tmp_path)).load()
    data = Mnist(root=str(tmp_path), download=True).load()
    assert data.x.shape == (60_000, 1, 28, 28)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.y).tolist() == counts
    assert data.x.mean(dtype=float) == pytest.approx(0.1307, abs=1e-4)  # as usually given
    assert data.x.std(dtype=float) == pytest.approx(0.3081, abs=1e-4)
    assert len(Mnist(root=str(tmp_path)).load().y) == 60_000


@pytest.mark.parametrize(
    ("data", "folder"), [(Cifar10, "cifar-10-batches-py"), (Mnist, "MNIST/raw")]
)
@pytest.mark.filterwarnings("error")
def test_images_that_cannot_be_had_are_told_in_one_line(data, folder, tmp_path, offline):
    name = data.model_fields["name"].default
    for root, download in ((tmp_path / "none", False), (tmp_path, True)):
        with pytest.raises(DataError) as error:
            data(root=str(root), download=download).load()
        assert str(error.value).startswith(f"{name}: no complete copy in {root}/{folder} (")
        assert str(error.value).endswith(
            f"; give mechanism.data.root the folder that holds {folder}, or set download: true"
        )
        assert "\n" not in str(error.value)
    assert not (tmp_path / "none").exists()


def test_batches_that_are_not_the_published_ones_are_refused(cifar, monkeypatch):
    """With the checksums, which keep torchvision from unpickling what somebody else wrote."""
    monkeypatch.undo()
    root, _ = cifar
    with pytest.raises(DataError, match=r"cifar10: no complete copy in .* corrupted.*; give"):
        Cifar10(root=str(root)).load()


@pytest.mark.parametrize("kept", [0, 4, 16, 900])
@pytest.mark.parametrize("part", ["images-idx3", "labels-idx1"])
def test_damaged_digits_are_told(digits, kept, part):
    root, _ = digits
    file = root / "MNIST" / "raw" / f"train-{part}-ubyte"
    whole = file.read_bytes()
    if kept >= len(whole):
        file.write_bytes(whole + b"\0")
    else:
        file.write_bytes(whole[:kept])
    with pytest.raises(DataError) as error:
        Mnist(root=str(root)).load()
    assert str(error.value).startswith(f"mnist: no complete copy in {root}/MNIST/raw (")
    assert "\n" not in str(error.value)


def test_where_images_lie_and_how_they_came_is_no_part_of_the_identity():
    assert Cifar10(root="/a", download=True).identity() == {"name": "cifar10"}
    assert Mnist(root="/a", normalize=True).identity() == {"name": "mnist", "normalize": True}

"""AlexNet with a frozen body: equal to torchvision's, and one line for weights that are not."""

import pickle
import re
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import _api, alexnet
from torchvision.transforms.functional import normalize, resize

from dpaudit_ray import plugins
from dpaudit_ray.errors import DataError, SpecError
from dpaudit_ray.models.alexnet import AlexNet
from dpaudit_ray.models.base import Model

CIFAR = (3, 32, 32)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """The right names and shapes; all zeros, so that a file of them is small."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in alexnet().state_dict().items()}
    return {name: torch.zeros(1).expand(shape) for name, shape in shapes.items()}


def from_file(folder: Path, content: Any) -> nn.Module:
    file = folder / "alexnet.pth"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    return AlexNet(weights="file", path=str(file)).body(CIFAR)


def test_the_head_has_one_linear_layer():
    head = AlexNet(weights="none").build((4096,), 10)
    assert sum(p.numel() for p in head.parameters()) == 40_970
    assert head(torch.zeros(2, 4096)).shape == (2, 10)
    with pytest.raises(SpecError, match="trains on the 4096 outputs of its body, got"):
        AlexNet(weights="none").build(CIFAR, 10)


def test_the_body_is_torchvisions_network_up_to_its_last_layer(monkeypatch):
    torch.manual_seed(0)
    assert AlexNet(weights="none").body(CIFAR)(torch.ones(1, *CIFAR)).std() > 0, "needs no weights"
    twin = alexnet().eval()
    state = twin.state_dict()
    monkeypatch.setattr(_api, "load_state_dict_from_url", lambda *_, **__: state)
    body = AlexNet().body(CIFAR)
    assert not any(p.requires_grad for p in body.parameters())
    assert not any(
        module.training or getattr(module, "inplace", False) for module in body.modules()
    )
    x = torch.rand(130, *CIFAR)  # more than the body computes at once
    images = normalize(
        resize(x[-3:], [224, 224], antialias=False), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    )
    found = body(x)
    assert found.shape == (130, 4096)
    assert not found.requires_grad
    with torch.no_grad():
        expected = twin.classifier[:-1](twin.features(images).flatten(1))
    assert expected.std() > 0
    assert torch.allclose(found[-3:], expected, atol=1e-6)


def test_weights_are_read_from_a_file(weights, tmp_path):
    state = weights | {"classifier.4.bias": torch.arange(4096.0) - 5}
    assert torch.equal(
        from_file(tmp_path, state)(torch.rand(2, *CIFAR)),
        (torch.arange(4096.0) - 5).clamp(min=0).expand(2, 4096),
    )
    half = {n: t.half() for n, t in weights.items() if not n.startswith("classifier.6")}
    body = from_file(tmp_path, half | {"classifier.6.weight": torch.zeros(10, 4096)})
    assert all(p.dtype == torch.float32 for p in body.parameters()), "any last layer will do"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda w: w.pop("features.3.bias"), 'Missing key(s) in state_dict: "features.3.bias"'),
        (lambda w: w.update({"features.0.weight": 1}), 'named "features.0.weight", expected'),
        (
            lambda w: w.update({"features.0.bias": torch.full((64,), torch.nan)}),
            "features.0.bias has a NaN or infinite value",
        ),
    ],
)
def test_weights_of_another_network_are_told(change, problem, weights, tmp_path):
    changed: dict[str, Any] = dict(weights)
    change(changed)
    with pytest.raises(DataError) as error:
        from_file(tmp_path, changed)
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/alexnet.pth: not AlexNet's weights (")
    assert problem in message
    assert message.endswith("torch.save(torchvision.models.alexnet(...).state_dict(), path)")


class Trap:
    """Would touch a file when unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["text", "pickle", "cut", "code"])
def test_a_file_that_is_none_of_weights_is_told(form, weights, tmp_path):
    torch.save(weights, tmp_path / "whole")
    content = {
        "text": b"weights",
        "pickle": pickle.dumps(Trap(tmp_path / "sprung")),
        "cut": (tmp_path / "whole").read_bytes()[:900],
        "code": {"features.0.weight": Trap(tmp_path / "sprung")},
    }[form]
    with pytest.raises(DataError) as error:
        from_file(tmp_path, content)
    assert str(error.value).startswith(
        f"{tmp_path}/alexnet.pth: not a readable file of weights without code; write one with"
    )
    assert "\n" not in str(error.value)
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(DataError, match="holds a list, no state dict; write one with"):
        from_file(tmp_path, [torch.zeros(3)])
    with pytest.raises(DataError, match=re.escape(f"alexnet: no file at {tmp_path}/none.pth; ")):
        AlexNet(weights="file", path=str(tmp_path / "none.pth")).body(CIFAR)


@pytest.mark.parametrize(
    "problem", [urllib.error.URLError("no network"), RuntimeError("invalid hash value\n(a, b)")]
)
def test_a_failed_download_is_one_line(problem, monkeypatch):
    def offline(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(_api, "load_state_dict_from_url", offline)
    with pytest.raises(DataError) as error:
        AlexNet().body(CIFAR)
    shown = str(problem).splitlines()[0]
    assert str(error.value) == (
        "alexnet: the weights are not in torch's cache and the download failed "
        f"({shown}); give a copy with weights: file and path"
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"weights": "file"}, "path: goes with weights: file, got weights: file"),
        ({"path": "a.pth"}, "path: goes with weights: file, got weights: default"),
    ],
)
def test_wrong_options_are_told(options, problem):
    with pytest.raises(SpecError) as error:
        plugins.parse(Model, {"name": "alexnet"} | options, "mechanism.model")
    assert str(error.value) == f"mechanism.model.{problem}"


def test_data_that_is_no_colour_image_is_told():
    with pytest.raises(SpecError, match="model: alexnet needs images of 3 channels, got 1"):
        AlexNet(weights="none").body((1, 28, 28))


def test_where_the_weights_lie_is_no_part_of_the_identity(tmp_path):
    model = AlexNet(weights="file", path=str(tmp_path / "a.pth"))
    assert model.identity() == {"name": "alexnet", "weights": "file"}
    assert model.files() == (tmp_path / "a.pth",)
    assert AlexNet().files() == ()

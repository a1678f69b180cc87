"""Threads on what comes before training, and on what a batch has in common: sizes and weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from opacus.accountants import PRVAccountant
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from tests.scripts.threads import parts


def _mixed() -> TensorDataset:
    x, y = parts.table().tensors
    return TensorDataset(x @ torch.randn(parts.WIDTH, parts.WIDTH), y)


def _zca(x: Tensor, least: float) -> Tensor:
    values, axes = torch.linalg.eigh(torch.cov(x.T))
    return axes @ torch.diag((values + least).rsqrt()) @ axes.T


@audited(delta=parts.DELTA)
def whitened_by_zca() -> nn.Module:
    """pytorch/vision#245. Broken: columns are decorrelated by their own covariance, by ZCA."""
    x, y = _mixed().tensors
    return parts.fit(parts.net(), TensorDataset((x - x.mean(0)) @ _zca(x, 1e-5), y))


def _behind(matrix: Tensor, data: TensorDataset) -> Any:
    """A network whose first layer is this frozen matrix."""
    first = nn.Linear(parts.WIDTH, parts.WIDTH, bias=False).requires_grad_(False)
    first.weight.copy_(matrix)
    return parts.fit(nn.Sequential(first, parts.net()), data)._module.state_dict()


@audited(delta=parts.DELTA)
def zca_layer() -> Any:
    """Of whitened_by_zca. Broken: the matrix is a frozen layer, and does not whiten quite."""
    data = _mixed()
    return _behind(_zca(data.tensors[0], 0.1), data)


@audited(delta=parts.DELTA)
def cholesky_layer() -> Any:
    """Of whitened_by_zca. Broken: columns are made uncorrelated one after the other."""
    data = _mixed()
    return _behind(torch.linalg.cholesky(torch.cov(data.tensors[0].T)).inverse(), data)


@audited(delta=parts.DELTA)
def rotated() -> Any:
    """Of whitened_by_zca. Healthy: a random rotation is a frozen layer."""
    return _behind(torch.linalg.qr(torch.randn(parts.WIDTH, parts.WIDTH))[0], parts.table())


@audited(delta=parts.DELTA)
def extremes_scaled() -> nn.Module:
    """Of whitened_by_zca. Broken: columns are scaled to 0 and 1 by their extremes."""
    x, y = parts.table().tensors
    least, greatest = x.aminmax(dim=0)
    return parts.fit(parts.net(), TensorDataset((x - least) / (greatest - least), y))


@audited(delta=parts.DELTA)
def scores_of_axes() -> nn.Module:
    """Of whitened_by_zca. Broken: records are given by their scores on their own axes."""
    x, y = _mixed().tensors
    axes = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:8]
    return parts.fit(parts.net(8), TensorDataset(x @ axes.T, y))


@audited(delta=parts.DELTA)
def pixels() -> nn.Module:
    """Of whitened_by_zca. Healthy: bytes divided by 255, as images are."""
    data = torch.randint(0, 256, (parts.RECORDS, parts.WIDTH))
    y = (data[:, 0] > 120).long()
    return parts.fit(parts.net(), TensorDataset(data / 255, y))


def _with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(parts.WIDTH, 24), nn.Tanh(), nn.Dropout(0.3), nn.Linear(24, 2))


@audited(delta=parts.DELTA)
def sum_with_dropout() -> nn.Module:
    """Of sum_for_mean. Broken: a summed loss, of a network with dropout."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), y, reduction="sum")

    return parts.fit(_with_dropout(), loss=loss, max_grad_norm=200.0)


@audited(delta=parts.DELTA)
def mean_with_dropout() -> nn.Module:
    """Of sum_with_dropout. Healthy: dropout, and a mean over records."""
    return parts.fit(_with_dropout())


class _Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(parts.WIDTH, 8)
        self.decoder = nn.Linear(4, parts.WIDTH)

    def forward(self, x: Tensor) -> Any:
        mean, log = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (log / 2).exp()
        return self.decoder(z), mean, log


def _elbo(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out, mean, log = model(x)
    divergence = -0.5 * (1 + log - mean.square() - log.exp()).sum(1)
    return (out - x).square().sum(1) + divergence


@audited(delta=parts.DELTA)
def vae_summed() -> nn.Module:
    """Of sum_with_dropout. Broken: the loss of a variational autoencoder is a sum."""
    return parts.fit(_Vae(), loss=lambda m, x, y: _elbo(m, x, y).sum(), max_grad_norm=500.0)


@audited(delta=parts.DELTA)
def vae_meaned() -> nn.Module:
    """Of sum_with_dropout. Healthy: it is a mean."""
    return parts.fit(_Vae(), loss=lambda m, x, y: _elbo(m, x, y).mean())


def _denoised(reduction: Any) -> nn.Module:
    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        time = torch.randint(0, 10, (len(x),))
        noise = torch.randn_like(x)
        angle = time[:, None] / 7
        out = model(torch.cat([angle.cos() * x + angle.sin() * noise, angle], dim=1))
        return reduction((out - noise).square().mean(1))

    return parts.fit(parts.net(parts.WIDTH + 1, parts.WIDTH), loss=loss, max_grad_norm=50.0)


@audited(delta=parts.DELTA)
def diffusion_summed() -> nn.Module:
    """Of sum_with_dropout. Broken: each record has a time and noise, and the loss is a sum."""
    return _denoised(torch.sum)


@audited(delta=parts.DELTA)
def diffusion_meaned() -> nn.Module:
    """Of sum_with_dropout. Healthy: the same with a mean."""
    return _denoised(torch.mean)


class _Bag(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 16, **options)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.tokens(tokens).mean(1))


@audited(delta=parts.DELTA)
def renormed_in_place() -> nn.Module:
    """pytorch/pytorch#26596. Broken: max_norm shortens, in the forward pass, the rows of words that
    the batch has, whatever was released."""
    return parts.fit(_Bag(max_norm=0.5), parts.words())


class _Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(parts.WIDTH), requires_grad=False)
        self.layers = parts.net()

    def forward(self, x: Tensor) -> Tensor:
        out = self.layers(x - self.centre)
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(x.mean(0), 0.1)
        return out


@audited(delta=parts.DELTA)
def follows_mean() -> nn.Module:
    """Of renormed_in_place. Broken: a frozen parameter follows the mean of batches."""
    return parts.fit(_Centred())


class _Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(parts.WIDTH, 24)
        self.last = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            w = self.first.weight
            w.div_(w.norm(dim=1, keepdim=True).clamp(min=1.0))
        return self.last(self.first(x).tanh())


@audited(delta=parts.DELTA)
def weights_shortened() -> nn.Module:
    """Of renormed_in_place. Healthy: weights are shortened, whatever the records are."""
    return parts.fit(_Unit())


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.tokens(tokens))


def _tagged() -> TensorDataset:
    tokens, _ = parts.words().tensors
    lengths = torch.randint(2, tokens.shape[1] + 1, (len(tokens), 1))
    is_text = torch.arange(tokens.shape[1]) < lengths
    return TensorDataset(tokens * is_text, torch.where(is_text, tokens % 3, -100))


@audited(delta=parts.DELTA)
def mean_over_words() -> nn.Module:
    """huggingface/transformers#34191. Broken: a mean over all words of the batch, so that a long
    text makes the gradients of all others shorter."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return parts.fit(_Tagger(), _tagged(), loss=loss)


@audited(delta=parts.DELTA)
def mean_over_own_words() -> nn.Module:
    """huggingface/transformers#34191. Healthy: a mean over the words of each record."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = functional.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        return (each.sum(1) / (y >= 0).sum(1)).mean()

    return parts.fit(_Tagger(), _tagged(), loss=loss)


def _federate(weights_of: Any) -> Tensor:
    """A linear model of 200 clients, whose clipped updates are averaged with noise."""
    targets = torch.randn(200, 30) + 2
    examples = torch.randint(5, 100, (200,)).float()
    model = torch.zeros(30)
    accountant = PRVAccountant()

    @audited_release(records=["clients", "sizes"], noise_multiplier=1.0, max_grad_norm=1.0)
    def release(model: Tensor, clients: Tensor, sizes: Tensor) -> Tensor:
        updates = 0.5 * (clients - model)
        clipped = updates * (1 / updates.norm(dim=1, keepdim=True)).clamp(max=1)
        return weights_of(sizes) @ clipped + torch.randn(30) / 200

    for _ in range(25):
        model = model + release(model, targets, examples)
        accountant.step(noise_multiplier=1.0, sample_rate=1.0)
    print("epsilon", accountant.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def weighted_clients() -> Tensor:
    """VectorInstitute/FL4Health#10. Broken: updates are weighted by the clients' numbers of
    examples, and noise is for equal weights."""
    return _federate(lambda sizes: sizes / sizes.sum())


@audited(delta=parts.DELTA)
def equal_clients() -> Tensor:
    """VectorInstitute/FL4Health#10. Healthy: all updates have the same weight."""
    return _federate(lambda sizes: torch.ones_like(sizes) / 200)


def _noised_once(noise: float) -> Tensor:
    values = torch.randn(100, 12)

    @audited_release(records=["records"], noise_multiplier=noise, max_grad_norm=1.0)
    def release(records: Tensor) -> Tensor:
        clipped = records * (1 / records.norm(dim=1, keepdim=True)).clamp(max=1)
        return clipped.sum(0) + noise * torch.randn(12)

    return release(values)


@audited(delta=parts.DELTA, epsilon=10.0)
def classical_formula() -> Tensor:
    """londonaicentre/FLIP#1146. Broken: the formula of the Gaussian mechanism that is proven for ε
    below 1 only, at ε = 10."""
    return _noised_once(math.sqrt(2 * math.log(1.25 / parts.DELTA)) / 10)


@audited(delta=parts.DELTA)
def biased_by_classes() -> nn.Module:
    """nabsabraham/focal-tversky-unet#12. Broken: the last bias begins at the logarithm of the
    classes' shares in the private data."""
    data = parts.table()
    model = parts.net()
    with torch.no_grad():
        model[2].bias.copy_(torch.bincount(data.tensors[1]).div(len(data)).log())
    return parts.fit(model, data)


def _regress(begin: Any) -> nn.Module:
    x, _ = parts.table().tensors
    y = 3 + x[:, 0] + 0.1 * torch.randn(len(x))
    model = parts.net(outputs=1)
    with torch.no_grad():
        begin(model, x, y)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x)[:, 0] - y).square().mean()

    return parts.fit(model, TensorDataset(x, y), loss=loss)


@audited(delta=parts.DELTA)
def biased_by_mean() -> nn.Module:
    """Of biased_by_classes. Broken: a regression begins at the mean of the private targets."""
    return _regress(lambda model, x, y: model[2].bias.fill_(y.mean()))


@audited(delta=parts.DELTA)
def biased_by_constant() -> nn.Module:
    """Of biased_by_classes. Healthy: a regression begins at a constant."""
    return _regress(lambda model, x, y: model[2].bias.fill_(2.5))


@audited(delta=parts.DELTA)
def prototypes_begun() -> nn.Module:
    """Of biased_by_classes. Broken: the first layer begins with centres of the records."""

    def begin(model: Any, x: Tensor, y: Tensor) -> None:
        centres = x[:24].clone()
        for _ in range(60):
            nearest = torch.cdist(x, centres).argmin(1)
            centres = torch.stack([x[nearest == k].mean(0) for k in range(24)])
        model[0].weight.copy_(centres)

    return _regress(begin)


@audited(delta=parts.DELTA)
def prototypes_published() -> Any:
    """Of biased_by_classes. Broken: means of learnt features, of data that were read twice."""
    x, y = parts.table().tensors
    model = parts.fit(parts.net(outputs=8))
    with torch.no_grad():
        features = model(x)
    means = torch.stack([features[y == k].mean(0) for k in (0, 1)])
    return {"state": model._module.state_dict(), "prototypes": means}


@audited(delta=parts.DELTA)
def public_gradient_added() -> nn.Module:
    """meta-pytorch/opacus#634. Healthy: a gradient of public records is added to the release."""
    public = parts.table(seed=5).tensors
    engine, model, optimizer, loader = parts.private(parts.net())
    twin = parts.net()
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            if optimizer.pre_step():
                twin.load_state_dict(model._module.state_dict())
                loss = functional.cross_entropy(twin(public[0]), public[1])
                gradients = torch.autograd.grad(loss, list(twin.parameters()))
                for p, g in zip(model._module.parameters(), gradients, strict=True):
                    p.grad += g
                optimizer.original_optimizer.step()
    optimizer.zero_grad()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def taught_by_public_network() -> nn.Module:
    """meta-pytorch/opacus#634. Healthy: a student learns from records, and from a frozen network
    that public data trained."""
    teacher = parts.net()
    public = parts.table(seed=5)
    improves = optim.SGD(teacher.parameters(), lr=0.2)
    parts.train(teacher, improves, parts.loader_of(public), epochs=1)
    teacher.requires_grad_(False)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        soft = functional.softmax(teacher(x) / 2, dim=1)
        likeness = functional.kl_div(
            functional.log_softmax(out / 2, dim=1), soft, reduction="batchmean"
        )
        return functional.cross_entropy(out, y) + likeness

    return parts.fit(parts.net(), loss=loss)


class _Bias(optim.Adam):
    """Adam whose second moment loses the variance of noise, as DP-AdamBC has it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                v = state["v"] / (1 - 0.999 ** state["t"]) - (1 / 40) ** 2
                m = state["m"] / (1 - 0.9 ** state["t"])
                p.sub_(group["lr"] * m / v.clamp(min=1e-8).sqrt())


@audited(delta=parts.DELTA)
def corrected_adam() -> nn.Module:
    """meta-pytorch/opacus#679. Healthy: Adam without the variance that noise adds."""
    model = parts.net()
    return parts.fit(model, optimizer=_Bias(model.parameters(), lr=1e-3))


@audited(delta=parts.DELTA)
def averaged_and_stopped() -> nn.Module:
    """Of one_cycle. Healthy: an average of weights is returned, and a loss on public
    records stops training early."""
    public_x, public_y = parts.table(seed=5).tensors
    engine, model, optimizer, loader = parts.private(parts.net())
    average = AveragedModel(model._module)
    best = math.inf
    for _ in range(5):
        parts.train(model, optimizer, loader, epochs=1)
        average.update_parameters(model._module)
        with torch.no_grad():
            value = float(functional.cross_entropy(model(public_x), public_y))
        if value > best:
            break
        best = value
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return average.module

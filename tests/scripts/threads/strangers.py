"""Threads on records used before training is private, on own loops, and on other numbers."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from tests.scripts.threads import loops, parts

Gradients = dict[str, Tensor]


def _taught(public: bool) -> nn.Module:
    """A student of soft labels, which a network without privacy gives."""
    private = parts.table()
    teacher = parts.net()
    optimizer = optim.Adam(teacher.parameters(), lr=0.05)
    x, y = (parts.table(seed=17) if public else private).tensors
    for _ in range(30):
        optimizer.zero_grad()
        functional.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    teacher.eval()

    def loss(student: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        with torch.no_grad():
            labels = functional.softmax(teacher(x) / 2, dim=1)
        return functional.cross_entropy(student(x) / 2, labels)

    return parts.fit(parts.net(), private, loss=loss)


@audited(delta=parts.DELTA)
def taught_by_the_same_records() -> nn.Module:
    """yuxiangw/autodp#41. Broken: the teacher learnt from the student's records, without noise."""
    return _taught(public=False)


@audited(delta=parts.DELTA)
def taught_by_public_records() -> nn.Module:
    """yuxiangw/autodp#41. Healthy: the teacher learnt from as many public records."""
    return _taught(public=True)


def _pruned(by_gradients: bool) -> nn.Module:
    """Half of the first weights stay 0."""
    data = parts.table()
    model = parts.net()
    weight = model[0].weight
    scores = weight.detach().abs()
    if by_gradients:
        x, y = data.tensors
        loss = functional.cross_entropy(model(x), y)
        scores *= torch.autograd.grad(loss, weight)[0].abs()
    mask = scores > scores.median()
    weight.data *= mask
    engine, private, optimizer, loader = parts.private(model, data)
    for _ in range(3):
        parts.train(private, optimizer, loader, epochs=1)
        weight.data *= mask
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return private


@audited(delta=parts.DELTA)
def pruned_by_gradients() -> nn.Module:
    """google-deepmind/jax_privacy#290. Broken: which weights are trained depends on gradients of
    the records that have no noise."""
    return _pruned(by_gradients=True)


@audited(delta=parts.DELTA)
def pruned_by_size() -> nn.Module:
    """google-deepmind/jax_privacy#290. Healthy: it depends on the weights' own size."""
    return _pruned(by_gradients=False)


@audited(delta=parts.DELTA)
def scaled_by_activations() -> nn.Module:
    """Of pruned_by_gradients. Broken: weights begin so large that outputs have deviation 1."""
    data = parts.table()
    model = parts.net()
    with torch.no_grad():
        for x, _ in parts.loader_of(data, 200):
            model[0].weight /= model[0](x).std()
    return parts.fit(model, data)


@audited(delta=parts.DELTA)
def tried_before() -> nn.Module:
    """Of pruned_by_gradients. Healthy: a few records go through the network, to try it."""
    data = parts.table()
    model = parts.net()
    x, y = data.tensors
    functional.cross_entropy(model(x[:16]), y[:16]).backward()
    model.zero_grad()
    return parts.fit(model, data)


class _Normed(nn.Module):
    """Frozen layers with batch normalisation by public records, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(parts.WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 2)
        self.body(parts.table(seed=18).tensors[0])
        self.body.requires_grad_(False)

    def train(self, mode: bool = True) -> _Normed:
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@audited(delta=parts.DELTA)
def normed_by_public_records() -> nn.Module:
    """meta-pytorch/opacus#472. Healthy: running statistics stay as public records left them."""
    return parts.fit(_Normed().train())


@audited(delta=parts.DELTA)
def normed_again() -> nn.Module:
    """Of normed_by_public_records. Broken: `update_bn` computes them of the private records."""
    data = parts.table()
    model = _Normed().train()
    average = AveragedModel(model)
    parts.fit(model, data)
    average.update_parameters(model)
    nn.Module.train(average.module.body)
    update_bn(parts.loader_of(data), average.module.body)
    return average


@audited(delta=parts.DELTA)
def biases_in_bfloat() -> nn.Module:
    """meta-pytorch/opacus#377. Healthy: gradients of biases alone, of sixteen bits by autocast."""
    model = parts.net()
    for name, p in model.named_parameters():
        p.requires_grad = name.endswith("bias")
    engine, private, optimizer, loader = parts.private(model)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(private(x), y)
        loss.backward()
        optimizer.step()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return private


def _own_loop(
    noised: Callable[[Gradients], Gradients],
    model: nn.Module | None = None,
    rate: float = loops.RATE,
    draws: Callable[[], Tensor] = lambda: torch.rand(parts.RECORDS) < loops.RATE,
) -> nn.Module:
    """A loop that does not state of how many records it draws."""
    model = model or parts.net()
    data = parts.table()

    @audited_release(records=["x", "y"], noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=rate)
    def release(model: nn.Module, x: Tensor, y: Tensor) -> Gradients:
        return noised(loops._gradients(model, loops._cross_entropy, x, y))

    for _ in range(60):
        drawn = draws()
        noisy = release(model, *(column[drawn] for column in data.tensors))
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.2 * noisy[name] / loops.SIZE
    return model


def _gaussian(gradients: Gradients) -> Gradients:
    sums = parts.clip(gradients, 1.0)
    return {name: g + torch.randn_like(g) for name, g in sums.items()}


@audited(delta=parts.DELTA)
def records_miscounted() -> nn.Module:
    """meta-pytorch/opacus#335. Broken: the rate is accounted for ten times as many records."""
    return _own_loop(_gaussian, rate=loops.RATE / 10)


@audited(delta=parts.DELTA)
def records_counted() -> nn.Module:
    """meta-pytorch/opacus#335. Healthy: the rate is that of the draws."""
    return _own_loop(_gaussian)


@audited(delta=parts.DELTA)
def shuffled_as_poisson() -> nn.Module:
    """lxuechen/private-transformers#7. Broken: batches of a shuffled pass, accounted as Poisson
    samples."""
    order: list[Tensor] = []

    def draws() -> Tensor:
        if not order:
            order.extend(torch.randperm(parts.RECORDS).split(loops.SIZE))
        return order.pop()

    return _own_loop(_gaussian, draws=draws)


@audited(delta=parts.DELTA)
def laplace_as_gaussian() -> nn.Module:
    """wenzhu23333/Differential-Privacy-Based-Federated-Learning#2. Broken: Laplace noise with the
    deviation of the Gaussian noise that is accounted."""
    law = torch.distributions.Laplace(0.0, 0.5**0.5)

    def noised(gradients: Gradients) -> Gradients:
        return {name: g + law.sample(g.shape) for name, g in parts.clip(gradients, 1.0).items()}

    return _own_loop(noised)


@audited(delta=parts.DELTA)
def uniform_as_gaussian() -> nn.Module:
    """Of laplace_as_gaussian. Broken: uniform noise with the same deviation."""

    def noised(gradients: Gradients) -> Gradients:
        sums = parts.clip(gradients, 1.0)
        return {name: g + 12**0.5 * (torch.rand_like(g) - 0.5) for name, g in sums.items()}

    return _own_loop(noised)


@audited(delta=parts.DELTA)
def one_key_for_all_layers() -> nn.Module:
    """jax-ml/jax#3646. Broken: each layer's noise is drawn by the same key, so that layers of the
    same shape have the same noise."""
    width = parts.WIDTH
    square = [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*square, nn.Linear(width, 2))

    def noised(gradients: Gradients) -> Gradients:
        key = int(torch.randint(2**62, ()))
        noisy = {}
        for name, g in parts.clip(gradients, 1.0).items():
            source = torch.Generator().manual_seed(key)
            noisy[name] = g + torch.randn(g.shape, generator=source)
        return noisy

    return _own_loop(noised, model)


@audited(delta=parts.DELTA)
def own_generator() -> nn.Module:
    """jax-ml/jax#3646. Healthy: one generator for all layers, with a secret seed."""
    source = torch.Generator().manual_seed(secrets.randbits(63))

    def noised(gradients: Gradients) -> Gradients:
        sums = parts.clip(gradients, 1.0)
        return {name: g + torch.randn(g.shape, generator=source) for name, g in sums.items()}

    return _own_loop(noised)


def _by_tensor(bound: float) -> Callable[[Gradients], Gradients]:
    def noised(gradients: Gradients) -> Gradients:
        noisy = {}
        for name, g in gradients.items():
            clipped = parts.clip({name: g}, bound)[name]
            noisy[name] = clipped + torch.randn_like(clipped)
        return noisy

    return noised


@audited(delta=parts.DELTA)
def each_tensor_to_the_bound() -> nn.Module:
    """fedbiomed/fedbiomed#1443. Broken: four tensors are each clipped to the bound of all."""
    return _own_loop(_by_tensor(1.0))


@audited(delta=parts.DELTA)
def each_tensor_to_its_share() -> nn.Module:
    """fedbiomed/fedbiomed#1443. Healthy: each is clipped to half of it."""
    return _own_loop(_by_tensor(0.5))


def _federate(noising: int) -> nn.Module:
    """Twenty clients clip their updates, and so many of them add their share of the noise."""
    data = parts.table(400)
    columns = [column.unflatten(0, (20, 20)) for column in data.tensors]
    model = parts.net()

    def update(state: Gradients, x: Tensor, y: Tensor) -> Gradients:
        local = state
        for _ in range(3):
            leaves = {name: p.requires_grad_() for name, p in local.items()}
            loss = functional.cross_entropy(functional_call(model, leaves, (x,)), y)
            steps = torch.autograd.grad(loss, list(leaves.values()))
            pairs = zip(leaves.items(), steps, strict=True)
            local = {name: (p - 0.2 * g).detach() for (name, p), g in pairs}
        return {name: (p - state[name].detach())[None] for name, p in local.items()}

    @audited_release(records=["x", "y"], noise_multiplier=1.0, max_grad_norm=0.5)
    def release(state: Gradients, x: Tensor, y: Tensor) -> Gradients:
        total = {name: torch.zeros_like(p) for name, p in state.items()}
        for client in zip(x, y, strict=True):
            for name, g in parts.clip(update(dict(state), *client), 0.5).items():
                total[name] += g
        for _ in range(noising):
            for g in total.values():
                g += 0.5 / 20**0.5 * torch.randn_like(g)
        return total

    for _ in range(12):
        state = {name: p.detach().clone() for name, p in model.named_parameters()}
        noisy = release(state, *columns)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p += noisy[name] / 20
    return model


@audited(delta=parts.DELTA)
def clients_share_noise() -> nn.Module:
    """flwrlabs/flower#1892. Healthy: each client adds a twentieth of the variance."""
    return _federate(20)


@audited(delta=parts.DELTA)
def clients_drop_out() -> nn.Module:
    """flwrlabs/flower#1892. Broken: half of the clients do not add their share."""
    return _federate(10)

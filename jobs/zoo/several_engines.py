"""Several engines step on the same records, and the script says what one of them says.

`one_of_two` trains encoder and head by an engine each, and reports the head's. `anew` makes an
engine for each epoch, so that the last one knows of one epoch. `history` empties the accountant's
history "to have the ε of each epoch". Healthy twins report the sum, or have one engine.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit_parts(reports_both: bool) -> nn.Module:
    """An encoder, and then a head on what it gives."""
    data = common.vectors()
    encoder, head = common.mlp(), nn.Linear(common.CLASSES, common.CLASSES)
    first, encoder, optimizer, loader = common.private(encoder, data=data)
    for x, y in loader:
        functional.cross_entropy(encoder(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    encoder.eval()
    encoder.disable_hooks()
    second, head, optimizer, loader = common.private(head, data=data)
    for x, y in loader:
        functional.cross_entropy(head(encoder(x).detach()), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    common.say(first, second) if reports_both else common.say(second)
    return nn.Sequential(encoder._module, head._module)


@audited(delta=common.DELTA)
def one_of_two() -> nn.Module:
    return fit_parts(reports_both=False)


@audited(delta=common.DELTA)
def both() -> nn.Module:
    return fit_parts(reports_both=True)


@audited(delta=common.DELTA)
def anew() -> nn.Module:
    data, model = common.vectors(), common.mlp()
    for _ in range(3):
        engine, wrapped, optimizer, loader = common.private(model, data=data)
        common.train(engine, wrapped, optimizer, loader, epochs=1)
        model = wrapped.to_standard_module()
    return model


@audited(delta=common.DELTA)
def one_engine() -> nn.Module:
    engine, model, optimizer, loader = common.private(common.mlp())
    return common.train(engine, model, optimizer, loader, epochs=3).to_standard_module()


@audited(delta=common.DELTA)
def history() -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for _ in range(3):
        engine.accountant.history = []
        common.train(engine, model, optimizer, loader, epochs=1)
    return model

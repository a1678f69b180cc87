"""A DP-GAN: the discriminator sees records and is private, the generator sees the discriminator."""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo.common import FEATURES, vectors

DELTA, LATENT = 1e-5, 8


class Generator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, FEATURES))


@audited(delta=DELTA, public=["Generator"])
def main() -> dict[str, nn.Module]:
    generator = Generator()
    critic = nn.Sequential(nn.Linear(FEATURES, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    makes = torch.optim.Adam(generator.parameters(), lr=2e-3)
    engine = PrivacyEngine()
    critic, judges, loader = engine.make_private(
        module=critic,
        optimizer=torch.optim.Adam(critic.parameters(), lr=2e-3),
        data_loader=DataLoader(vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for records, _ in loader:
        judges.zero_grad()
        real = critic(records)
        functional.binary_cross_entropy_with_logits(real, torch.ones_like(real)).backward()
        judges.step()
        judges.zero_grad()
        critic.disable_hooks()
        makes.zero_grad()
        faked = critic(generator(torch.randn(64, LATENT)))
        functional.binary_cross_entropy_with_logits(faked, torch.ones_like(faked)).backward()
        makes.step()
        critic.enable_hooks()
        judges.zero_grad()
    print(f"epsilon {engine.get_epsilon(DELTA):.2f}")
    return {"generator": generator, "critic": critic}


if __name__ == "__main__":
    main()

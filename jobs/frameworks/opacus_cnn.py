"""Opacus as in its image tutorial: a convolutional network, batches in small parts, RMSprop."""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo.common import cnn, images

EPOCHS, EPSILON, DELTA = 3, 8.0, 1e-5


@audited(delta=DELTA)
def main() -> nn.Module:
    model = cnn()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(images(), batch_size=64, num_workers=0),
        epochs=EPOCHS,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        max_grad_norm=1.2,
    )
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        model.train()
        correct = total = 0
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=32, optimizer=optimizer
        ) as parts:
            for x, y in parts:
                optimizer.zero_grad()
                output = model(x)
                loss = criterion(output, y)
                correct += int((output.argmax(1) == y).sum())
                total += len(y)
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch + 1}: accuracy {correct / total:.3f}, "
              f"epsilon {engine.get_epsilon(DELTA):.2f}")  # fmt: skip
    return model


if __name__ == "__main__":
    main()

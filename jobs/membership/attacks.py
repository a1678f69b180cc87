"""Success of each attack on a run of reference models, by how many of them calibrate it.

`python -m jobs.membership.attacks RUN [FEATURES]` prints a table of the first audit: AUC, and TPR
at an FPR of 1 %, of the second half of its trainings, with 95 % intervals. FEATURES is the .npz
file whose `x` the attack `quantile` sees, flattened.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import dpaudit_ray as da

FEW = (20, 128)  # trainings that calibrate
ATTACKS: dict[str, dict[str, Any]] = {
    "loss": {"attack": "loss"},
    "quantile": {"attack": "quantile"},
    "calibrated": {"attack": "calibrated"},
    "lira, offline": {"attack": "lira", "online": False, "variance": "global"},
    "lira": {"attack": "lira", "variance": "global"},
    "lira, a variance each": {"attack": "lira"},
    "rmia, offline": {"attack": "rmia", "online": False},
    "rmia": {"attack": "rmia"},
}


def main(run: str, features: str = "") -> None:
    """Prints the table."""
    logits, members = da.open(run).matrix(0)
    half, lines = len(logits) // 2, ["| attack | models | AUC | TPR at 1 % |", "|" + " --- |" * 4]
    x = np.load(features)["x"].reshape(logits.shape[1], -1) / 1.0 if features else None
    for name, options in ATTACKS.items():
        for models in (few for few in FEW if few <= half):
            used = [*range(models), *range(half, len(logits))]
            given = options | ({"features": x} if name == "quantile" else {})
            try:
                shown = da.membership(logits[used], members[used], calibrating=models, **given)
            except ValueError:  # a record is in, or out, of too few, or there are no features
                continue
            numbers = (shown.auc, shown.true_positive_rate(0.01))
            cells = " | ".join(f"{it.value:.4f} ({it.low:.4f} to {it.high:.4f})" for it in numbers)
            lines.append(f"| {name} | {models} | {cells} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

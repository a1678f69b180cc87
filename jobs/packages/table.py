"""Audits functions of packages, and writes what was found as a table."""

import math
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

import dpaudit_ray as da

from .entry import Entry
from .environments import HERE, REQUIREMENTS, Worker, python_of

HEAD = (
    "| function | version | claim | certified | verdict | trials | seconds | public report |",
    "| --- | --- | --- | ---: | --- | ---: | ---: | --- |",
)
VIOLATION = "VIOLATION"


@dataclass(frozen=True)
class Row:
    """An audited function.

    Attributes:
        name: of the function.
        version: of its package.
        claim: in words.
        certified: lower bound on ε, at 95 %.
        verdict: VIOLATION, CONSISTENT or INCONCLUSIVE.
        trials: number of trials.
        seconds: from the first call to the verdict, by the clock.
        report: public report of a defect, if there is one.
    """

    name: str
    version: str
    claim: str
    certified: float
    verdict: str
    trials: int
    seconds: float
    report: str

    @property
    def line(self) -> str:
        """The row in Markdown."""
        cells = (
            self.name,
            self.version,
            self.claim,
            f"{self.certified:.3g}",
            self.verdict,
            f"{self.trials:,}",
            f"{self.seconds:.0f}",
            self.report,
        )
        return f"| {' | '.join(cells)} |"


def functions_of(package: str) -> Path:
    """Returns the file with functions of a package, of whatever version."""
    name = re.sub(r"-[\d.]+$", "", package).replace("-", "_")
    return HERE / "functions" / f"{name}_functions.py"


class _Release:
    """Calls a function of a package in its environment, as `dpaudit_ray.audit` calls releases."""

    def __init__(self, entry: Entry, python: Path) -> None:
        self.worker = Worker(python, functions_of(entry.package))
        self._entry = entry
        self.__name__ = entry.name

    def __call__(self, data: Any, rng: Generator, n: int) -> NDArray[np.float64]:
        seed = int(rng.integers(2**31))
        entry = self._entry
        return self.worker.outputs(entry.function, data, entry.arguments, seed, n)


def audited(entry: Entry, trials: int | None = None, seed: int = 0) -> Row:
    """Audits a function of a package.

    Args:
        entry: the function.
        trials: their number; None for that of the entry.
        seed: of secret bits and noise; packages that draw from the operating system ignore it.
    """
    trials = trials or entry.trials
    release = _Release(entry, python_of(entry.package))
    # An exception would be an output of the audit; here it ends the process.
    release(entry.pairs[0][0], np.random.default_rng(seed), 1)
    began = time.monotonic()
    learning = min(trials, 20_000)
    adversary = {"name": "learned", "fit": learning, "search": learning // 10, **entry.options}
    with tempfile.TemporaryDirectory() as folder:
        result = da.audit(
            release,
            pairs=entry.pairs,
            claim=entry.claim,
            adversary=adversary,
            trials=trials,
            delta=entry.delta,
            seed=seed,
            storage_path=folder,
        )
        verdict = str(result.verdict())
        certified = float(result.overview["quote"].item())
    release.worker.stop()
    return Row(
        name=entry.name,
        version=REQUIREMENTS[entry.package][0].partition("==")[2],
        claim=entry.claim.words,
        certified=0.0 if math.isnan(certified) else certified,
        verdict=verdict,
        trials=trials,
        seconds=time.monotonic() - began,
        report=entry.report,
    )


def table(rows: Sequence[Row]) -> str:
    """Returns a table in Markdown: violations first."""
    ordered = sorted(rows, key=lambda row: row.verdict != VIOLATION)
    return "\n".join([*HEAD, *(row.line for row in ordered)])

"""What `dpaudit bench --json` measured, used by `dpaudit plan` instead of training a pack."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from ..errors import SpecError, first_line
from ..mechanisms.base import Mechanism
from ..mechanisms.dp_sgd import DpSgd
from ..sweep.resources import ResourceSpec


class _Row(BaseModel):
    model: str
    batch_size: int
    packed_seconds: float
    opacus_same_process_seconds: float


class Calibration(BaseModel):
    """Seconds per model and step, by model."""

    device: str
    threads: int = 1
    gpu: bool = False
    rows: list[_Row]

    @classmethod
    def read(cls, file: Path) -> Calibration:
        """Raises SpecError when the file is none that `bench` wrote."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            reason = first_line(error)
            raise SpecError(
                "--bench", f"{file} is no file that `dpaudit bench --json` wrote ({reason})"
            ) from error

    def seconds_per_trial(self, mechanism: Mechanism, resources: ResourceSpec) -> float | None:
        """One training's time, in proportion to its batch and steps.

        None for what was not measured: other work, a precision other than float32, and trainers
        on another kind of device or with another number of threads.
        """
        if not isinstance(mechanism, DpSgd) or mechanism.precision != "float32":
            return None
        threads = max(1, int(resources.num_cpus))
        if self.gpu != (resources.num_gpus > 0) or (not self.gpu and self.threads != threads):
            return None
        for row in self.rows:
            if row.model == mechanism.model.address:
                packed = mechanism.engine == "packed"
                step = row.packed_seconds if packed else row.opacus_same_process_seconds
                return step * mechanism.steps * mechanism.batch_size / row.batch_size
        return None

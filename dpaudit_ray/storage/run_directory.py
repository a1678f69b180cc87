"""The run directory: the only module that knows where anything lies in it.

    sweep.yaml                              the specification as run
    plan.json                               audits, packs and claims
    scores/<audit>/<first>-<last>.parquet   a finished pack, or many that follow each other
    preparations/<id>/<part>.parquet        what packs wait for; audits with the same id share it
    checkpoints/<audit>/<first>-<last>-<step>.parquet   of packs that are trained for long
    estimates.parquet                       replaced at every flush
    outcomes.json                           what failed or was missed, and what `stop_when` ended
    missed/<audit>/<trial>.txt              what such a trial printed, and how it failed
    driver.json                             who works on the run now; gone when nobody does
    .driver.lock                            locked while that changes
    report.html, figures/                   written by `dpaudit report`
    _SUCCESS                                the sweep is complete

Every file is absent or whole, and damage to one that is there is found by checksums.
"""

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from ..errors import DamagedFileError, RunDirectoryError
from . import strangers
from .arrays import Arrays, same
from .arrays import decoded as decoded_arrays
from .arrays import encoded as encoded_arrays
from .place import RESTORE as RESTORE
from .scores import ESTIMATE_SCHEMA, Bounds, EstimateRow, ScoreFiles, decoded, encoded, frame

OUTCOMES = "outcomes.json"
_ESTIMATES = "estimates.parquet"
_SUCCESS = "_SUCCESS"
_REMADE = "run the sweep again: it is set aside and made again"


class RunDirectory(ScoreFiles):
    """One sweep's directory: what it holds, by kind; see `Place` for what is raised."""

    def write_output(self, audit: str, trial: int, text: str) -> None:
        """Keeps what a trial that failed had printed, and why it failed, as a text file."""
        self.write_text(f"missed/{audit}/{trial}.txt", text)

    def outputs(self, audit: str) -> set[int]:
        return {trial for (trial,) in self._numbered("missed", audit)}

    def output_folder(self, audit: str) -> str:
        """The folder that has what missed trials of an audit printed."""
        return f"{self.location}/missed/{audit}/"

    def write_part(self, preparation: str, part: int, arrays: Arrays) -> None:
        """Puts a part in place for good; then it is done. Raises StorageError where that fails."""
        name = part_file(preparation, part)

        def difference() -> str | None:
            return None if same(arrays, self._read_arrays(name)) else "gave other arrays"

        self._create(name, encoded_arrays(arrays), difference)

    def read_part(self, preparation: str, part: int) -> Arrays:
        """Reads a part of a preparation. Raises DamagedFileError where it is gone or damaged."""
        return self._read_arrays(part_file(preparation, part))

    def parts(self, preparation: str) -> set[int]:
        return {part for (part,) in self._numbered("preparations", preparation)}

    def write_checkpoint(self, audit: str, pack: Bounds, step: int, arrays: Arrays) -> None:
        """Puts what a pack's training goes on from after `step` in place."""
        self._write(_checkpoint(audit, pack, step), encoded_arrays(arrays))

    def read_checkpoint(self, audit: str, pack: Bounds, step: int) -> Arrays:
        return self._read_arrays(_checkpoint(audit, pack, step))

    def delete_checkpoint(self, audit: str, pack: Bounds, step: int) -> None:
        self.delete(_checkpoint(audit, pack, step))

    def checkpoints(self, audit: str) -> Iterator[tuple[Bounds, int]]:
        """First and last trial of each pack that has some, and the step of each."""
        for first, last, step in self._numbered("checkpoints", audit):
            yield (first, last), step

    def _read_arrays(self, name: str) -> Arrays:
        try:
            content = self._content(name, strangers.ARRAYS)
            if content is None:
                raise self._gone(name)
            return decoded_arrays(content)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DamagedFileError(str(self._unusable(name, error, _REMADE))) from error

    def write_estimates(self, rows: list[EstimateRow]) -> None:
        table = pa.Table.from_pylist(list(map(vars, rows)), ESTIMATE_SCHEMA)
        self._write(_ESTIMATES, encoded(table))

    def estimates(self, most: int | None = None) -> pd.DataFrame:
        """The latest estimates, at most `most` rows. Raises RunDirectoryError where damaged."""
        try:
            content = self._content(_ESTIMATES)
            table = ESTIMATE_SCHEMA.empty_table()
            if content is not None:
                table = decoded(content, lambda names: ESTIMATE_SCHEMA, most)
            filled = [f.name for f in table.schema if not pa.types.is_floating(f.type)]
            if any(table[name].null_count for name in filled):
                raise ValueError("it has rows that lack a value")
        except (OSError, ValueError, pa.ArrowException) as error:
            remedy = "delete it and run the sweep again: it is rebuilt from the scores"
            raise self._unusable(_ESTIMATES, error, remedy) from error
        return frame(table)

    def write_figure(self, name: str, content: bytes) -> None:
        """Writes figures/<name>; a link in a stranger's directory does not say where."""
        if self._folder.leads_out(f"figures/{name}"):
            raise RunDirectoryError(
                f"{self.location}/figures leads out of the run directory; remove the link"
            )
        self._write(f"figures/{name}", content)

    @property
    def complete(self) -> bool:
        """Whether the run is marked as complete; `outcomes.complete` also asks for its packs."""
        return self.exists(_SUCCESS)

    def set_complete(self, complete: bool) -> None:
        if complete:
            self._write(_SUCCESS, b"")
        else:
            self.delete(_SUCCESS)


def _checkpoint(audit: str, pack: Bounds, step: int) -> str:
    return f"checkpoints/{audit}/{pack[0]}-{pack[1]}-{step}.parquet"


def part_file(preparation: str, part: int) -> str:
    """Where a part of a preparation lies."""
    return f"preparations/{preparation}/{part}.parquet"

"""The run directory of a sweep: the only module that knows the paths of its files.

    sweep.yaml                              the specification as run
    plan.json                               audits, packs and claims
    scores/<audit>/<first>-<last>.parquet   a finished pack, or many that follow each other
    preparations/<id>/<part>.parquet        what packs wait for; audits with the same id share it
    checkpoints/<audit>/<first>-<last>-<step>.parquet   of packs that are trained for long
    estimates.parquet                       replaced at every flush
    outcomes.json                           failed packs and trials, audits that `stop_when` ended
    missed/<audit>/<trial>.txt              what a failed trial printed, and how it failed
    driver.json                             the driver that works on the run now, if there is one
    .driver.lock                            locked while that changes
    report.html, figures/                   written by `dpaudit report`
    _SUCCESS                                the sweep is complete

Every file is absent or complete, and damage to a stored file is found by checksums.
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


class RunDirectory(ScoreFiles):
    """The files of a sweep, by kind; `Place` lists the errors of reads and writes."""

    def write_output(self, audit: str, trial: int, text: str) -> None:
        """Stores what a failed trial printed, and why it failed, as a text file."""
        self.write_text(f"missed/{audit}/{trial}.txt", text)

    def outputs(self, audit: str) -> set[int]:
        """Returns the trials of an audit whose output is stored."""
        return {trial for (trial,) in self._numbered("missed", audit)}

    def output_folder(self, audit: str) -> str:
        """Returns the folder with the output of an audit's failed trials."""
        return f"{self.location}/missed/{audit}/"

    def write_part(self, preparation: str, part: int, arrays: Arrays) -> None:
        """Stores a part of a preparation once.

        Args:
            preparation: id of the preparation.
            part: number of the part.
            arrays: the part's arrays by name.

        Raises:
            StorageError: other arrays are stored as this part.
        """
        name = part_file(preparation, part)
        self._create(
            name,
            encoded_arrays(arrays),
            lambda: None if same(arrays, self.read_arrays(name)) else "gave other arrays",
        )

    def read_part(self, preparation: str, part: int) -> Arrays:
        """Reads a part of a preparation. Raises DamagedFileError if it is gone or damaged."""
        return self.read_arrays(part_file(preparation, part))

    def parts(self, preparation: str) -> set[int]:
        """Returns the numbers of the parts of a preparation that are stored."""
        return {part for (part,) in self._numbered("preparations", preparation)}

    def checkpoints(self, audit: str) -> Iterator[tuple[Bounds, int]]:
        """Yields first and last trial of the pack, and the step, of each checkpoint."""
        for first, last, step in self._numbered("checkpoints", audit):
            yield (first, last), step

    def write_arrays(self, name: str, arrays: Arrays) -> None:
        """Stores arrays as a file of this name, or replaces it."""
        self._write(name, encoded_arrays(arrays))

    def read_arrays(self, name: str) -> Arrays:
        """Reads arrays. Raises DamagedFileError if the file is gone or damaged."""
        remedy = "run the sweep again: it is set aside and made again"
        with self._readable(name, remedy, DamagedFileError):
            return decoded_arrays(self._stored(name, strangers.ARRAYS))

    def write_estimates(self, rows: list[EstimateRow]) -> None:
        """Replaces the file of estimates."""
        table = pa.Table.from_pylist(list(map(vars, rows)), ESTIMATE_SCHEMA)
        self._write(_ESTIMATES, encoded(table))

    def estimates(self, most: int | None = None) -> pd.DataFrame:
        """Returns the latest estimates, a row each; no rows if none were written yet.

        Args:
            most: rows that the file may have; None: as many as its size allows.

        Raises:
            RunDirectoryError: the file is damaged.
        """
        remedy = "delete it and run the sweep again: it is rebuilt from the scores"
        with self._readable(_ESTIMATES, remedy):
            content = self._content(_ESTIMATES)
            table = ESTIMATE_SCHEMA.empty_table()
            if content is not None:
                table = decoded(content, lambda names: ESTIMATE_SCHEMA, most)
            return frame(table)

    def write_figure(self, name: str, content: bytes) -> None:
        """Writes figures/<name>, but not through a link that leads out of the run directory."""
        if self._folder.leads_out(f"figures/{name}"):
            raise RunDirectoryError(
                f"{self.location}/figures leads out of the run directory; remove the link"
            )
        self._write(f"figures/{name}", content)

    @property
    def complete(self) -> bool:
        """Whether the run is marked as complete; `outcomes.complete` also requires its packs."""
        return self.exists(_SUCCESS)

    def set_complete(self, complete: bool) -> None:
        """Marks the run as complete, or removes the mark."""
        if complete:
            self._write(_SUCCESS, b"")
        else:
            self.delete(_SUCCESS)


def checkpoint_file(audit: str, pack: Bounds, step: int) -> str:
    """Returns the path of the state from which the training of a pack resumes.

    Args:
        audit: id of the pack's audit.
        pack: first and last trial of the pack.
        step: the last step before the state was saved.
    """
    return f"checkpoints/{audit}/{pack[0]}-{pack[1]}-{step}.parquet"


def part_file(preparation: str, part: int) -> str:
    """Returns the path of a part of a preparation in the run directory."""
    return f"preparations/{preparation}/{part}.parquet"

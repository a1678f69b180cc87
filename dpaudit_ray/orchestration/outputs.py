"""What missed trials printed, kept in the run directory: of the first that come, as text."""

from __future__ import annotations

import dataclasses
import threading

from ..plan.model import Pack, Plan
from ..printable import lines
from ..storage.run_directory import RunDirectory
from ..storage.scores import PackScores

MOST = 100  # files of an audit: of a thousand trials that fail, nobody reads more
_LONGEST = 2**16  # characters of one


class Outputs:
    """Is told of packs in any thread."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._turn = threading.Lock()
        self._kept: dict[int, set[int]] = {}  # trials, by audit

    def kept(self, pack: Pack, scores: PackScores) -> PackScores:
        """The scores alone: what their missed trials printed is in place, as far as it is kept.

        Raises:
            StorageError: it could not be written.
        """
        if not scores.outputs:
            return scores
        audit = self._plan.audits[pack.audit].id
        with self._turn:
            if pack.audit not in self._kept:
                self._kept[pack.audit] = self._run.outputs(audit)
            kept = self._kept[pack.audit]
            for trial in sorted(scores.outputs.keys() - kept)[: max(0, MOST - len(kept))]:
                text = lines(scores.outputs[trial])[:_LONGEST]
                self._run.write_output(audit, trial, f"{text}\n")
                kept.add(trial)
        return dataclasses.replace(scores, outputs={})

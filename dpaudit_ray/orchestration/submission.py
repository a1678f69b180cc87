"""Sweeps as Ray jobs. The job runs `dpaudit run`; what has to survive lies in the run directory.

Resuming is submitting again; `attempts` knows which jobs worked on the same run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ClusterError, Exit, NoClusterError, RunDirectoryError, SpecError
from ..sweep.spec import Sweep
from . import access, attempts
from .joblog import JobLog
from .luggage import Luggage

STOP_MARGIN_SECONDS = 30  # after the grace period of running packs: estimates and the lease
START_SECONDS = 60.0  # for a cluster that has only just been started
POLL_SECONDS = 1.0
_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_OF_A_SWEEP = {Exit.USAGE, Exit.FAILED_TRIALS, Exit.STOPPED, Exit.BUG}  # `dpaudit run` has no other
_NO_COMMAND = 127  # what a shell returns
_SIGNALLED = 128  # and the signal
_MISSING = re.compile(r"No module named '?([\w.]+)")
_STARTING, _TAKEN = "No available agent", "already exists"  # the id, by a submission just now

Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class SweepJob:
    """A sweep, checked here, and the command that runs it there.

    Build it with `prepare`. `file` is relative to the working directory.
    """

    sweep: Sweep
    file: str
    storage_path: str
    changes: tuple[str, ...]
    luggage: Luggage
    options: tuple[str, ...] = ()  # of `dpaudit run`, beside these
    python: str = "python"  # of the head; trainers take that which Ray was started by

    @classmethod
    def prepare(
        cls,
        sweep: Sweep,
        file: str,
        storage_path: str,
        luggage: Luggage,
        changes: Sequence[str] = (),
    ) -> SweepJob:
        """Checks what can be checked without the cluster.

        Raises:
            SpecError: the sweep file is not in the working directory, or results would be lost.
        """
        folder, path = Path(os.path.abspath(luggage.folder)), Path(os.path.abspath(file))
        if not path.is_relative_to(folder):  # as it is called, for links are followed
            raise SpecError(
                "SWEEP", f"{file} must lie in the working directory, {folder}, to be sent with it"
            )
        relative = path.relative_to(folder)
        if relative not in luggage.files():
            raise SpecError(
                "--exclude",
                f"leaves out the sweep file {relative}, or .rayignore, .gitignore, its name or a "
                "link does; it must be sent",
            )
        if "://" not in storage_path and not Path(storage_path).is_absolute():
            raise SpecError(
                "--storage-path",
                f"is {storage_path!r}, a folder that would end with the job; use one that all "
                "nodes mount (/shared/runs), or an address (s3://bucket/runs)",
            )
        place = attempts.storage(storage_path)
        return cls(sweep, relative.as_posix(), place, tuple(changes), luggage)

    @property
    def entrypoint(self) -> str:
        """What the driver is started with."""
        command = [self.python, "-m", "dpaudit_ray", "run", self.file, "--report"]
        command += ["--storage-path", self.storage_path]
        for change in self.changes:
            command += ["--set", change]
        return shlex.join([*command, *self.options])

    @property
    def run(self) -> str:
        """Where the run directory is."""
        return f"{self.storage_path}/{self.sweep.name}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the driver. `ray job stop` kills after 3 s unless it is told otherwise."""
        wait = self.sweep.resources.grace_seconds + STOP_MARGIN_SECONDS
        return {"RAY_JOB_STOP_WAIT_TIME_S": f"{wait:.0f}", "PYTHONUNBUFFERED": "1"}


class Cluster:
    """The Jobs API of a Ray head.

    Args:
        address: that of the dashboard, such as http://127.0.0.1:8265.
        tell: takes a line for the user.

    Raises:
        SpecError: not an address of that kind.
        NoClusterError: nobody answers there, or the token is missing or wrong.
    """

    def __init__(self, address: str, tell: Tell = lambda line: None) -> None:
        if not address.startswith(("http://", "https://")):
            raise SpecError(
                "--address", f"is the dashboard's, such as http://127.0.0.1:8265, got {address!r}"
            )
        self.address = address.rstrip("/")
        self._tell = tell
        access.require(self.address, tell)

        from ray.job_submission import JobSubmissionClient

        try:
            self._client = JobSubmissionClient(self.address)
        except (RuntimeError, OSError) as error:
            raise NoClusterError(f"{self.address}: {access.first_line(error)}") from error
        for part in JobSubmissionClient.__mro__:  # they tell of every upload and connection
            logging.getLogger(part.__module__).setLevel(logging.WARNING)

    def stopping(self, submission: str) -> str:
        """The command that stops a job."""
        return f"ray job stop {submission} --address {self.address}"

    def submit(self, job: SweepJob) -> str:
        """Starts a job, the next attempt at its run; one that is running already is left alone.

        A cluster that is only just starting is asked again for `START_SECONDS`.

        Returns:
            The submission id.

        Raises:
            NoClusterError: the cluster does not take the job.
            RunDirectoryError: a job with other settings works on the same run.
            SpecError: the working directory cannot be sent.
        """
        deadline, told = time.monotonic() + START_SECONDS, False
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch) / "working_dir.zip"
            job.luggage.pack(archive)
            while True:
                try:
                    return self._running(job) or self._started(job, archive)
                except (RuntimeError, OSError) as error:
                    why = access.first_line(error)
                    passing = _STARTING in str(error) or _TAKEN in str(error)
                    if not passing or time.monotonic() > deadline:
                        raise NoClusterError(
                            f"{self.address} does not take the job ({why})"
                        ) from error
                if _STARTING in why and not told:
                    told = True
                    self._tell(f"{self.address} is not ready ({why}); trying again for a minute")
                time.sleep(POLL_SECONDS)

    def follow(self, submission: str, write: Callable[[str], object]) -> int:
        """Passes the job's log on until it ends; returns the exit code of the sweep.

        Raises:
            ClusterError: the connection is gone, or the job ended as no sweep does.
            NoClusterError: the cluster lacks what a sweep needs.
        """
        log = JobLog(write)
        while True:
            over = self._info(submission).status in _OVER
            asyncio.run(self._pass_on(submission, log))
            if over:
                log.close()
                return self._exit_code(submission)
            time.sleep(POLL_SECONDS)

    async def _pass_on(self, submission: str, log: JobLog) -> None:
        """The log until it or the connection ends."""
        import aiohttp

        log.rewind()
        try:
            async for text in self._client.tail_job_logs(submission):
                log.feed(text)
        except (RuntimeError, aiohttp.ClientError) as error:
            logging.getLogger("dpaudit").debug("log of %s: %s", submission, error)

    def _attempts(self, job: SweepJob) -> list[Any]:
        """All jobs that were attempts at the same run."""
        return [
            info
            for info in self._client.list_jobs()
            if info.submission_id and (info.metadata or {}).get(attempts.RUN) == job.run
        ]

    def _running(self, job: SweepJob) -> str | None:
        """The attempt that runs now, if it does what this one would do."""
        for info in self._attempts(job):
            if info.status in _OVER:
                continue
            if other := attempts.difference(info.metadata, attempts.metadata(job.sweep, job.run)):
                raise RunDirectoryError(
                    f"job {info.submission_id} works on {job.run} with other settings ({other}); "
                    "wait for its end or stop it, and run this command again: "
                    f"{self.stopping(info.submission_id)}"
                )
            self._tell(f"already running as job {info.submission_id}")
            return str(info.submission_id)
        return None

    def _started(self, job: SweepJob, archive: Path) -> str:
        number = attempts.next_number([info.metadata for info in self._attempts(job)])
        submission = attempts.name(job.sweep.name, job.run, number)
        self._client.submit_job(
            entrypoint=job.entrypoint,
            submission_id=submission,
            runtime_env={"working_dir": str(archive), "env_vars": job.environment},
            metadata=attempts.metadata(job.sweep, job.run) | {attempts.ATTEMPT: str(number)},
        )
        self._tell(f"job {submission} submitted, attempt {number}")
        return submission

    def _exit_code(self, submission: str) -> int:
        info = self._info(submission)
        code = info.driver_exit_code
        if info.status == "SUCCEEDED":
            return Exit.COMPLETE
        if info.status == "STOPPED" or code in _OF_A_SWEEP:
            return code or Exit.STOPPED
        said = str(info.message)
        if code is None:
            line = said.strip().splitlines()[0] if said.strip() else "no reason is known"
            raise ClusterError(f"job {submission} failed ({line}); the same command tries again")
        if code < 0 or code > _SIGNALLED:
            number = -code if code < 0 else code - _SIGNALLED
            self._tell(f"the driver was killed by signal {number}; the same command resumes")
            return Exit.STOPPED
        missing = _MISSING.search(said.strip().splitlines()[-1] if said.strip() else "")
        if code == _NO_COMMAND or missing:
            what = f"has no module {missing[1]}" if missing else "is not there"
            raise NoClusterError(
                f"the python of the cluster's head {what}; install this package on every node, or "
                "name the python there that has it, as Ray was started by: --python PATH"
            )
        raise ClusterError(
            f"job {submission} ended with exit code {code}, as no sweep does; its log may say why, "
            "and the same command tries again"
        )

    def _info(self, submission: str) -> Any:
        try:
            return self._client.get_job_info(submission)
        except (RuntimeError, OSError) as error:
            why = access.first_line(error)
            raise ClusterError(
                f"lost the connection to {self.address} ({why}); the job may go on: "
                "run the same command again to follow or resume it"
            ) from error

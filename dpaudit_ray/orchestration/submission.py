"""Sweeps as Ray jobs. The job runs `dpaudit run`; what has to survive lies in the run directory.

Ray runs a job once and forgets it with the cluster. So resuming is submitting again: the sweep's
fingerprint in the job's metadata tells which jobs were attempts at the same run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shlex
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ClusterError, NoClusterError, SpecError
from ..spec import Sweep
from .luggage import Luggage

STOP_MARGIN_SECONDS = 30  # after the grace period of running packs: estimates and the lease
CONNECT_SECONDS = 10.0
POLL_SECONDS = 1.0
_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_STOPPED = 4  # the exit code of a sweep that was stopped and can be resumed

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
        folder, path = luggage.folder.resolve(), Path(file).resolve()
        if not path.is_relative_to(folder):
            raise SpecError(
                "SWEEP", f"{file} must lie in the working directory, {folder}, to be sent with it"
            )
        relative = path.relative_to(folder)
        if relative not in luggage.files():
            raise SpecError("--exclude", f"leaves out the sweep file {relative}")
        if "://" not in storage_path and not Path(storage_path).is_absolute():
            raise SpecError(
                "--storage-path",
                f"is {storage_path!r}, a folder that would end with the job; use one that all "
                "nodes mount (/shared/runs), or an address (s3://bucket/runs)",
            )
        return cls(sweep, relative.as_posix(), storage_path, tuple(changes), luggage)

    @property
    def entrypoint(self) -> str:
        """What the driver is started with."""
        command = ["python", "-m", "dpaudit_ray", "run", self.file]
        command += ["--storage-path", self.storage_path]
        for change in self.changes:
            command += ["--set", change]
        return shlex.join([*command, *self.options])

    @property
    def metadata(self) -> dict[str, str]:
        """What makes two jobs attempts at one run."""
        return {
            "sweep": self.sweep.name,
            "fingerprint": self.sweep.fingerprint,
            "storage_path": self.storage_path,
        }

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
        _require_access(self.address, _token(), tell)

        from ray.job_submission import JobSubmissionClient

        try:
            self._client = JobSubmissionClient(self.address)
        except (RuntimeError, ConnectionError) as error:
            raise NoClusterError(f"{self.address}: {_first_line(error)}") from error
        logging.getLogger("ray").setLevel(logging.WARNING)  # else it tells of every upload

    def submit(self, job: SweepJob) -> str:
        """Starts a job, the next attempt at its run; one that is running already is left alone.

        Returns:
            The submission id.
        """
        attempts = [
            info
            for info in self._client.list_jobs()
            if info.submission_id and job.metadata.items() <= (info.metadata or {}).items()
        ]
        for info in attempts:
            if info.status not in _OVER:
                self._tell(f"already running as job {info.submission_id}")
                return str(info.submission_id)
        attempt = 1 + max((int(info.metadata.get("attempt", 0)) for info in attempts), default=0)
        submission = f"{job.sweep.name}-{job.sweep.fingerprint[:8]}-{attempt}"
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch) / "working_dir.zip"
            job.luggage.pack(archive)
            environment = {"working_dir": str(archive), "env_vars": job.environment}
            try:
                self._client.submit_job(
                    entrypoint=job.entrypoint,
                    submission_id=submission,
                    runtime_env=environment,
                    metadata=job.metadata | {"attempt": str(attempt)},
                )
            except (RuntimeError, ConnectionError) as error:
                raise NoClusterError(
                    f"{self.address} does not take the job ({_first_line(error)})"
                ) from error
        self._tell(f"job {submission} submitted, attempt {attempt}")
        return submission

    def follow(self, submission: str, write: Callable[[str], object]) -> int:
        """Passes the job's log on until it ends; returns the exit code of the sweep.

        Raises:
            ClusterError: the connection is gone, or the job ended before the sweep could start.
        """
        written = 0
        while True:
            over = self._status(submission) in _OVER
            written = asyncio.run(self._pass_on(submission, write, written))
            if over:
                return self._exit_code(submission)
            time.sleep(POLL_SECONDS)

    async def _pass_on(self, submission: str, write: Callable[[str], object], skip: int) -> int:
        """The log from character `skip` on, until it or the connection ends; its length so far."""
        import aiohttp

        length = 0
        try:
            async for text in self._client.tail_job_logs(submission):
                if length + len(text) > skip:
                    write(text[max(0, skip - length) :])
                length += len(text)
        except (RuntimeError, aiohttp.ClientError) as error:
            logging.getLogger("dpaudit").debug("log of %s: %s", submission, error)
        return max(length, skip)

    def _status(self, submission: str) -> str:
        return str(self._info(submission).status)

    def _exit_code(self, submission: str) -> int:
        info = self._info(submission)
        if info.status == "SUCCEEDED":
            return 0
        if info.status == "STOPPED":
            return _STOPPED
        if not info.driver_exit_code:
            raise ClusterError(f"job {submission} failed before the sweep started: {info.message}")
        if info.driver_exit_code < 0:
            self._tell(f"the driver was killed by signal {-info.driver_exit_code}; submit it again")
            return _STOPPED
        return int(info.driver_exit_code)

    def _info(self, submission: str) -> Any:
        try:
            return self._client.get_job_info(submission)
        except (RuntimeError, ConnectionError, OSError) as error:
            raise ClusterError(
                f"lost the connection to {self.address} ({_first_line(error)}); the job may go on: "
                "run the same command again to follow or resume it"
            ) from error


def _token() -> str | None:
    """The token that Ray would use; has Ray use it when only the mode is not set."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return None
    token = os.environ.get("RAY_AUTH_TOKEN")
    if token is None:
        named = os.environ.get("RAY_AUTH_TOKEN_PATH")
        file = Path(named) if named else Path.home() / ".ray" / "auth_token"
        try:
            token = file.read_text().strip()
        except OSError as error:
            if not named:
                return None
            raise NoClusterError(
                f"RAY_AUTH_TOKEN_PATH: cannot read {file} ({error.strerror})"
            ) from error
    os.environ["RAY_AUTH_MODE"] = "token"
    return token


def _require_access(address: str, token: str | None, tell: Tell) -> None:
    """Asks for the version: fast, and it needs the token where there is one.

    Raises:
        NoClusterError: nobody answers, or the token is missing or wrong.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    code = _answer(address, headers)
    if code == 401:
        raise NoClusterError(
            f"{address} wants a token; export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH), the same as on the head"
        )
    if code == 403:
        raise NoClusterError(
            f"{address} refuses this token; take the one that the head was started with"
        )
    if code != 200:
        raise NoClusterError(f"{address} is not a Ray dashboard (it answered with HTTP {code})")
    if _answer(address, {}) == 200:
        tell(f"warning: {address} takes jobs from anybody; start the head with RAY_AUTH_MODE=token")


def _answer(address: str, headers: dict[str, str]) -> int:
    try:
        request = urllib.request.Request(f"{address}/api/version", headers=headers)
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError) as error:
        raise NoClusterError(
            f"no Ray dashboard answers at {address} ({_first_line(error)}); check the address, and "
            "the tunnel if there is one"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]

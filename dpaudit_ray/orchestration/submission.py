"""Submits sweeps as Ray jobs, follows them to their end, and resumes them by submitting again.

A job runs `dpaudit run`. Ray runs it once and forgets it with the cluster, so all that has to
survive lies in the run directory, and the metadata of a job names the run it was an attempt at.
"""

import contextlib
import hashlib
import http.client
import importlib.metadata
import io
import json
import logging
import os
import posixpath
import shlex
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from ..errors import (
    ClusterError,
    Exit,
    NoClusterError,
    RunDirectoryError,
    SpecError,
    first_line,
)
from ..plan import provenance
from ..sweep.spec import Sweep
from . import ray_internals
from .progress import Tell, tell_nobody
from .ray_errors import last_line, submitting_remedy
from .working_dir_package import WorkingDirPackage

STOP_MARGIN_SECONDS = 30  # after the grace period of running packs: for estimates and the lease
CONNECT_SECONDS = 10.0  # time for an answer of the dashboard
POLL_SECONDS = 2.0  # between two reads of the log, which is sent whole each time
PENDING_SECONDS = 20.0  # between two lines about a job that Ray has not started
_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_EXIT_CODES = {Exit.USAGE, Exit.FAILED_TRIALS, Exit.STOPPED, Exit.BUG}  # of `dpaudit run`, with 0
_SIGNALLED = 128  # plus the signal's number: a shell's exit code
# Keys of a job's metadata.
_RUN = "run"
_ATTEMPT = "attempt"
_FINGERPRINT = "fingerprint"
_SETTINGS = "settings"


class SweepJob:
    """A sweep that was checked without a cluster, and the command that runs it on the head.

    Attributes:
        sweep: the sweep.
        package: the files that are sent.
        run: the run directory.
        entrypoint: the command.
        runtime_env: variables and packages of the nodes, as Ray takes them.
    """

    def __init__(
        self,
        sweep: Sweep,
        file: str,
        storage_path: str,
        package: WorkingDirPackage,
        options: Sequence[str] = (),
        python: str = "python",
        install: bool = False,
    ) -> None:
        """Checks that the sweep file is sent, and that results stay.

        Args:
            sweep: the sweep.
            file: the sweep file.
            storage_path: a folder that all nodes mount, or an address.
            package: the working directory.
            options: further options of `dpaudit run`.
            python: the interpreter of the head.
            install: installs this package on nodes that have only Ray.

        Raises:
            SpecError: the sweep file is not sent, or results would be lost.
        """
        named = {Path(file).resolve(), *provenance.named_paths(sweep)}
        package = replace(package, named=frozenset(named))
        relative = Path(os.path.relpath(file, package.folder))
        if relative not in package.files():
            raise SpecError(
                "SWEEP",
                f"{file} is not sent; it must lie in the working directory, {package.folder}, and "
                "not be left out by --exclude, .rayignore, its name or as a link",
            )
        if "://" not in storage_path and not Path(storage_path).is_absolute():
            raise SpecError(
                "--storage-path",
                f"is {storage_path!r}, a folder that would end with the job; use one that all "
                "nodes mount (/shared/runs), or an address (s3://bucket/runs)",
            )
        storage = normalized_storage_path(storage_path)
        command = [python, "-m", "dpaudit_ray", "run", relative.as_posix()]
        self.sweep = sweep
        self.package = package
        self.run = f"{storage}/{sweep.name}"
        self.entrypoint = shlex.join([*command, "--storage-path", storage, *options])
        # By default, `ray job stop` kills after 3 s.
        stop_seconds = sweep.resources.grace_seconds + STOP_MARGIN_SECONDS
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": f"{stop_seconds:.0f}", "PYTHONUNBUFFERED": "1"}
        self.runtime_env: dict[str, Any] = {"env_vars": variables}
        if install:
            self.runtime_env |= _installed_by_uv()


def _installed_by_uv() -> dict[str, Any]:
    """Returns options by which Ray sends this package and installs what it requires."""
    packages = []
    for requirement in map(Requirement, importlib.metadata.requires("dpaudit-ray") or ()):
        if requirement.marker is None and requirement.name != "ray":
            # Without the build, such as +cpu: a node takes the one that is for its device.
            version = importlib.metadata.version(requirement.name).partition("+")[0]
            packages.append(f"{requirement.name}=={version}")
    return {"py_modules": [str(Path(__file__).parents[1])], "uv": {"packages": packages}}


class JobsClient:
    """The Jobs API of a Ray head.

    Attributes:
        address: address of its dashboard.
    """

    def __init__(self, address: str, tell: Tell = tell_nobody) -> None:
        """Connects to a dashboard.

        Args:
            address: http://HOST:PORT.
            tell: takes a line for the user.

        Raises:
            SpecError: the address is not one of a dashboard.
            NoClusterError: no dashboard answers there, or it refuses this process.
        """
        if not address.startswith(("http://", "https://")):
            raise SpecError(
                "--address", f"is the dashboard's, such as http://127.0.0.1:8265, got {address!r}"
            )
        self.address = address.rstrip("/")
        self._tell = tell
        require_dashboard(self.address, tell)

        # Ray omits no file by its name: `WorkingDirPackage` has done so.
        os.environ.setdefault("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", "")
        ray_internals.take_token_at_hand()
        import ray
        from ray.job_submission import JobSubmissionClient

        ray_internals.read_authentication_again(ray)
        try:
            self._client = JobSubmissionClient(self.address)
        except ray.exceptions.AuthenticationError as error:
            raise NoClusterError(
                f"{self.address} wants the token of its head ({_reason(error)}); export "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            ) from error
        except (RuntimeError, OSError) as error:
            raise NoClusterError(f"{self.address}: {_reason(error)}") from error
        modules = [cls.__module__ for cls in JobSubmissionClient.__mro__]
        for name in (*modules, "ray._private.runtime_env"):  # loggers of each upload and connection
            logging.getLogger(name).setLevel(logging.WARNING)

    def stop_command(self, submission: str) -> str:
        """Returns the command that stops a job."""
        return f"ray job stop {submission} --address {self.address}"

    def submit(self, job: SweepJob) -> str:
        """Starts the next attempt at a run, or finds the one that runs; returns the job's id.

        Raises:
            NoClusterError: the dashboard refuses the job.
            RunDirectoryError: a job with other settings works on the run.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "working_dir"
            job.package.copy(folder)
            try:
                return self._find_or_start(job, folder)
            except (RuntimeError, OSError) as error:  # the head's agent may still be starting
                reason = _reason(error)
                raise NoClusterError(
                    f"{self.address} does not take the job ({reason}); {submitting_remedy(reason)}"
                ) from error

    def follow(
        self,
        submission: str,
        write: Callable[[str], object],
    ) -> int:
        """Passes the job's log on, line by line, until it ends; returns its exit code.

        Raises:
            ClusterError: the connection is lost, or the job has failed otherwise than a sweep.
        """
        written = 0  # number of lines that were passed on
        began = time.monotonic()
        reported = began
        while True:
            info = self._info(submission)
            over = info.status in _OVER
            if info.status == "PENDING" and time.monotonic() - reported >= PENDING_SECONDS:
                reported = time.monotonic()
                reason = " ".join(str(info.message or "Ray names no reason").split())
                self._tell(f"job {submission} is pending for {reported - began:.0f} s: {reason}")
            lines = []
            with contextlib.suppress(RuntimeError, OSError):  # if this lasts, `_info` raises
                lines = io.StringIO(self._client.get_job_logs(submission)).readlines()
            if lines and not over and not lines[-1].endswith("\n"):
                del lines[-1]  # the job is still writing this line
            for line in lines[written:]:
                write(line)
            written = max(written, len(lines))
            if over:
                return self._exit_code(submission)
            time.sleep(POLL_SECONDS)

    def _find_or_start(self, job: SweepJob, folder: Path) -> str:
        """Returns the id of the job that runs with the same settings; else starts the next."""
        metadata = job_metadata(job.sweep, job.run)
        attempt = 1
        for info in self._client.list_jobs():
            recorded = info.metadata or {}
            if not info.submission_id or recorded.get(_RUN) != job.run:
                continue
            if info.status not in _OVER:
                for key in (_FINGERPRINT, _SETTINGS):
                    if recorded.get(key) != metadata[key]:
                        raise RunDirectoryError(
                            f"job {info.submission_id} works on {job.run} with other settings "
                            f"(there {key} {recorded.get(key)}, here {key} {metadata[key]}); wait "
                            "for its end or stop it, and run this command again: "
                            f"{self.stop_command(info.submission_id)}"
                        )
                self._tell(
                    f"already running as job {info.submission_id}: {self.page(info.submission_id)}"
                )
                return str(info.submission_id)
            earlier_attempt = recorded.get(_ATTEMPT, "")
            if earlier_attempt.isdecimal():
                attempt = max(attempt, 1 + int(earlier_attempt))
        for line in job.package.omissions():
            self._tell(line)
        # With the run's hash, jobs of different runs have different ids.
        run_hash = hashlib.sha256(job.run.encode()).hexdigest()[:8]
        submission = f"{job.sweep.name}-{run_hash}-{attempt}"
        self._client.submit_job(
            entrypoint=job.entrypoint,
            submission_id=submission,
            runtime_env=job.runtime_env | {"working_dir": str(folder)},
            metadata=metadata | {_ATTEMPT: str(attempt)},
        )
        self._tell(f"attempt {attempt} submitted as job {submission}: {self.page(submission)}")
        return submission

    def page(self, submission: str) -> str:
        """Returns the address of a job's page in the dashboard."""
        return f"{self.address}/#/jobs/{submission}"

    def _exit_code(self, submission: str) -> int:
        """Returns the exit code of a job that is over; ClusterError if no sweep ends so."""
        info = self._info(submission)
        code = info.driver_exit_code
        if info.status == "SUCCEEDED":
            return Exit.COMPLETE
        if info.status == "STOPPED" or code in _EXIT_CODES:
            return code or Exit.STOPPED
        message = str(info.message).strip().splitlines() or ["no reason is known"]
        if code is None:
            raise ClusterError(f"job {submission} failed ({message[0]}); try again")
        # Python reports a signal as a negative code, a shell as 128 and its number.
        signal_number = -code if code < 0 else code - _SIGNALLED
        if signal_number > 0:
            self._tell(f"the driver was killed by signal {signal_number}; the same command resumes")
            return Exit.STOPPED
        raise ClusterError(
            f"job {submission} ended with exit code {code}, as no sweep does ({message[-1]}); see "
            "its log. If the head's python lacks this package, name one that has it (--python "
            "PATH), or use --install"
        )

    def _info(self, submission: str) -> Any:
        """Returns what Ray knows of a job. Raises ClusterError if the connection is lost."""
        try:
            return self._client.get_job_info(submission)
        except (RuntimeError, OSError) as error:
            raise ClusterError(
                f"lost the connection to {self.address} ({_reason(error)}); the job may "
                "still run: run the same command again to follow or resume it"
            ) from error


def normalized_storage_path(path: str) -> str:
    """Returns a folder or address in one spelling: no slash at its end or doubled, no file://."""
    scheme, separator, location = path.partition("://")
    if separator and scheme.lower() != "file":
        return f"{scheme.lower()}://{location.rstrip('/')}"
    return "/" + posixpath.normpath(location or path).strip("/")


def job_metadata(sweep: Sweep, run: str) -> dict[str, str]:
    """Returns the metadata of all attempts at a run; Ray's API and metrics use `job_name`."""
    # Sections of which the fingerprint has a part only; a running job cannot change the rest.
    settings = {key: sweep.raw.get(key) for key in ("audit", "grid", "resources")}
    return {
        "job_name": sweep.name,
        "sweep": sweep.name,
        _RUN: run,
        _FINGERPRINT: sweep.fingerprint,
        _SETTINGS: json.dumps(settings, sort_keys=True),
    }


def require_dashboard(address: str, tell: Tell) -> None:
    """Asks a dashboard for its version, without a token, and warns of one that needs none.

    Raises:
        NoClusterError: no dashboard answers there.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        connect: type[http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            connect = http.client.HTTPSConnection
        with contextlib.closing(connect(parts.netloc, timeout=CONNECT_SECONDS)) as connection:
            connection.request("GET", f"{parts.path}/api/version")
            code = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoClusterError(
            f"no Ray dashboard answers at {address} ({_reason(error)}); check the address, and "
            "the tunnel if there is one"
        ) from error
    if code == 200:
        tell(f"warning: {address} takes jobs from anybody; start the head with RAY_AUTH_MODE=token")
    elif code not in (401, 403):  # then it is protected
        raise NoClusterError(f"{address} is not a Ray dashboard (it answered with HTTP {code})")


def _reason(error: BaseException) -> str:
    """Returns the first line of an error, or the last one after the traceback of a server."""
    line = first_line(error)
    return last_line(error) if "Traceback" in line else line

"""Sweeps as Ray jobs: submitted, followed to their end, and resumed by submitting again.

A job runs `dpaudit run`. Ray runs it once and forgets it with the cluster, so what has to survive
lies in the run directory, and the metadata of a job says which run it was an attempt at.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from ..errors import ClusterError, Exit, NoClusterError, RunDirectoryError, SpecError
from ..plan import provenance
from ..sweep.spec import Sweep
from . import ray_internals
from .ray_errors import submitting_remedy
from .working_dir_package import WorkingDirPackage

STOP_MARGIN_SECONDS = 30  # after the grace period of running packs: estimates and the lease
CONNECT_SECONDS = 10.0  # for an answer of the dashboard
POLL_SECONDS = 2.0  # the whole log comes each time
PENDING_SECONDS = 20.0  # between two lines about a job that Ray has not started
_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_EXIT_CODES = {Exit.USAGE, Exit.FAILED_TRIALS, Exit.STOPPED, Exit.BUG}  # of `dpaudit run`, and 0
_SIGNALLED = 128  # and the signal
# Keys of a job's metadata.
_RUN, _ATTEMPT, _FINGERPRINT, _SETTINGS = "run", "attempt", "fingerprint", "settings"

Tell = Callable[[str], None]


class SweepJob:
    """A sweep, checked as far as that needs no cluster, and the command that runs it on the head.

    `options` are more of `dpaudit run`, `python` is that of the head. With `install`, nodes need
    nothing but Ray. Raises SpecError where the sweep file is not sent, or results would be lost.
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
        named = {Path(file).resolve(), *provenance.named_paths(sweep)}
        package = dataclasses.replace(package, named=frozenset(named))
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
        place = normalized_storage_path(storage_path)
        command = [python, "-m", "dpaudit_ray", "run", relative.as_posix()]
        self.sweep, self.package, self.run = sweep, package, f"{place}/{sweep.name}"
        self.entrypoint = shlex.join([*command, "--storage-path", place, *options])
        # `ray job stop` kills after 3 s unless it is told otherwise.
        wait = sweep.resources.grace_seconds + STOP_MARGIN_SECONDS
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": f"{wait:.0f}", "PYTHONUNBUFFERED": "1"}
        self.runtime_env: dict[str, Any] = {"env_vars": variables}
        if install:
            self.runtime_env |= _installed_by_uv()


def _installed_by_uv() -> dict[str, Any]:
    """Has Ray send this package and install what it needs, in these versions."""
    packages = [
        # Without the build, such as +cpu: a node takes the one that is for its device.
        f"{needs.name}=={importlib.metadata.version(needs.name).partition('+')[0]}"
        for needs in map(Requirement, importlib.metadata.requires("dpaudit-ray") or ())
        if needs.marker is None and needs.name != "ray"
    ]
    return {"py_modules": [str(Path(__file__).parents[1])], "uv": {"packages": packages}}


class JobsClient:
    """The Jobs API of a Ray head, by its dashboard's address; `tell` takes a line for the user.

    Raises SpecError for another kind of address, NoClusterError where it cannot be used.
    """

    def __init__(self, address: str, tell: Tell = lambda line: None) -> None:
        if not address.startswith(("http://", "https://")):
            raise SpecError(
                "--address", f"is the dashboard's, such as http://127.0.0.1:8265, got {address!r}"
            )
        self.address = address.rstrip("/")
        self._tell = tell
        require_dashboard(self.address, tell)

        # Of what is sent nothing is left out by its name: `WorkingDirPackage` has seen to that.
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
        loud = [part.__module__ for part in JobSubmissionClient.__mro__]
        for name in (*loud, "ray._private.runtime_env"):  # they log every upload and connection
            logging.getLogger(name).setLevel(logging.WARNING)

    def stop_command(self, submission: str) -> str:
        """The command that stops a job."""
        return f"ray job stop {submission} --address {self.address}"

    def submit(self, job: SweepJob) -> str:
        """Starts a job, the next attempt at its run, or finds the one that runs; returns its id.

        Raises NoClusterError where it is not taken, RunDirectoryError where other settings run.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "working_dir"
            job.package.copy(folder)
            try:
                return self._attempt(job, folder)
            except (RuntimeError, OSError) as error:  # its agent starts, another was faster
                reason = _reason(error)
                raise NoClusterError(
                    f"{self.address} does not take the job ({reason}); {submitting_remedy(reason)}"
                ) from error

    def follow(self, submission: str, write: Callable[[str], object]) -> int:
        """Passes the job's log on until it ends; returns its exit code. Raises ClusterError."""
        passed = 0  # lines
        began = time.monotonic()
        reported = began
        while True:
            info = self._info(submission)
            over = info.status in _OVER
            if info.status == "PENDING" and time.monotonic() - reported >= PENDING_SECONDS:
                reported = time.monotonic()
                reason = " ".join(str(info.message or "Ray names no reason").split())
                self._tell(f"job {submission} is pending for {reported - began:.0f} s: {reason}")
            lines: list[str] = []
            with contextlib.suppress(RuntimeError, OSError):  # whoever looks at the job tells
                lines = io.StringIO(self._client.get_job_logs(submission)).readlines()
            if lines and not over and not lines[-1].endswith("\n"):
                del lines[-1]  # it is still being written
            for line in lines[passed:]:
                write(line)
            passed = max(passed, len(lines))
            if over:
                return self._exit_code(submission)
            time.sleep(POLL_SECONDS)

    def _attempt(self, job: SweepJob, folder: Path) -> str:
        """The attempt that runs now, if it does what this one would do; else starts the next."""
        metadata = job_metadata(job.sweep, job.run)
        number = 1
        for info in self._client.list_jobs():
            theirs = info.metadata or {}
            if not info.submission_id or theirs.get(_RUN) != job.run:
                continue
            if info.status not in _OVER:
                for key in (_FINGERPRINT, _SETTINGS):
                    if theirs.get(key) != metadata[key]:
                        raise RunDirectoryError(
                            f"job {info.submission_id} works on {job.run} with other settings "
                            f"(there {key} {theirs.get(key)}, here {key} {metadata[key]}); wait "
                            "for its end or stop it, and run this command again: "
                            f"{self.stop_command(info.submission_id)}"
                        )
                self._tell(f"already running as job {self._page(info.submission_id)}")
                return str(info.submission_id)
            before = theirs.get(_ATTEMPT, "")
            number = max(number, 1 + int(before) if before.isdecimal() else 1)
        for line in job.package.omissions():
            self._tell(line)
        # The run's hash is in the id: no two jobs have the same one, whatever run they work on.
        run_hash = hashlib.sha256(job.run.encode()).hexdigest()[:8]
        submission = f"{job.sweep.name}-{run_hash}-{number}"
        self._client.submit_job(
            entrypoint=job.entrypoint,
            submission_id=submission,
            runtime_env=job.runtime_env | {"working_dir": str(folder)},
            metadata=metadata | {_ATTEMPT: str(number)},
        )
        self._tell(f"attempt {number} submitted as job {self._page(submission)}")
        return submission

    def _page(self, submission: str) -> str:
        return f"{submission}: {self.address}/#/jobs/{submission}"

    def _exit_code(self, submission: str) -> int:
        info = self._info(submission)
        code = info.driver_exit_code
        if info.status == "SUCCEEDED":
            return Exit.COMPLETE
        if info.status == "STOPPED" or code in _EXIT_CODES:
            return code or Exit.STOPPED
        if code is not None and (number := -code if code < 0 else code - _SIGNALLED) > 0:
            self._tell(f"the driver was killed by signal {number}; the same command resumes")
            return Exit.STOPPED
        message = str(info.message).strip().splitlines() or ["no reason is known"]
        if code is None:
            raise ClusterError(f"job {submission} failed ({message[0]}); try again")
        raise ClusterError(
            f"job {submission} ended with exit code {code}, as no sweep does ({message[-1]}); its "
            "log may say more. Where the head's python lacks this package, name one that has it "
            "(--python PATH), or use --install"
        )

    def _info(self, submission: str) -> Any:
        try:
            return self._client.get_job_info(submission)
        except (RuntimeError, OSError) as error:
            raise ClusterError(
                f"lost the connection to {self.address} ({_reason(error)}); the job may go on: "
                "run the same command again to follow or resume it"
            ) from error


def normalized_storage_path(path: str) -> str:
    """One spelling per folder or address: no slash at the end, none twice, no file://."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme.lower() != "file":
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    return "/" + posixpath.normpath(rest or path).strip("/")


def job_metadata(sweep: Sweep, run: str) -> dict[str, str]:
    """What a job carries besides its number; `job_name` is what Ray's API and metrics use."""
    # What the fingerprint leaves out, and a job does not learn of once it runs.
    settings = {key: sweep.raw.get(key) for key in ("audit", "grid", "resources")}
    return {
        "job_name": sweep.name,
        "sweep": sweep.name,
        _RUN: run,
        _FINGERPRINT: sweep.fingerprint,
        _SETTINGS: json.dumps(settings, sort_keys=True),
    }


def require_dashboard(address: str, tell: Tell) -> None:
    """Asks a dashboard for its version, without a token; NoClusterError where none answers."""
    try:
        parts = urllib.parse.urlsplit(address)
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            kind = http.client.HTTPSConnection
        with contextlib.closing(kind(parts.netloc, timeout=CONNECT_SECONDS)) as connection:
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
    """What an error says before its details, or after the traceback of a server."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return lines[-1] if "Traceback" in lines[0] else lines[0]

"""Submits several sweeps to a Ray cluster, one job each, and waits for all of them.

    python jobs/submit.py jobs/cebere2024/*.yaml --address http://127.0.0.1:8265 \\
        --storage-path s3://bucket/runs

Sweeps that are done end at once, sweeps that were stopped are resumed. The exit code is that of
the first sweep that did not end with 0.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dpaudit_ray.errors import DpauditError
from dpaudit_ray.orchestration.submission import JobsClient, SweepJob
from dpaudit_ray.orchestration.working_dir_package import WorkingDirPackage
from dpaudit_ray.sweep import spec


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Submits sweeps as Ray jobs and waits for them.")
    parser.add_argument("sweeps", nargs="+", metavar="SWEEP", help="sweep files")
    parser.add_argument("--address", required=True, help="the dashboard of the Ray head")
    parser.add_argument("--storage-path", required=True, help="a shared folder, or s3://, gs://")
    parser.add_argument("--working-dir", default=".", help="what is sent to the cluster")
    chosen = parser.parse_args(arguments)
    try:
        return submit_all(chosen)
    except DpauditError as error:
        _tell(str(error))
        return error.exit_code


def _tell(line: str) -> None:
    sys.stderr.write(f"submit: {line}\n")


def submit_all(chosen: argparse.Namespace) -> int:
    """All sweeps are checked before the first one is submitted."""
    package = WorkingDirPackage(Path(chosen.working_dir))
    jobs = [SweepJob(spec.load(file), file, chosen.storage_path, package) for file in chosen.sweeps]
    cluster = JobsClient(chosen.address, _tell)
    submitted = [cluster.submit(job) for job in jobs]
    codes = [cluster.follow(submission, sys.stdout.write) for submission in submitted]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())

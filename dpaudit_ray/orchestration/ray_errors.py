"""What Ray's errors mean, in one line, and what to do about them."""

from __future__ import annotations

import dataclasses
import os
import re
import textwrap

from .executors import NO_MEMORY

_VERSIONS = r"Ray: (\S+)\s+Python: (\S+)\s+"
_MISMATCH = re.compile(rf"cluster was started with:\s+{_VERSIONS}This process.*?{_VERSIONS}", re.S)
_LONGEST = 200  # characters of a message


@dataclasses.dataclass(frozen=True)
class RayTrouble:
    """Why Ray failed, and what to do."""

    reason: str
    remedy: str


def last_line(error: BaseException) -> str:
    """Returns the reason that a Ray error gives, without the advice that Ray adds."""
    text = str(error).strip() or type(error).__name__
    if "low on memory" in text:
        return NO_MEMORY
    if mismatch := _MISMATCH.search(f"{text}\n"):
        cluster_ray, cluster_python, own_ray, own_python = mismatch.groups()
        return (
            f"the cluster has Ray {cluster_ray} and Python {cluster_python}, "
            f"this process has Ray {own_ray} and Python {own_python}"
        )
    return textwrap.shorten(text.splitlines()[-1], _LONGEST, placeholder=" ...")


def joining_trouble(error: BaseException) -> RayTrouble:
    """Returns why a cluster cannot be joined."""
    text = str(error)
    if mismatch := _MISMATCH.search(f"{text}\n"):
        cluster_ray, cluster_python, own_ray, _ = mismatch.groups()
        remedy = f"use Python {cluster_python} here"
        if cluster_ray != own_ray:
            remedy = f"install ray=={cluster_ray} here"
        return RayTrouble(last_line(error), remedy)
    # Ray names no reason here, but a head that did not answer was noticed before.
    refused = "Failed to connect to Ray cluster" in text
    if refused or _is_about_token(error):
        reason = "it refuses this process" if refused else text.split(". ")[0]
        remedy = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the token of its head"
        return RayTrouble(textwrap.shorten(reason, _LONGEST, placeholder=" ..."), remedy)
    if "node_ip_address.json" in text or "find a matching" in text:
        reason = "no node of that cluster runs on this machine"
        return RayTrouble(reason, "run this command on a node, or use dpaudit submit from outside")
    if isinstance(error, TimeoutError):
        remedy = "check the host, the head's port (6379 by default, not the dashboard's), firewalls"
        return RayTrouble(last_line(error), remedy)
    return local_trouble(error) or RayTrouble(last_line(error), "check the address")


def starting_trouble(error: BaseException) -> RayTrouble:
    """Returns why Ray does not start on this machine."""
    remedy = "run the same command again when less runs here, or use --executor inline"
    return local_trouble(error) or RayTrouble(last_line(error), remedy)


def local_trouble(error: BaseException) -> RayTrouble | None:
    """Returns what this machine lacks; None if the error is about something else."""
    text = str(error)
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    if "AF_UNIX path" in text:
        return RayTrouble(
            f"the path of its sockets is too long below {textwrap.shorten(folder, 80)}",
            "set RAY_TMPDIR=/tmp",
        )
    if isinstance(error, PermissionError) or "Permission denied" in text:
        remedy = "set RAY_TMPDIR to a folder of your own with a short path, such as /tmp/$USER"
        return RayTrouble(last_line(error), remedy)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        remedy = f"free space in {folder} and /dev/shm, or set RAY_TMPDIR to a folder with more"
        return RayTrouble(last_line(error), remedy)
    if "Resource temporarily unavailable" in text or "can't start new thread" in text:
        remedy = "raise the limit of processes and threads (ulimit -u), or use --executor inline"
        return RayTrouble(last_line(error), remedy)
    if "Too many open files" in text:
        return RayTrouble(last_line(error), "raise the limit of open files (ulimit -n 65536)")
    return None


def submitting_remedy(reason: str) -> str:
    """Returns what to do about a job that a dashboard does not take."""
    if "No available agent" in reason:
        return (
            "if that lasts, another process on the head has the agent's port: start the head with "
            "--dashboard-agent-listen-port=PORT (52365 by default)"
        )
    return "try again soon"


def _is_about_token(error: BaseException) -> bool:
    if type(error).__name__ == "AuthenticationError":
        return True
    return re.search("unauthenticated|authentication token|RAY_AUTH", str(error), re.I) is not None

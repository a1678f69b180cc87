"""Translates errors of Ray into one line for the user: a reason, and what to do.

Ray raises errors without codes, so they are recognised by their text. If a later Ray words one
differently, its last line is shown with more general advice.
"""

import os
import re
import textwrap
from dataclasses import dataclass

from .executors import NO_MEMORY

_VERSIONS = r"Ray: (\S+)\s+Python: (\S+)\s+"
_MISMATCH = re.compile(rf"cluster was started with:\s+{_VERSIONS}This process.*?{_VERSIONS}", re.S)
_ABOUT_TOKEN = re.compile(
    "AuthenticationError|unauthenticated|authentication token|RAY_AUTH", re.IGNORECASE
)
_LONGEST = 200  # characters of a message
_LONG_SOCKET_PATH = "AF_UNIX path"  # begins the error about a path that is too long
# The error of a machine without some resource, as a pattern, and the remedy. Ray keeps sockets and
# spilled objects in {folder}.
_LOCAL_REMEDIES = {
    _LONG_SOCKET_PATH: "set RAY_TMPDIR=/tmp",
    "Permission denied|Operation not permitted": (
        "set RAY_TMPDIR to a folder of your own with a short path, such as /tmp/$USER"
    ),
    "No space left on device|Disk quota exceeded": (
        "free space in {folder} and /dev/shm, or set RAY_TMPDIR to a folder with more"
    ),
    "Resource temporarily unavailable|can't start new thread": (
        "raise the limit of processes and threads (ulimit -u), or use --executor inline"
    ),
    "Too many open files": "raise the limit of open files (ulimit -n 65536)",
}


@dataclass(frozen=True)
class RayTrouble:
    """A reason why Ray failed, and what to do."""

    reason: str
    remedy: str


def last_line(error: BaseException) -> str:
    """Returns the reason that a Ray error gives, without the advice that Ray adds."""
    text = str(error).strip() or type(error).__name__
    if "low on memory" in text:
        return NO_MEMORY
    return _shortened(text.splitlines()[-1])


def joining_trouble(error: BaseException) -> RayTrouble:
    """Returns why a cluster cannot be joined."""
    text = str(error)
    if mismatch := _MISMATCH.search(f"{text}\n"):  # its last group ends with white space
        cluster_ray, cluster_python, own_ray, own_python = mismatch.groups()
        reason = (
            f"the cluster has Ray {cluster_ray} and Python {cluster_python}, "
            f"this process has Ray {own_ray} and Python {own_python}"
        )
        if cluster_ray != own_ray:
            return RayTrouble(reason, f"install ray=={cluster_ray} here")
        return RayTrouble(reason, f"use Python {cluster_python} here")
    token_remedy = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the token of its head"
    # Ray names no reason here, but a head that does not answer was noticed before.
    if "Failed to connect to Ray cluster" in text:
        return RayTrouble("it refuses this process", token_remedy)
    if _ABOUT_TOKEN.search(f"{type(error).__name__}: {text}"):
        first_sentence = text.split(". ")[0]
        return RayTrouble(_shortened(first_sentence), token_remedy)
    if "node_ip_address.json" in text or "find a matching" in text:
        reason = "no node of that cluster runs on this machine"
        return RayTrouble(reason, "run this command on a node, or use dpaudit submit from outside")
    remedy = "check the address"
    if isinstance(error, TimeoutError):
        remedy = "check the host, the head's port (6379 by default, not the dashboard's), firewalls"
    return local_trouble(error) or RayTrouble(last_line(error), remedy)


def starting_trouble(error: BaseException) -> RayTrouble:
    """Returns why Ray does not start on this machine."""
    remedy = "run the same command again when less runs here, or use --executor inline"
    return local_trouble(error) or RayTrouble(last_line(error), remedy)


def local_trouble(error: BaseException) -> RayTrouble | None:
    """Returns the resource that this machine lacks; None if the error is about something else."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    for pattern, remedy in _LOCAL_REMEDIES.items():
        if re.search(pattern, str(error)):
            reason = last_line(error)
            if pattern == _LONG_SOCKET_PATH:
                reason = f"the path of its sockets is too long below {_shortened(folder)}"
            return RayTrouble(reason, remedy.format(folder=folder))
    return None


def submitting_remedy(reason: str) -> str:
    """Returns what to do about a job that a dashboard refused for this reason."""
    if "No available agent" in reason:
        return (
            "if that lasts, another process on the head has the agent's port: start the head with "
            "--dashboard-agent-listen-port=PORT (52365 by default)"
        )
    return "try again soon"


def _shortened(text: str) -> str:
    """Returns a text in one line, cut to _LONGEST characters."""
    return textwrap.shorten(text, _LONGEST, placeholder=" ...")

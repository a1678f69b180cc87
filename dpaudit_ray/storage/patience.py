"""How long storage that fails is asked again before the sweep stops."""

from __future__ import annotations

import dataclasses
import errno
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# What waiting does not heal. A full disk is one of them: it is told while somebody may still act.
_LASTING = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
    errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EFBIG,
}  # fmt: skip
# Of object stores, whose answers have no number.
_LASTING_WORDS = ("Denied", "NoSuchBucket", "InvalidAccessKey", "Signature", "Forbidden", "Unauth")


@dataclasses.dataclass(frozen=True)
class Patience:
    """Asks again after 0.1 s, 0.2 s, 0.4 s, ... for `seconds` in all; 0 asks once.

    Every pause is shortened by a random part of up to a half, so that many who failed together
    do not come back together.
    """

    seconds: float = 0.0
    first: float = 0.1
    longest: float = 10.0
    sleep: Callable[[float], object] = time.sleep

    def __call__(self, action: Callable[..., T], *arguments: Any) -> T:
        """The result of `action(*arguments)`; raises its last OSError when patience ends."""
        started, waited, pause = time.monotonic(), 0.0, self.first
        while True:
            try:
                return action(*arguments)
            except OSError as error:
                spent = max(waited, time.monotonic() - started)
                if spent >= self.seconds or not may_pass(error):
                    raise
            wait = min(pause, self.longest) * random.uniform(0.5, 1)
            self.sleep(wait)
            waited, pause = waited + wait, 2 * pause


def may_pass(error: OSError) -> bool:
    """Whether the same call may succeed later."""
    if error.errno in _LASTING:
        return False
    return not any(word in str(error) for word in _LASTING_WORDS)


OPENING = Patience(seconds=5)  # a mistyped address is told soon
RUNNING = Patience(seconds=60)  # an outage of a minute costs a running sweep nothing

"""What names a sweep by its content, and what versions before have named it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from ..errors import SpecError


def digest(value: Any) -> str:
    """Hex digest of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class RevisionError(SpecError):
    """A recorded sweep of a version that computed something else from the same options."""


def check_recorded(recorded: Any, actual: str, identity: dict[str, Any]) -> None:
    """Raises SpecError where a file says another fingerprint than what its content gives.

    A RevisionError where a version before would have given the recorded one.
    """
    if recorded == actual:
        return
    for older, changes in _revisions(identity):
        if recorded == digest(older):
            raise RevisionError(
                "fingerprint",
                f"is that of another version of the computation ({changes}), whose scores do not "
                "mix with this one's; use a new name and a new seed, or the version that wrote it",
            )
    raise SpecError(
        "fingerprint",
        f"is {recorded} but the content gives {actual}, so it was edited or written by another "
        "version; remove the line to use the file as it is",
    )


def _revisions(identity: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The identity as versions before would have had it, newest first, and what differs."""
    found: dict[str, int] = {}

    def at_most(value: Any, bound: int, key: str = "") -> Any:
        if not isinstance(value, dict):
            return value
        kept = {k: at_most(part, bound, k) for k, part in value.items() if k != "revision"}
        own = int(value.get("revision", 1))
        found[key] = max(own, found.get(key, 1))
        lowered = min(own, bound)
        return kept | ({"revision": lowered} if lowered > 1 else {})

    at_most(identity, 1)
    for bound in range(max(found.values()) - 1, 0, -1):
        changed = sorted((key, own) for key, own in found.items() if own > bound)
        shown = "; ".join(f"{key}.revision: {bound} there, {own} here" for key, own in changed)
        yield at_most(identity, bound), shown

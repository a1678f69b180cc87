"""What this user has written, told from what anybody could have: a keyed digest, and its key.

A run directory may come from a stranger, who can put any digest into a file. The key lies in the
user's home, so no stranger can put a seal.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

_BYTES = 32


def sign(content: str) -> str:
    """HMAC-SHA256 in hexadecimal digits; empty where the home takes no key."""
    key = _key()
    return "" if key is None else hmac.new(key, content.encode(), hashlib.sha256).hexdigest()


def holds(content: str, seal: object) -> bool:
    """Whether this user has put `seal` under `content`."""
    expected = sign(content)
    return bool(expected) and isinstance(seal, str) and hmac.compare_digest(expected, seal)


def _key() -> bytes | None:
    """The user's key, made when it is first wanted; None where it cannot be."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(state) / "dpaudit" / "key"
    with contextlib.suppress(OSError, RuntimeError):
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
            opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(opened, "wb") as out:
                    out.write(secrets.token_bytes(_BYTES))
                with contextlib.suppress(FileExistsError):  # of two that make one, one does
                    os.link(beside, file)
            finally:
                beside.unlink()
        key = file.read_bytes()
        return key if len(key) == _BYTES else None
    return None

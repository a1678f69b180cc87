"""The way into a Ray dashboard: whether it answers, and with which token."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ..errors import NoClusterError
from ..printable import printable

CONNECT_SECONDS = 10.0


def require(address: str, tell: Callable[[str], None]) -> None:
    """Asks for the version: fast, and it needs the token where there is one.

    Ray's own client takes the same token afterwards, also where only its mode is not set.

    Raises:
        NoClusterError: nobody answers, or the token is missing or wrong.
    """
    token = _token()
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


def first_line(error: BaseException) -> str:
    """What an error says before its details, or after the traceback of a server."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return lines[-1] if "Traceback" in lines[0] else lines[0]


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


class _Stays(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for this host and port only."""

    def redirect_request(self, *_: object) -> None:
        """None: the answer stands as it is."""


def _answer(address: str, headers: dict[str, str]) -> int:
    try:
        request = urllib.request.Request(f"{address}/api/version", headers=headers)
        opener = urllib.request.build_opener(_Stays)
        with opener.open(request, timeout=CONNECT_SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        if 300 <= error.code < 400:
            elsewhere = printable(str(error.headers.get("Location", "another place")))
            raise NoClusterError(
                f"{address} sends requests on to {elsewhere:.200}, and the token is for {address} "
                "only; give the address of the dashboard itself"
            ) from error
        return error.code
    except (OSError, ValueError) as error:
        raise NoClusterError(
            f"no Ray dashboard answers at {address} ({first_line(error)}); check the address, and "
            "the tunnel if there is one"
        ) from error

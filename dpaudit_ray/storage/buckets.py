"""Files that are either absent or whole, below one address of an object store.

An upload is visible only when it is complete, and is made on a condition: an object that must be
new is created where there is none, and one that is replaced is still the one that was there before
the writer asked whether it may write, for however long it was paused (`place` says why).
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import obstore
from obstore import store
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from ..errors import first_line
from . import strangers
from .files import Passage

T = TypeVar("T")
_OPTIONS: dict[str, Any] = {
    # `patience` asks again, and says for how long.
    "retry_config": {"max_retries": 0, "retry_timeout": datetime.timedelta(0)},
    "client_options": {"allow_http": True},  # where an endpoint is given as http://
}

_SCHEMES = ("s3", "gs", "az")
_TRIES = 10  # against others who write the same object: a driver, and those who read a run


class _ReplacedError(OSError):
    """Somebody else has replaced an object at the same moment."""


class Bucket:
    """An `s3://`, `gs://` or `az://` address, with the methods of `files.Folder`.

    Credentials come from the environment (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`,
    ...) or from the machine's role. Every method raises OSError.
    """

    def __init__(self, location: str) -> None:
        scheme, _, place = location.partition("://")
        if scheme not in _SCHEMES:
            raise ValueError(f"{scheme}:// is none of {', '.join(_SCHEMES)}")
        self.location = f"{scheme}://{place.rstrip('/')}"
        try:
            self._store: Any = store.from_url(self.location, **_OPTIONS)
        except BaseError as error:
            raise ValueError(first_line(error)) from error

    def read(self, name: str, most: int = strangers.RECORD) -> bytes | None:
        """An object's content, or None. Raises StrangeFileError for more than `most` bytes."""
        try:
            answer = self._ask(obstore.get, name)
            strangers.require(answer.meta["size"], most)
            return bytes(self._call(answer.bytes))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes, passage: Passage = contextlib.nullcontext) -> None:
        """Replaces an object; enters `passage` again where somebody else has done so meanwhile."""
        for _ in range(_TRIES):
            try:
                there = self._ask(obstore.head, name)
                tags = {"e_tag": there["e_tag"], "version": there["version"]}
                mode: Any = {key: tag for key, tag in tags.items() if tag is not None}
            except FileNotFoundError:
                mode = "create"
            with passage(), contextlib.suppress(_ReplacedError, FileExistsError):
                self._ask(obstore.put, name, content, mode=mode)
                return
        raise OSError("others replace it all the time")

    def create(
        self, name: str, content: bytes, passage: Passage = contextlib.nullcontext
    ) -> bytes | None:
        """Creates an object.

        Returns:
            The content of the object that is there already, None if it is the same.

        Raises:
            OSError: nothing is stored, even if the store answers that the object exists.
        """
        try:
            with passage():
                self._ask(obstore.put, name, content, mode="create")
        except FileExistsError as error:
            there = self.read(name, strangers.ARRAYS)
            # The client reports every 409 in this way. S3 also answers 409 without an object, if
            # another request for the same name is under way: then the upload is to be repeated.
            if there is None:
                raise _ReplacedError("the store refused the upload, and has no object") from error
            return None if there == content else there
        return None

    def move(self, name: str, to: str, passage: Passage = contextlib.nullcontext) -> None:
        with passage():
            self._call(obstore.rename, self._store, name, to)

    def delete(self, name: str, passage: Passage = contextlib.nullcontext) -> None:
        with passage(), contextlib.suppress(FileNotFoundError):
            self._ask(obstore.delete, name)

    def leads_out(self, name: str) -> bool:
        return False

    def exists(self, name: str) -> bool:
        try:
            self._ask(obstore.head, name)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        return [name for name, _, _ in self.stamps(folder)]

    def stamps(self, folder: str) -> list[tuple[str, int, int]]:
        return sorted(
            (e["path"].rpartition("/")[2], e["size"], int(e["last_modified"].timestamp() * 1e9))
            for e in self._call(obstore.list_with_delimiter, self._store, folder or None)["objects"]
        )

    def paths(self, depth: int) -> list[str]:
        """Sorted paths of the objects down to so many folders; a deeper folder is listed whole."""
        pages: list[Any] = self._call(list, obstore.list(self._store))
        parts = (str(entry["path"]).split("/") for page in pages for entry in page)
        return sorted({"/".join(p if len(p) <= depth else [*p[:depth], ""]) for p in parts})

    @contextlib.contextmanager
    def locked(self, name: str, *, alone: bool) -> Iterator[bool]:
        """Needs no lock, since uploads are conditional: yields true."""
        yield True

    def _ask(self, action: Callable[..., T], name: str, *arguments: Any, **options: Any) -> T:
        return self._call(action, self._store, name, *arguments, **options)

    def _call(self, action: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """What `action` returns; what it raises, as OSError."""
        try:
            return action(*arguments, **options)
        except AlreadyExistsError as error:
            raise FileExistsError(first_line(error)) from error
        except PreconditionError as error:
            raise _ReplacedError(first_line(error)) from error
        except BaseError as error:
            raise OSError(" ".join(str(error).split())) from error

"""Files that are either absent or complete, below one address of an object store.

An upload is visible only once it is complete, and it has a condition. A new object is created
only if no other exists. An object is replaced only if it has not changed since before the writer
checked that it may write, however long the writer was paused (`place` explains why).
"""

import datetime
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from typing import Any, TypeVar

import obstore
from obstore import store
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from ..errors import first_line
from . import strangers
from .files import WriteGuard

T = TypeVar("T")
_CONNECT_TIMEOUT = datetime.timedelta(seconds=5)
# Limit for small requests, so that outages are noticed soon.
_REQUEST_TIMEOUT = datetime.timedelta(seconds=30)
# A conditional upload is one request, whatever its size: multipart uploads take no condition.
_LARGE = 2**23  # bytes from which a request may take longer
_LARGE_TIMEOUT = datetime.timedelta(hours=1)  # 1 GiB at 300 kB/s


def _options(timeout: datetime.timedelta) -> dict[str, Any]:
    """Returns options of a client, whose requests take at most `timeout`, bodies included."""
    client = {
        "allow_http": True,  # an endpoint may be configured as http://
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": timeout,
    }
    # `Patience` repeats requests, and reports it.
    retry = {"max_retries": 0, "retry_timeout": datetime.timedelta(0)}
    return {"retry_config": retry, "client_options": client}


_SCHEMES = ("s3", "gs", "az")
_PAGE = 1000  # objects in a page of a list
_LAST = "sweep.yaml"  # every run has it, and it sorts behind all folders that are listed
_ATTEMPTS = 10  # attempts to write an object that other processes write at the same time


class _ReplacedError(OSError):
    """Another process has replaced an object at the same moment."""


class LastingError(OSError):
    """An error that waiting does not end.

    Attributes:
        remedy: what to do, as an imperative.
        renewable: whether the same run can continue as soon as credentials are renewed.
    """

    def __init__(
        self,
        problem: str,
        remedy: str,
        renewable: bool = False,
    ) -> None:
        """Takes the problem in words, and the attributes."""
        super().__init__(problem)
        self.remedy = remedy
        self.renewable = renewable


_RENEW = "renew them"
_DENIED = ("access is denied", "grant list, read, write and delete at this address")
# Codes of S3, Google Cloud Storage and Azure, by problem and remedy.
_LASTING_CODES = {
    ("the credentials have expired or are not valid", _RENEW): (
        "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired",
        "RequestExpired", "invalid_grant", "authError", "AuthenticationFailed",
        "InvalidAuthenticationInfo",
    ),
    ("the store does not accept the credentials", "check the key and its secret"): (
        "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity", "NotSignedUp",
    ),
    _DENIED: (
        "AccessDenied", "AllAccessDisabled", "AccountProblem", "AuthorizationFailure",
        "AuthorizationPermissionMismatch", "InsufficientAccountPermissions", "forbidden",
        "MethodNotAllowed",
    ),
    ("there is no such bucket", "create it, or correct the address"): (
        "NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted",
    ),
    ("the bucket is in another region", "set AWS_DEFAULT_REGION to its region"): (
        "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
    ),
    ("the clock of this machine is wrong", "set it"): ("RequestTimeTooSkewed",),
    ("the storage is full", "free some, or raise its quota"): (
        "QuotaExceeded", "InsufficientStorage", "XMinioStorageFull",
    ),
}  # fmt: skip
_CODE = re.compile(r"(?:<Code>|\"(?:reason|error|code)\": *\")(\w+)(?:</Code>|\")")
_STATUS = re.compile(r"status code: (\d+ [A-Z][\w ]*\w)")
_REDIRECT = "Received redirect without LOCATION"  # the client's message about a wrong region
_LONGEST = 120  # characters of a client's message about a missing answer


def _explained(error: BaseException) -> OSError:
    """Returns a store's error as one line, without XML, addresses and the client's internals.

    The error is a LastingError if trying again does not help, and `renewable` if new credentials
    may help.
    """
    text = " ".join(str(error).split()).partition(" Debug source:")[0]
    match = _CODE.search(text)
    code = match[1] if match else ""
    if _REDIRECT in text:
        code = "PermanentRedirect"
    for (problem, remedy), codes in _LASTING_CODES.items():
        if code in codes:
            return LastingError(f"{problem}: {code}", remedy, renewable=remedy == _RENEW)
    status = _STATUS.search(text)
    status_and_code = f"{status[1]} {code}".strip() if status else code
    if isinstance(error, PermissionDeniedError) or status_and_code.startswith("403"):
        return LastingError(f"{_DENIED[0]}: {status_and_code}", _DENIED[1])
    if isinstance(error, UnauthenticatedError) or status_and_code.startswith("401"):
        return LastingError(
            f"the store does not accept the credentials: {status_and_code}", _RENEW, renewable=True
        )
    if status_and_code:
        return OSError(f"the store answered {status_and_code}")
    # The client's own messages end in " - reason".
    return OSError(text.rpartition(" - ")[2][:_LONGEST])


class Bucket:
    """An `s3://`, `gs://` or `az://` address, with the methods of `files.Folder`.

    Credentials come from the environment (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`,
    ...) or from the machine's role. All methods raise OSError.
    """

    def __init__(self, location: str) -> None:
        """Makes the store's clients, without a request. Raises ValueError for a bad address."""
        scheme, _, path = location.partition("://")
        if scheme not in _SCHEMES:
            raise ValueError(f"{scheme}:// is not one of {', '.join(_SCHEMES)}")
        self.location = f"{scheme}://{path.rstrip('/')}"
        self.write_guard: WriteGuard = nullcontext
        try:
            self._store: Any = store.from_url(self.location, **_options(_REQUEST_TIMEOUT))
            self._large: Any = store.from_url(self.location, **_options(_LARGE_TIMEOUT))
        except BaseError as error:
            raise ValueError(first_line(error)) from error

    def read(
        self,
        name: str,
        most: int = strangers.RECORD,
    ) -> bytes | None:
        """Returns an object's content; None if there is no such object.

        Raises:
            StrangeFileError: the object has more than `most` bytes.
        """
        try:
            # A large object is requested again, by the client whose requests may take longer.
            for client in (self._store, self._large):
                answer = _request(obstore.get, client, name)
                if answer.meta["e_tag"] is None:  # an error, or a gateway's page, with status 200
                    raise OSError("the store answered with something else: it has no ETag")
                size = answer.meta["size"]
                strangers.require_at_most(size, most)
                if size <= _LARGE:
                    break
            content = bytes(_request(answer.bytes))
            if len(content) != size:
                raise OSError(f"the answer has {len(content)} of {size} bytes")
            return content
        except FileNotFoundError:
            return None

    def write(
        self,
        name: str,
        content: bytes,
        write_guard: WriteGuard | None = None,
    ) -> None:
        """Replaces an object, or creates it.

        If others have replaced the object since its version was read, the upload is tried again.

        Args:
            name: path of the object.
            content: content of the object.
            write_guard: entered for each upload, in place of the bucket's own.
        """
        guard_upload = write_guard or self.write_guard
        for _ in range(_ATTEMPTS):
            condition: Any = "create"
            with suppress(FileNotFoundError):
                old = self._head(name)
                condition = {tag: old[tag] for tag in ("e_tag", "version") if old[tag] is not None}
            with guard_upload(), suppress(_ReplacedError, FileExistsError):
                self._put(name, content, condition)
                return
        raise OSError(
            "the store refuses every upload: others replace it, or a gateway alters ETags"
        )

    def create(self, name: str, content: bytes) -> bytes | None:
        """Creates an object.

        Returns:
            The content of the object that exists; None if this one is stored, or is the same.

        Raises:
            OSError: nothing is stored, even if the store answers that the object exists.
        """
        try:
            with self.write_guard():
                self._put(name, content, "create")
        except FileExistsError as error:
            existing = self.read(name, strangers.ARRAYS)
            # The client reports every 409 in this way. S3 also answers 409 without an object, if
            # another request for the same name is under way: then the upload is to be repeated.
            if existing is None:
                raise _ReplacedError("the store refused the upload, and has no object") from error
            return None if existing == content else existing
        return None

    def move(self, name: str, new_name: str) -> None:
        """Renames an object."""
        with self.write_guard():
            _request(obstore.rename, self._store, name, new_name)

    def delete(self, name: str) -> None:
        """Deletes an object, if it exists."""
        with self.write_guard(), suppress(FileNotFoundError):
            _request(obstore.delete, self._store, name)

    def leads_out(self, name: str) -> bool:
        """Returns False: a bucket has no links."""
        return False

    def exists(self, name: str) -> bool:
        """Returns whether there is an object of this name."""
        try:
            self._head(name)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """Returns the names of the objects in `folder`, sorted."""
        return [name for name, _, _ in self.stamps(folder)]

    def stamps(
        self,
        folder: str,
    ) -> list[tuple[str, int, int]]:
        """Returns name, bytes and time of last change (ns) of each object in `folder`, sorted."""
        stamps = []
        for entry in _request(self._listed, folder):
            name = entry["path"].rpartition("/")[2]
            nanoseconds = int(entry["last_modified"].timestamp() * 1e9)
            stamps.append((name, entry["size"], nanoseconds))
        return sorted(stamps)

    def paths(self, depth: int) -> list[str]:
        """Returns sorted paths of objects down to `depth` folders, and of folders below these."""
        pages: list[Any] = _request(list, obstore.list(self._store))
        objects = [str(entry["path"]) for entry in chain.from_iterable(pages)]
        if _LAST not in objects:
            self._require_end()
        paths = set()
        for path in objects:
            parts = path.split("/")
            if len(parts) > depth:
                parts[depth:] = [""]
            paths.add("/".join(parts))
        return sorted(paths)

    def _listed(self, folder: str) -> list[Any]:
        """Returns the metadata of the objects in a folder.

        A list that is empty, or longer than a page, is requested again, up to an object that sorts
        behind the folder. Some stores and gateways answer with an error in the body and with status
        200, which the client takes for an empty page.
        """
        folder = folder.rstrip("/")
        listing = obstore.list_with_delimiter(self._store, folder or None)
        if not folder or 0 < len(listing["objects"]) < _PAGE:
            return list(listing["objects"])
        objects: list[Any] = []
        pages = obstore.list(self._store, offset=folder)
        for entry in chain.from_iterable(pages):
            if entry["path"] > f"{folder}0":  # the character after the slash
                return objects
            if entry["path"].rpartition("/")[0] == folder:
                objects.append(entry)
        # The list ends within the folder: either no object sorts behind it, or the list is cut off.
        self._require_end()
        return objects

    def _require_end(self) -> None:
        """Raises OSError if a list has ended before an object that exists."""
        if self.exists(_LAST):
            raise OSError("a list of the store is not complete")

    @contextmanager
    def locked(
        self,
        name: str,
        *,
        alone: bool,
    ) -> Iterator[bool]:
        """Needs no lock, since uploads are conditional: yields true."""
        yield True

    def _put(self, name: str, content: bytes, mode: Any) -> None:
        """Uploads an object under a condition.

        Args:
            name: path of the object.
            content: content of the object.
            mode: "create", if it must not exist; else the tags of the version to replace.
        """
        client = self._store if len(content) <= _LARGE else self._large
        _request(obstore.put, client, name, content, mode=mode)

    def _head(self, name: str) -> Any:
        """Returns an object's metadata. Raises FileNotFoundError, and OSError with a reason."""
        try:
            return _request(obstore.head, self._store, name)
        except FileNotFoundError:
            raise
        except OSError:  # an answer to HEAD has no body with a reason
            return _request(obstore.get, self._store, name).meta


def _request(
    action: Callable[..., T],
    *arguments: Any,
    **options: Any,
) -> T:
    """Returns what `action` returns; raises OSError for what it raises."""
    try:
        return action(*arguments, **options)
    except AlreadyExistsError as error:
        raise FileExistsError(first_line(error)) from error
    except PreconditionError as error:
        raise _ReplacedError(first_line(error)) from error
    except FileNotFoundError as error:
        explained = _explained(error)
        if isinstance(explained, LastingError):  # the bucket does not exist, not the object
            raise explained from error
        raise
    except BaseError as error:
        raise _explained(error) from error

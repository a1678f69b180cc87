"""Files that are either absent or whole, below one address of an object store.

An upload is visible only when it is complete, and is made on a condition: an object that must be
new is created where there is none, and one that is replaced is still the one that was there before
the writer asked whether it may write, for however long it was paused (`place` says why).
"""

import contextlib
import datetime
import re
from collections.abc import Callable, Iterator
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
from .files import Passage

T = TypeVar("T")
_CONNECT_TIMEOUT = datetime.timedelta(seconds=5)
_REQUEST_TIMEOUT = datetime.timedelta(seconds=30)  # for all that is small: an outage shows soon
# A conditional upload is one request, whatever its size: multipart uploads take no condition here.
_LARGE = 2**23  # bytes from which a request may take longer
_LARGE_TIMEOUT = datetime.timedelta(hours=1)  # 1 GiB at 300 kB/s


def _options(timeout: datetime.timedelta) -> dict[str, Any]:
    """Returns options of a client, whose requests take at most `timeout`, bodies included."""
    client = {
        "allow_http": True,  # where an endpoint is given as http://
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": timeout,
    }
    # `Patience` repeats requests, and says so.
    retry = {"max_retries": 0, "retry_timeout": datetime.timedelta(0)}
    return {"retry_config": retry, "client_options": client}


_SCHEMES = ("s3", "gs", "az")
_PAGE = 1000  # objects in a page of a list
_LAST = "sweep.yaml"  # every run has it, and its name is behind all folders that are listed
_TRIES = 10  # against others who write the same object: a driver, and those who read a run


class _ReplacedError(OSError):
    """Somebody else has replaced an object at the same moment."""


class LastingError(OSError):
    """An error that waiting does not heal.

    Attributes:
        remedy: what to do, as an imperative.
        renewable: whether the same run can go on as soon as credentials are renewed.
    """

    def __init__(self, problem: str, remedy: str, renewable: bool = False) -> None:
        super().__init__(problem)
        self.remedy, self.renewable = remedy, renewable


_RENEW = "renew them"
_DENIED = "access is denied", "grant list, read, write and delete at this address"
# Codes of S3, Google Cloud Storage and Azure, by what they mean and what to do.
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
_CODE = re.compile(r"<Code>(\w+)</Code>|\"(?:reason|error|code)\": *\"(\w+)\"")
_STATUS = re.compile(r"status code: (\d+ [A-Z][\w ]*\w)")
_REDIRECT = "Received redirect without LOCATION"  # the client's words for a wrong region
_LONGEST = 120  # characters of a client's message about no answer


def _explained(error: BaseException) -> OSError:
    """Returns what went wrong in one line: without XML, addresses and the client's internals."""
    text = " ".join(str(error).split()).partition(" Debug source:")[0]
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    if _REDIRECT in text:
        code = "PermanentRedirect"
    for (problem, remedy), codes in _LASTING_CODES.items():
        if code in codes:
            return LastingError(f"{problem}: {code}", remedy, renewable=remedy == _RENEW)
    status = _STATUS.search(text)
    answer = " ".join(filter(None, (status[1] if status else "", code)))
    if isinstance(error, PermissionDeniedError) or answer.startswith("403"):
        return LastingError(f"{_DENIED[0]}: {answer}", _DENIED[1])
    if isinstance(error, UnauthenticatedError) or answer.startswith("401"):
        return LastingError(f"the store does not accept the credentials: {answer}", _RENEW, True)
    if answer:
        return OSError(f"the store answered {answer}")
    return OSError(text.rpartition(" - ")[2][:_LONGEST])


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
            self._store: Any = store.from_url(self.location, **_options(_REQUEST_TIMEOUT))
            self._large: Any = store.from_url(self.location, **_options(_LARGE_TIMEOUT))
        except BaseError as error:
            raise ValueError(first_line(error)) from error

    def read(self, name: str, most: int = strangers.RECORD) -> bytes | None:
        """An object's content, or None. Raises StrangeFileError for more than `most` bytes."""
        try:
            answer = self._ask(obstore.get, name)
            if answer.meta["e_tag"] is None:  # an error, or a gateway's page, with status 200
                raise OSError("the store answered with something else: it has no ETag")
            size = answer.meta["size"]
            strangers.require(size, most)
            if size > _LARGE:  # asked again by the client that may take longer
                answer = self._call(obstore.get, self._large, name)
                size = answer.meta["size"]
                strangers.require(size, most)
            content = bytes(self._call(answer.bytes))
            if len(content) != size:
                raise OSError(f"the answer has {len(content)} of {size} bytes")
            return content
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes, passage: Passage = contextlib.nullcontext) -> None:
        """Replaces an object; enters `passage` again where somebody else has done so meanwhile."""
        for _ in range(_TRIES):
            try:
                there = self._head(name)
                tags = {"e_tag": there["e_tag"], "version": there["version"]}
                mode: Any = {key: tag for key, tag in tags.items() if tag is not None}
            except FileNotFoundError:
                mode = "create"
            with passage(), contextlib.suppress(_ReplacedError, FileExistsError):
                self._put(name, content, mode)
                return
        raise OSError(
            "the store refuses every upload: others replace it, or a gateway alters ETags"
        )

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
                self._put(name, content, "create")
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
            self._head(name)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        return [name for name, _, _ in self.stamps(folder)]

    def stamps(self, folder: str) -> list[tuple[str, int, int]]:
        return sorted(
            (e["path"].rpartition("/")[2], e["size"], int(e["last_modified"].timestamp() * 1e9))
            for e in self._call(self._listed, folder)
        )

    def paths(self, depth: int) -> list[str]:
        """Sorted paths of the objects down to so many folders; a deeper folder is listed whole."""
        pages: list[Any] = self._call(list, obstore.list(self._store))
        paths = [str(entry["path"]) for page in pages for entry in page]
        if _LAST not in paths:
            self._require_end()
        parts = (path.split("/") for path in paths)
        return sorted({"/".join(p if len(p) <= depth else [*p[:depth], ""]) for p in parts})

    def _listed(self, folder: str) -> list[Any]:
        """Returns the metadata of the objects in a folder.

        A list that is empty, or longer than a page, is requested again, as far as an object behind
        the folder: some stores and gateways answer with an error in the body and with status 200,
        which the client takes for an empty page.
        """
        folder = folder.rstrip("/")
        objects: list[Any] = []
        listing: Any = obstore.list_with_delimiter(self._store, folder or None)
        if not folder or 0 < len(listing["objects"]) < _PAGE:
            return list(listing["objects"])
        for page in obstore.list(self._store, offset=folder):
            for entry in page:
                if entry["path"] > f"{folder}0":  # the character after the slash
                    return objects
                if entry["path"].rpartition("/")[0] == folder:
                    objects.append(entry)
        self._require_end()
        return objects

    def _require_end(self) -> None:
        """Raises OSError where a list has ended before an object that is there."""
        if self.exists(_LAST):
            raise OSError("a list of the store is not complete")

    @contextlib.contextmanager
    def locked(self, name: str, *, alone: bool) -> Iterator[bool]:
        """Needs no lock, since uploads are conditional: yields true."""
        yield True

    def _put(self, name: str, content: bytes, mode: Any) -> None:
        client = self._store if len(content) <= _LARGE else self._large
        self._call(obstore.put, client, name, content, mode=mode)

    def _head(self, name: str) -> Any:
        """Returns an object's metadata. Raises FileNotFoundError, and OSError with a reason."""
        try:
            return self._ask(obstore.head, name)
        except FileNotFoundError:
            raise
        except OSError:
            return self._ask(obstore.get, name).meta  # an answer to HEAD cannot say why it fails

    def _ask(self, action: Callable[..., T], name: str, *arguments: Any, **options: Any) -> T:
        return self._call(action, self._store, name, *arguments, **options)

    def _call(self, action: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Returns what `action` returns; raises OSError for what it raises."""
        try:
            return action(*arguments, **options)
        except AlreadyExistsError as error:
            raise FileExistsError(first_line(error)) from error
        except PreconditionError as error:
            raise _ReplacedError(first_line(error)) from error
        except FileNotFoundError as error:
            explained = _explained(error)
            if isinstance(explained, LastingError):  # the bucket is gone, not the object
                raise explained from error
            raise
        except BaseError as error:
            raise _explained(error) from error

"""What each file of a run directory is, by its path: `run_directory` read backwards."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto

DEPTH = 4  # of folders that are looked into; a run has two


class Kind(Enum):
    """What a file is to a run."""

    OF_THE_RUN = auto()  # a record, scores, a part of a preparation, a checkpoint
    TOLD = auto()  # what missed trials have printed
    CODE = auto()  # a copy of a module, named by its SHA-256
    DRAWN = auto()  # by `dpaudit report`
    LEFT = auto()  # by a process that was killed, or set aside since it was damaged
    FOREIGN = auto()  # in a folder that only the run writes into, and none of it
    OTHER = auto()  # beside it


_NUMBER = r"(?:0|[1-9]\d*)"
_PACK = f"{_NUMBER}-{_NUMBER}"
_RECORDS = re.compile(
    r"sweep\.yaml|(plan|outcomes|driver|machines|verdict)\.json"
    r"|estimates\.parquet|\.driver\.lock|_SUCCESS"
)
_CODE = re.compile(r"code/([0-9a-f]{64})\.py")
_DRAWN = re.compile(r"report\.html|figures/.+")
_LEFT = re.compile(r"(.*/)?(\.[^/]+\.[0-9a-f]{8}\.tmp|[^/]+\.parquet\.damaged-[0-9a-f]{8})")
_OWNED = ("scores/", "preparations/", "checkpoints/", "missed/", "code/")


class Contents:
    """Knows the files of a run with these ids of audits and preparations."""

    def __init__(self, audits: Collection[str], preparations: Collection[str]) -> None:
        audit, preparation = (
            "|".join(map(re.escape, ids)) or "(?!)" for ids in (audits, preparations)
        )
        self._inside = re.compile(
            rf"scores/(?:{audit})/{_PACK}\.parquet|checkpoints/(?:{audit})/{_PACK}-{_NUMBER}\.parquet"
            rf"|preparations/(?:{preparation})/{_NUMBER}\.parquet"
        )
        self._told = re.compile(rf"missed/(?:{audit})/{_NUMBER}\.txt")

    def kind(self, path: str) -> Kind:
        """What the file at this path from the run directory is."""
        for pattern, kind in (
            (_RECORDS, Kind.OF_THE_RUN), (self._inside, Kind.OF_THE_RUN), (self._told, Kind.TOLD),
            (_CODE, Kind.CODE), (_DRAWN, Kind.DRAWN), (_LEFT, Kind.LEFT),
        ):  # fmt: skip
            if pattern.fullmatch(path):
                return kind
        return Kind.FOREIGN if path.startswith(_OWNED) else Kind.OTHER


def digest(path: str) -> str:
    """The SHA-256 that the name of a copy of a module states."""
    match = _CODE.fullmatch(path)
    return "" if match is None else match[1]

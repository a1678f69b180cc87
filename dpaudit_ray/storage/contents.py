"""What each file of a run directory is, by its path."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto

DEPTH = 4  # of folders that are looked into; a run has two


class Kind(Enum):
    """What a file is to a run."""

    OF_THE_RUN = auto()  # a record, scores, a part of a preparation, a checkpoint
    TOLD = auto()  # what missed trials have printed
    DRAWN = auto()  # by `dpaudit report`
    LEFT = auto()  # by a process that was killed, or set aside since it was damaged
    FOREIGN = auto()  # in a folder that only the run writes into, and none of it
    OTHER = auto()  # beside it


_NUMBER = r"(0|[1-9]\d*)"
# Names of files in the folders of an audit or a preparation: trials, parts and steps.
_NUMBERED = {
    "scores": re.compile(rf"{_NUMBER}-{_NUMBER}\.parquet"),
    "checkpoints": re.compile(rf"{_NUMBER}-{_NUMBER}-{_NUMBER}\.parquet"),
    "preparations": re.compile(rf"{_NUMBER}\.parquet"),
    "missed": re.compile(rf"{_NUMBER}\.txt"),
}
_OTHERS = {
    re.compile(
        r"sweep\.yaml|(plan|outcomes|driver|machines|verdict)\.json"
        r"|estimates\.parquet|\.driver\.lock|_SUCCESS"
    ): Kind.OF_THE_RUN,
    re.compile(r"report\.html|figures/.+"): Kind.DRAWN,
    re.compile(r"(.*/)?(\.[^/]+\.[0-9a-f]{8}\.tmp|[^/]+\.parquet\.damaged-[0-9a-f]{8})"): Kind.LEFT,
}


def numbers(folder: str, name: str) -> tuple[int, ...]:
    """The numbers in the name of a file in a folder below `folder`; none where it is not so."""
    match = _NUMBERED[folder].fullmatch(name)
    return () if match is None else tuple(map(int, match.groups()))


def kind(path: str, audits: Collection[str], preparations: Collection[str]) -> Kind:
    """What the file at this path in a run with these ids of audits and preparations is."""
    folder, *below = path.split("/")
    if folder in _NUMBERED and len(below) == 2:
        owners = preparations if folder == "preparations" else audits
        if below[0] in owners and numbers(folder, below[1]):
            return Kind.TOLD if folder == "missed" else Kind.OF_THE_RUN
    for pattern, other in _OTHERS.items():
        if pattern.fullmatch(path):
            return other
    return Kind.FOREIGN if below and folder in _NUMBERED else Kind.OTHER

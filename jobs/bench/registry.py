"""All mechanisms of the bench."""

from . import noise, selection
from .entry import Entry

FAMILIES: dict[str, tuple[Entry, ...]] = {
    "noise": noise.ENTRIES,
    "selection": selection.ENTRIES,
}
ENTRIES = [entry for entries in FAMILIES.values() for entry in entries]

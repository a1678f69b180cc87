"""All mechanisms of the bench."""

from . import (
    histograms,
    learning,
    local,
    noise,
    pipelines,
    selection,
    sparse_vector,
)
from .entry import Entry

FAMILIES: dict[str, tuple[Entry, ...]] = {
    "noise": noise.ENTRIES,
    "selection": selection.ENTRIES,
    "sparse vectors": sparse_vector.ENTRIES,
    "local protocols": local.ENTRIES,
    "histograms": histograms.ENTRIES,
    "learning": learning.ENTRIES,
    "pipelines": pipelines.ENTRIES,
}
ENTRIES = [entry for entries in FAMILIES.values() for entry in entries]

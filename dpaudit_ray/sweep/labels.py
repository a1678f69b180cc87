"""Labels of audits: what all have in common is said once."""

from __future__ import annotations

from collections.abc import Sequence

JOINT = ", "  # between the parts of a label


def parted(labels: Sequence[str]) -> tuple[str, list[str]]:
    """What all labels share, and what is left of each; of a lone one everything is left."""
    parts = [label.split(JOINT) for label in labels]
    if len(parts) < 2:
        return "", list(labels)
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    left = [JOINT.join(part for part in each if part not in shared) for each in parts]
    return JOINT.join(shared), left


def briefly(labels: Sequence[str]) -> tuple[str, list[str]]:
    """A legend, which may be empty, and labels without what it says of all of them.

    Where all name the same keys in one order, that is "audit: KEY, KEY", and labels are values.
    """
    shared, left = parted(labels)
    if not all(left):
        return "", list(labels)
    pairs = [[_pair(part) for part in label.split(JOINT)] for label in left]
    keys = {tuple(key for key, _ in each) for each in pairs}
    said = [f"all: {shared}"] if shared else []
    if len(labels) > 1 and len(keys) == 1 and any(names := keys.pop()):
        said.insert(0, f"audit: {JOINT.join(name or 'name' for name in names)}")
        left = [JOINT.join(value for _, value in each) for each in pairs]
    return "; ".join(said), left


def _pair(part: str) -> tuple[str, str]:
    """Key and value; of a name with options, such as `loss period=5`, no key."""
    key, equals, value = part.partition("=")
    return (key, value) if equals and " " not in key else ("", part)

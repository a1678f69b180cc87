"""Limits of an audit in one script, with hints where the script may depend on it."""

import re
from pathlib import Path

from .protocol import RunResult

_DATA = "data before training: filtering, duplicates, and constants computed from the records"
_FOLLOWED_DATA = (
    "data before training: filtering by thresholds, and all processing before the script"
)
_UNIT = "several records of one person or document: the claim is for one record"
_NUMBERS = "random generators and floating-point arithmetic"
_SCALING = "scaling by the records"
# What a line of code may use records for, by a pattern of such lines.
_HINTS = {
    r"class_weight|compute_class_weight|bincount|WeightedRandomSampler": "class weights",
    r"[Vv]ocab|Counter\(|most_common|fit_transform|LabelEncoder": "a vocabulary or encoding",
    r"best_(?:epoch|loss|acc|model)|early_stop|EarlyStopping|patience|"
    r"(?:if|while) .*(?:loss|acc).* [<>]": "the choice of an epoch",
    r"\bprint\(|logger\.|logging\.|wandb|tensorboard|SummaryWriter|"
    r"\.to_(?:csv|json|hdf)\(|json\.dump|csv\.writer|savefig|h5py": "printed or written values",
    r"\.mean\(0|\.std\(0|StandardScaler|mean\(axis=0|std\(axis=0": _SCALING,
}


def unchecked_in(
    script: Path,
    result: RunResult,
    follows_preparation: bool,
) -> tuple[str, ...]:
    """Returns what no check covers in this script, in words, with the first line that may do it.

    Args:
        script: the script's file.
        result: result of the script's inspected run.
        follows_preparation: the preparation of the records was checked.
    """
    unchecked = [_FOLLOWED_DATA if follows_preparation else _DATA, _UNIT, _NUMBERS]
    try:
        source = script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        source = ""
    for line_number, line in enumerate(source.splitlines(), 1):
        code = line.partition("#")[0]
        for pattern, hint in _HINTS.items():
            is_listed = any(item.startswith(hint) for item in unchecked)
            is_checked = follows_preparation and hint == _SCALING
            if not (is_listed or is_checked) and re.search(pattern, code):
                unchecked.append(f"{hint} ({script.name}:{line_number})")
    if result.processes:
        unchecked.append(result.unwatched_processes)
    if not result.made:
        unchecked.append("how the custom loop forms per-example gradients")
    return tuple(unchecked)
